"""Groups of recurrent states: Mamba and linear attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvsim.cache.block_pool import NULL_BLOCK
from kvsim.cache.group_manager import GroupManager, Hit
from kvsim.cache.groups import Mamba, SharedPool
from kvsim.request import Request


class BoundaryState(NamedTuple):
    """A state that was hashed in this step: the block holds it after so many tokens of the request."""

    request: Request
    group: int
    block: int
    num_tokens: int


class MambaManager(GroupManager):
    """One state per request moves along its table; with ``align``, states at block boundaries stay to be hit.

    A chunk of prefill writes one block, at its end (and a checkpoint at the last boundary before it, where the kernel
    can): the places before it are null. The state before the last is freed when its successor is complete.
    """

    def __init__(self, spec: Mamba, group: int, shared: SharedPool) -> None:
        super().__init__(spec, group, shared)
        self.aligned, self._can_checkpoint = spec.mode == "align", spec.checkpoints and spec.mode == "align"
        self.boundary_states: list[BoundaryState] = []  # hashed and not yet taken by `take_boundary_states`
        self._hashed_now: set[int] = set()  # contents hashed in this step; never iterated
        self._last_state: dict[Request, int] = {}  # place of the state that this step's chunk starts from
        self._num_retired: dict[Request, int] = {}
        self._checkpoint: set[Request] = set()  # whose next allocation takes a block for a checkpoint; never iterated

    def num_skipped_tokens(self, num_computed_tokens: int) -> int:
        return num_computed_tokens - 1

    def max_blocks(self, num_tokens: int) -> int:
        """With ``align`` two states and a checkpoint (vLLM 0.33.0 v1/kv_cache_interface.py, MambaSpec)."""
        blocks = super().max_blocks(num_tokens)
        return min(blocks, 2 + self._can_checkpoint) if self.aligned else blocks

    def find_longest_cache_hit(self, peers: Sequence[GroupManager], hashes: Sequence[int], max_length: int) -> Hit:
        """Right to left: the last state that somebody has kept; those before it are not needed."""
        for i in range(max_length // self.block_size - 1, -1, -1):
            found = self._cached_blocks(peers, hashes, i)
            if found is not None and (i + 1) * self.block_size % self.shared.alignment == 0:
                return [[NULL_BLOCK] * i + [block] for block in found], (i + 1) * self.block_size
        return [[] for _ in peers], 0

    def reachable_blocks(self, request: Request, first: int, last: int) -> Sequence[bool] | None:
        """The state at the end of every stretch, and at the boundaries that are always kept."""
        interval = self.shared.retention_tokens
        stretch = 0 if interval is None else interval // self.block_size
        if interval is None or stretch == 1:
            return None
        ends = {boundary // self.block_size - 1 for boundary in self._boundaries(request)}
        return [i in ends or (stretch > 0 and (i + 1) % stretch == 0) for i in range(first, last)]

    # -- allocation
    def num_blocks_to_allocate(
        self, request: Request, num_tokens: int, hits: Sequence[int], total_computed_tokens: int, *, capped: bool
    ) -> int:
        if hits and self.pool.hashes[hits[-1]] in self._hashed_now:
            return self.pool.num_blocks + 1  # the state is computed in this very step: wait for the next one
        if not self.aligned:
            return super().num_blocks_to_allocate(request, num_tokens, hits, total_computed_tokens, capped=capped)
        held = len(self.tables.get(request, ()))
        new = -(-num_tokens // self.block_size) - len(hits) - held
        checkpoint = self._wants_checkpoint(request, total_computed_tokens, num_tokens)
        if not capped:  # an allocation may follow, not only a question
            if checkpoint:
                self._checkpoint.add(request)
            else:
                self._checkpoint.discard(request)
        return (min(new, 1 + checkpoint) if new > 0 else new) + self._num_evictable(hits)

    def _wants_checkpoint(self, request: Request, start: int, end: int) -> bool:
        """Whether tokens ``start .. end-1``, computed at once, leave a state at the last boundary inside them.

        Rule: vLLM 0.33.0 v1/kv_cache_interface.py, is_mamba_prefill_checkpoint_valid, hashes being as long as blocks.
        """
        position = (end - 1) // self.block_size * self.block_size
        if not self._can_checkpoint or not has_checkpoint(start, end, position, self.block_size):
            return False
        if self.shared.retention_tokens == 0 and end < max(request.num_prompt_tokens, request.num_tokens - 1):
            return False  # only the prompt's last one would be kept
        place = -(-end // self.block_size) - 2
        table = self.tables.get(request, [])
        return place >= len(table) or table[place] == NULL_BLOCK

    def allocate_new_blocks(self, request: Request, num_tokens: int) -> list[int]:
        if not self.aligned:
            return super().allocate_new_blocks(request, num_tokens)
        table = self.tables[request]
        before, required = len(table), -(-num_tokens // self.block_size)
        checkpoint = request in self._checkpoint
        if required <= before and not checkpoint:
            return []
        if before:
            self._last_state[request] = before - 1
        table += [NULL_BLOCK] * (required - 1 - checkpoint - before)
        table += self.pool.get_new_blocks(max(required - len(table), 0))
        return table[before:]

    # -- contents
    def cache_blocks(self, request: Request, num_tokens: int) -> list[tuple[int, int]]:
        hashed = super().cache_blocks(request, num_tokens)
        for place, block in hashed:
            self._hashed_now.add(self.pool.hashes[block])
            if self.aligned:
                tokens = (place + 1) * self.block_size
                self.boundary_states.append(BoundaryState(request, self.group, block, tokens))
        return hashed

    def new_step_starts(self) -> None:
        self._hashed_now.clear()

    def take_boundary_states(self) -> list[BoundaryState]:
        """States hashed since the last call, of requests that still hold them."""
        states, self.boundary_states = self.boundary_states, []
        return states

    # -- giving back
    def remove_skipped_blocks(self, request: Request, num_computed_tokens: int) -> None:
        super().remove_skipped_blocks(request, num_computed_tokens)
        last = self._last_state.get(request)
        if self.aligned and last is not None and last < -(-num_computed_tokens // self.block_size) - 1:
            table = self.tables[request]
            if table[last] != NULL_BLOCK:
                self.pool.free_blocks([table[last]])
                table[last] = NULL_BLOCK

    def _retire(self, request: Request, table: list[int], end: int) -> None:
        """Places between states are null, so look at all that were not looked at before."""
        if not self.aligned:
            super()._retire(request, table, end)
            return
        first = self._num_retired.get(request, 0)
        if first >= end:
            return
        freed = [table[i] for i in range(end - 1, first - 1, -1) if table[i] != NULL_BLOCK]
        table[first:end] = [NULL_BLOCK] * (end - first)
        self.pool.free_blocks(freed)
        self._num_retired[request] = end

    def pop_table(self, request: Request) -> list[int]:
        for places in (self._last_state, self._num_retired):
            places.pop(request, None)
        self._checkpoint.discard(request)
        self.boundary_states = [state for state in self.boundary_states if state.request is not request]
        return super().pop_table(request)


def has_checkpoint(start: int, end: int, position: int, block_size: int) -> bool:
    """Whether a chunk of tokens ``start .. end-1`` can leave a state at the block boundary ``position``."""
    return start % block_size == 0 and -(-end // block_size) - 2 > (start - 1) // block_size and start < position < end
