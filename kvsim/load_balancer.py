"""Which rank a request goes to: vLLM's internal load balancer, and how old its knowledge is."""

from __future__ import annotations

from collections.abc import Callable

from kvsim.clock import Clock

# Requests waiting and running, used part of the KV cache.
Counts = tuple[int, int, float]

# vLLM 0.33.0 v1/engine/coordinator.py (min_stats_update_interval_ms): the front end hears from the ranks that often.
PUBLISH_INTERVAL_NS = 100_000_000


class LoadBalancer:
    """The rank with the lowest score; of equals the first one from a place that moves on with every request.

    The score is the larger of the requests that the front end has sent there and not got back, and of those that it
    last heard of (with those that it sent since), plus a penalty for waiting requests where the KV cache is more than
    half full. Rules: vLLM 0.33.0 v1/engine/core_client.py (DPLBAsyncMPClient.get_core_engine_for_request), one front
    end.
    """

    rotates = True

    def __init__(self, num_ranks: int) -> None:
        self._in_flight = [0] * num_ranks
        self._waiting, self._running = [0] * num_ranks, [0] * num_ranks
        self._usage = [0.0] * num_ranks
        self._start = 0

    def choose(self) -> int:
        """The rank for a new request."""
        ranks = len(self._waiting)
        order = [(self._start + i) % ranks for i in range(ranks)]
        best = min(order, key=self.score)  # the first of equals
        self._waiting[best] += 1
        self._in_flight[best] += 1
        if self.rotates:
            self._start = (self._start + 1) % ranks
        return best

    def ended(self, rank: int) -> None:
        """A request of this rank has ended."""
        self._in_flight[rank] -= 1

    def hear(self, counts: list[Counts]) -> None:
        """The ranks' own counts arrive; what was counted here since is forgotten."""
        for rank, (waiting, running, usage) in enumerate(counts):
            self._waiting[rank], self._running[rank], self._usage[rank] = waiting, running, usage

    def score(self, rank: int) -> float:
        """The lower, the better."""
        waiting = self._waiting[rank]
        known = waiting + self._running[rank]
        return max(self._in_flight[rank], known) + waiting * 6.0 * max(0.0, self._usage[rank] - 0.5)


class LoadBalancer023(LoadBalancer):
    """0.23.0: four times the waiting requests plus the running ones, as last heard of; ties go to the first rank."""

    rotates = False

    def score(self, rank: int) -> float:
        return self._waiting[rank] * 4 + self._running[rank]


class Coordinator:
    """Collects the ranks' counts and passes them on, at most once per interval.

    A rank tells its counts when they have changed, before and after each of its steps. Nobody listens but the load
    balancer when it has to choose, so what was due by then is passed on by then (`catch_up`), as it was when due.
    (For MoE models vLLM passes on the counts of the step before; that delay of one step is not modelled.)
    """

    def __init__(self, clock: Clock, num_ranks: int, hear: Callable[[list[Counts]], None]) -> None:
        self._clock, self._hear = clock, hear
        self._counts: list[Counts] = [(0, 0, 0.0)] * num_ranks
        self._published_ns = -PUBLISH_INTERVAL_NS
        self._due_ns: int | None = None

    def tell(self, rank: int, counts: Counts) -> None:
        """These are the rank's counts from now on."""
        self.catch_up()
        if self._counts[rank][:2] == counts[:2]:
            return
        self._counts[rank] = counts
        if self._due_ns is None:
            self._due_ns = max(self._clock.now, self._published_ns + PUBLISH_INTERVAL_NS)
        self.catch_up()

    def catch_up(self) -> None:
        """Pass on what is due."""
        if self._due_ns is not None and self._due_ns <= self._clock.now:
            self._published_ns, self._due_ns = self._due_ns, None
            self._hear(list(self._counts))
