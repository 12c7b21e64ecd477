"""``kv_connector_extra_config`` of each connector that can be simulated, in our keys.

Read as vLLM 0.33.0 reads it: its conversions, defaults and refusals. But every key is taken, noted as without effect,
or named as unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kvsim.checked import closest, show
from kvsim.errors import UserError
from kvsim.registry import CONNECTORS

GIB = 2**30
ROLES = ("kv_both", "kv_producer", "kv_consumer")


@dataclass(slots=True)
class Translation:
    """A connector section, and what was left out of it and why."""

    connector: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class Extra:
    """``kv_connector_extra_config`` of one connector: every key is taken, noted or named as unknown."""

    def __init__(
        self,
        extra: Mapping[str, Any],
        out: Translation,
        silent: list[str],
        version: str,
        name: str = "kv_connector_extra_config",
        role: str = "kv_both",
    ) -> None:
        self.out, self.silent, self.version, self.name, self.role = out, silent, version, name, role
        self._extra = dict(extra)
        self._known: list[str] = []

    def take(self, key: str, default: Any = None) -> Any:
        self._known.append(key)
        return self._extra.pop(key, default)

    def whole(self, key: str, least: int) -> int | None:
        """As ``int(value)`` of vLLM: also 1e10, and numbers in quotes."""
        value = self.take(key)
        if value is None:
            return None
        try:
            number = int(value)
        except (TypeError, ValueError, OverflowError):
            raise self.error(key, "a number", value) from None
        if isinstance(value, bool) or number < least:
            raise self.error(key, f"a number, at least {least}", value)
        return number

    def gib(self, key: str) -> int | None:
        """LMCache's sizes: a number of GiB, in bytes here."""
        value = self.take(key)
        if value is None:
            return None
        size = self.number(key, value) * GIB
        if size >= 2**63:
            raise self.error(key, "a number of GiB, less than 2**33", value)
        return int(size)

    def number(self, key: str, value: Any) -> float:
        """More than 0."""
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise self.error(key, "a number", value) from None
        if isinstance(value, bool) or not 0 < number < float("inf"):
            raise self.error(key, "a number, more than 0", value)
        return number

    def truth(self, key: str, *, default: bool) -> bool:
        """As ``bool(value)`` of vLLM: every text but the empty one is true, "false" as well."""
        value = self.take(key, default)
        if isinstance(value, str):
            self.out.notes.append(f"{key}: vLLM takes the text {value!r} for {'true' if value else 'false'}")
        return bool(value)

    def ignore(self, *keys: str) -> None:
        self._known += keys
        self.silent += [key for key in keys if self._extra.pop(key, None) is not None]

    def refuse(self, key: str, why: str, *, unless: Iterable[Any] = (None,)) -> None:
        value = self.take(key)
        if value not in tuple(unless) and value is not None:
            raise UserError(f"{self.name}.{key}: {show(value)}: {why}")

    def end(self) -> None:
        for key in self._extra:
            guess = did_you_mean(closest(key, self._known))
            raise UserError(f"unknown key {self.name}.{key}, expected {', '.join(self._known)}{guess}")

    def error(self, key: str, expected: str, found: object) -> UserError:
        return UserError(f"{self.name}.{key}: expected {expected}, found {show(found)}")


