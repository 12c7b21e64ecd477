"""Whether vLLM would start the model of a line as the line says: heads, length and memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any

from kvsim.errors import UserError
from kvsim.steptime.gpu import GpuSpec
from kvsim.steptime.spec import ModelSpec, Quantization
from kvsim.vllm_line.command_line import Ranks

GIB = 2**30
_MEMORY_SHARE = 0.92  # vLLM's default of --gpu-memory-utilization, of both releases
_FP8 = Quantization("fp8", 1.0, "fp8", 1.0, "fp8")


def heads_unfit(spec: ModelSpec, ranks: Ranks) -> Iterator[str]:
    """Heads that cannot be spread over the ranks (vLLM config/model.py, verify_with_parallel_config)."""
    try:
        spec.check_tp(ranks.tensor or 1)
    except UserError as error:
        yield f"--{str(error).replace('_', '-', 2)}"


def config_unfit(
    spec: ModelSpec, values: Mapping[str, Any], environment: Mapping[str, str], ranks: Ranks, gpu: GpuSpec
) -> Iterator[str]:
    """What hangs on more of the model's config than its shape: its length and the type of its weights."""
    length = values.get("--max-model-len")
    # vLLM config/model.py, _get_and_verify_max_len; what --hf-overrides makes of the model's length is not worked out.
    allowed = environment.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0").strip().lower() in ("1", "true")
    if length is not None and length > spec.max_position and not allowed and "--hf-overrides" not in values:
        yield (
            f"--max-model-len: expected at most the {spec.max_position:,} tokens of {spec.name}, found {length:,}"
            " (more: --hf-overrides with rope scaling, or VLLM_ALLOW_LONG_MAX_MODEL_LEN=1)"
        )
    yield from _too_heavy(spec, values, ranks, gpu)


def _too_heavy(spec: ModelSpec, values: Mapping[str, Any], ranks: Ranks, gpu: GpuSpec) -> Iterator[str]:
    """Weights that leave nothing for KV: no activations counted, experts spread as widely as they can be."""
    quantized = values.get("--quantization")
    if quantized == "fp8" and spec.quantization.name == "none":
        spec = spec.with_quantization(_FP8)
    elif quantized not in (None, spec.quantization.name):
        return
    if ranks.pipeline != 1 or ranks.tensor is None or ranks.data is None or values.get("--cpu-offload-gb"):
        return
    weights = spec.weight_bytes(ranks.tensor, ranks.tensor * ranks.data)
    share = values.get("--gpu-memory-utilization") or _MEMORY_SHARE
    if any(values.get(flag) is not None for flag in ("--kv-cache-memory-bytes", "--num-gpu-blocks-override")):
        share = 1.0  # the KV cache is not what is left of the share
    room = ceil(gpu.memory_bytes * share) if 0 < share <= 1 else gpu.memory_bytes
    if weights >= room:
        yield (
            f"{weights / GIB:.1f} GiB of weights of {spec.name} on each GPU, expected less than {room / GIB:.1f} GiB"
            f" ({share:g} of {gpu.name}): more --tensor-parallel-size, or a larger GPU"
        )
