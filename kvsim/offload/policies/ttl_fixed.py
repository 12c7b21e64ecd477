"""A fixed time to live: what a session may come back for is kept so long."""

from __future__ import annotations

from kvsim.offload.context import RequestContext
from kvsim.offload.policies.leaves import Chunk, LeafPolicy, Score
from kvsim.offload.policies.view import TurnFacts
from kvsim.offload.slot import Slots


class TtlFixedPolicy(LeafPolicy):
    """LRU, but chunks of a turn that its stream goes on from are pinned for a time after its end.

    Pinned leaves go only when no other is left, the least recently used first. A turn of unknown origin pins nothing.
    Definition: policies-performance-style 3.2 (5), ``ttl_fixed``: what Continuum does with the same time for all.

    Args:
        ttl: how long, in ns.
    """

    scores_age = True

    def __init__(self, capacity: int, slots: Slots, *, ttl: int = 60 * 10**9) -> None:
        super().__init__(capacity, slots)
        self._ttl_ns = ttl
        self._expiry_ns = 0  # of the request that is just ending

    def score(self, chunk: Chunk) -> Score:
        return self.view.now_ns() < chunk.note, chunk.used

    def on_inserted(self, chunk: Chunk, context: RequestContext, position: int) -> None:
        chunk.note = 0  # pinned until then

    def on_request_finished(self, context: RequestContext) -> None:
        facts = self.view.turn(context.request_id)
        goes_on = facts is not None and facts.goes_on
        self._expiry_ns = self.view.now_ns() + self.ttl_ns(context, facts) if facts is not None and goes_on else 0
        super().on_request_finished(context)

    def on_renewed(self, chunk: Chunk, context: RequestContext, position: int) -> None:
        chunk.note = max(chunk.note, self._expiry_ns)

    def ttl_ns(self, context: RequestContext, facts: TurnFacts) -> int:
        """Of the chunks of a turn that has just ended."""
        return self._ttl_ns
