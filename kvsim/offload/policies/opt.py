"""OPT: Belady's rule, with the order of all requests known."""

from __future__ import annotations

from kvsim.offload.context import RequestContext
from kvsim.offload.policies.leaves import Chunk, LeafPolicy, Score


class OptPolicy(LeafPolicy):
    """Belady's optimum: the leaf whose next use is furthest away goes first, the deepest of those.

    Whoever uses a chunk uses all before it, so next uses never come sooner further down and leaves are no restriction.
    In a replay of a cache alone (`kvsim.plan.replay`) it is optimal for block hits among all policies that store every
    chunk. In a simulation the order is that of the trace when every answer takes as long as it did when recorded; a
    closed loop answers sooner or later than that, and then this is a heuristic with foresight, not a bound. It is not
    optimal for time either.
    Definition: Belady 1966; policies-performance-style 3.4 for the proof on prefix chains.
    """

    renews_at_end = False

    def score(self, chunk: Chunk) -> Score:
        return -chunk.note  # the number of the request that uses it next

    def on_inserted(self, chunk: Chunk, context: RequestContext, position: int) -> None:
        chunk.note = self.view.next_use(context.request_id, position)

    def on_used(self, chunk: Chunk, context: RequestContext, position: int) -> None:
        chunk.note = self.view.next_use(context.request_id, position)
