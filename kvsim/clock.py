"""Simulated time: a SimPy environment whose clock counts whole numbers."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

import simpy
from simpy.core import EmptySchedule
from simpy.events import PENDING, Event

# Order of events at one instant. SimPy's own are 0 (urgent) and 1 (normal): arrivals and ends of copies come first,
# then what goes on between instances and a store that they share, then the ends of steps (and what follows from them),
# then a cluster's router, then the decisions about the next steps. To these an instance of a cluster adds its
# number (its "turn", an even one: what follows directly has the next), so that it does not depend on the past who of
# several comes first.
ARRIVAL_PRIORITY = 1  # simpy.core.NORMAL
STORE_PRIORITY = 1_000_000
STEP_END_PRIORITY = 2_000_000
ROUTE_PRIORITY = 3_000_000
SCHEDULE_PRIORITY = 4_000_000


class Clock(simpy.Environment):
    """Time in integers: nanoseconds, or steps where a step is the unit. Delays must be integers too.

    Events are SimPy's, and so is their order; they are taken here with fewer calls, for there are millions of them.

    Attributes:
        now: the current time.
        phase: the highest priority of an event that has happened at this time, or would have if an engine had not known
            that it need not wait for it.
    """

    now = 0  # a property in SimPy, which is slower to ask
    phase = 0

    def __init__(self) -> None:
        super().__init__()
        self._cancelled: set[simpy.Event] = set()

    def event(self) -> simpy.Event:
        """An event that somebody will let happen."""
        return Event(self)  # (SimPy makes its constructor a method whenever it is asked for.)

    def at(self, delay: int, priority: int = STEP_END_PRIORITY) -> simpy.Event:
        """An event that fires after ``delay``, at its place among the events of that instant."""
        event = Event(self)
        event._ok, event._value = True, None  # noqa: SLF001 - SimPy has no public way to schedule with a priority
        heappush(self._queue, (self.now + delay, priority, next(self._eid), event))  # type: ignore[misc]
        return event

    def alarm(self, delay: int, action: Callable[[], None]) -> simpy.Event:
        """Something that happens after ``delay``, unless it is cancelled."""
        assert delay >= 0, "time does not go back"
        event = self.at(delay, ARRIVAL_PRIORITY)
        assert event.callbacks is not None
        event.callbacks.append(lambda _event: action())
        return event

    def cancel(self, alarm: simpy.Event) -> None:
        """It will not happen, and the clock does not run on to its time."""
        if alarm.callbacks:
            self._cancelled.add(alarm)

    def fire(self, event: simpy.Event) -> None:
        """Who waits for this event goes on now, and not behind what else is due at this instant."""
        assert event._value is PENDING, "it has happened"  # noqa: SLF001 - as `succeed` does
        event._ok, event._value = True, None  # noqa: SLF001
        self._call_back(event)

    def run(self, until: Any = None) -> Any:
        """Until nothing is left that could happen; with ``until`` see SimPy."""
        if until is not None:
            return super().run(until)
        queue, cancelled = self._queue, self._cancelled
        while queue:
            now, priority, _, event = heappop(queue)
            if cancelled and event in cancelled:
                cancelled.remove(event)
            else:
                self._happen(now, priority, event)
        return None

    def step(self) -> None:
        """Process the next event that was not cancelled."""
        queue, cancelled = self._queue, self._cancelled
        while cancelled and queue and queue[0][3] in cancelled:
            cancelled.remove(heappop(queue)[3])
        if not queue:
            raise EmptySchedule
        now, priority, _, event = heappop(queue)
        self._happen(now, priority, event)

    def _happen(self, now: float, priority: int, event: simpy.Event) -> None:
        if now != self.now:
            self._now = self.now = now  # type: ignore[assignment]
            self.phase = priority
        elif priority > self.phase:
            self.phase = priority
        self._call_back(event)

    def _call_back(self, event: simpy.Event) -> None:
        callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
        assert callbacks is not None
        for callback in callbacks:
            callback(event)
        if not event._ok and not hasattr(event, "_defused"):  # noqa: SLF001 - what SimPy itself asks
            raise event._value  # noqa: SLF001
