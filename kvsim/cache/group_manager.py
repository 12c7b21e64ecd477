"""GroupManager: the block tables of one KV cache group. Full attention as it is; other kinds override what differs."""

from __future__ import annotations

from collections.abc import Sequence

from kvsim.cache.block_pool import NULL_BLOCK
from kvsim.cache.groups import GroupSpec, SharedPool, SlidingWindow
from kvsim.request import Request

Hit = tuple[list[list[int]], int]  # blocks per group, tokens


class GroupManager:
    """What one group holds for each request, and which of it can be hit.

    A table lists a request's blocks in the order of its tokens; those that the group no longer needs (or never
    needed) are the null block. Rules: vLLM 0.33.0 v1/core/single_type_kv_cache_manager.py.
    """

    def __init__(self, spec: GroupSpec, group: int, shared: SharedPool) -> None:
        self.spec, self.group, self.shared, self.pool = spec, group, shared, shared.pool
        self.block_size = spec.block_size
        self.tables: dict[Request, list[int]] = {}
        self._num_cached: dict[Request, int] = {}  # leading blocks that are past hashing; only of admitted requests
        self._hashes_per_block = max(spec.block_size // shared.hash_block_size, 1)

    # -- what the kinds differ in
    def num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Leading tokens that the next token does not need."""
        return 0

    def max_blocks(self, num_tokens: int) -> int:
        """Blocks that a request of so many tokens holds at most (recycling counted in)."""
        return -(-num_tokens // self.block_size)

    def reachable_blocks(self, request: Request, first: int, last: int) -> Sequence[bool] | None:
        """Which of the blocks ``first .. last-1`` may serve a hit and get a hash; None = all."""
        return None

    def _boundaries(self, request: Request) -> list[int]:
        """Aligned ends of the prefixes that are always kept: a repeated prompt's hit, and what other groups hold.

        Rule: vLLM 0.33.0 v1/core/kv_cache_coordinator.py, replay_boundaries, and single_type_kv_cache_manager.py.
        """
        alignment = self.shared.alignment
        ends = (request.num_prompt_tokens - 1, request.shared_prefix_boundary)
        return [end // alignment * alignment for end in ends]

    def find_longest_cache_hit(self, peers: Sequence[GroupManager], hashes: Sequence[int], max_length: int) -> Hit:
        """Longest prefix of at most ``max_length`` tokens that all ``peers`` (groups of this kind) can serve.

        Left to right: without a block, none behind it is found.
        """
        columns: list[list[int]] = [[] for _ in peers]
        for i in range(max_length // self.block_size):
            found = self._cached_blocks(peers, hashes, i)
            if found is None:
                break
            _append(columns, found)
        return self._aligned(columns)

    def _cached_blocks(self, peers: Sequence[GroupManager], hashes: Sequence[int], i: int) -> list[int] | None:
        """The blocks of all peers that hold the request's block ``i``, or None."""
        content = hashes[(i + 1) * self._hashes_per_block - 1] * self.shared.num_groups
        cached = self.pool.cached
        found: list[int] = []
        for peer in peers:
            block = cached.get(content + peer.group)
            if block is None:
                return None
            found.append(block)
        return found

    def _aligned(self, columns: list[list[int]]) -> Hit:
        """The columns cut down to a whole number of aligned stretches."""
        length = len(columns[0]) * self.block_size
        length -= length % self.shared.alignment
        for column in columns:
            del column[length // self.block_size :]
        return columns, length

    # -- allocation
    def num_blocks_to_allocate(
        self, request: Request, num_tokens: int, hits: Sequence[int], total_computed_tokens: int, *, capped: bool
    ) -> int:
        """Blocks that would leave the free list so that ``num_tokens`` have slots: new ones, and free hits.

        ``capped``: at most what recycling lets the request hold (vLLM: the admission cap).
        """
        required = -(-num_tokens // self.block_size)
        if capped:
            required = min(required, self.max_blocks(self.shared.max_model_len))
        held = len(self.tables.get(request, ()))
        if request in self._num_cached:
            return max(required - held, 0)
        skipped = self.num_skipped_tokens(total_computed_tokens) // self.block_size
        new = max(required - max(skipped, len(hits) + held), 0)
        return new + self._num_evictable(hits[max(skipped - held, 0) :])

    def _num_evictable(self, blocks: Sequence[int]) -> int:
        refs = self.pool.ref_counts
        return sum(block != NULL_BLOCK and not refs[block] for block in blocks)

    def add_local_computed_blocks(self, request: Request, hits: Sequence[int], total_computed_tokens: int) -> None:
        """Touch the hits that are still needed and begin the table with them."""
        skipped = max(self.num_skipped_tokens(total_computed_tokens) // self.block_size, 0)
        needed = hits[skipped:]
        self.pool.touch(block for block in needed if block != NULL_BLOCK)
        table = self.tables.setdefault(request, [])
        table += [NULL_BLOCK] * skipped
        table += needed
        self._num_cached[request] = len(table)

    def allocate_external_computed_blocks(
        self, request: Request, total_computed_tokens: int, num_external_tokens: int
    ) -> None:
        """Blocks for the loaded tokens that are still needed; after all groups have touched their hits."""
        skipped = self.num_skipped_tokens(total_computed_tokens)
        if min(total_computed_tokens - skipped, num_external_tokens) <= 0:
            return
        table = self.tables[request]
        table += self.pool.get_new_blocks(max(-(-total_computed_tokens // self.block_size) - len(table), 0))

    def allocate_new_blocks(self, request: Request, num_tokens: int) -> list[int]:
        """Blocks until ``num_tokens`` have slots; returns what the table gained."""
        table = self.tables[request]
        new = self.pool.get_new_blocks(max(-(-num_tokens // self.block_size) - len(table), 0))
        table += new
        return new

    # -- contents
    def cache_blocks(self, request: Request, num_tokens: int) -> list[tuple[int, int]]:
        """Hash the full blocks among the first ``num_tokens``, from the first that has not been looked at.

        Returns:
            (place in the table, block) of those that got a hash.
        """
        hashes, shared, scale = request.block_hashes, self.shared, self._hashes_per_block
        full = min(num_tokens, len(hashes) * shared.hash_block_size) // self.block_size
        done = self._num_cached.get(request, 0)
        if full <= done:
            return []
        self._num_cached[request] = full
        table = self.tables[request]
        mask = self.reachable_blocks(request, done, full)
        chosen = [
            (i, table[i]) for i in range(done, full) if table[i] != NULL_BLOCK and (mask is None or mask[i - done])
        ]
        contents = [hashes[(i + 1) * scale - 1] * shared.num_groups + self.group for i, _ in chosen]
        self.pool.cache_full_blocks([block for _, block in chosen], contents, 0, len(chosen))
        if self.pool.kv_events is not None:
            parent = hashes[done * scale - 1] if done else None
            new = [content // shared.num_groups for content in contents]
            window = self.spec.window if isinstance(self.spec, SlidingWindow) else None
            self.pool.kv_events.cached_in_group(new, parent, self.block_size, self.group, self.spec.kind, window)
        return chosen

    # -- giving back
    def remove_skipped_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Free the blocks that the tokens still to be computed do not need; null blocks take their places."""
        skipped = self.num_skipped_tokens(num_computed_tokens)
        if skipped > 0 and (table := self.tables.get(request)):
            self._retire(request, table, min(skipped // self.block_size, len(table)))

    def _retire(self, request: Request, table: list[int], end: int) -> None:
        """Free ``table[:end]``, the youngest first, as far as it is not null already."""
        freed: list[int] = []
        for i in range(end - 1, -1, -1):
            if table[i] == NULL_BLOCK:
                break
            freed.append(table[i])
            table[i] = NULL_BLOCK
        self.pool.free_blocks(freed)

    def free(self, request: Request) -> None:
        """Give the request's blocks back, tail first."""
        self.pool.free_blocks(reversed(self.pop_table(request)))

    def pop_table(self, request: Request) -> list[int]:
        """Forget the request; its blocks are still referenced."""
        self._num_cached.pop(request, None)
        return [block for block in self.tables.pop(request, []) if block != NULL_BLOCK]

    def new_step_starts(self) -> None:
        """A step's decisions begin."""


def _append(columns: list[list[int]], blocks: Sequence[int]) -> None:
    for column, block in zip(columns, blocks, strict=True):
        column.append(block)
