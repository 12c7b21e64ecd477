"""Secondary tiers of a plan, as objects on its clock."""

from __future__ import annotations

from collections.abc import Callable

from kvsim.clock import Clock
from kvsim.config import (
    CustomTier,
    ExampleTierConfig,
    FsTierConfig,
    MooncakeStoreConnectorConfig,
    ObjTierConfig,
    OffloadingConnectorConfig,
    tier_names,
)
from kvsim.extents.files import RunFiles
from kvsim.host_memory import HostMemory
from kvsim.offload.tiering import SecondaryTier
from kvsim.registry import TIERS
from kvsim.resolve import Plan
from kvsim.results.records import TierTotals
from kvsim.storage import StoragePath, StorageProfile
from kvsim.tiers.device import IoCost, IoDirection, StorageDevice
from kvsim.tiers.example import ExampleTier
from kvsim.tiers.files import Files
from kvsim.tiers.own import OwnTier, TierSite
from kvsim.tiers.run_tiers import RunExampleTier, RunStorageTier
from kvsim.tiers.storage_tier import StorageTier
from kvsim.tiers.thread_pool import FifoPool, ThreadPool

BuiltTier = StorageTier | ExampleTier | OwnTier


def has_tiers(plan: Plan) -> bool:
    """Whether a plan's connector has secondary tiers of its own."""
    connector = plan.config.connector
    return isinstance(connector, OffloadingConnectorConfig) and bool(connector.tiers)


def num_tiers(plan: Plan) -> int:
    """How many secondary tiers the books of a plan's connector have; a shared store is one."""
    connector = plan.config.connector
    if isinstance(connector, MooncakeStoreConnectorConfig):
        return 1
    return len(connector.tiers) if isinstance(connector, OffloadingConnectorConfig) else 0


def build_tiers(
    env: Clock,
    plan: Plan,
    on_change: Callable[[], None],
    on_written: Callable[[], None],
    on_blocked: Callable[[int], None],
    memory: HostMemory | None = None,
) -> list[BuiltTier]:
    """The tiers behind the plan's CPU memory, in order.

    Args:
        env: the plan's clock.
        plan: says which tiers.
        on_change: called whenever one of them has something new.
        on_written: instead, if all that is new has been written.
        on_blocked: told of time (ns) that a lookup holds the scheduler up.
        memory: host memory, which they share with the copies to and from the GPU.
    """
    for part in plan.parts:
        if has_tiers(part):
            return build_tiers(env, part, on_change, on_written, on_blocked, memory)
    connector = plan.config.connector
    if not isinstance(connector, OffloadingConnectorConfig):
        return []
    tiers: list[StorageTier | ExampleTier | OwnTier] = []
    chunk_bytes = plan.sizes.cpu_chunk_bytes
    for name, config, storage in zip(tier_names(connector.tiers), connector.tiers, plan.storages, strict=True):
        if isinstance(config, ExampleTierConfig):
            example = RunExampleTier if plan.fast else ExampleTier
            tiers.append(example(TierTotals(name, config.kind, "host memory", chunk_bytes), chunk_bytes))
            continue
        if isinstance(config, CustomTier):
            site = TierSite(env, chunk_bytes, plan.config.seed, on_change)
            tier: SecondaryTier = TIERS.make(config.kind, [site], config.options, plan.config.python_path)
            tiers.append(OwnTier(env, tier, TierTotals(name, config.kind, "its own", chunk_bytes), chunk_bytes))
            continue
        assert storage is not None
        tiers.append(_storage_tier(env, plan, name, config, storage, on_change, on_written, on_blocked, memory))
    return tiers


def _storage_tier(
    env: Clock,
    plan: Plan,
    name: str,
    config: FsTierConfig | ObjTierConfig,
    storage: StorageProfile,
    on_change: Callable[[], None],
    on_written: Callable[[], None],
    on_blocked: Callable[[int], None],
    memory: HostMemory | None,
) -> StorageTier:
    chunk_bytes = plan.sizes.cpu_chunk_bytes
    most = None if config.capacity is None else config.capacity // chunk_bytes
    pool: ThreadPool
    if isinstance(config, FsTierConfig):
        pool = ThreadPool(config.n_read_threads, config.n_write_threads)
        tasks_per_job, exists_ns = plan.release.file_tasks_per_job, storage.exists.used
    else:  # a task per object, and no question before it is put
        pool, tasks_per_job, exists_ns = FifoPool(config.io_threads), None, None
    evicts = config.eviction == "lru"
    return (RunStorageTier if plan.fast else StorageTier)(
        env,
        StorageDevice(env, _costs(config, storage), on_change, memory, on_written),
        pool,
        RunFiles(most, evict=evicts) if plan.fast else Files(most, evict=evicts),
        TierTotals(name, config.kind, storage.device, chunk_bytes, capacity_chunks=most or 0),
        chunk_bytes=chunk_bytes,
        tasks_per_job=tasks_per_job,
        exists_ns=exists_ns,
        lookup_ns=storage.lookup_ns,
        in_background=plan.release.background_lookups,
        on_change=on_change,
        on_written=on_written,
        on_blocked=on_blocked,
        publishes=config.enable_kv_events,
    )


def _costs(config: FsTierConfig | ObjTierConfig, storage: StorageProfile) -> dict[IoDirection, IoCost]:
    def cost(path: StoragePath, bandwidth: int | None) -> IoCost:
        whole = bandwidth or path.bandwidth.used
        return IoCost(
            bytes_per_s=whole,
            stream_bytes_per_s=min(path.stream.used, whole) if path.stream else whole,
            latency_ns=path.latency.used if config.latency is None else config.latency,
            iops=path.iops.used if path.iops else 0,
            op_bytes=storage.operation,
        )

    return {"read": cost(storage.read, config.read_bandwidth), "write": cost(storage.write, config.write_bandwidth)}
