"""A router at work: what it is told, when, and in which order; and what it chooses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvsim.clock import Clock
from kvsim.cluster.event_mail import EventMail
from kvsim.cluster.routers.base import Router
from kvsim.cluster.views import Answer, FirstToken, News, TurnView
from kvsim.errors import UserError

_News = tuple[int, int, int, Callable[..., None], tuple[Any, ...]]


class Desk:
    """What a router is told of one instant comes in the order of the turns' numbers, just before it has to choose.

    So nothing depends on which of several instances happens to be simulated first.

    Args:
        mail: KV events of the instances; empty if the router hears none.
    """

    def __init__(self, clock: Clock, router: Router, mail: EventMail) -> None:
        self._clock, self._router, self._mail = clock, router, mail
        # (when it is known, number, order) and what to do; at one instant: instances come and go, first tokens, ends.
        self._news: list[_News] = []

    def changed(self, news: News) -> None:
        """An instance has joined or left."""
        self._news.append((self._clock.now, -2, len(self._news), self._router.heard, (news,)))

    def first_token(self, view: TurnView, instance: int) -> None:
        """The answer to a turn has begun."""
        now = self._clock.now
        self._news.append((now, view.number, 1, self._router.heard, (FirstToken(view, instance, now),)))

    def ended(self, view: TurnView, instance: int, answer: Answer) -> None:
        """It is complete, or there will be none."""
        self._news.append((self._clock.now, view.number, 2, self._router.ended, (view, instance, answer)))

    def tell(self) -> None:
        """Tell the router what it knows by now."""
        for mail in self._mail.take(self._clock.now):
            arrived_ns = mail.published_ns + self._mail.delay_ns
            self._news.append((arrived_ns, -1, mail.instance, self._router.heard, (mail,)))
        due, self._news = sorted(self._news, key=lambda news: news[:3]), []
        for _, _, _, told, what in due:
            told(*what)

    def choose(self, view: TurnView, among: Sequence[int]) -> int:
        """Where a turn goes."""
        chosen = self._router.choose(view, among)
        if chosen not in among:
            kind = type(self._router).__name__
            raise UserError(f"router {kind} chose instance {chosen!r}, expected one of {', '.join(map(str, among))}")
        return chosen

    def sent(self, view: TurnView, instance: int) -> None:
        """It has gone there."""
        self._router.sent(view, instance)
