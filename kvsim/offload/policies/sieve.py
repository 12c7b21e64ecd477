"""SIEVE: a hand that moves from old to new and spares what was used."""

from __future__ import annotations

from collections.abc import Collection

from kvsim.offload.policies.leaves import Chunk, LeafHeap, LeafPolicy, Score
from kvsim.offload.slot import Slots


class SievePolicy(LeafPolicy):
    """SIEVE: a queue in order of insertion and a hand that moves through it from the oldest to the newest.

    A use marks a chunk (here: it has more than one). The hand clears the mark of a marked leaf and passes on, and
    evicts the first leaf without one; there it stays. Past the newest it begins at the oldest again. Chunks with
    resident successors keep their place and their mark: the hand looks at them when they are leaves.
    Definition: Zhang et al., "SIEVE is Simpler than LRU", NSDI'24, as in libCacheSim Sieve.c.
    """

    renews_at_end = False

    def __init__(self, capacity: int, slots: Slots) -> None:
        super().__init__(capacity, slots)
        self._behind = LeafHeap()  # leaves that the hand has passed in this round; the others are in `leaves`
        self._hand = 0  # place of the last chunk that it has looked at; 0 = at the beginning

    def score(self, chunk: Chunk) -> Score:
        return chunk.place

    def put(self, chunk: Chunk) -> None:
        (self.leaves if chunk.place > self._hand else self._behind).push(chunk.place, chunk)

    def next_victim(self) -> Chunk | None:
        rounds = 0
        while True:
            if self.leaves.is_empty():
                if rounds == 2 or self._behind.is_empty():  # the second round has no marks left to clear
                    return None
                self._begin_round()
                rounds += 1
            chunk = self.pop_free(self.leaves)
            if chunk is None:
                continue
            self._hand = chunk.place
            if chunk.uses == 1:
                if self.leaves.is_empty():  # past the newest
                    self._begin_round()
                return chunk
            self.age(chunk, uses=1)
            self._behind.push(chunk.place, chunk)

    def evict(self, count: int, protected: Collection[int]) -> list[int] | None:
        hand = self._hand
        victims = super().evict(count, protected)
        if victims is None:
            self._hand = hand
            self._moved += self.leaves.take_all() + self._behind.take_all()
        return victims

    def _begin_round(self) -> None:
        self._hand = 0
        self.leaves, self._behind = self._behind, self.leaves
