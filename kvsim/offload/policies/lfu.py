"""Least frequently used."""

from __future__ import annotations

from kvsim.offload.policies.leaves import Chunk, LeafPolicy, Score


class LfuPolicy(LeafPolicy):
    """Least frequently used: the leaf that the fewest requests have used goes first; ties: least recently used.

    A chunk that comes back after its eviction starts at one again.
    Definition: libCacheSim LFU (ties by recency); SGLang's is the same on a tree (mem_cache/evict_policy.py,
    LFUStrategy: hit count, last access).
    """

    def score(self, chunk: Chunk) -> Score:
        return chunk.uses, chunk.used
