"""Where the longest prefix of the prompt is."""

from __future__ import annotations

from collections.abc import Sequence

from kvsim.cluster.in_flight import InFlight
from kvsim.cluster.prefix_index import prefix_index
from kvsim.cluster.routers.base import Router
from kvsim.cluster.views import Answer, Left, News, RouterSite, TurnView


class PrefixAware(Router):
    """The instance with the most tokens of the prompt; of equals, the one with the fewest requests in flight.

    Two rules keep a prefix that all prompts begin with from drawing all of them to one place; they and their numbers
    are those of the cache-aware policy of the vLLM router 0.1.15 and of SGLang's gateway 0.3.1 (cache_threshold,
    balance_abs_threshold, balance_rel_threshold): a match counts from a share of the prompt on, and none does while
    the busiest instance has far more requests than the idlest. Then the fewest requests decide (theirs: the smallest
    record of prompts, where nothing matches).

    Args:
        index: ``kv_events`` or ``history`` (see `kvsim.cluster.prefix_index`).
        capacity_tokens: with ``history``.
    """

    def __init__(
        self,
        site: RouterSite,
        *,
        index: str = "history",
        capacity_tokens: int | None = None,
        min_match: float = 0.3,
        max_imbalance: int = 64,
        max_ratio: float = 1.5,
    ) -> None:
        super().__init__(site)
        self.hears_kv_events = index == "kv_events"
        self._index, self._in_flight = prefix_index(index, site, capacity_tokens), InFlight(site.num_instances)
        self._min_match, self._max_imbalance, self._max_ratio = min_match, max_imbalance, max_ratio

    def choose(self, turn: TurnView, among: Sequence[int]) -> int:
        """See `Router`."""
        requests = [self._in_flight.requests[instance] for instance in among]
        most, fewest = max(requests), min(requests)
        if most - fewest <= self._max_imbalance or most <= self._max_ratio * fewest:
            matched = self._index.matched(turn.prompt)
            best = max(matched[instance] for instance in among)
            if best and best >= self._min_match * turn.prompt_tokens:
                among = [instance for instance in among if matched[instance] == best]
        return self._in_flight.fewest_requests(among)

    def sent(self, turn: TurnView, instance: int) -> None:
        """See `Router`."""
        self._in_flight.sent(turn, instance)
        self._index.sent(turn.prompt, instance)

    def ended(self, turn: TurnView, instance: int, answer: Answer) -> None:
        """See `Router`."""
        self._in_flight.ended(turn, instance)
        self._index.ended(instance, answer)

    def heard(self, news: News) -> None:
        """See `Router`."""
        if isinstance(news, Left) and news.lost:
            self._index.forget(news.instance)
        else:
            self._index.heard(news)
