"""What a command line offloads: connector, role and sizes, of the whole engine and of each rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kvsim.checked import closest, show
from kvsim.vllm_args import GIB, KNOWN_CONNECTORS
from kvsim.vllm_connectors import ROLES, did_you_mean

GB = 10**9
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
ONLY_IN = {
    "P2pNcclConnector": "0.23.0",
    "NixlPullConnector": "0.33.0",
    "NixlPushConnector": "0.33.0",
    "HiSparseConnector": "0.33.0",
}
# vLLM 0.33.0 kv_connector/v1: those that are no SupportsHMA; MoRIIOConnector is one since 0.24.
WITHOUT_HMA = frozenset({
    "LMCacheConnectorV1", "LMCacheMPConnector", "P2pNcclConnector", "HF3FSKVConnector", "FlexKVConnectorV1",
    "ExampleConnector",
})  # fmt: skip
OLD_NAMES = {
    "SharedStorageConnector": "ExampleConnector",
    "LMCacheConnector": "LMCacheConnectorV1",
    "PyNcclConnector": "P2pNcclConnector",
    "DynamoNixlConnector": "NixlConnector",
}
# Environment variables of LMCache that are its config's keys; others change nothing here.
LMCACHE_KEYS = (
    "chunk_size", "local_cpu", "max_local_cpu_size", "local_disk", "max_local_disk_size", "remote_url",
    "remote_serde", "save_decode_cache", "cache_policy", "use_layerwise", "min_retrieve_tokens",
)  # fmt: skip
_LMCACHE_CPU_GIB = 5.0  # LMCache's max_local_cpu_size, of each worker process


@dataclass(frozen=True)
class KVTransfer:
    """A connector and what it has room for.

    Attributes:
        connector: vLLM's name.
        role: ``kv_both``, ``kv_producer`` or ``kv_consumer``.
        cpu_bytes: CPU memory for KV of one engine, all its ranks; each data-parallel rank is an engine. None = the line
            does not say, or there is none.
        cpu_bytes_per_rank: of that, each rank's.
        cpu_tokens: where the line counts tokens instead.
        disk_bytes: storage behind it; None = not said.
        tiers: kinds of storage behind CPU memory, in order.
        children: of a MultiConnector, in the order in which they are asked.
    """

    connector: str
    role: str
    cpu_bytes: int | None = None
    cpu_bytes_per_rank: int | None = None
    cpu_tokens: int | None = None
    disk_bytes: int | None = None
    tiers: tuple[str, ...] = ()
    children: tuple[KVTransfer, ...] = ()


def parser_refusals(config: Mapping[str, Any]) -> Iterator[str]:
    """Why vLLM's parser refuses a ``--kv-transfer-config``; keys that it does not know are the parser's matter."""
    name, role = config.get("kv_connector"), config.get("kv_role")
    if name is not None and not isinstance(name, str):
        yield f"--kv-transfer-config: kv_connector: expected text, found {show(name)}"
    elif name is not None and role is None:
        yield f"--kv-transfer-config: kv_role is missing, expected one of {', '.join(ROLES)}"
    elif role is not None and role not in ROLES:
        yield f"--kv-transfer-config: kv_role: expected one of {', '.join(ROLES)}, found {show(role)}"
    if config.get("kv_load_failure_policy", "fail") not in ("fail", "recompute"):
        found = show(config["kv_load_failure_policy"])
        yield f"--kv-transfer-config: kv_load_failure_policy: expected fail or recompute, found {found}"
    extra = config.get("kv_connector_extra_config", {})
    if not isinstance(extra, Mapping):
        yield f"--kv-transfer-config: kv_connector_extra_config: expected a JSON object, found {show(extra)}"


def start_failures(config: Mapping[str, Any], version: str) -> Iterator[str]:
    """Why vLLM does not start with a connector that its parser takes."""
    name = config.get("kv_connector")
    if name is None or config.get("kv_connector_module_path"):
        return
    if name in ONLY_IN and ONLY_IN[name] != version:
        yield f"kv_connector {name}: vLLM {version} has none, vLLM {ONLY_IN[name]} has"
    elif name in OLD_NAMES:
        yield f"kv_connector {name}: vLLM {version} has none of that name any more, {OLD_NAMES[name]} took its place"
    elif name not in KNOWN_CONNECTORS:
        guess = did_you_mean(closest(str(name), KNOWN_CONNECTORS))
        yield f"kv_connector {name}: vLLM {version} has none, and kv_connector_module_path is not given{guess}"


def without_hma(config: Mapping[str, Any], version: str) -> str | None:
    """The first connector here that cannot do with the hybrid KV cache manager, if one cannot."""
    names = [str(config.get("kv_connector"))]
    if names[0] == "MultiConnector":
        names = [str(child.get("kv_connector")) for child in children_of(config)]
    lacking = WITHOUT_HMA | ({"MoRIIOConnector"} if version == "0.23.0" else set())
    return next((name for name in names if name in lacking), None)


def children_of(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The connectors of a MultiConnector."""
    extra = config.get("kv_connector_extra_config") or {}
    listed = extra.get("connectors") if isinstance(extra, Mapping) else None
    return [child for child in listed if isinstance(child, Mapping)] if isinstance(listed, list) else []


