"""Clients that go away before their request has ended."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import simpy

from kvsim.clock import Clock

Abort = Callable[[str], None]  # why its client has gone


class Clients:
    """Decides at a request's arrival when its client will lose patience, if ever.

    Args:
        rate: share of clients that go at a random moment, evenly distributed over ``within_ns`` after the arrival.
        timeout_ns: every client goes after so long; None = never.
        scripted: number of the request -> ns after its arrival.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        rate: float,
        within_ns: int,
        timeout_ns: int | None,
        scripted: Mapping[int, int],
        seed: int,
    ) -> None:
        self._clock, self._rate, self._within_ns, self._timeout_ns = clock, rate, within_ns, timeout_ns
        self._scripted = scripted
        self._random = random.Random(f"{seed} clients")

    def watch(self, number: int, ended: simpy.Event, abort: Abort) -> None:
        """A request has arrived, the ``number``-th of the run; ``ended`` fires when it is over, ``abort`` ends it."""
        moments: list[tuple[int, str]] = []
        if self._timeout_ns is not None:
            moments.append((self._timeout_ns, "client timeout"))
        if self._rate and self._random.random() < self._rate:
            moments.append((self._random.randrange(self._within_ns + 1), "client went away"))
        if number in self._scripted:
            moments.append((self._scripted[number], "client went away"))
        if moments:
            delay_ns, reason = min(moments)
            alarm = self._clock.alarm(delay_ns, lambda: abort(reason))
            assert ended.callbacks is not None
            ended.callbacks.append(lambda _event: self._clock.cancel(alarm))