def _offloading(extra: Extra) -> None:
    """OffloadingConnector: v1/kv_offload/cpu/spec.py, tiering/spec.py, connector v1/offloading/config.py."""
    section = extra.out.connector
    section["kind"] = "offloading"
    size = extra.whole("cpu_bytes_to_use", 1)
    section["cpu_bytes_to_use"] = _bytes(size)
    spec = extra.take("spec_name", "CPUOffloadingSpec")
    if spec not in ("CPUOffloadingSpec", "TieringOffloadingSpec"):
        raise extra.error("spec_name", "CPUOffloadingSpec or TieringOffloadingSpec", spec)
    extra.refuse("spec_module_path", "is code for vLLM, expected none")
    blocks, tokens = extra.whole("blocks_per_chunk", 1), extra.whole("block_size", 1)
    if blocks is not None and extra.version == "0.23.0":
        extra.silent.append("blocks_per_chunk (vLLM 0.23.0 does not know it)")
    elif blocks is not None and tokens is not None:
        raise UserError("kv_connector_extra_config: expected block_size or blocks_per_chunk, found both")
    elif blocks is not None:
        section["block_size_factor"] = blocks
    if tokens is not None:
        section["block_size"] = tokens
    extra.refuse("cache_policy_module_path", "is code for vLLM, expected eviction_policy: module:Class for kvsim's")
    policy = extra.take("eviction_policy", "lru")
    if policy not in ("lru", "arc"):
        raise extra.error("eviction_policy", "lru or arc", policy)
    section["eviction_policy"] = policy
    threshold = extra.whole("store_threshold", 0) or 0
    section["store_threshold"] = threshold if threshold >= 2 else 0
    if threshold == 1:
        extra.silent.append("store_threshold 1 (filters nothing)")
    extra.refuse("max_tracker_size", "is not simulated, expected 64000", unless=(64_000,))
    section["offload_prompt_only"] = extra.truth("offload_prompt_only", default=True)
    extra.refuse("sync_load_budget_bytes", "synchronous loads are not simulated, expected 0", unless=(0,))
    extra.ignore("canonical_layout", "self_describing_kv_events", "tier_poll_interval_s")
    extra.refuse("backpressure", "is not simulated, expected none")
    tiers = extra.take("secondary_tiers", [])
    if spec == "CPUOffloadingSpec" and tiers:
        extra.silent.append("secondary_tiers (vLLM reads them with spec_name TieringOffloadingSpec only)")
    elif tiers:
        section["tiers"] = _tiers(tiers, extra)
    if extra.take("num_cpu_blocks") is not None:
        raise UserError("kv_connector_extra_config.num_cpu_blocks: vLLM reads it no more, expected cpu_bytes_to_use")
    extra.end()
    if size is None:
        raise UserError("kv_connector_extra_config.cpu_bytes_to_use is missing: vLLM does not start without it")


def _tiers(tiers: object, extra: Extra) -> list[dict[str, Any]]:
    """TieringOffloadingSpec's ``secondary_tiers``: tiering/spec.py and the constructors of the tiers."""
    if not isinstance(tiers, list):
        raise extra.error("secondary_tiers", "a list", tiers)
    found: list[dict[str, Any]] = []
    for number, given in enumerate(tiers):
        if not isinstance(given, Mapping):
            raise extra.error(f"secondary_tiers.{number}", "a JSON object", given)
        section: dict[str, Any] = {}
        tier = Extra(given, Translation(section), [], extra.version, f"{extra.name}.secondary_tiers.{number}")
        kind = tier.take("type")
        if kind not in _TIER_KEYS:
            known = ", ".join(_TIER_KEYS)
            raise tier.error("type", f"one of {known}, or tiers: [{{kind: module:Class}}] with kvsim's own", kind)
        section["kind"] = kind
        counts, without_effect = _TIER_KEYS[kind]
        for key in counts:
            if (count := tier.whole(key, 1)) is not None:
                section[key] = count
        if kind != "example" and tier.truth("enable_kv_events", default=False):
            section["enable_kv_events"] = True
        tier.ignore(*without_effect)
        tier.refuse("backpressure", "is not simulated, expected none")
        tier.end()
        extra.silent += [f"{key} of tier {number}" for key in tier.silent]
        if (assumed := _TIER_STORAGE.get(kind)) is not None:
            extra.out.notes.append(
                f"vLLM's config does not say what is behind tier {number} ({kind}): connector.tiers.{number}.storage"
                f" {assumed} is assumed"
            )
        found.append(section)
    return found


# By vLLM's type of a tier: numbers that count here, and what changes nothing.
_TIER_KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "fs": (("n_read_threads", "n_write_threads"), ("root_dir", "locality")),
    "obj": (("io_threads",), ("store_config", "prefix", "locality")),
    "example": ((), ("custom_param",)),
}


_TIER_STORAGE = {"fs": "nvme-gen4", "obj": "s3"}  # our defaults


