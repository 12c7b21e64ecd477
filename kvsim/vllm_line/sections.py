"""What a command line says, as the sections of a run's config."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvsim.errors import UserError
from kvsim.steptime.gpu import GpuSpec
from kvsim.steptime.model import load_model
from kvsim.steptime.spec import ModelSpec
from kvsim.vllm_args import translate
from kvsim.vllm_line.speculative import SIMULATED

# Flags that an engine section has by the same name.
_SAME = (
    "block_size", "num_gpu_blocks_override", "gpu_memory_utilization", "max_num_batched_tokens", "max_num_seqs",
    "scheduling_policy", "enable_chunked_prefill", "long_prefill_token_threshold", "enable_prefix_caching",
    "disable_hybrid_kv_cache_manager", "scheduler_reserve_full_isl", "max_loras",
    "disable_chunked_mm_input",
)  # fmt: skip
_KV_DTYPES = {
    "auto": "auto", "bfloat16": "bf16", "float16": "bf16", "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8",
}  # fmt: skip
# Where --block-size is not given, the backend chooses: the smallest size that it takes (vLLM v1/attention/backends).
_BACKEND_BLOCKS = {"FLASHMLA": 64, "FLASHMLA_SPARSE": 64, "CUTLASS_MLA": 128, "FLASHINFER_MLA": 32}


@dataclass
class Sections:
    """What the sections are made of, and, once made, the sections.

    Attributes:
        values, environment, version: of the command line.
        gpu, gpu_name: the GPU, and what the user calls it.
        model, served_names: as the line names the model.
        tensor, data, expert: how it is spread.
        transfer: the ``--kv-transfer-config`` that takes effect.
        speculative: what drafts, by vLLM's keys.
        model_config: the ``config.json`` that the user gave.
        spec: of the model; None = it is not known.
        exact: whether its config is known, and not only the name of a folder or one that clients use.
    """

    values: Mapping[str, Any]
    environment: Mapping[str, str]
    version: str
    gpu: GpuSpec
    gpu_name: str
    model: str
    served_names: tuple[str, ...]
    tensor: int
    data: int
    expert: bool
    transfer: Mapping[str, Any]
    speculative: Mapping[str, Any] | None
    model_config: str | None
    spec: ModelSpec | None = None
    exact: bool = False
    name: str | None = None
    engine: dict[str, Any] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=dict)
    connector: dict[str, Any] = field(default_factory=dict)
    model_section: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    not_simulated: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The sections as YAML has them."""
        found = {"model": self.model_section, "hardware": self.hardware, "engine": self.engine}
        return found | ({"connector": self.connector} if self.connector else {})


def make_sections(wanted: Sections) -> Sections:
    """Fill in the sections, with notes about what had to be assumed, and what is not simulated."""
    spec = wanted.spec = _model(wanted)
    _hardware(wanted)
    _engine(wanted, spec)
    _speculative(wanted)
    _connector(wanted)
    return wanted


def _model(wanted: Sections) -> ModelSpec | None:
    """A preset by the model's name or one that clients call it by, else the config.json."""
    candidates = [wanted.model_config] if wanted.model_config else [wanted.model, *wanted.served_names]
    first_error: UserError | None = None
    for candidate in candidates:
        is_path = candidate.endswith(".json") or os.path.isdir(candidate)  # noqa: PTH112 - any text will do
        try:
            spec = load_model(candidate)
        except UserError as error:
            first_error = first_error or error
            continue
        is_repository = re.fullmatch(r"[\w.-]+/[\w.-]+", candidate) and not candidate.startswith(".")
        wanted.model_section["name"] = _config_file(candidate) if is_path else candidate if is_repository else spec.name
        wanted.exact = is_path or (candidate == wanted.model and bool(is_repository or "/" not in candidate))
        if candidate not in (wanted.model, wanted.model_config):
            wanted.notes.append(f"{wanted.model} is taken for {spec.name}, because it is served as {candidate}")
        break
    else:
        if wanted.model_config:
            assert first_error is not None
            raise first_error
        wanted.not_simulated.append(f"{first_error} (--model-config)")
        return None
    dtype = wanted.values.get("--kv-cache-dtype")
    if dtype is not None and dtype not in _KV_DTYPES:
        wanted.not_simulated.append(f"--kv-cache-dtype {dtype}, expected one of {', '.join(_KV_DTYPES)}")
    elif dtype is not None and _KV_DTYPES[dtype] != "auto":
        wanted.model_section["kv_cache_dtype"] = _KV_DTYPES[dtype]
    if wanted.values.get("--quantization") == "fp8" and spec.quantization.name == "none":
        wanted.model_section["weight_dtype"] = "fp8"
    return spec