def with_lmcache_settings(
    config: Mapping[str, Any], environment: Mapping[str, str]
) -> tuple[dict[str, Any], list[str], list[str]]:
    """The config with LMCache's settings from where they stand: connector config, else its file, else environment.

    Returns:
        The config, notes, and what keeps it from being simulated.
    """
    found = dict(config)
    if config.get("kv_connector") == "MultiConnector":
        settled = [with_lmcache_settings(child, environment) for child in children_of(config)]
        if not settled or len(settled) != len(config["kv_connector_extra_config"]["connectors"]):
            return found, [], []  # it is refused as it stands
        extra = dict(config["kv_connector_extra_config"]) | {"connectors": [child for child, _, _ in settled]}
        return (
            found | {"kv_connector_extra_config": extra},
            [note for _, notes, _ in settled for note in notes],
            [problem for _, _, problems in settled for problem in problems],
        )
    given = config.get("kv_connector_extra_config", {})
    if config.get("kv_connector") != "LMCacheConnectorV1" or not isinstance(given, Mapping):
        return found, [], []
    path = environment.get("LMCACHE_CONFIG_FILE")
    notes, problems = [], []
    settings: dict[str, Any] = {}
    if path is None:
        settings = {
            key: _plain(environment[n]) for key in LMCACHE_KEYS if (n := f"LMCACHE_{key.upper()}") in environment
        }
    else:
        ignored = sorted(name for name in environment if name.startswith("LMCACHE_") and name != "LMCACHE_CONFIG_FILE")
        if ignored:
            notes.append(f"LMCache ignores {', '.join(ignored)}, because LMCACHE_CONFIG_FILE is set")
        try:
            data = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=_LOADER)  # noqa: S506 - a safe loader
            settings = {key: data[key] for key in LMCACHE_KEYS if key in data} if isinstance(data, dict) else {}
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            what = getattr(error, "strerror", None) or "is not YAML"
            problems.append(f"LMCACHE_CONFIG_FILE {path}: {what}: it says how large LMCache's memory is")
    found["kv_connector_extra_config"] = {f"lmcache.{key}": value for key, value in settings.items()} | dict(given)
    return found, notes, problems


def _plain(text: str) -> Any:
    return {"true": True, "false": False}.get(text.lower(), text)


def describe(config: Mapping[str, Any], environment: Mapping[str, str], world_size: int | None) -> KVTransfer | None:
    """Connector and sizes of an effective ``--kv-transfer-config``.

    Args:
        config: with LMCache's settings, and what ``--kv-offloading-size`` makes of it.
        environment: of the engine.
        world_size: ranks of one engine (TP x PP x PCP); None = not known.
    """
    name, role = config.get("kv_connector"), str(config.get("kv_role"))
    if not isinstance(name, str):
        return None
    extra = config.get("kv_connector_extra_config")
    extra = extra if isinstance(extra, Mapping) else {}
    total = rank = tokens = disk = None
    tiers: tuple[str, ...] = ()
    if name == "OffloadingConnector":
        total = _bytes(extra.get("cpu_bytes_to_use"))
        listed = extra.get("secondary_tiers")
        tiers = tuple(str(t.get("type")) for t in listed if isinstance(t, Mapping)) if isinstance(listed, list) else ()
        chunks, chunk_tokens = _bytes(extra.get("num_cpu_blocks")), _bytes(extra.get("block_size"))
        tokens = chunks * chunk_tokens if total is None and chunks and chunk_tokens else None
    elif name == "SimpleCPUOffloadConnector":
        rank = _bytes(extra.get("cpu_bytes_to_use_per_rank"))
        total = None if rank is not None else _bytes(extra.get("cpu_bytes_to_use", 8 * GIB))
    elif name == "LMCacheConnectorV1" and "LMCACHE_CONFIG_FILE" not in environment:
        size = _bytes(extra.get("lmcache.max_local_cpu_size", _LMCACHE_CPU_GIB), GIB)
        rank = 0 if extra.get("lmcache.local_cpu", True) is False else size
    elif config.get("kv_connector_module_path"):  # NVIDIA Dynamo's KVBM
        total = _bytes(environment.get("DYN_KVBM_CPU_CACHE_GB"), GB)
        disk = _bytes(environment.get("DYN_KVBM_DISK_CACHE_GB"), GB)
    if world_size:
        total = rank * world_size if total is None and rank is not None else total
        rank = total // world_size if rank is None and total is not None else rank
    children = tuple(
        child for each in children_of(config) if (child := describe(each, environment, world_size)) is not None
    )
    return KVTransfer(name, role, total, rank, tokens, disk, tiers, children if name == "MultiConnector" else ())


def _bytes(value: object, unit: int = 1) -> int | None:
    """A number in bytes; None where it is none, or none that can be a size."""
    try:
        number = float(value) * unit if isinstance(value, str | int | float) else None
    except (ValueError, OverflowError):
        return None
    if number is None or not abs(number) < 2**63:
        return None
    return value if isinstance(value, int) and unit == 1 else int(number)
