"""A tier's eviction policy alone: requests in a given order, no GPU, no time of copies or forward passes.

The policies are the same objects as in a simulation. Each request is one indivisible act: it looks up its chain, counts
the leading chunks that are there, uses them, and stores the others, for which room is made among chunks that are not
its own. A request longer than the tier is cut: only its head can be kept.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from kvsim.build_policy import facts_of
from kvsim.chain import BlockIds
from kvsim.offload.context import INSERTED, MISSED, REUSED, SEEN, RequestContext
from kvsim.offload.next_use import NextUses
from kvsim.offload.policies.base import EvictionPolicy
from kvsim.offload.policies.view import TurnFacts, View
from kvsim.offload.slot import Slot, Slots
from kvsim.trace.pace import at_recorded_pace
from kvsim.trace.replay import ReplayOptions
from kvsim.trace.session import Trace

_NO_OPTIONS = ReplayOptions()
PolicyFactory = Callable[[int, Slots], EvictionPolicy]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class CacheRequest:
    """One request of a replay.

    Attributes:
        request_id: differs from all others.
        keys: of its chain of chunks: equal keys at equal positions, after equal keys.
        start_ns, end_ns: when it is sent and when it is over, for policies that look at the clock.
        facts: who sends it.
    """

    request_id: str
    keys: Sequence[int]
    start_ns: int = 0
    end_ns: int = 0
    facts: TurnFacts | None = None


@dataclass(frozen=True, slots=True)
class CacheHits:
    """What a replay counts, in chunks.

    Attributes:
        hits: leading chunks of a request that were there.
        lookups: chunks of all requests.
        stored: chunks written into the tier.
        evicted: chunks that had to go.
    """

    hits: int
    lookups: int
    stored: int
    evicted: int

    @property
    def hit_rate(self) -> float:
        """Share of all chunks that were there."""
        return self.hits / self.lookups if self.lookups else 0.0


def cache_requests(
    trace: Trace,
    chunk_tokens: int,
    options: ReplayOptions = _NO_OPTIONS,
    tenants: Mapping[str, int] | None = None,
) -> list[CacheRequest]:
    """The prompts of a trace, in the order and at the times of its recorded pace.

    Args:
        trace: what is played.
        chunk_tokens: tokens of a chunk; the rest of a prompt counts as none.
        options: how it is played.
        tenants: number of the tenant of each session, by its name; tenants share no chunks.
    """
    ids, found = BlockIds(chunk_tokens), list[CacheRequest]()
    numbers, count = tenants or {}, max((tenants or {"": 0}).values()) + 1
    for paced in at_recorded_pace(trace, options):
        turn, tenant = paced.turn, numbers.get(paced.session.name, 0)
        known = min(turn.known_prompt_tokens, turn.chain.num_tokens) // chunk_tokens
        keys = array("q", [key * count + tenant for key in ids.of(turn.chain, 0, known)])
        found.append(CacheRequest(paced.name, keys, paced.start_ns, paced.end_ns, facts_of(paced, tenant)))
    return found


class ReplayView(View):
    """What policies may know in a replay: the requests' own times and facts, and the order of all of them.

    Nobody waits in a replay, so the queue is empty and `queue_lru` is LRU.
    """

    def __init__(
        self, requests: Sequence[CacheRequest], capacity: int, prefill_ns: Callable[[int, int], int] | None = None
    ) -> None:
        self._requests, self._capacity, self._prefill_ns = requests, capacity, prefill_ns
        self._facts = {request.request_id: request.facts for request in requests}
        self._uses: NextUses | None = None
        self.time_ns = 0

    def now_ns(self) -> int:
        return self.time_ns

    def prefill_ns(self, first: int, last: int) -> int:
        return last - first if self._prefill_ns is None else self._prefill_ns(first, last)

    def turn(self, request_id: str) -> TurnFacts | None:
        return self._facts[request_id]

    def next_use(self, request_id: str, position: int) -> int:
        if self._uses is None:
            names = [request.request_id for request in self._requests]
            self._uses = NextUses(names, lambda number: self._requests[number].keys[: self._capacity])
        return self._uses.after(self._uses.number_of[request_id], position)


class CacheReplay:
    """A tier of so many chunks under a policy."""

    def __init__(self, capacity: int, policy: PolicyFactory, view: View | None = None) -> None:
        if capacity < 1:
            raise ValueError(f"a tier of {capacity} chunks, expected at least 1")
        self.capacity = capacity
        self.slots: Slots = {}
        self.policy = policy(capacity, self.slots)
        if view is not None:
            self.policy.view = view
        self.num_stored = self.num_evicted = 0

    def play(self, request_id: str, keys: Sequence[int], on_end: Callable[[], None] | None = None) -> int:
        """One request; returns its leading chunks that were there. ``on_end``: called before its end is told."""
        policy, slots = self.policy, self.slots
        context = RequestContext(request_id)
        context.extend(list(keys[: self.capacity]))
        keys = context.keys
        hits = next((at for at, key in enumerate(keys) if key not in slots), len(keys))
        missing = [at for at in range(hits, len(keys)) if keys[at] not in slots]
        if missing:
            policy.on_store_miss([keys[at] for at in missing])
        context.marks[:] = bytes([SEEN | REUSED]) * len(keys)
        for at in missing:
            context.marks[at] = SEEN | MISSED
        policy.on_access(context, range(len(keys)))
        missing = policy.admit(context, missing)
        excess = len(slots) + len(missing) - self.capacity
        if excess > 0:
            self._evict(excess, policy.protected_by(context, range(len(keys))))
        for at in missing:
            slot = slots[keys[at]] = Slot(0)
            policy.insert(context, at)
            context.marks[at] |= INSERTED
            slot.ref_count = 0
            policy.on_evictable(keys[at])
        self.num_stored += len(missing)
        if on_end is not None:
            on_end()
        policy.on_request_finished(context)
        return hits

    def _evict(self, count: int, protected: Collection[int]) -> None:
        victims = self.policy.evict(count, protected)
        assert victims is not None, "only one request's chunks are protected, and they fit"
        for key in victims:
            del self.slots[key]
        self.num_evicted += count


def replay(
    requests: Sequence[CacheRequest],
    capacity: int,
    policy: PolicyFactory,
    *,
    prefill_ns: Callable[[int, int], int] | None = None,
    progress: Progress | None = None,
) -> CacheHits:
    """Play all requests, one after the other, against a tier that is empty at first.

    Args:
        requests: in their order.
        capacity: of the tier, in chunks.
        policy: makes the eviction policy.
        prefill_ns: time to compute chunks ``first .. last - 1``, for policies that weigh it; without it every chunk
            costs the same.
        progress: told how many of how many requests are done.
    """
    view = ReplayView(requests, capacity, prefill_ns)
    tier = CacheReplay(capacity, policy, view)
    hits = lookups = 0
    for number, request in enumerate(requests, 1):
        view.time_ns = request.start_ns

        def ends(at: int = request.end_ns) -> None:
            view.time_ns = at

        hits += tier.play(request.request_id, request.keys, ends)
        lookups += len(request.keys)
        if progress is not None:
            progress(number, len(requests))
    return CacheHits(hits, lookups, tier.num_stored, tier.num_evicted)
