"""KVCacheManager: the block tables of requests in one full-attention group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kvsim.cache.block_pool import BlockPool
from kvsim.request import Request


class KVCacheManager:
    """Answers which prefix is cached and hands out the blocks of a request, over a pool.

    Rules: vLLM 0.33.0 v1/core/kv_cache_manager.py and single_type_kv_cache_manager.py. `HybridKVCacheManager` does the
    same for several groups, or for one of another kind.

    Args:
        num_lookahead_tokens: slots that a drafter needs behind the scheduled tokens.
        drops_last_hit: EAGLE: the last block of a hit is computed again, because its drafter's KV there depends on
            the token after it.
        hash_lookahead_tokens: tokens after a block that its hash covers.
    """

    num_groups = 1
    hits_are_prefixes = True  # a hit can only be longer than before if the block behind it is there now
    no_hits: Sequence[int] = ()
    aligned_states = None  # no recurrent states whose block boundaries prefill must stop at

    def __init__(
        self,
        pool: BlockPool,
        *,
        block_size: int,
        max_model_len: int,
        enable_caching: bool = True,
        num_lookahead_tokens: int = 0,
        drops_last_hit: bool = False,
        hash_lookahead_tokens: int = 0,
    ) -> None:
        self.pool, self.block_size, self.max_model_len = pool, block_size, max_model_len
        self.enable_caching, self.num_lookahead_tokens = enable_caching, num_lookahead_tokens
        self.drops_last_hit, self.hash_lookahead_tokens = drops_last_hit, hash_lookahead_tokens
        self.tables: dict[Request, list[int]] = {}
        self._num_cached: dict[Request, int] = {}  # leading blocks of a table that carry their hash

    def get_computed_blocks(self, request: Request) -> list[int]:
        """Longest cached prefix. The last token is always left to compute: capped at ``num_tokens - 1``."""
        if not self.enable_caching:
            return []
        hits = self.pool.longest_prefix(request.block_hashes, (request.num_tokens - 1) // self.block_size)
        return hits[:-1] if self.drops_last_hit else hits

    def num_blocks_to_allocate(self, request: Request, num_tokens: int, hits: Sequence[int] = ()) -> int:
        """Blocks that would leave the free list: new ones, and hits that nobody holds now."""
        new = -(-num_tokens // self.block_size) - len(hits) - len(self.tables.get(request, ()))
        return max(new, 0) + self.pool.num_unreferenced(hits)

    def num_remaining_blocks(self, request: Request, extra_tokens: int = 0) -> int:
        """Blocks the request still needs for the tokens it has now, and some more."""
        return self.num_blocks_to_allocate(request, min(request.num_tokens, self.max_model_len) + extra_tokens)

    def num_hit_tokens(self, hits: Sequence[int]) -> int:
        """Tokens that a local hit covers."""
        return len(hits) * self.block_size

    def max_blocks(self, num_tokens: int) -> int:
        """Blocks that a request of so many tokens holds at most."""
        return -(-num_tokens // self.block_size)

    def num_held_blocks(self, request: Request) -> int:
        """Blocks that the request holds now."""
        return len(self.tables.get(request, ()))

    def full_sequence_fits(self, request: Request, hits: Sequence[int], num_external_tokens: int = 0) -> bool:
        """Whether all of the request's tokens would find blocks now (scheduler_reserve_full_isl)."""
        need = self.num_blocks_to_allocate(request, min(request.num_tokens, self.max_model_len), hits)
        return need <= self.pool.num_free

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        hits: Sequence[int] = (),
        num_external_tokens: int = 0,
        *,
        delay_cache_blocks: bool = False,
        reserved_blocks: int = 0,
    ) -> list[int] | None:
        """Blocks for ``num_new_tokens`` after what is computed, hit locally and loaded; None if they don't fit.

        A refusal changes nothing. Otherwise, in this order: touch the hits, take blocks for the external tokens, take
        blocks for the new tokens, give full blocks their hash (at schedule time, before they are computed), unless
        their KV is still to be loaded (``delay_cache_blocks``).

        Returns:
            The blocks taken for the new tokens: for a running request exactly what its table gained.
        """
        size, pool = self.block_size, self.pool
        computed = request.num_computed_tokens + len(hits) * size + num_external_tokens
        computed = min(computed, self.max_model_len)
        lookahead = 0 if delay_cache_blocks else self.num_lookahead_tokens  # a load computes nothing yet
        need_tokens = min(computed + num_new_tokens + lookahead, self.max_model_len)
        table = self.tables.get(request)
        if table is None or hits or num_external_tokens:
            if self.num_blocks_to_allocate(request, need_tokens, hits) > pool.num_free - reserved_blocks:
                return None
            table = self.tables.setdefault(request, [])
            if hits or num_external_tokens:
                if hits:
                    pool.touch(hits)
                    table += hits
                self._num_cached.setdefault(request, len(table))
            if num_external_tokens > 0:  # below 0: vLLM's ExampleConnector, which then computes hit blocks again
                table += pool.get_new_blocks(-(-computed // size) - len(table))
        else:  # the common case, a running request: nothing to look up
            missing = -(-need_tokens // size) - len(table)
            if missing > pool.num_free - reserved_blocks:
                return None
        new = pool.get_new_blocks(max(-(-need_tokens // size) - len(table), 0))
        table += new
        if not delay_cache_blocks:
            self.cache_blocks(request, min(computed + num_new_tokens, request.num_tokens))
        return new

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Hash the full blocks among the first ``num_tokens``, from the first that has none."""
        if not self.enable_caching:
            return
        full = min(num_tokens // self.block_size, len(request.block_hashes))
        done = self._num_cached.get(request, 0)
        if full > done:
            self.pool.cache_full_blocks(self.tables[request], request.block_hashes, done, full)
            self._num_cached[request] = full
            if self.pool.kv_events is not None:
                self.pool.kv_events.cached(request.block_hashes, done, full, self.block_size)

    def new_step_starts(self) -> None:
        """A step's decisions begin."""

    def remove_skipped_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Full attention needs every block to the end."""

    def take_boundary_states(self) -> Sequence[Any]:
        """There are no recurrent states."""
        return ()

    def holders(self) -> Iterable[list[int]]:
        """The blocks of every request. For invariants."""
        return self.tables.values()

    def free(self, request: Request) -> None:
        """Give the request's blocks back, tail first, so that its tail is evicted before its head."""
        self.pool.free_blocks(reversed(self.pop_table(request)))

    def pop_table(self, request: Request) -> list[int]:
        """Forget the request; its blocks are still referenced, and whoever calls frees them, tail first."""
        self._num_cached.pop(request, None)
        return self.tables.pop(request, [])