def _config_file(path: str) -> str:
    file = path if path.endswith(".json") else f"{path}/config.json"
    return os.path.abspath(file)  # noqa: PTH100 - no pathlib way to drop ".."


def _hardware(wanted: Sections) -> None:
    wanted.hardware |= {"gpu": wanted.gpu_name, "tensor_parallel_size": wanted.tensor}
    if wanted.expert:
        wanted.hardware["expert_parallel"] = True


def _engine(wanted: Sections, spec: ModelSpec | None) -> None:
    values, engine = wanted.values, wanted.engine
    engine["vllm_version"] = wanted.version
    for key in _SAME:
        value = values.get(f"--{key.replace('_', '-')}")
        if value is not None:
            engine[key] = value
    if "--prefix-cache-retention-interval" in values:  # None is a value of it: everywhere
        engine["prefix_cache_retention_interval"] = values["--prefix-cache-retention-interval"]
    if (size := values.get("--kv-cache-memory-bytes")) is not None:
        engine["kv_cache_memory_bytes"] = f"{size}B"
    length = values.get("--max-model-len")
    if length is not None and length > 0:
        engine["max_model_len"] = length
    elif length == -1:
        wanted.notes.append("--max-model-len auto: the model's own length is taken; vLLM shortens it to what fits")
    if wanted.data > 1:
        engine["data_parallel_size"] = wanted.data
    if "max_loras" in engine and not values.get("--enable-lora"):
        del engine["max_loras"]
    _asynchronous(wanted, spec)
    _partial_prefills(wanted, spec)
    _block_size(wanted)
    hybrid = spec is not None and any(group.kind == "linear" for group in spec.groups)
    if hybrid and wanted.version == "0.23.0" and "enable_prefix_caching" not in engine:
        engine["enable_prefix_caching"] = False
        wanted.notes.append("prefix caching is off: vLLM 0.23.0 has it off for models with recurrent layers")


def _asynchronous(wanted: Sections, spec: ModelSpec | None) -> None:
    """The simulator decides one step after the other unless it is told, and can be told with some connectors only."""
    asked = wanted.values.get("--async-scheduling")
    kind = {"OffloadingConnector", "SimpleCPUOffloadConnector", None}
    if asked is False:
        wanted.engine["async_scheduling"] = False
    elif asked is None:
        wanted.notes.append(
            "vLLM decides a step while the last one is computed (async scheduling, its default); here not, unless"
            " engine.async_scheduling=true, which takes longer to simulate"
        )
    elif wanted.version == "0.23.0":
        wanted.notes.append("--async-scheduling is simulated for vLLM 0.33.0 only: left out")
    elif wanted.transfer.get("kv_connector") not in kind:
        wanted.notes.append(f"--async-scheduling is not simulated with {wanted.transfer['kv_connector']}: left out")
    elif wanted.data > 1 and spec is not None and spec.moe is not None:
        wanted.notes.append("--async-scheduling is not simulated with ranks that share experts: left out")
    else:
        wanted.engine["async_scheduling"] = True


