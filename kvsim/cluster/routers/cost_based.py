"""Where the first token is expected soonest."""

from __future__ import annotations

from collections.abc import Sequence

from kvsim.cluster.in_flight import InFlight
from kvsim.cluster.prefix_index import prefix_index
from kvsim.cluster.routers.base import Router
from kvsim.cluster.views import Answer, FirstToken, Left, News, RouterSite, TurnView

LEAST_WORK = 512_000  # thousandths of tokens: shorter answers tell more of a step's fixed time than of the rate
LEARNS = 8  # a new observation counts 1 / LEARNS


class CostBased(Router):
    """The instance with the shortest expected TTFT: (queue + load + prefill) x time per token.

    In tokens to compute: the *queue* are prompts that this router has sent there and whose first token it has not seen,
    the *prefill* is what of the prompt is not there, and the *load* is what is there, at a small weight. The time per
    token is learnt for each instance from the answers' first tokens (exponential mean). Dynamo's KV router adds up
    prefill and decode blocks in the same way, Ray's KV-aware router prefill and decode tokens.

    Args:
        index: ``kv_events`` or ``history`` (see `kvsim.cluster.prefix_index`).
        capacity_tokens: with ``history``.
        load_weight: cost of a token that is there, in computed tokens.
    """

    def __init__(
        self,
        site: RouterSite,
        *,
        index: str = "history",
        capacity_tokens: int | None = None,
        load_weight: float = 0.02,
    ) -> None:
        super().__init__(site)
        self.hears_kv_events = index == "kv_events"
        self._index, self._in_flight = prefix_index(index, site, capacity_tokens), InFlight(site.num_instances)
        self._load_milli = round(1000 * load_weight)
        self._queued_milli = [0] * site.num_instances  # thousandths of tokens
        self._ns_per_mtoken: list[int | None] = [None] * site.num_instances  # learnt, per million tokens
        self._choice: dict[int, int] = {}  # work of the turn on each instance that could be chosen
        self._work: dict[int, tuple[int, int]] = {}  # turn -> (its own work, and with the queue before it)

    def choose(self, turn: TurnView, among: Sequence[int]) -> int:
        """See `Router`."""
        matched = self._index.matched(turn.prompt)
        tokens = turn.prompt_tokens
        own = {i: 1000 * (tokens - matched[i]) + self._load_milli * matched[i] for i in among}
        self._choice = own
        sent, requests, usual = self._in_flight.num_sent, self._in_flight.requests, self._usual()

        def expected(instance: int) -> tuple[int, int, int, int]:
            learnt = self._ns_per_mtoken[instance]
            rate = usual if learnt is None else learnt
            return (self._queued_milli[instance] + own[instance]) * rate, requests[instance], sent[instance], instance

        return min(among, key=expected)

    def sent(self, turn: TurnView, instance: int) -> None:
        """See `Router`."""
        own = self._choice[instance]
        self._queued_milli[instance] += own
        self._work[turn.number] = (own, self._queued_milli[instance])
        self._in_flight.sent(turn, instance)
        self._index.sent(turn.prompt, instance)

    def ended(self, turn: TurnView, instance: int, answer: Answer) -> None:
        """See `Router`."""
        self._is_served(turn, instance)  # if it has ended without a token
        self._in_flight.ended(turn, instance)
        self._index.ended(instance, answer)

    def heard(self, news: News) -> None:
        """See `Router`."""
        if isinstance(news, FirstToken):
            waited_ns, work = news.at_ns - news.turn.arrival_ns, self._is_served(news.turn, news.instance)
            if work >= LEAST_WORK:
                seen, before = waited_ns * 10**9 // work, self._ns_per_mtoken[news.instance]
                self._ns_per_mtoken[news.instance] = seen if before is None else before + (seen - before) // LEARNS
        elif isinstance(news, Left) and news.lost:
            self._index.forget(news.instance)
        else:
            self._index.heard(news)

    def _is_served(self, turn: TurnView, instance: int) -> int:
        """It queues no longer; work that was before it and its own."""
        own, with_queue = self._work.pop(turn.number, (0, 0))
        self._queued_milli[instance] -= own
        return with_queue

    def _usual(self) -> int:
        """Time per million tokens of an instance of which nothing is known yet: as of the fastest."""
        return min((rate for rate in self._ns_per_mtoken if rate is not None), default=1)
