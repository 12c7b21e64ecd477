"""Block tables of a scenario: those of plain full attention, or the groups that it names."""

from __future__ import annotations

from typing import Any

from kvsim.cache.block_pool import BlockPool
from kvsim.cache.groups import ChunkedLocal, FullAttention, GroupSpec, Mamba, SlidingWindow
from kvsim.cache.hybrid_kv_cache_manager import AnyKVCacheManager, HybridKVCacheManager
from kvsim.cache.kv_cache_manager import KVCacheManager
from kvsim.speculation import Speculation


def group_spec(group: dict[str, Any], options: dict[str, Any]) -> GroupSpec:
    """A scenario's group as the KV cache manager wants it."""
    size = group.get("block_size") or options["block_size"]
    match group["kind"]:
        case "sliding_window":
            return SlidingWindow(size, group["window"])
        case "chunked_local":
            return ChunkedLocal(size, group["chunk"])
        case "mamba" if options["no_prefix_caching"]:
            return Mamba(options["max_model_len"], "none")
        case "mamba":
            return Mamba(size, checkpoints=bool(group.get("checkpoints")))
        case _:
            return FullAttention(size)


def build_kv_cache_manager(o: dict[str, Any], pool: BlockPool, drafts: Speculation | None) -> AnyKVCacheManager:
    """The block tables of a scenario's options."""
    longest, caching = o["max_model_len"], not o["no_prefix_caching"]
    if o["groups"] is None:
        return KVCacheManager(
            pool,
            block_size=o["block_size"],
            max_model_len=longest,
            enable_caching=caching,
            num_lookahead_tokens=drafts.num_lookahead_tokens if drafts else 0,
            drops_last_hit=drafts is not None and drafts.drops_last_hit,
            hash_lookahead_tokens=drafts.hash_lookahead_tokens if drafts else 0,
        )
    return HybridKVCacheManager(
        pool,
        [group_spec(group, o) for group in o["groups"]],
        max_model_len=longest,
        max_in_flight_tokens=o["max_num_batched_tokens"],
        enable_caching=caching,
        retention_tokens=None if o["retention_interval"] == "dense" else o["retention_interval"],
    )
