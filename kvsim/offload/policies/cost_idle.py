"""Cost over idle time: what is cheap to compute again, or was not used for long, goes."""

from __future__ import annotations

from kvsim.offload.context import RequestContext
from kvsim.offload.policies.leaves import Chunk, LeafPolicy, Score

_SCALE = 2**64  # whole numbers instead of fractions


class CostIdlePolicy(LeafPolicy):
    """Cost / idle time: the leaf with the lowest value goes first.

    value = time to compute what its last request has from this chunk on / time since it was used last. The more of a
    request is gone already, the dearer is the rest of it.
    Definition: Pensieve, arXiv 2312.05516, whose chunks go front first because the cost grows with the position; here
    only leaves go, so the cost is that of the whole missing end. LMCache's cost_aware_policy.py is the same idea.
    """

    scores_age = True

    def score(self, chunk: Chunk) -> Score:
        index, end, used_ns = chunk.note
        return self.view.prefill_ns(index, end) * _SCALE // max(self.view.now_ns() - used_ns, 1)

    def on_inserted(self, chunk: Chunk, context: RequestContext, position: int) -> None:
        index = context.index(position)
        chunk.note = index, max(context.index(len(context.keys) - 1), index) + 1, self.view.now_ns()

    def on_used(self, chunk: Chunk, context: RequestContext, position: int) -> None:
        self.on_inserted(chunk, context, position)

    def on_renewed(self, chunk: Chunk, context: RequestContext, position: int) -> None:
        self.on_inserted(chunk, context, position)