def _simple_cpu(extra: Extra) -> None:
    """SimpleCPUOffloadConnector: kv_connector/v1/simple_cpu_offload_connector.py."""
    section = extra.out.connector
    section["kind"] = "simple_cpu"
    for key in ("cpu_bytes_to_use", "cpu_bytes_to_use_per_rank"):
        size = extra.whole(key, 1)
        if size is not None:
            section[key] = _bytes(size)
    section["lazy_offload"] = extra.truth("lazy_offload", default=False)
    extra.refuse("num_cpu_blocks", "is not simulated, expected cpu_bytes_to_use alone")
    extra.refuse("kv_offload_backend", "is not simulated, expected cpu", unless=("cpu",))
    extra.ignore("disk_path", "disk_capacity_bytes", "disk_buffer_slots", "use_page_cache")
    extra.end()


def _example(extra: Extra) -> None:
    """ExampleConnector: kv_connector/v1/example_connector.py."""
    extra.out.connector["kind"] = "example"
    extra.ignore("shared_storage_path")
    extra.out.notes.append("vLLM's config does not say what storage is shared: the default rates of kind example hold")
    extra.end()


def _lmcache(extra: Extra) -> None:
    """LMCacheConnectorV1: its own keys, and LMCache's behind ``lmcache.`` (lmcache_integration/vllm_v1_adapter.py)."""
    section = extra.out.connector
    section["kind"] = "lmcache"
    for key, least in (("chunk_size", 1), ("min_retrieve_tokens", 0)):
        if (number := extra.whole(f"lmcache.{key}", least)) is not None:
            section[key] = number
    if (size := extra.gib("lmcache.max_local_cpu_size")) is not None:
        section["max_local_cpu_size"] = _bytes(size)
    for key in ("save_decode_cache", "use_layerwise"):
        section[key] = extra.truth(f"lmcache.{key}", default=False)
    # Read by vLLM alone, to choose piecewise CUDA graphs; only LMCache's own key makes it work layer by layer.
    if extra.truth("use_layerwise", default=False) != section["use_layerwise"]:
        raise UserError(f"{extra.name}: expected use_layerwise and lmcache.use_layerwise to be the same")
    disk, room = extra.take("lmcache.local_disk"), extra.gib("lmcache.max_local_disk_size")
    if disk and room:
        section["local_disk"] = {"max_local_disk_size": _bytes(room)}
    if extra.take("lmcache.remote_url"):
        section["remote"] = {}
    extra.refuse("lmcache.local_cpu", "a cache without CPU memory is not simulated, expected true", unless=(True,))
    extra.refuse("lmcache.cache_policy", "is not simulated, expected LRU", unless=("LRU",))
    extra.refuse("skip_last_n_tokens", "is not simulated, expected 0", unless=(0,))
    extra.ignore("use_native", "discard_partial_chunks", "lmcache.remote_serde")
    extra.out.notes.append("LMCACHE_CONFIG_FILE and LMCACHE_* of the environment are not read")
    extra.end()


def _lmcache_mp(extra: Extra) -> None:
    """LMCacheMPConnector: sizes are those of its server, which vLLM's config does not know."""
    section = extra.out.connector
    section["kind"] = "lmcache_mp"
    interval = extra.take("lmcache.mp.heartbeat_interval")
    if interval is not None:
        section["heartbeat_interval"] = f"{extra.number('lmcache.mp.heartbeat_interval', interval):g}s"
    extra.ignore("lmcache.mp.host", "lmcache.mp.port", "lmcache.mp.mq_timeout")
    extra.out.notes.append("vLLM's config does not say how large LMCache's server is: connector.l1_size holds")
    extra.end()


def _nixl(extra: Extra, mode: str = "pull") -> None:
    """NixlConnector, NixlPullConnector, NixlPushConnector: nixl/base_scheduler.py, nixl/base_worker.py."""
    section = extra.out.connector
    section["kind"] = "nixl"
    if mode == "push":
        section["mode"] = mode
    lease = extra.take("kv_lease_duration")
    if lease is not None:
        section["kv_lease_duration"] = f"{extra.number('kv_lease_duration', lease):g}s"
    if extra.truth("bidirectional_kv_xfer", default=False):
        raise UserError(f"{extra.name}.bidirectional_kv_xfer: true: is not simulated, expected false")
    # Of bidirectional transfers only; of the push side's watchdog, which only forgets; of agents and threads.
    extra.ignore("kv_recompute_threshold", "decoder_kv_blocks_ttl", "push_registration_timeout", "backends")
    extra.ignore("num_threads", "enforce_handshake_compat", "engine_ttl")
    extra.end()


