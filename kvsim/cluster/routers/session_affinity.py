"""All turns of a session to one instance."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from kvsim.cluster.in_flight import InFlight
from kvsim.cluster.routers.base import Router
from kvsim.cluster.views import Answer, RouterSite, TurnView


class SessionAffinity(Router):
    """A session stays where it began, with its sub-agents, as long as that instance takes turns.

    With ``hash`` the instance is the first in an order that the hashes of (session, instance) give (rendezvous
    hashing, which like the hash rings of the vLLM production stack's session router moves only the sessions of an
    instance that leaves); with ``least_requests`` it is the one with the fewest requests in flight then.
    """

    def __init__(self, site: RouterSite, *, placement: str = "hash") -> None:
        super().__init__(site)
        self._by_hash, self._in_flight = placement == "hash", InFlight(site.num_instances)
        self._home: dict[str, int] = {}
        self._orders: dict[str, list[int]] = {}

    def choose(self, turn: TurnView, among: Sequence[int]) -> int:
        """See `Router`."""
        if self._by_hash:
            return next(instance for instance in self._order(turn.session) if instance in among)
        home = self._home.get(turn.session, -1)
        if home not in among:
            home = self._home[turn.session] = self._in_flight.fewest_requests(among)
        return home

    def sent(self, turn: TurnView, instance: int) -> None:
        """See `Router`."""
        self._in_flight.sent(turn, instance)

    def ended(self, turn: TurnView, instance: int, answer: Answer) -> None:
        """See `Router`."""
        self._in_flight.ended(turn, instance)

    def _order(self, session: str) -> list[int]:
        if session not in self._orders:
            weights = [hashlib.sha256(f"{session}\n{name}".encode()).digest() for name in self.site.names]
            self._orders[session] = sorted(range(len(weights)), key=weights.__getitem__)
        return self._orders[session]
