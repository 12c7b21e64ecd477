"""A run, written down: one frozen component per part of the simulator, and YAML in and out.

YAML keys are the field names and ``kind:`` selects the class of a component. Sizes, times and rates carry
their unit in the file and are integers here: bytes, nanoseconds, bytes per second.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from kvsim.checked import Component, Misfit, check, components
from kvsim.overrides import apply_override
from kvsim.units import Duration, Rate, Size
from kvsim.yamlfile import Keys, dump_yaml, is_path, read_yaml

SECOND_NS = 10**9
GIB = 2**30


def _path_list(value: object) -> object:
    paths = [value] if isinstance(value, str) else value
    if isinstance(paths, list | tuple) and paths and all(isinstance(path, str) and path for path in paths):
        if any("\0" in path for path in paths):
            raise ValueError("expected a path, found one with a NUL character")
        return tuple(paths)
    raise ValueError(f"expected a path or a list of paths, found {value!r:.60}")


def _yes_no(value: object) -> object:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else value


def _name(value: object) -> object:
    if isinstance(value, str) and (
        not value.strip() or value.startswith(".") or not value.isprintable() or set("/\\") & set(value)
    ):
        raise ValueError(f"expected a name that can be a folder's (no / or \\, no dot in front), found {value!r:.60}")
    return value


Paths = Annotated[tuple[str, ...], BeforeValidator(_path_list), PlainSerializer(list, return_type=list[str])]
YesNo = Annotated[Literal["auto", "yes", "no"], BeforeValidator(_yes_no)]
Name = Annotated[str, BeforeValidator(_name)]
Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1)]


class TraceConfig(Component):
    """Which requests arrive, and how their sessions are spread over time."""

    path: Paths = Field(description="trace file, folder, or a list of them, relative to this file's folder")
    kind: Literal["auto", "kv-cache-tester", "mooncake", "sessions"] = Field(
        "auto", description="format of the trace; auto tells by its content"
    )
    outputs_return: YesNo = Field(
        "auto", description="whether generated tokens come back in the next prompt of the session"
    )
    max_sessions: Count | None = Field(None, description="play only the first so many sessions of the trace")
    session_interval: Duration = Field(
        60 * SECOND_NS, description="time between the starts of sessions that carry no arrival time"
    )
    max_think_time: Duration | None = Field(
        60 * SECOND_NS, description="cap on the pause between two turns of a session; null = as recorded"
    )
    max_concurrent_sessions: Count | None = Field(
        None, description="sessions at the same time, later ones wait; null = no limit"
    )
    time_scale: float = Field(1.0, gt=0, le=1e6, description="recorded pauses and arrival times are multiplied by this")
    spread_arrivals: bool = Field(
        False, description="spread requests that share an arrival time evenly up to the next arrival time"
    )


class ModelConfig(Component):
    """The model that is served. A plain name in YAML is short for ``{name: ...}``."""

    name: Text = Field(description="name of a model preset, or path of a HuggingFace config.json")
    weight_dtype: Literal["auto", "bf16", "fp8"] = Field(
        "auto", description="type of the weights; auto = as the model's config.json says"
    )
    kv_cache_dtype: Literal["auto", "bf16", "fp8"] = Field(
        "auto", description="vLLM's --kv-cache-dtype; auto = the model's type"
    )

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: object) -> object:
        return {"name": value} if isinstance(value, str) else value


class HardwareConfig(Component):
    """The GPUs of one engine and the links between them and the host."""

    gpu: Text = Field("h100-sxm", description="name of a GPU preset, or path of a GPU file")
    tensor_parallel_size: Count = Field(1, description="vLLM's --tensor-parallel-size")
    expert_parallel: bool = Field(False, description="vLLM's --enable-expert-parallel")
    link: Text | None = Field(
        None, description="link profile: a preset's name or a path; null = the preset for the GPU"
    )
    host_dram_bandwidth: Annotated[Rate, Field(gt=0)] | None = Field(
        None, description="DRAM bandwidth that all ranks share; null = the link profile's"
    )


class EngineConfig(Component):
    """One vLLM engine; names and meanings are those of `vllm serve`."""

    kind: Literal["reference"] = Field("reference", description="reference = every step is executed")
    vllm_version: Literal["0.33.0", "0.23.0"] = Field("0.33.0", description="release whose decisions are made")
    block_size: Annotated[int, Field(ge=1, le=65536)] | None = Field(
        None, description="vLLM's --block-size: tokens in a KV block; null = 16, or 64 for MLA models"
    )
    num_gpu_blocks_override: Count | None = Field(
        None, description="vLLM's --num-gpu-blocks-override; null = computed from memory"
    )
    gpu_memory_utilization: float = Field(
        0.92, gt=0, le=1, description="vLLM's --gpu-memory-utilization: part of GPU memory that vLLM may use"
    )
    kv_cache_memory_bytes: Annotated[Size, Field(gt=0)] | None = Field(
        None, description="vLLM's --kv-cache-memory-bytes, per GPU; null = from gpu_memory_utilization"
    )
    max_num_batched_tokens: Count | None = Field(
        None,
        description="vLLM's --max-num-batched-tokens: tokens in a step; null = vLLM's default for the GPU",
    )
    max_num_seqs: Count | None = Field(
        None, description="vLLM's --max-num-seqs: running requests; null = vLLM's default for the GPU"
    )
    max_model_len: Count | None = Field(
        None, description="vLLM's --max-model-len: tokens of one request; null = the model's own"
    )
    scheduling_policy: Literal["fcfs", "priority"] = Field("fcfs", description="vLLM's --scheduling-policy")
    enable_chunked_prefill: bool = Field(True, description="vLLM's --enable-chunked-prefill")
    long_prefill_token_threshold: int = Field(
        0,
        ge=0,
        description="vLLM's --long-prefill-token-threshold: cap on one request's tokens in a step; 0 = none",
    )
    enable_prefix_caching: bool = Field(True, description="vLLM's --enable-prefix-caching")
    scheduler_reserve_full_isl: bool = Field(
        True, description="vLLM's --scheduler-reserve-full-isl: admit a prompt only if all of it fits"
    )

    @model_validator(mode="after")
    def _fits(self) -> EngineConfig:
        budget, key = self.max_num_batched_tokens, "max_num_batched_tokens"
        if budget is None:
            return self
        if self.max_num_seqs is not None and budget < self.max_num_seqs:
            raise Misfit(key, f"expected at least max_num_seqs ({self.max_num_seqs}), found {budget}")
        if not self.enable_chunked_prefill and self.max_model_len is not None and budget < self.max_model_len:
            raise Misfit(
                key,
                f"expected at least max_model_len ({self.max_model_len}) "
                f"because enable_chunked_prefill is false, found {budget}",
            )
        return self


class NoConnector(Component):
    """No KV offloading."""

    kind: Literal["none"] = Field("none", description="no connector")


class OffloadingConnectorConfig(Component):
    """vLLM's OffloadingConnector with CPU memory as the only tier."""

    kind: Literal["offloading"] = Field("offloading", description="vLLM's OffloadingConnector")
    cpu_bytes_to_use: Annotated[Size, Field(gt=0)] = Field(
        description="CPU memory for KV, in total over all ranks of the engine, such as 64GiB"
    )
    eviction_policy: Literal["lru", "arc"] = Field("lru", description="which blocks leave CPU memory first")
    block_size_factor: Count = Field(1, description="GPU blocks in one offloaded block")
    offload_prompt_only: bool = Field(True, description="keep generated tokens out of CPU memory")
    store_threshold: int = Field(
        0, ge=0, description="store a block only when it was offered so many times (2 or more); 0 = always"
    )
    kv_layout: Literal["cross_layer", "per_layer"] = Field(
        "cross_layer", description="one copy per block (all layers together), or one per block, layer and K or V"
    )

    @model_validator(mode="after")
    def _fits(self) -> OffloadingConnectorConfig:
        if self.store_threshold == 1:
            raise Misfit("store_threshold", "expected 0 (store always) or 2 and more, found 1, which filters nothing")
        return self


