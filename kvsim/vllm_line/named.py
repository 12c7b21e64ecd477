"""Connectors of vLLM that a preset stands for: the line names them, not what they are simulated by."""

from __future__ import annotations

import re
from typing import Any

from kvsim.config import MooncakeConnectorConfig, MultiConnectorConfig, NixlConnectorConfig, RunConfig
from kvsim.config.presets import ConnectorPreset, load_preset, preset_names
from kvsim.units import TIME_UNITS

_NOTE = re.compile(r"preset (\S+): stands for vLLM's \S+")  # as ConnectorPreset.notes has it
_MORIIO_WAITS = 60 * TIME_UNITS["s"]  # its defer_timeout, see the presets
# What the real one reads its settings from, which no key here says.
_SETTINGS = {
    "hf3fs": "put hf3fs_storage_path and hf3fs_metadata_server_url of your own into kv_connector_extra_config",
    "flexkv": "its sizes stand in the file of FLEXKV_CONFIG_PATH",
}


def preset_of(config: RunConfig) -> ConnectorPreset | None:
    """The preset that the connector, or one of several, was made of, as the config's notes say."""
    made = config.connector
    kinds = {part.kind for part in (made.connectors if isinstance(made, MultiConnectorConfig) else (made,))}
    for note in config.notes:
        found = _NOTE.fullmatch(note)
        if found is not None and found[1] in preset_names():
            preset = load_preset(found[1])
            if preset.connector["kind"] in kinds:
                return preset
    return None


def preset_json(preset: ConnectorPreset, connector: Any, kv_role: str) -> dict[str, Any]:
    """The ``--kv-transfer-config`` of the connector that the preset stands for."""
    extra: dict[str, Any] = {}
    if preset.name == "moriio-read":
        extra["read_mode"] = "true"
    waits = _MORIIO_WAITS
    if isinstance(connector, MooncakeConnectorConfig):
        waits = connector.abort_request_timeout
        if connector.num_workers != 1:
            extra["num_workers"] = connector.num_workers
    elif isinstance(connector, NixlConnectorConfig):
        waits = connector.kv_lease_duration
    if waits != _MORIIO_WAITS:
        extra["defer_timeout"] = waits / TIME_UNITS["s"]
    found: dict[str, Any] = {"kv_connector": preset.vllm, "kv_role": kv_role}
    if getattr(connector, "kv_load_failure_policy", "fail") != "fail":
        found["kv_load_failure_policy"] = "recompute"
    return found | ({"kv_connector_extra_config": extra} if extra else {})


def preset_remark(preset: ConnectorPreset, *, several: bool) -> str:
    """What a reader of the line has to know of it."""
    if several:
        return f"preset {preset.name}: put vLLM's {preset.vllm} in the place of what stands for it"
    settings = f": {_SETTINGS[preset.name]}" if preset.name in _SETTINGS else ""
    return f"preset {preset.name} stands for {preset.vllm}{settings}"
