"""What a router is asked and told. Every router is one file with these methods, in this order.

A router sits in front of the instances and passes requests and answers through. It knows what passed, what instances
publish (KV events, late), and which of them take requests; it cannot look into them.

**To add one**: subclass `Router`, with a constructor ``(site, config)`` if the class has a pydantic ``Config``, or
``(site, **options)``; write ``cluster: {router: {kind: "my_module:MyRouter", options: {...}}}``.

For equal results on any machine a router must depend on nothing but what it is told: no clock, no hash order, no
unseeded randomness. What it is told of one moment comes in the order of the turns' numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from kvsim.cluster.views import Answer, News, RouterSite, TurnView


class Router(ABC):
    """Chooses an instance for every turn.

    ``hears_kv_events``: whether it wants the instances' KV events (which only the reference engine publishes).
    """

    hears_kv_events = False

    def __init__(self, site: RouterSite) -> None:
        self.site = site

    @abstractmethod
    def choose(self, turn: TurnView, among: Sequence[int]) -> int:
        """The instance for a turn: one of those that take turns now, of which there is at least one."""

    def sent(self, turn: TurnView, instance: int) -> None:
        """The turn has gone there."""

    def ended(self, turn: TurnView, instance: int, answer: Answer) -> None:
        """Its answer is complete, or there will be none."""

    def heard(self, news: News) -> None:
        """Something else has become known."""
