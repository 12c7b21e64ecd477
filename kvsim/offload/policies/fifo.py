"""First in, first out."""

from __future__ import annotations

from kvsim.offload.policies.leaves import Chunk, LeafPolicy, Score


class FifoPolicy(LeafPolicy):
    """First in, first out: the leaf that was put in first goes first; uses change nothing.

    Definition: the textbook's; SGLang has it too (mem_cache/evict_policy.py, FIFOStrategy).
    """

    renews_at_end = False

    def score(self, chunk: Chunk) -> Score:
        return chunk.place
