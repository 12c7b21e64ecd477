"""GDSF: what was used often and would take long to compute again stays."""

from __future__ import annotations

from kvsim.offload.context import RequestContext
from kvsim.offload.policies.leaves import Chunk, LeafPolicy, Score
from kvsim.offload.slot import Slots


class GdsfPolicy(LeafPolicy):
    """Greedy-dual size frequency: the leaf with the lowest priority goes first.

    priority = clock + uses x cost / size, set at each use. The clock is the priority of the last victim, so what is not
    used falls behind. Cost is the time to compute the chunk at its place in the prompt (`View.prefill_ns`: attention
    makes later chunks dearer), size is one chunk.
    Definition: Cherkasova, "Improving WWW proxies performance with greedy-dual-size-frequency", 1998; on a prefix tree:
    PGDSF of RAGCache, arXiv 2404.12457, whose cost is measured, not modelled.
    """

    renews_at_end = False

    def __init__(self, capacity: int, slots: Slots) -> None:
        super().__init__(capacity, slots)
        self._clock_ns = 0

    def score(self, chunk: Chunk) -> Score:
        return chunk.note

    def on_inserted(self, chunk: Chunk, context: RequestContext, position: int) -> None:
        index = context.index(position)
        chunk.note = self._clock_ns + chunk.uses * self.view.prefill_ns(index, index + 1)

    def on_used(self, chunk: Chunk, context: RequestContext, position: int) -> None:
        self.on_inserted(chunk, context, position)

    def on_evicted(self, chunk: Chunk) -> None:
        self._clock_ns = chunk.note
