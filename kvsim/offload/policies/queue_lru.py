"""Queue-informed LRU: what the next requests would hit stays."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence

from kvsim.offload.policies.leaves import Chunk, LeafPolicy, Score
from kvsim.offload.slot import Slots


class QueueLruPolicy(LeafPolicy):
    """LRU over leaves that no request near the head of the waiting queue would hit.

    Leaves that one of them would hit go only when no other is left: those of the last in the queue first, of these the
    least recently used.
    Definition: vLLM issue 48485 (RFC); CachedAttention's scheduler-aware eviction, arXiv 2403.19708.

    Args:
        first_waiting: requests at the head of the queue that are looked at.
    """

    def __init__(self, capacity: int, slots: Slots, *, first_waiting: int = 16) -> None:
        super().__init__(capacity, slots)
        self._first_waiting = first_waiting
        self._waiting: Sequence[Collection[int]] = ()
        self._wanted: list[tuple[int, int, int, int, Chunk]] = []  # leaves that are waited for, in order of going

    def score(self, chunk: Chunk) -> Score:
        return chunk.used

    def next_victim(self) -> Chunk | None:
        while (chunk := self.pop_free(self.leaves)) is not None:
            key = chunk.key
            place = next((at for at, keys in enumerate(self._waiting) if key in keys), None)
            if place is None:
                return chunk
            heapq.heappush(self._wanted, (-place, chunk.used, -chunk.depth, chunk.number, chunk))
        return heapq.heappop(self._wanted)[-1] if self._wanted else None

    def evict(self, count: int, protected: Collection[int]) -> list[int] | None:
        self._waiting = self.view.waiting(self._first_waiting)
        victims = super().evict(count, protected)
        self._moved += [entry[-1] for entry in self._wanted]
        self._wanted = []
        return victims
