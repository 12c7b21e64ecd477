"""A connector section as the ``--kv-transfer-config`` JSON that asks vLLM for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvsim.config import (
    Connector,
    FsTierConfig,
    LMCacheConnectorConfig,
    LMCacheMPConnectorConfig,
    MooncakeConnectorConfig,
    MooncakeStoreConnectorConfig,
    MultiConnectorConfig,
    NixlConnectorConfig,
    ObjTierConfig,
    OffloadingConnectorConfig,
    SimpleCPUConnectorConfig,
)
from kvsim.units import TIME_UNITS

GIB = 2**30
FOLDER, ENDPOINT = "/path/to/kv", "endpoint"  # what a config of ours does not say, and vLLM wants to know
ROLES = {"both": "kv_both", "prefill": "kv_producer", "decode": "kv_consumer"}
Extra = dict[str, Any]


def transfer_json(connector: Connector, role: str = "both", *, block_tokens: int, version: str) -> dict[str, Any]:
    """The JSON of a connector; {} where vLLM has none like it.

    Args:
        connector: the section.
        role: of the instance: both, prefill or decode.
        block_tokens: of a GPU block.
        version: of vLLM.
    """
    found = _NAMES.get(connector.kind)
    if found is None:
        return {}
    name, extra_of = found
    own_role = ROLES[role]
    if isinstance(connector, NixlConnectorConfig) and connector.mode == "push":
        name = "NixlPushConnector"
    if isinstance(connector, MooncakeStoreConnectorConfig):
        own_role = f"kv_{connector.role}"
    if isinstance(connector, MultiConnectorConfig):
        children = [
            transfer_json(part, role, block_tokens=block_tokens, version=version) for part in connector.connectors
        ]
        extra: Extra = {"connectors": children}
    else:
        extra = extra_of(connector)
    if isinstance(connector, OffloadingConnectorConfig) and version == "0.23.0" and "blocks_per_chunk" in extra:
        extra["block_size"] = extra.pop("blocks_per_chunk") * block_tokens
    result: dict[str, Any] = {"kv_connector": name, "kv_role": own_role}
    if getattr(connector, "kv_load_failure_policy", "fail") != "fail":
        result["kv_load_failure_policy"] = "recompute"
    if isinstance(connector, NixlConnectorConfig) and connector.kv_buffer_device != "cuda":
        result["kv_buffer_device"] = connector.kv_buffer_device
    return result | ({"kv_connector_extra_config": extra} if extra else {})


def environment_of(connector: Connector) -> dict[str, str]:
    """Environment variables that vLLM reads for a connector, where they differ from its defaults."""
    parts = connector.connectors if isinstance(connector, MultiConnectorConfig) else (connector,)
    found: dict[str, str] = {}
    for part in parts:
        if isinstance(part, MooncakeConnectorConfig) and part.abort_request_timeout != 480 * TIME_UNITS["s"]:
            found["VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT"] = f"{part.abort_request_timeout // TIME_UNITS['s']}"
        if isinstance(part, MooncakeStoreConnectorConfig) and part.load_recv_threads != 1:
            found["VLLM_MOONCAKE_LOAD_RECV_THREADS"] = str(part.load_recv_threads)
        if isinstance(part, SimpleCPUConnectorConfig) and part.max_batch_descriptors:
            found["VLLM_KV_OFFLOAD_MAX_BATCH_DESCRIPTORS"] = str(part.max_batch_descriptors)
    return found


def remarks_on(connector: Connector) -> list[str]:
    """What a reader of the line has to add, or to start beside vLLM."""
    parts = connector.connectors if isinstance(connector, MultiConnectorConfig) else (connector,)
    found: list[str] = []
    for part in parts:
        if isinstance(part, OffloadingConnectorConfig) and any(isinstance(t, FsTierConfig) for t in part.tiers):
            found.append(f"{FOLDER}: put the folder of your storage")
        if isinstance(part, OffloadingConnectorConfig) and any(isinstance(t, ObjTierConfig) for t in part.tiers):
            found.append(f"store_config: put your bucket, {ENDPOINT} and keys")
        if isinstance(part, LMCacheMPConnectorConfig):
            found.append(
                f"start beside it: lmcache server --l1-size-gb {_gib(part.l1_size):g} --chunk-size {part.chunk_size}"
            )
        if isinstance(part, LMCacheConnectorConfig) and (part.local_disk or part.remote):
            found.append("lmcache.local_disk, lmcache.remote_url: put your own")
        if isinstance(part, MooncakeStoreConnectorConfig):
            found.append("the store's size stands in the file of MOONCAKE_CONFIG_PATH (global_segment_size)")
        if part.kind not in _NAMES and part.kind != "none":
            found.append(f"vLLM has no connector like {part.kind}")
    return found


def _offloading(section: Any) -> Extra:
    extra: Extra = {"cpu_bytes_to_use": section.cpu_bytes_to_use}
    if section.tiers:
        extra = {"spec_name": "TieringOffloadingSpec", **extra}
    if section.eviction_policy == "arc":  # of ours, the only other one that vLLM has
        extra["eviction_policy"] = section.eviction_policy
    if section.block_size is not None:
        extra["block_size"] = section.block_size
    elif section.block_size_factor != 1:
        extra["blocks_per_chunk"] = section.block_size_factor
    if not section.offload_prompt_only:
        extra["offload_prompt_only"] = False
    if section.store_threshold:
        extra["store_threshold"] = section.store_threshold
    tiers = [_tier(tier) for tier in section.tiers if tier.kind in ("fs", "obj", "example")]
    return extra | ({"secondary_tiers": tiers} if tiers else {})


def _tier(tier: Any) -> Extra:
    found: Extra = {"type": tier.kind}
    if isinstance(tier, FsTierConfig):
        found["root_dir"] = FOLDER
        counts = {"n_read_threads": tier.n_read_threads, "n_write_threads": tier.n_write_threads}
        found |= {key: number for key, number in counts.items() if number != 16}
    if isinstance(tier, ObjTierConfig):
        found["store_config"] = {"bucket": "bucket", "endpoint_override": ENDPOINT}
        if tier.io_threads != 4:
            found["io_threads"] = tier.io_threads
    if getattr(tier, "enable_kv_events", False):
        found["enable_kv_events"] = True
    return found


def _simple_cpu(section: SimpleCPUConnectorConfig) -> Extra:
    extra: Extra = {"cpu_bytes_to_use": section.cpu_bytes_to_use}
    if section.cpu_bytes_to_use_per_rank is not None:
        extra["cpu_bytes_to_use_per_rank"] = section.cpu_bytes_to_use_per_rank
        if section.cpu_bytes_to_use == SimpleCPUConnectorConfig().cpu_bytes_to_use:
            del extra["cpu_bytes_to_use"]
    return extra | ({"lazy_offload": True} if section.lazy_offload else {})


def _lmcache(section: LMCacheConnectorConfig) -> Extra:
    extra: Extra = {
        "lmcache.chunk_size": section.chunk_size,
        "lmcache.max_local_cpu_size": _gib(section.max_local_cpu_size),
    }
    if section.local_disk is not None:
        extra["lmcache.local_disk"] = f"file://{FOLDER}"
        extra["lmcache.max_local_disk_size"] = _gib(section.local_disk.max_local_disk_size)
    if section.remote is not None:
        extra["lmcache.remote_url"] = "lm://host:port"
    if section.save_decode_cache:
        extra["lmcache.save_decode_cache"] = True
    if section.use_layerwise:
        extra |= {"use_layerwise": True, "lmcache.use_layerwise": True}
    return extra | ({"lmcache.min_retrieve_tokens": n} if (n := section.min_retrieve_tokens) else {})


def _lmcache_mp(section: LMCacheMPConnectorConfig) -> Extra:
    seconds = section.heartbeat_interval / TIME_UNITS["s"]
    return {} if seconds == 10 else {"lmcache.mp.heartbeat_interval": _whole(seconds)}


def _nixl(section: NixlConnectorConfig) -> Extra:
    seconds = section.kv_lease_duration / TIME_UNITS["s"]
    return {} if seconds == 30 else {"kv_lease_duration": _whole(seconds)}


def _mooncake(section: MooncakeConnectorConfig) -> Extra:
    return {} if section.num_workers == 10 else {"num_workers": section.num_workers}


def _mooncake_store(section: MooncakeStoreConnectorConfig) -> Extra:
    wanted = {
        "save_decode_cache": (section.save_decode_cache, False),
        "enable_lookup": (section.enable_lookup, True),
        "lookup_async": (section.lookup_async, False),
    }
    return {key: value for key, (value, default) in wanted.items() if value != default}


def _nothing(_section: Any) -> Extra:
    return {}


def _gib(size_bytes: int) -> float:
    return _whole(size_bytes / GIB)


def _whole(number: float) -> float:
    return int(number) if number == int(number) else number


_NAMES: dict[str, tuple[str, Callable[[Any], Extra]]] = {
    "offloading": ("OffloadingConnector", _offloading),
    "simple_cpu": ("SimpleCPUOffloadConnector", _simple_cpu),
    "example": ("ExampleConnector", _nothing),
    "lmcache": ("LMCacheConnectorV1", _lmcache),
    "lmcache_mp": ("LMCacheMPConnector", _lmcache_mp),
    "mooncake_store": ("MooncakeStoreConnector", _mooncake_store),
    "multi": ("MultiConnector", _nothing),
    "nixl": ("NixlConnector", _nixl),
    "mooncake": ("MooncakeConnector", _mooncake),
    "p2p_nccl": ("P2pNcclConnector", _nothing),
    "decode_bench": ("DecodeBenchConnector", _nothing),
}
