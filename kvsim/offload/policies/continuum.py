"""Continuum's time to live: as long as a session's return is worth the memory that waits for it."""

from __future__ import annotations

from bisect import insort
from collections import deque
from math import log

from kvsim.offload.context import RequestContext
from kvsim.offload.policies.ttl_fixed import TtlFixedPolicy
from kvsim.offload.policies.view import TurnFacts
from kvsim.offload.slot import Slots

ENOUGH = 10  # pauses, from which on their distribution is that of the ones seen (assumed)
REMEMBERED = 500  # pauses of each kind (assumed)


class ContinuumPolicy(TtlFixedPolicy):
    """As `ttl_fixed`, with the time that pays most: tau* = argmax of P(pause <= tau) x benefit - cost(tau).

    P is the distribution of the pauses seen so far between turns of main streams, or of sub-agents: traces do not name
    their tools. Until enough are seen it is exponential. benefit = time to compute the turn's chunks again; cost(tau) =
    tau x their share of the tier.
    Definition: Li et al., "Continuum" (CacheTTL), arXiv 2511.02230: the objective and the cold start are theirs; the
    unit of the cost is ours (the tier's memory is worth its time), and the queueing delay that a hit avoids is not in
    the benefit. The time is found over the pauses seen, where P rises. Program-level FCFS is not part of a policy.

    Args:
        expected_pause: mean of the exponential, in ns.
    """

    def __init__(self, capacity: int, slots: Slots, *, expected_pause: int = 10 * 10**9) -> None:
        super().__init__(capacity, slots)
        self._expected_ns = expected_pause
        self._ends_ns: dict[str, int] = {}  # of the last turn of streams that go on
        self._pauses: dict[bool, tuple[deque[int], list[int]]] = {}  # sub-agent or not: as they came, and sorted

    def on_request_begins(self, context: RequestContext) -> None:
        facts = self.view.turn(context.request_id)
        end_ns = None if facts is None else self._ends_ns.pop(facts.stream, None)
        if facts is None or end_ns is None:
            return
        came, ordered = self._pauses.setdefault(facts.is_subagent, (deque(), []))
        pause_ns = max(self.view.now_ns() - end_ns, 0)
        came.append(pause_ns)
        insort(ordered, pause_ns)
        if len(came) > REMEMBERED:
            ordered.remove(came.popleft())

    def ttl_ns(self, context: RequestContext, facts: TurnFacts) -> int:
        self._ends_ns[facts.stream] = self.view.now_ns()
        chunks = len(context.keys)
        benefit_ns, share = self.view.prefill_ns(0, chunks), min(chunks / self.capacity, 1.0)
        if not chunks:
            return 0
        _, ordered = self._pauses.get(facts.is_subagent, ((), []))
        if len(ordered) < ENOUGH:  # benefit x (1 - exp(-tau / mean)) - share x tau is highest where its slope is zero
            mean_ns = self._expected_ns
            return max(round(mean_ns * log(benefit_ns / (mean_ns * share))), 0) if benefit_ns else 0
        gains = [(at * benefit_ns / len(ordered) - share * pause, pause) for at, pause in enumerate(ordered, 1)]
        gain, pause_ns = max(gains)
        return pause_ns + 1 if gain > 0 else 0  # still there at that very moment
