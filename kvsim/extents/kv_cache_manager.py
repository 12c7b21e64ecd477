"""RunKVCacheManager: the block tables of requests over a pool by the run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kvsim.extents.extent_pool import ExtentPool
from kvsim.extents.pool_copies import NO_HITS, Hits
from kvsim.extents.pool_pieces import Table
from kvsim.request import Request


class RunKVCacheManager:
    """Decides as `KVCacheManager` does for one full-attention group without a drafter.

    ``request.block_hashes`` must be `PathKeys`.
    """

    num_groups = 1
    hits_are_prefixes = True
    no_hits = NO_HITS
    aligned_states = None
    num_lookahead_tokens = hash_lookahead_tokens = 0
    drops_last_hit = False

    def __init__(self, pool: ExtentPool, *, block_size: int, max_model_len: int, enable_caching: bool = True) -> None:
        self.pool, self.block_size, self.max_model_len = pool, block_size, max_model_len
        self.enable_caching = enable_caching
        self.tables: dict[Request, Table] = {}

    def get_computed_blocks(self, request: Request) -> Hits:
        """Longest cached prefix. The last token is always left to compute: capped at ``num_tokens - 1``."""
        if not self.enable_caching:
            return NO_HITS
        keys: Any = request.block_hashes
        return self.pool.cached.longest_prefix(
            keys.path, min((request.num_tokens - 1) // self.block_size, keys.num_keys)
        )

    def num_blocks_to_allocate(self, request: Request, num_tokens: int, hits: Hits = NO_HITS) -> int:
        """Blocks that would leave the free queue: new ones, and hits that nobody holds now."""
        table = self.tables.get(request)
        new = -(-num_tokens // self.block_size) - hits.num_blocks
        if table is not None:
            new -= table.num_hashed + table.num_plain
        return max(new, 0) + hits.num_unreferenced

    def num_remaining_blocks(self, request: Request, extra_tokens: int = 0) -> int:
        """Blocks the request still needs for the tokens it has now, and some more."""
        return self.num_blocks_to_allocate(request, min(request.num_tokens, self.max_model_len) + extra_tokens)

    def num_hit_tokens(self, hits: Hits) -> int:
        """Tokens that a local hit covers."""
        return hits.num_blocks * self.block_size

    def max_blocks(self, num_tokens: int) -> int:
        """Blocks that a request of so many tokens holds at most."""
        return -(-num_tokens // self.block_size)

    def num_hashed_blocks(self, request: Request) -> int:
        """Leading blocks of its table that can be found."""
        return self.tables[request].num_hashed

    def num_held_blocks(self, request: Request) -> int:
        """Blocks that the request holds now."""
        return len(self.tables.get(request, ()))

    def full_sequence_fits(self, request: Request, hits: Hits, num_external_tokens: int = 0) -> bool:
        """Whether all of the request's tokens would find blocks now (scheduler_reserve_full_isl)."""
        need = self.num_blocks_to_allocate(request, min(request.num_tokens, self.max_model_len), hits)
        return need <= self.pool.num_free

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        hits: Hits = NO_HITS,
        num_external_tokens: int = 0,
        *,
        delay_cache_blocks: bool = False,
        reserved_blocks: int = 0,
    ) -> int | None:
        """Blocks for ``num_new_tokens`` after what is computed, hit locally and loaded; None if they don't fit.

        A refusal changes nothing. See `KVCacheManager.allocate_slots` for the order of things.

        Returns:
            How many blocks were taken for the new tokens: for a running request exactly what its table gained.
        """
        size, pool = self.block_size, self.pool
        computed = request.num_computed_tokens + hits.num_blocks * size + num_external_tokens
        computed = min(computed, self.max_model_len)
        need_blocks = -(-min(computed + num_new_tokens, self.max_model_len) // size)
        table = self.tables.get(request)
        if table is None or hits.num_blocks or num_external_tokens:
            held = 0 if table is None else table.num_hashed + table.num_plain
            missing = max(need_blocks - hits.num_blocks - held, 0) + hits.num_unreferenced
            if missing > pool.num_free - reserved_blocks:
                return None
            if table is None:
                table = self.tables[request] = Table()
            if hits.num_blocks:
                keys: Any = request.block_hashes
                pool.touch(keys.path, hits.num_blocks, table)
            if num_external_tokens > 0:
                loaded = -(-computed // size) - len(table)
                pool.take(loaded)
                table.num_plain += loaded
            missing = need_blocks - table.num_hashed - table.num_plain
        else:  # the common case, a running request: nothing to look up
            missing = need_blocks - table.num_hashed - table.num_plain
            if missing > pool.num_free - reserved_blocks:
                return None
        if missing > 0:
            pool.take(missing)
            table.num_plain += missing
        if not delay_cache_blocks:
            self.cache_blocks(request, min(computed + num_new_tokens, request.num_tokens))
        return max(missing, 0)

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Hash the full blocks among the first ``num_tokens``, from the first that has none."""
        if not self.enable_caching:
            return
        keys: Any = request.block_hashes
        full = min(num_tokens // self.block_size, keys.num_keys)
        table = self.tables.get(request)
        if full > (0 if table is None else table.num_hashed):
            assert table is not None
            self.pool.cache_full_blocks(table, keys.path, full)

    def new_step_starts(self) -> None:
        """A step's decisions begin."""

    def remove_skipped_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Full attention needs every block to the end."""

    def take_boundary_states(self) -> Sequence[Any]:
        """There are no recurrent states."""
        return ()

    def holders(self) -> Iterable[Table]:
        """The tables of all requests. For invariants."""
        return self.tables.values()

    def free(self, request: Request) -> None:
        """Give the request's blocks back, tail first, so that its tail is evicted before its head."""
        table = self.tables.pop(request, None)
        if table is not None:
            self.pool.free_table(table)

    def pop_table(self, request: Request) -> Table:
        """Forget the request; its blocks are still referenced, and whoever calls frees them (`free_table`)."""
        table = self.tables.pop(request, None)
        return Table() if table is None else table
