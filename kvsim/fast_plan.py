"""Which engine a run gets: the fast one where it is exact, else the reference, and why."""

from __future__ import annotations

from kvsim.config import (
    CustomRouter,
    ExampleTierConfig,
    FsTierConfig,
    MooncakeStoreConnectorConfig,
    ObjTierConfig,
    OffloadingConnectorConfig,
    RunConfig,
)
from kvsim.errors import UserError
from kvsim.gate_plan import GatePlan
from kvsim.kv_groups import KVGroups
from kvsim.registry import ROUTERS

MODELLED_POLICIES = frozenset({"lru", "arc"})


def choose_fast(
    config: RunConfig, groups: KVGroups, gates: GatePlan, *, exports_schedule: bool = False
) -> tuple[bool, str]:
    """Whether the fast engine runs this, and a note that says so.

    ``exports_schedule``: every copy is wanted with its blocks, of which the fast engine knows no ids.

    Raises:
        UserError: ``engine.kind: fast`` with something that only the reference engine does.
    """
    kind = config.engine.kind
    if kind == "reference":
        return False, "reference engine: every step is executed"
    obstacles = needs_reference(config, groups, gates)
    if exports_schedule:
        obstacles.append("--export-schedule (the fast engine has no block ids)")
    if not obstacles:
        return True, "fast engine: quiet steps are jumped over, same results as the reference engine"
    if kind == "fast":
        raise UserError(f"engine.kind: fast: expected reference (or auto) with {', '.join(obstacles)}")
    return False, f"reference engine, because of {', '.join(obstacles)}"


def needs_reference(config: RunConfig, groups: KVGroups, gates: GatePlan) -> list[str]:
    """What in a config the fast engine does not do, by its keys."""
    engine, trace = config.engine, config.trace
    obstacles = {
        "debug": config.debug,
        "output.kv_events": config.output.kv_events,
        "a router that hears KV events": hears_kv_events(config),
        "trace.streaming_sessions": trace.streaming_sessions,
        "requests with LoRA adapters": gates.max_loras > 0,
        "requests with a grammar": gates.grammars > 0,
        "images or audio": gates.encoder_budget_tokens > 0,
        "engine.async_scheduling": engine.async_scheduling,
        "engine.speculative": engine.speculative is not None,
        "engine.data_parallel_size": engine.data_parallel_size > 1,
        "KV cache groups that are not full attention": bool(groups.specs),
        "cluster.store.quotas": bool(config.cluster and config.cluster.store and config.cluster.store.quotas),
    }
    return [name for name, is_given in obstacles.items() if is_given] + _of_connector(config)


def _of_connector(config: RunConfig) -> list[str]:
    connector = config.connector
    if connector.kind == "none":
        return []
    if isinstance(connector, MooncakeStoreConnectorConfig):
        return [] if config.engine.enable_prefix_caching else ["engine.enable_prefix_caching false"]
    if not isinstance(connector, OffloadingConnectorConfig):
        return [f"connector.kind {connector.kind}"]
    modelled = (FsTierConfig, ObjTierConfig, ExampleTierConfig)
    obstacles = {
        f"connector.eviction_policy {connector.eviction_policy}": connector.eviction_policy not in MODELLED_POLICIES,
        "connector.store_threshold": connector.store_threshold >= 2,
        f"connector.admission {connector.admission.kind}": connector.admission.kind != "always",
        "connector.tiers of your own": any(not isinstance(tier, modelled) for tier in connector.tiers),
        "engine.enable_prefix_caching false": not config.engine.enable_prefix_caching,
    }
    return [name for name, is_given in obstacles.items() if is_given]


def hears_kv_events(config: RunConfig) -> bool:
    """Whether there is a router in front, and it wants the KV events of the instances."""
    cluster = config.cluster
    routers = () if cluster is None else (cluster.router, cluster.decode_router)
    return any(
        bool(getattr(ROUTERS.find(router.kind, config.python_path), "hears_kv_events", False))
        if isinstance(router, CustomRouter)
        else getattr(router, "index", "") == "kv_events"
        for router in routers
    )