def _mooncake(extra: Extra) -> None:
    """MooncakeConnector: mooncake/mooncake_connector.py."""
    section = extra.out.connector
    section["kind"] = "mooncake"
    workers = extra.whole("num_workers", 1)
    if workers is not None:
        section["num_workers"] = workers
    extra.refuse("mooncake_protocol", "is not simulated, expected rdma", unless=("rdma",))
    # The last one is NixlConnector's, and stands in vLLM's own recipes of this one.
    extra.ignore("device_name", "bootstrap_server_address", "enforce_handshake_compat")
    extra.out.notes.append("VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT of the environment is not read: abort_request_timeout")
    extra.end()


def _hf3fs(extra: Extra) -> None:
    """HF3FSKVConnector: hf3fs/hf3fs_connector.py."""
    extra.out.connector["preset"] = "hf3fs"
    size = extra.whole("hf3fs_file_size", 1)
    if size is not None:
        extra.out.notes.append(
            f"hf3fs_file_size {size} is of each rank and of all instances together: cluster.store.disk_per_node ="
            " that x ranks / instances"
        )
    extra.ignore("hf3fs_storage_path", "hf3fs_metadata_server_url", "hf3fs_client_numjobs")
    extra.ignore("hf3fs_max_device_buffer_count")
    extra.end()


def _flexkv(extra: Extra) -> None:
    """FlexKVConnectorV1: all of its settings are FlexKV's own."""
    extra.out.connector["preset"] = "flexkv"
    extra.out.notes.append(
        "FLEXKV_CONFIG_PATH and FLEXKV_* of the environment are not read: connector.cpu_bytes_to_use, connector.tiers"
    )
    extra.end()


def _moriio(extra: Extra) -> None:
    """MoRIIOConnector: moriio/moriio_common.py (MoRIIOConfig); ``read_mode`` is true if its text is true or 1."""
    section = extra.out.connector
    reads = str(extra.take("read_mode", "false")).lower().strip() in ("true", "1")
    section["preset"] = "moriio-read" if reads else "moriio"
    timeout = extra.take("defer_timeout")
    if timeout is not None:
        key = "kv_lease_duration" if reads else "abort_request_timeout"
        section[key] = f"{extra.number('defer_timeout', timeout):g}s"
    extra.refuse("backend", "is not simulated, expected rdma", unless=("rdma",))
    workers = extra.whole("num_workers", 1)
    if workers is not None and not reads:
        section["num_workers"] = workers
    extra.ignore("http_port", "proxy_ip", "proxy_ping_port", "handshake_port", "notify_port", "host_ip")
    extra.ignore("transfer_timeout", "recv_abort_timeout", "qp_per_transfer", "post_batch_size")
    extra.end()


def _decode_bench(extra: Extra) -> None:
    """DecodeBenchConnector: decode_bench_connector.py."""
    extra.out.connector["kind"] = "decode_bench"
    extra.ignore("fill_mean", "fill_std", "startup_fill")
    extra.end()


def _mooncake_store(extra: Extra) -> None:
    """MooncakeStoreConnector: mooncake/store/scheduler.py; sizes are in the file of MOONCAKE_CONFIG_PATH."""
    section = extra.out.connector
    section["kind"] = "mooncake_store"
    section["role"] = extra.role.removeprefix("kv_")
    if not extra.truth("load_async", default=True):
        raise UserError(f"{extra.name}.load_async: false: is not simulated, expected true")
    if extra.version != "0.23.0":
        for key, default in (("save_decode_cache", False), ("enable_lookup", True), ("lookup_async", False)):
            section[key] = extra.truth(key, default=default)
        extra.refuse("store_tp_size", "is not simulated, expected none")
        extra.refuse("prefill_tp_sizes", "is not simulated, expected none")
        extra.refuse("enable_store_tp_lcm", "is not simulated, expected false", unless=(False,))
        extra.ignore("cache_prefix", "enable_group_semantics", "custom_mem_pool")
    extra.ignore("lookup_rpc_port", "enable_cross_layers_blocks")
    if extra.take("preferred_segment"):
        extra.out.notes.append("preferred_segment is cluster.store.placement: local")
    extra.out.notes.append("vLLM's config does not say how large the store is: cluster.store does")
    extra.end()


