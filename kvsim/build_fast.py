"""The parts of the fast engine, from a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvsim.build_faults import Faults
from kvsim.config import OffloadingConnectorConfig
from kvsim.connectors.offloading_runs import RunOffloadingConnector
from kvsim.extents.kv_cache_manager import RunKVCacheManager
from kvsim.resolve import Plan


def run_kv_cache_manager(plan: Plan) -> RunKVCacheManager:
    """Block tables by the run; the same methods as `kvsim.cache.kv_cache_manager.KVCacheManager`."""
    return RunKVCacheManager(
        plan.release.extent_pool(plan.sizes.num_gpu_blocks),
        block_size=plan.sizes.block_tokens,
        max_model_len=plan.limits.max_model_len,
        enable_caching=plan.config.engine.enable_prefix_caching,
    )


def run_offloading_connector(
    plan: Plan, config: OffloadingConnectorConfig, kv: RunKVCacheManager, tiers: Sequence[Any], faults: Faults
) -> RunOffloadingConnector:
    """The offloading connector over runs; ``tiers``: built for runs, too."""
    release = plan.release
    primary = release.run_manager(plan.sizes.num_cpu_chunks, release.run_policies[config.eviction_policy])
    ledger = release.run_tiering_manager(primary, tiers) if tiers else primary
    return release.run_offloading_connector(
        faults.ledger(ledger, primary),
        kv.pool,
        names_blocks=faults.copies_fail,
        is_sound=not faults.copies_fail and not faults.engine_dies and not (tiers and faults.tiers_fail),
        block_size=plan.sizes.block_tokens,
        block_size_factor=config.block_size_factor,
        offload_prompt_only=config.offload_prompt_only,
    )
