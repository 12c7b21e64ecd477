"""The ``vllm serve`` line of a config: what a user types to get the server that was simulated."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

from kvsim.checked import Component, check
from kvsim.config import ClusterConfig, EngineConfig, MultiConnectorConfig, RunConfig, TraceConfig
from kvsim.config.presets import ConnectorPreset, expand_presets
from kvsim.errors import UserError
from kvsim.steptime.model import load_model, repository_of
from kvsim.steptime.spec import ModelSpec
from kvsim.vllm_line.command_line import CommandLine
from kvsim.vllm_line.meaning import parse_command_line
from kvsim.vllm_line.named import preset_json, preset_of, preset_remark
from kvsim.vllm_line.speculative import SIMULATED
from kvsim.vllm_line.transfer_json import environment_of, remarks_on, transfer_json
from kvsim.vllm_line.words import shown, unresolved
from kvsim.yamlfile import Document

# Keys of an engine section that are flags of the same name; None and kvsim's default, which is vLLM's, are not printed.
_VALUES = (
    "block_size", "num_gpu_blocks_override", "gpu_memory_utilization", "kv_cache_memory_bytes",
    "max_num_batched_tokens", "max_num_seqs", "max_model_len", "scheduling_policy", "long_prefill_token_threshold",
    "data_parallel_size",
)  # fmt: skip
_SWITCHES = (
    "enable_chunked_prefill", "enable_prefix_caching", "disable_hybrid_kv_cache_manager", "scheduler_reserve_full_isl",
    "disable_chunked_mm_input", "async_scheduling",
)  # fmt: skip
_KV_DTYPES = {"bf16": "bfloat16", "fp8": "fp8"}
_SECTIONS = ("model", "hardware", "engine", "connector", "step_time", "transfer", "frontend")
# Facts about hardware and its speed, and what is assumed: vLLM has them, and no flag says them.
_NO_FLAG = re.compile(
    r"(hardware|step_time|transfer|cluster|frontend)\..*|engine\.kind|engine\.speculative\.(acceptance_rate|draft_time)"
    r"|connector\.(.*\.)?(storage|name|(read|write)_bandwidth|latency|handshake|lookup_latency|descriptor_time"
    r"|piecewise_launch|kv_layout|coalesce|restarts.*)"
)
# With lmcache server; in tokens, which is all that 0.23.0 has; a flag without effect unless there is a frontend.
_SAID_ELSEWHERE = re.compile(r"connector\.(.*\.)?(l1_size|chunk_size|block_size_factor)|frontend\.api_servers")


def to_command_line(config: RunConfig, like: CommandLine | None = None) -> str:
    """The ``vllm serve`` line of a config, on several lines, with what has no counterpart in vLLM as comments.

    A cluster has a line for each group of its instances. `parse_command_line` reads a line back.

    Args:
        config: of a run.
        like: the line that the config was made of, and changed since: its model, its drafter and the flags that have no
            effect here stay.
    """
    if config.cluster is None:
        return _text(config, "both", like)
    blocks: list[str] = []
    for number, group in enumerate(config.cluster.instances):
        role = "" if group.role == "both" else f", {group.role}"
        blocks.append(f"# {group.count} x {group.name}{role}\n{_text(config.of_group(number), group.role, like)}")
    cluster = _of_cluster(config.cluster)
    return "\n".join([*blocks, *(["".join(f"# {line}\n" for line in cluster)] if cluster else [])])


def _of_cluster(cluster: ClusterConfig) -> list[str]:
    """What a cluster has beside its servers, where it is not the default."""
    found: dict[str, Any] = {}
    for name, field in ClusterConfig.model_fields.items():
        value = getattr(cluster, name)
        if name == "instances" or value == field.get_default(call_default_factory=True):
            continue
        found[name] = cluster.model_dump(mode="json", include={name})[name]
        if isinstance(value, Component):
            kind = {"kind": found[name]["kind"]} if "kind" in found[name] else {}
            found[name] = kind | value.model_dump(mode="json", exclude_defaults=True)
    return [_lost_line(key, value) for key, value in _flat(found, "cluster")] if found else []


def _words(config: RunConfig, role: str, like: CommandLine | None) -> list[list[str]]:
    """The words behind ``vllm serve`` of one server: each flag with its value."""
    spec = _spec(config)
    words = [[_model_name(config) if like is None else like.model]]
    hardware, engine = config.hardware, config.engine
    if hardware.tensor_parallel_size != 1:
        words.append(["--tensor-parallel-size", str(hardware.tensor_parallel_size)])
    if hardware.expert_parallel:
        words.append(["--enable-expert-parallel"])
    if config.model.kv_cache_dtype != "auto":
        words.append(["--kv-cache-dtype", _KV_DTYPES[config.model.kv_cache_dtype]])
    if config.model.weight_dtype == "fp8":
        words.append(["--quantization", "fp8"])
    for key in _VALUES:
        value = getattr(engine, key)
        if value is not None and value != type(engine).model_fields[key].default:
            words.append([f"--{key.replace('_', '-')}", str(value)])
    if config.frontend is not None and config.frontend.api_servers is not None:
        words.append(["--api-server-count", str(config.frontend.api_servers)])
    words += _switches(engine, spec)
    interval = engine.prefix_cache_retention_interval
    if interval != 0 and engine.vllm_version != "0.23.0":
        words.append(["--prefix-cache-retention-interval", str(interval)])  # None is a value of vLLM's too
    if engine.max_loras != 1:
        words.append(["--enable-lora", "--max-loras", str(engine.max_loras)])
    if engine.speculative is not None:
        words.append(["--speculative-config", _json(_drafts(config, like))])
    block_tokens = engine.block_size or (64 if spec is not None and spec.mla else 16)
    transfer = _transfer(config, role, block_tokens)
    if transfer:
        words.append(["--kv-transfer-config", _json(transfer)])
    return words + [list(flag) for flag in like.kept] if like is not None else words


def _switches(engine: EngineConfig, spec: ModelSpec | None) -> Iterator[list[str]]:
    hybrid = spec is not None and any(group.kind == "linear" for group in spec.groups)
    for key in _SWITCHES:
        value, flag = getattr(engine, key), f"--{key.replace('_', '-')}"
        default: bool | None = type(engine).model_fields[key].default
        if key == "enable_prefix_caching" and hybrid and engine.vllm_version == "0.23.0":
            default = False
        if key == "async_scheduling":
            default = None  # vLLM's default hangs on more, and reading a line takes its absence for false
        if value is not None and value != default:
            yield [flag if value else f"--no-{flag[2:]}"]


def _transfer(config: RunConfig, role: str, block_tokens: int) -> dict[str, Any]:
    found = transfer_json(config.connector, role, block_tokens=block_tokens, version=config.engine.vllm_version)
    preset = _only_preset(config)
    return found if preset is None else preset_json(preset, config.connector, found["kv_role"])


def _only_preset(config: RunConfig) -> ConnectorPreset | None:
    """Of the connector as a whole: the line can name what it stands for."""
    return None if isinstance(config.connector, MultiConnectorConfig) else preset_of(config)


def _text(config: RunConfig, role: str, like: CommandLine | None) -> str:
    words = _words(config, role, like)
    environment = environment_of(config.connector) if _only_preset(config) is None else {}
    hardware = config.hardware
    gpus = hardware.tensor_parallel_size * config.engine.data_parallel_size
    head = "".join(f"{name}={shlex.quote(value)} " for name, value in environment.items()) + "vllm serve "
    lines = " \\\n  ".join(" ".join(map(_quoted, flag)) for flag in words)
    command = f"{head}{lines}"
    remarks = [f"vLLM {config.engine.vllm_version} on {gpus} x {hardware.gpu}", *_remarks(config, command, like)]
    return "\n".join([f"# {remarks[0]}", command, *(f"# {remark}" for remark in remarks[1:])]) + "\n"


def _remarks(config: RunConfig, command: str, like: CommandLine | None) -> Iterator[str]:
    """What the line does not say."""
    name = config.model.name
    if like is None and _model_name(config) == name and "/" not in name:
        yield f"{name} is a name of kvsim's: put the model's repository or folder"
    drafts = config.engine.speculative
    if drafts is not None and drafts.method != "ngram" and _drafts(config, like) == _drafts(config, None):
        also = " (eagle stands for eagle3 and mtp too)" if drafts.method == "eagle" else ""
        yield f'put your method{also} and the "model" of your drafter into --speculative-config'
    preset, alone = preset_of(config), _only_preset(config)
    if preset is not None:
        yield preset_remark(preset, several=alone is None)
    if alone is None:
        yield from remarks_on(config.connector)
    yield from _what_reading_back_lacks(config, command)


def _what_reading_back_lacks(config: RunConfig, command: str) -> Iterator[str]:
    """Keys that the line does not bring back, and why vLLM would not start with it."""
    try:
        line = _parsed(command, config)
        back = _config(line, config)
    except UserError as error:
        yield f"cannot be read back, so that what it lacks is not known: {error}"
        return
    yield from (text for text in line.problems if not text.startswith("not simulated: "))
    before, after = (dict(_flat(each.model_dump(mode="json", include=set(_SECTIONS)))) for each in (config, back))
    before["model.name"] = after.get("model.name")
    for key, value in before.items():
        if value != after.get(key) and value is not None and not _SAID_ELSEWHERE.fullmatch(key):
            yield _lost_line(key, value)


def _lost_line(key: str, value: Any) -> str:
    return f"{'no flag says' if _NO_FLAG.fullmatch(key) else 'not in vLLM'}: {key} = {value}"


def config_of_line(command: str, like: RunConfig | None = None) -> RunConfig:
    """The config of a command line, for the release, the GPU and the trace of another one.

    Raises:
        UserError: the line cannot be simulated, or what it says does not fit together.
    """
    line = _parsed(command, like)
    line.checked_sections()
    return _config(line, like)


def _parsed(command: str, like: RunConfig | None) -> CommandLine:
    version, gpu = (like.engine.vllm_version, like.hardware.gpu) if like is not None else (None, None)
    model = like.model.name if like is not None and like.model.name.endswith(".json") else None
    return parse_command_line(command, version, gpu, model_config=model)


def _config(line: CommandLine, like: RunConfig | None) -> RunConfig:
    trace = like.trace if like is not None else TraceConfig(path=("trace.jsonl",))
    data = {"trace": trace.model_dump(mode="json"), **deepcopy(dict(line.sections)), "cluster": {}}
    if like is not None:
        data["model"] = {"name": like.model.name} | data["model"]  # one that is no preset has none
    expand_presets(data)
    del data["cluster"]
    return check(RunConfig, Document("command line", data))


def _flat(data: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(data, dict) and data:
        for key, value in data.items():
            yield from _flat(value, f"{place}.{key}" if place else key)
    elif isinstance(data, list) and data:
        for number, value in enumerate(data):
            yield from _flat(value, f"{place}.{number}")
    else:
        yield place, data


def _spec(config: RunConfig) -> ModelSpec | None:
    try:
        return load_model(config.model.name)
    except UserError:
        return None


def _model_name(config: RunConfig) -> str:
    """What vLLM can load: a repository, or the folder of a config.json."""
    name = config.model.name
    if name.endswith(".json"):
        return str(Path(name).parent)
    spec = None if "/" in name else _spec(config)
    return (repository_of(spec.name) if spec is not None else None) or name


def _drafts(config: RunConfig, like: CommandLine | None) -> dict[str, Any]:
    drafts = config.engine.speculative
    assert drafts is not None
    if like is not None and like.speculative and SIMULATED.get(str(like.speculative.get("method"))) == drafts.method:
        return dict(like.speculative) | {"num_speculative_tokens": drafts.num_speculative_tokens}
    found: dict[str, Any] = {"method": drafts.method, "num_speculative_tokens": drafts.num_speculative_tokens}
    return found | ({} if drafts.lookahead_block_hashes else {"disable_lookahead_block_hashes": True})


def _quoted(word: str) -> str:
    """As bash wants it; what the paste left unresolved is left to the shell."""
    return f'"{shown(word)}"' if unresolved(word) else shlex.quote(word)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
