"""Simulated time: a SimPy environment whose clock counts whole numbers."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop
from typing import Any, cast

import simpy

# Order of events at one instant. SimPy's own are 0 (urgent) and 1 (normal): arrivals and ends of copies come first,
# then what goes on between instances and a store that they share, then the ends of steps (and what follows from them),
# then a cluster's router, then the decisions about the next steps. To these an instance that shares a store adds its
# number (its "turn", an even one: what follows directly has the next), so that it does not depend on the past who of
# several comes first.
STORE_PRIORITY = 1_000_000
STEP_END_PRIORITY = 2_000_000
ROUTE_PRIORITY = 3_000_000
SCHEDULE_PRIORITY = 4_000_000


class Clock(simpy.Environment):
    """Time in integers: nanoseconds, or steps where a step is the unit. Delays must be integers too."""

    def __init__(self) -> None:
        super().__init__()
        self._cancelled: set[simpy.Event] = set()

    @property
    def now(self) -> int:
        """The current time."""
        return self._now  # type: ignore[return-value]  # SimPy's own type is wider

    def at(self, delay: int, priority: int = STEP_END_PRIORITY) -> simpy.Event:
        """An event that fires after ``delay``, at its place among the events of that instant."""
        event = self.event()
        event._ok, event._value = True, None  # noqa: SLF001 - SimPy has no public way to schedule with a priority
        self.schedule(event, priority=cast("Any", priority), delay=delay)
        return event

    def alarm(self, delay: int, action: Callable[[], None]) -> simpy.Event:
        """Something that happens after ``delay``, unless it is cancelled."""
        timeout = self.timeout(delay)
        assert timeout.callbacks is not None
        timeout.callbacks.append(lambda _event: action())
        return timeout

    def cancel(self, alarm: simpy.Event) -> None:
        """It will not happen, and the clock does not run on to its time."""
        if alarm.callbacks:
            self._cancelled.add(alarm)

    def step(self) -> None:
        """Process the next event that was not cancelled."""
        while self._cancelled and self._queue and self._queue[0][3] in self._cancelled:
            self._cancelled.remove(heappop(self._queue)[3])
        super().step()
