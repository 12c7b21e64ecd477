"""One instance after the other."""

from __future__ import annotations

from collections.abc import Sequence

from kvsim.cluster.routers.base import Router
from kvsim.cluster.views import RouterSite, TurnView


class RoundRobin(Router):
    """The next instance behind the last one, whatever it does and whatever the prompt."""

    def __init__(self, site: RouterSite) -> None:
        super().__init__(site)
        self._last = -1

    def choose(self, turn: TurnView, among: Sequence[int]) -> int:
        """See `Router`."""
        self._last = next((instance for instance in among if instance > self._last), among[0])
        return self._last