class SimpleCPUConnectorConfig(Component):
    """vLLM's SimpleCPUOffloadConnector: a second block pool in CPU memory."""

    kind: Literal["simple_cpu"] = Field("simple_cpu", description="vLLM's SimpleCPUOffloadConnector")
    cpu_bytes_to_use: Annotated[Size, Field(gt=0)] = Field(
        8 * GIB, description="CPU memory for KV, in total over all ranks of the server"
    )
    cpu_bytes_to_use_per_rank: Annotated[Size, Field(gt=0)] | None = Field(
        None, description="CPU memory for KV of each rank; wins over cpu_bytes_to_use"
    )
    lazy_offload: bool = Field(
        False, description="copy only what is about to be evicted from the GPU, instead of all that is computed"
    )


class RooflineStepTime(Component):
    """Step times from the model's and the GPU's figures."""

    kind: Literal["roofline"] = Field("roofline", description="computed from the model and the GPU")


class FixedStepTime(Component):
    """Step times that are linear in the tokens of the step."""

    kind: Literal["fixed"] = Field("fixed", description="a constant per step and per token")
    per_step: Duration = Field(description="time of a step without its tokens, such as 5ms")
    per_token: Duration = Field(description="time of each scheduled token, such as 50us")

    @model_validator(mode="after")
    def _fits(self) -> FixedStepTime:
        if not self.per_step and not self.per_token:
            raise Misfit("per_step", "expected more than 0 when per_token is 0, found 0: time would stand still")
        return self


class ProfileTransfer(Component):
    """KV copies take the time that the link profile says."""

    kind: Literal["profile"] = Field("profile", description="timed by the link profile")


