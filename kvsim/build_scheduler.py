"""From a plan to a scheduler and the KV cache manager that it asks, for either engine."""

from __future__ import annotations

from typing import Any, cast

from kvsim.build_fast import run_kv_cache_manager
from kvsim.cache.hybrid_kv_cache_manager import AnyKVCacheManager, HybridKVCacheManager
from kvsim.cache.kv_cache_manager import KVCacheManager
from kvsim.connectors.base import KVConnector
from kvsim.gates.base import Gate
from kvsim.load_failures import LoadFailurePolicy
from kvsim.resolve import Plan
from kvsim.scheduler import Scheduler


def build_kv_cache_manager(plan: Plan) -> AnyKVCacheManager:
    """The GPU's blocks and who has which of them."""
    if plan.fast:
        in_runs: Any = run_kv_cache_manager(plan)  # the same methods
        return cast("AnyKVCacheManager", in_runs)
    caching = plan.config.engine.enable_prefix_caching
    pool, longest = plan.release.block_pool(plan.sizes.num_gpu_blocks), plan.limits.max_model_len
    if not plan.sizes.groups.specs:
        drafts = plan.speculation
        return KVCacheManager(
            pool,
            block_size=plan.sizes.block_tokens,
            max_model_len=longest,
            enable_caching=caching,
            num_lookahead_tokens=drafts.num_lookahead_tokens if drafts else 0,
            drops_last_hit=drafts is not None and drafts.drops_last_hit,
            hash_lookahead_tokens=drafts.hash_lookahead_tokens if drafts else 0,
        )
    return HybridKVCacheManager(
        pool,
        plan.sizes.groups.specs,
        max_model_len=longest,
        max_in_flight_tokens=plan.limits.max_num_batched_tokens,
        enable_caching=caching,
        retention_tokens=plan.config.engine.prefix_cache_retention_interval,
    )


def build_scheduler(plan: Plan, kv: AnyKVCacheManager, connector: KVConnector | None, gates: Gate) -> Scheduler:
    """The release's scheduler of the plan's kind: of cohorts, with drafts, one step ahead, or none of these."""
    release, drafts, is_async = plan.release, plan.speculation, plan.config.engine.async_scheduling
    policy: LoadFailurePolicy = getattr(plan.config.connector, "kv_load_failure_policy", "fail")
    if plan.fast:
        return release.cohort_scheduler(plan.limits, kv, connector, gates, kv_load_failure_policy=policy)
    if drafts is not None:
        speculative = release.async_speculative_scheduler if is_async else release.speculative_scheduler
        assert speculative is not None, "the config refuses drafts of other releases"
        return speculative(plan.limits, kv, connector, gates, speculation=drafts, kv_load_failure_policy=policy)
    kind: type[Scheduler] | None = release.async_scheduler if is_async else release.scheduler
    assert kind is not None, "the config refuses asynchronous scheduling of other releases"
    return kind(plan.limits, kv, connector, gates, kv_load_failure_policy=policy)