def _p2p_nccl(extra: Extra) -> None:
    """P2pNcclConnector of vLLM 0.23.0: kv_connector/v1/p2p/p2p_nccl_connector.py."""
    if extra.version != "0.23.0":
        raise UserError(f"kv_connector P2pNcclConnector: vLLM {extra.version} has none, expected 0.23.0")
    extra.out.connector["kind"] = "p2p_nccl"
    extra.refuse("send_type", "is not simulated, expected PUT_ASYNC", unless=("PUT_ASYNC",))
    extra.ignore("proxy_ip", "proxy_port", "http_port", "mem_pool_size_gb", "nccl_num_channels")
    extra.end()


def _multi(extra: Extra) -> None:
    """MultiConnector: multi_connector.py; each of its connectors is a whole --kv-transfer-config."""
    children = extra.take("connectors")
    if not isinstance(children, list) or not children:
        raise extra.error("connectors", "at least one connector", children)
    sections: list[dict[str, Any]] = []
    known = {name: translator for name, translator in translations().items() if name in _PARTS}
    for number, child in enumerate(children):
        place = f"{extra.name}.connectors.{number}"
        if not isinstance(child, Mapping):
            raise UserError(f"{place}: expected a JSON object, found {show(child)}")
        name, role, inner = child.get("kv_connector"), child.get("kv_role"), child.get("kv_connector_extra_config", {})
        if role not in ROLES:
            raise UserError(f"{place}.kv_role: expected one of {', '.join(ROLES)}, found {show(role)}")
        if not isinstance(name, str) or name not in known:
            guess = did_you_mean(closest(str(name), known))
            raise UserError(f"{place}.kv_connector: expected one of {', '.join(known)}, found {show(name)}{guess}")
        if not isinstance(inner, Mapping):
            raise UserError(f"{place}.kv_connector_extra_config: expected a JSON object, found {show(inner)}")
        out = Translation(notes=extra.out.notes)
        known[name](Extra(inner, out, extra.silent, extra.version, f"{place}.kv_connector_extra_config", role))
        sections.append(out.connector)
    extra.out.connector |= {"kind": "multi", "connectors": sections}
    extra.end()


# Of which a MultiConnector may be made here (kvsim/config/connector.py, Part).
_PARTS = (
    "OffloadingConnector", "SimpleCPUOffloadConnector", "LMCacheConnectorV1", "LMCacheMPConnector", "ExampleConnector",
    "MooncakeStoreConnector", "NixlConnector", "NixlPullConnector", "NixlPushConnector", "MooncakeConnector",
)  # fmt: skip


def translations() -> dict[str, Callable[[Extra], None]]:
    """By vLLM's name, those that can be simulated."""
    known: dict[str, tuple[str, Callable[[Extra], None]]] = {
        "OffloadingConnector": ("offloading", _offloading),
        "SimpleCPUOffloadConnector": ("simple_cpu", _simple_cpu),
        "LMCacheConnectorV1": ("lmcache", _lmcache),
        "LMCacheMPConnector": ("lmcache_mp", _lmcache_mp),
        "ExampleConnector": ("example", _example),
        "NixlConnector": ("nixl", _nixl),
        "NixlPullConnector": ("nixl", _nixl),
        "NixlPushConnector": ("nixl", partial(_nixl, mode="push")),
        "MooncakeConnector": ("mooncake", _mooncake),
        "MooncakeStoreConnector": ("mooncake_store", _mooncake_store),
        "MultiConnector": ("multi", _multi),
        "P2pNcclConnector": ("p2p_nccl", _p2p_nccl),
        "DecodeBenchConnector": ("decode_bench", _decode_bench),
        "HF3FSKVConnector": ("mooncake_store", _hf3fs),
        "FlexKVConnectorV1": ("offloading", _flexkv),
        "MoRIIOConnector": ("mooncake", _moriio),
    }
    return {name: function for name, (kind, function) in known.items() if kind in CONNECTORS.names()}


def _bytes(size: int | None) -> str:
    return f"{size or 0}B"


def did_you_mean(guess: str | None) -> str:
    """The end of a message about something misspelt."""
    return f", did you mean {guess}?" if guess else ""