class InstantTransfer(Component):
    """KV copies take no time: the upper bound of what offloading can give."""

    kind: Literal["instant"] = Field("instant", description="copies take no time")


class OutputConfig(Component):
    """What a run leaves behind."""

    folder: Text | None = Field(None, description="run folder, relative to the current folder; null = runs/<name>")
    series_points: int = Field(2000, ge=2, description="samples in the time series")
    plots: bool = Field(True, description="draw plots")


Connector = Annotated[NoConnector | OffloadingConnectorConfig | SimpleCPUConnectorConfig, Field(discriminator="kind")]
StepTime = Annotated[RooflineStepTime | FixedStepTime, Field(discriminator="kind")]
Transfer = Annotated[ProfileTransfer | InstantTransfer, Field(discriminator="kind")]


class RunConfig(Component):
    """Everything that decides what a run does; equal configs give equal results."""

    name: Name | None = Field(None, description="name of the run; null = the file's name")
    seed: int = Field(0, ge=0, description="seed of every random choice (none is made so far)")
    trace: TraceConfig = Field(description="the requests to play: at least trace.path")
    model: ModelConfig = Field(description="name of a model preset, or path of a HuggingFace config.json")
    hardware: HardwareConfig = Field(default_factory=HardwareConfig, description="GPUs and links")
    engine: EngineConfig = Field(default_factory=EngineConfig, description="the vLLM engine")
    connector: Connector = Field(default_factory=NoConnector, description="where KV goes that leaves the GPU")
    step_time: StepTime = Field(default_factory=RooflineStepTime, description="how long a forward pass takes")
    transfer: Transfer = Field(default_factory=ProfileTransfer, description="how long KV copies take")
    output: OutputConfig = Field(default_factory=OutputConfig, description="what the run leaves behind")
    debug: bool = Field(False, description="check invariants after every step (slow)")

    @property
    def output_folder(self) -> Path:
        """The run folder, relative to the current folder unless absolute."""
        return Path(self.output.folder or f"runs/{self.name or 'unnamed'}")


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read and check a run's YAML file.

    Paths inside the file are relative to the file's folder and become absolute, so that the resolved config
    can be run from anywhere. Paths in overrides, and `output.folder`, are relative to the current folder.

    Args:
        path: the YAML file.
        overrides: ``engine.block_size=32``, ``connector.kind=none``, ...; later ones win.

    Raises:
        UserError: one line about the first problem.
    """
    document = read_yaml(path)
    data = document.data
    if isinstance(data, dict):
        for key in [key for key, value in data.items() if value is None and key in _SECTIONS]:
            del data[key]  # a section whose every key is commented out
        if isinstance(data.get("model"), str):
            data["model"] = {"name": data["model"]}
        _make_absolute(data, (), Path(path).parent)
    sources: dict[Keys, str] = {}
    if isinstance(data, dict):  # if not, the file itself is wrong, and that is what the user hears
        for override in overrides:
            keys = apply_override(override, RunConfig, data, sources)
            _make_absolute(data, keys, Path.cwd())

    def where(keys: Keys) -> str:
        for end in range(len(keys), 0, -1):
            if keys[:end] in sources:
                return sources[keys[:end]]
        return document.where(keys)

    config = check(RunConfig, document, where)
    return config if config.name else config.model_copy(update={"name": _name_of(Path(path))})


def dump_config(config: RunConfig) -> str:
    """A config as YAML with every key and its units; `load_config` reads back an equal one."""
    return dump_yaml(config.model_dump(mode="json"))


_SECTIONS = frozenset(key for key, field in RunConfig.model_fields.items() if components(field.annotation))
_PATHS: tuple[Keys, ...] = (
    ("trace", "path"), ("model",), ("model", "name"), ("hardware", "gpu"), ("hardware", "link"),
)  # fmt: skip


def _name_of(path: Path) -> str:
    stem = "".join(c if c.isprintable() and c not in "/\\" else "-" for c in path.stem).lstrip(".")
    return stem if stem.strip() else "unnamed"


def _make_absolute(data: dict[str, Any], under: Keys, folder: Path) -> None:
    """Make the paths at or below the keys `under` absolute, in place."""
    for keys in _PATHS:
        if keys[: len(under)] != under:
            continue
        section: Any = data
        for key in keys[:-1]:
            section = section.get(key) if isinstance(section, dict) else None
        if not isinstance(section, dict):
            continue
        always = keys == ("trace", "path")

        def absolute(value: Any, always: bool = always) -> Any:
            if isinstance(value, list):
                return [absolute(item, always) for item in value]
            if isinstance(value, str) and value and (always or is_path(value)) and "\0" not in value:
                return os.path.abspath(folder / Path(value).expanduser())  # noqa: PTH100 - no pathlib way to drop ".."
            return value

        if keys[-1] in section:
            section[str(keys[-1])] = absolute(section[str(keys[-1])])
