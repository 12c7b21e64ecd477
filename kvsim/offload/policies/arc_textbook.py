"""Adaptive replacement (ARC) as its authors wrote it; vLLM's variant is `kvsim.offload.policies.arc`."""

from __future__ import annotations

from collections import OrderedDict

from kvsim.offload.context import RequestContext
from kvsim.offload.policies.leaves import Chunk, LeafHeap, LeafPolicy, Score
from kvsim.offload.slot import Slots

ONCE, AGAIN = 0, 1  # T1 and T2


class ArcTextbookPolicy(LeafPolicy):
    """ARC: T1 (used by one request) and T2 (by more), ghosts B1 and B2, and a target size for T1.

    A missing chunk that B1 remembers raises the target by max(1, |B2| / |B1|), one that B2 remembers lowers it by
    max(1, |B1| / |B2|); both come back into T2, others into T1. T1 loses its least recently used leaf if it is larger
    than the target (or as large, and B2 remembers what comes), else T2 does; if that list has no leaf that may go, the
    other gives one. |T1| + |B1| stays within the capacity, all four within twice the capacity.
    Definition: Megiddo and Modha, "ARC: A self-tuning, low overhead replacement cache", FAST'03, as in libCacheSim
    ARC.c. Chunks that a request stores together adapt the target together, before the first of them is put in; in
    vLLM's variant ghosts come back into T1.
    """

    def __init__(self, capacity: int, slots: Slots) -> None:
        super().__init__(capacity, slots)
        self.target = 0.0
        self._again = LeafHeap()  # leaves of T2; those of T1 are in `leaves`
        self._ghosts: tuple[OrderedDict[int, None], OrderedDict[int, None]] = (OrderedDict(), OrderedDict())
        self._comes_from_b2 = False

    def score(self, chunk: Chunk) -> Score:
        return chunk.used

    def put(self, chunk: Chunk) -> None:
        (self._again if chunk.queue == AGAIN else self.leaves).push(chunk.used, chunk)

    def next_victim(self) -> Chunk | None:
        once = self.sizes[ONCE]
        from_once = once > self.target or (once == self.target and self._comes_from_b2)
        first, second = (self.leaves, self._again) if once and from_once else (self._again, self.leaves)
        return self.pop_free(first) or self.pop_free(second)

    def on_inserted(self, chunk: Chunk, context: RequestContext, position: int) -> None:
        b1, b2 = self._ghosts
        if chunk.key in b1 or chunk.key in b2:
            b1.pop(chunk.key, None)
            b2.pop(chunk.key, None)
            self.set_queue(chunk, AGAIN)
        while b1 and self.sizes[ONCE] + len(b1) > self.capacity:
            b1.popitem(last=False)
        while b2 and sum(self.sizes) + len(b1) + len(b2) > 2 * self.capacity:
            b2.popitem(last=False)

    def on_used(self, chunk: Chunk, context: RequestContext, position: int) -> None:
        self.set_queue(chunk, AGAIN)

    def on_evicted(self, chunk: Chunk) -> None:
        self._ghosts[chunk.queue][chunk.key] = None

    def on_store_miss(self, keys: list[int]) -> None:
        b1, b2 = self._ghosts
        self._comes_from_b2 = any(key in b2 for key in keys)
        for key in keys:
            if key in b1:
                self.target = min(self.target + max(1, len(b2) / len(b1)), self.capacity)
            elif key in b2:
                self.target = max(self.target - max(1, len(b1) / len(b2)), 0)