def _partial_prefills(wanted: Sections, spec: ModelSpec | None) -> None:
    """VLLM 0.23.0 config/scheduler.py: several partial prefills only set a threshold, 4 % of the model length."""
    several = wanted.values.get("--max-num-partial-prefills")
    if not several or several < 2 or wanted.values.get("--long-prefill-token-threshold"):
        return
    length = wanted.engine.get("max_model_len") or (spec.max_position if spec else None)
    if length is not None:
        wanted.engine["long_prefill_token_threshold"] = int(length * 0.04)
        wanted.notes.append(f"--max-num-partial-prefills {several} sets a threshold of 4 % of the model length alone")


def _block_size(wanted: Sections) -> None:
    attention = wanted.values.get("--attention-config")
    backend = wanted.values.get("--attention-backend") or (attention or {}).get("backend")
    size = _BACKEND_BLOCKS.get(str(backend).upper())
    if size is not None and "block_size" not in wanted.engine:
        wanted.engine["block_size"] = size
        wanted.notes.append(f"attention backend {backend}: blocks of {size} tokens")


def _speculative(wanted: Sections) -> None:
    drafts = wanted.speculative
    if drafts is None:
        return
    method, number = drafts.get("method"), drafts.get("num_speculative_tokens")
    if method not in SIMULATED:
        wanted.not_simulated.append(f"speculative decoding by {method}, expected one of {', '.join(SIMULATED)}")
        return
    if wanted.version != "0.33.0":
        wanted.not_simulated.append(f"speculative decoding of vLLM {wanted.version}, expected --vllm-version 0.33.0")
        return
    section: dict[str, Any] = {"method": SIMULATED[str(method)]}
    if isinstance(number, int) and 1 <= number <= 100:
        section["num_speculative_tokens"] = number
    else:
        wanted.notes.append("num_speculative_tokens is not given: 3 are assumed")
    if drafts.get("disable_lookahead_block_hashes") is True:
        section["lookahead_block_hashes"] = False
    wanted.notes.append(
        "how good drafts are and what they cost is assumed: engine.speculative.acceptance_rate, draft_time"
    )
    wanted.engine["speculative"] = section


def _connector(wanted: Sections) -> None:
    if not wanted.transfer.get("kv_connector"):
        return
    try:
        found = translate(dict(wanted.transfer), wanted.version)
    except UserError as error:
        wanted.not_simulated.append(f"--kv-transfer-config: {error}")
        return
    wanted.connector |= found.connector
    known = ("LMCACHE_CONFIG_FILE and LMCACHE_*", "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT")
    wanted.notes += [note for note in found.notes if not note.startswith(known)]  # they are read here
    for part in (wanted.connector, *wanted.connector.get("connectors", ())):
        for kind, variable, key, unit in _FROM_ENVIRONMENT:
            value = wanted.environment.get(variable)
            if part.get("kind") == kind and value is not None:
                part[key] = f"{value}{unit}" if unit else int(value) if value.isdecimal() else value
    if wanted.values.get("--enable-prefix-caching") is False and wanted.connector.get("kind") == "simple_cpu":
        wanted.connector.clear()
        wanted.notes.append("SimpleCPUOffloadConnector disables itself without prefix caching: nothing is offloaded")
    elif wanted.values.get("--enable-prefix-caching") is False:
        wanted.notes.append(
            "KV is offloaded while prefix caching on the GPU is off: prompts come from the connector alone"
        )


# Of a connector: the environment variable, our key, and the unit that the variable counts in.
_FROM_ENVIRONMENT = (
    ("mooncake", "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT", "abort_request_timeout", "s"),
    ("mooncake_store", "VLLM_MOONCAKE_LOAD_RECV_THREADS", "load_recv_threads", ""),
    ("simple_cpu", "VLLM_KV_OFFLOAD_MAX_BATCH_DESCRIPTORS", "max_batch_descriptors", ""),
)
