"""Segmented LRU."""

from __future__ import annotations

from kvsim.offload.policies.leaves import Chunk, LeafPolicy, Score
from kvsim.offload.slot import Slots


class SlruPolicy(LeafPolicy):
    """Segmented LRU: leaves that few requests have used go first, each kind by recency.

    Args:
        protected_uses: requests that must have used a chunk, the one that put it there included, for it to go last.

    Definition: SGLang mem_cache/evict_policy.py, SLRUStrategy: (hit count >= 2, last access), over the leaves of a
    tree. Unlike the textbook's the protected part has no size of its own.
    """

    def __init__(self, capacity: int, slots: Slots, *, protected_uses: int = 2) -> None:
        super().__init__(capacity, slots)
        self._protected_uses = protected_uses

    def score(self, chunk: Chunk) -> Score:
        return chunk.uses >= self._protected_uses, chunk.used
