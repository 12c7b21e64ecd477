"""Simulated time: a SimPy environment whose clock counts whole numbers."""

from __future__ import annotations

from typing import Any, cast

import simpy

# Order of events at one instant. SimPy's own are 0 (urgent) and 1 (normal): arrivals and ends of copies come first,
# then the ends of steps (and what follows from them), then the decisions about the next steps.
STEP_END_PRIORITY = 2
SCHEDULE_PRIORITY = 3


class Clock(simpy.Environment):
    """Time in integers: nanoseconds, or steps where a step is the unit. Delays must be integers too."""

    @property
    def now(self) -> int:
        """The current time."""
        return cast("int", self._now)

    def at(self, delay: int, priority: int = STEP_END_PRIORITY) -> simpy.Event:
        """An event that fires after ``delay``, at its place among the events of that instant."""
        event = self.event()
        event._ok, event._value = True, None  # noqa: SLF001 - SimPy has no public way to schedule with a priority
        self.schedule(event, priority=cast("Any", priority), delay=delay)
        return event
