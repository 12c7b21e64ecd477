"""Any instance."""

from __future__ import annotations

import random
from collections.abc import Sequence

from kvsim.cluster.routers.base import Router
from kvsim.cluster.views import RouterSite, TurnView


class RandomChoice(Router):
    """Each turn throws a die, which depends on the run's seed."""

    def __init__(self, site: RouterSite) -> None:
        super().__init__(site)
        self._random = random.Random(f"{site.seed} router")

    def choose(self, turn: TurnView, among: Sequence[int]) -> int:
        """See `Router`."""
        return among[self._random.randrange(len(among))]
