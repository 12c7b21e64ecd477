"""Where the fewest prompt tokens are."""

from __future__ import annotations

from collections.abc import Sequence

from kvsim.cluster.in_flight import InFlight
from kvsim.cluster.routers.base import Router
from kvsim.cluster.views import Answer, RouterSite, TurnView


class LeastTokens(Router):
    """The instance with the fewest prompt tokens of requests in flight, as this router counts them."""

    def __init__(self, site: RouterSite) -> None:
        super().__init__(site)
        self._in_flight = InFlight(site.num_instances)

    def choose(self, turn: TurnView, among: Sequence[int]) -> int:
        """See `Router`."""
        return self._in_flight.fewest_tokens(among)

    def sent(self, turn: TurnView, instance: int) -> None:
        """See `Router`."""
        self._in_flight.sent(turn, instance)

    def ended(self, turn: TurnView, instance: int, answer: Answer) -> None:
        """See `Router`."""
        self._in_flight.ended(turn, instance)
