"""Groups that need only the latest tokens: sliding window and chunked local attention."""

from __future__ import annotations

from collections.abc import Sequence

from kvsim.cache.block_pool import NULL_BLOCK
from kvsim.cache.group_manager import GroupManager, Hit
from kvsim.cache.groups import ChunkedLocal, SharedPool, SlidingWindow
from kvsim.request import Request


class SlidingWindowManager(GroupManager):
    """Blocks behind the window are freed while the request runs; a hit needs only the window's blocks."""

    def __init__(self, spec: SlidingWindow, group: int, shared: SharedPool) -> None:
        super().__init__(spec, group, shared)
        self.window = spec.window
        self._blocks_for_hit = -(-(spec.window - 1) // spec.block_size)
        kept_tokens = shared.alignment if shared.retention_tokens is None else shared.retention_tokens
        self._blocks_per_stretch = kept_tokens // spec.block_size  # 0 = no stretches

    def num_skipped_tokens(self, num_computed_tokens: int) -> int:
        return max(num_computed_tokens - self.window + 1, 0)

    def max_blocks(self, num_tokens: int) -> int:
        """The window, the tokens of one step, and a block more because the window may begin inside one.

        Rule: vLLM 0.33.0 v1/kv_cache_interface.py, SlidingWindowSpec.max_admission_blocks_per_request.
        """
        kept = min(self.window - 1 + self.shared.max_in_flight_tokens, num_tokens)
        return -(-kept // self.block_size) + 1

    def reachable_blocks(self, request: Request, first: int, last: int) -> Sequence[bool] | None:
        """The window at the end of every stretch, and before the boundaries that are always kept.

        Hits end where the blocks of all groups end together, so nothing else is of use.
        """
        needed, stretch = self._blocks_for_hit, self._blocks_per_stretch
        if stretch and needed >= stretch:
            return None
        mask = [bool(stretch) and i % stretch >= stretch - needed for i in range(first, last)]
        if self.shared.retention_tokens is not None:
            for boundary in self._boundaries(request):
                end = boundary // self.block_size
                for i in range(max(first, end - needed), min(last, end)):
                    mask[i - first] = True
        return mask

    def find_longest_cache_hit(self, peers: Sequence[GroupManager], hashes: Sequence[int], max_length: int) -> Hit:
        """Right to left: the last run of blocks that covers a window and ends aligned; or a run from the start."""
        alignment, size = self.shared.alignment, self.block_size
        num_blocks = max_length // size
        columns = [[NULL_BLOCK] * num_blocks for _ in peers]
        run = 0
        for i in range(num_blocks - 1, -1, -1):
            found = self._cached_blocks(peers, hashes, i)
            if found is None:
                run = 0
                continue
            if run == 0 and (i + 1) * size % alignment:
                continue
            for column, block in zip(columns, found, strict=True):
                column[i] = block
            run += 1
            if run >= self._blocks_for_hit:
                for column in columns:
                    del column[i + run :]
                return columns, (i + run) * size
        for column in columns:  # shorter than a window, but it begins at the first token
            del column[run:]
        return self._aligned(columns)


class ChunkedLocalManager(GroupManager):
    """Attention never looks back beyond the start of the current chunk."""

    def __init__(self, spec: ChunkedLocal, group: int, shared: SharedPool) -> None:
        super().__init__(spec, group, shared)
        self.chunk = spec.chunk

    def num_skipped_tokens(self, num_computed_tokens: int) -> int:
        return num_computed_tokens // self.chunk * self.chunk

    def max_blocks(self, num_tokens: int) -> int:
        """A chunk and the tokens of one step (vLLM 0.33.0 v1/kv_cache_interface.py, ChunkedLocalAttentionSpec)."""
        return -(-min(self.chunk + self.shared.max_in_flight_tokens, num_tokens) // self.block_size)

    def find_longest_cache_hit(self, peers: Sequence[GroupManager], hashes: Sequence[int], max_length: int) -> Hit:
        """What lies before the chunk of token ``max_length`` counts as hit; the rest from left to right."""
        first = max_length // self.chunk * self.chunk // self.block_size
        columns = [[NULL_BLOCK] * first for _ in peers]
        for i in range(first, max_length // self.block_size):
            found = self._cached_blocks(peers, hashes, i)
            if found is None:
                break
            for column, block in zip(columns, found, strict=True):
                column.append(block)
        return columns, len(columns[0]) * self.block_size
