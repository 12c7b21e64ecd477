"""Numbers and names that vLLM's argument parser takes, and its engine does not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvsim.checked import closest
from kvsim.vllm_connectors import did_you_mean

# vLLM 0.33.0 config/cache.py CacheDType; the parser of 0.33.0 takes any text, the engine then does not.
_KV_DTYPES = (
    "auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla", "nvfp4_ds_mla",
    "turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc", "octave_k3v4", "octave_k3v3",
    "octave_k3v3_compact", "ultraquant_4bit", "int4_per_token_head", "int8_per_token_head", "fp8_per_token_head",
    "nvfp4", "nvfp4_4over6",
)  # fmt: skip
_AT_LEAST_1 = (
    "--max-num-batched-tokens", "--max-num-seqs", "--block-size", "--tensor-parallel-size", "--pipeline-parallel-size",
    "--data-parallel-size", "--prefill-context-parallel-size", "--decode-context-parallel-size", "--nnodes",
)  # fmt: skip


def out_of_range(values: Mapping[str, Any], version: str) -> Iterator[str]:
    """What pydantic refuses when the config is made; argparse has no ranges."""
    for flag in _AT_LEAST_1:
        value = values.get(flag)
        if isinstance(value, int) and value < 1:
            yield f"{flag}: expected at least 1, found {value}"
    part = values.get("--gpu-memory-utilization")
    if part is not None and not 0 < part <= 1:
        yield f"--gpu-memory-utilization: expected more than 0, at most 1, found {part:g}"
    length = values.get("--max-model-len")
    if length is not None and length < 1 and length != -1:
        yield f"--max-model-len: expected at least 1, or auto, found {length}"
    threshold = values.get("--long-prefill-token-threshold")
    if threshold is not None and threshold < 0:
        yield f"--long-prefill-token-threshold: expected at least 0, found {threshold}"
    for flag in ("--kv-offloading-size", "--kv-cache-memory-bytes", "--num-gpu-blocks-override"):
        size = values.get(flag)
        if size is not None and not 0 < size < 2**63:
            yield f"{flag}: expected more than 0, found {size:g}"
    dtype = values.get("--kv-cache-dtype")
    if dtype is not None and version != "0.23.0" and dtype not in _KV_DTYPES:
        yield f"--kv-cache-dtype: {dtype!r:.40} is none{did_you_mean(closest(dtype, _KV_DTYPES))}"
