"""Workload-aware: the probability of another use, learnt for each category of requests."""

from __future__ import annotations

from math import exp

from kvsim.offload.context import RequestContext
from kvsim.offload.policies.leaves import Chunk, LeafPolicy, Score
from kvsim.offload.slot import Slots

_Category = tuple[int, bool]  # tenant, and whether a sub-agent sent it


class _Record:
    """What is known of a category: how many of its uses were followed by another one, and after how long."""

    __slots__ = ("gaps_ns", "reuses", "uses")

    def __init__(self) -> None:
        self.uses = self.reuses = self.gaps_ns = 0


class WorkloadAwarePolicy(LeafPolicy):
    """The leaf that is least likely to be used again while it could stay goes first; ties: deeper first, then older.

    Per category (tenant, main stream or sub-agent) of the request that used a chunk last: the share q of uses that were
    followed by another one, (reuses + 1) / (uses + 2), and the mean time m between two. With the age a since the last
    use and the mean life L of victims since theirs: probability = q x (F(a + L) - F(a)), F(t) = 1 - exp(-t / m). Until
    something was reused all probabilities are equal and recency decides.
    Definition: Wang et al., "KVCache cache in the wild", ATC'25, arXiv 2506.02634: exponential reuse times per category
    and the order of the tie are theirs; the form of the probability is from memory of the paper, the smoothing of q and
    the way L is measured are ours. Their categories are kinds of requests that a provider knows.
    """

    scores_age = True

    def __init__(self, capacity: int, slots: Slots) -> None:
        super().__init__(capacity, slots)
        self._records: dict[_Category, _Record] = {}
        self._all = _Record()
        self._lives_ns = self._victims = 0
        self._living: dict[str, _Record] = {}  # of requests that have begun and not ended

    def score(self, chunk: Chunk) -> Score:
        record, used_ns = chunk.note
        if not self._all.reuses:
            return 0.0, chunk.used
        known = record if record.reuses else self._all
        mean_ns = max(known.gaps_ns / known.reuses, 1.0)
        life_ns = self._lives_ns / self._victims if self._victims else self._all.gaps_ns / self._all.reuses
        age_ns = max(self.view.now_ns() - used_ns, 0)
        share = (record.reuses + 1) / (record.uses + 2)
        return share * exp(-age_ns / mean_ns) * (1 - exp(-life_ns / mean_ns)), 0

    def on_inserted(self, chunk: Chunk, context: RequestContext, position: int) -> None:
        record = self._living[context.request_id]
        record.uses += 1
        chunk.note = record, self.view.now_ns()

    def on_used(self, chunk: Chunk, context: RequestContext, position: int) -> None:
        last, used_ns = chunk.note
        for record in (last, self._all):
            record.reuses += 1
            record.gaps_ns += max(self.view.now_ns() - used_ns, 0)
        self.on_inserted(chunk, context, position)

    def on_renewed(self, chunk: Chunk, context: RequestContext, position: int) -> None:
        chunk.note = chunk.note[0], self.view.now_ns()

    def on_evicted(self, chunk: Chunk) -> None:
        self._victims += 1
        self._lives_ns += max(self.view.now_ns() - chunk.note[1], 0)

    def on_request_begins(self, context: RequestContext) -> None:
        facts = self.view.turn(context.request_id)
        category = (0, False) if facts is None else (facts.tenant, facts.is_subagent)
        self._living[context.request_id] = self._records.setdefault(category, _Record())

    def on_request_finished(self, context: RequestContext) -> None:
        super().on_request_finished(context)
        self._living.pop(context.request_id, None)
