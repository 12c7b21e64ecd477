"""A moment at which a sleeping engine has to look around, which may change or be taken back."""

from __future__ import annotations

from collections.abc import Callable

import simpy

from kvsim.clock import Clock


class Alarm:
    """Rings once at the moment that was set last.

    The real engine spins and looks at its clock; ours sleeps until something happens.
    """

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._clock, self._ring = clock, ring
        self._at_ns: int | None = None
        self._event: simpy.Event | None = None

    def set(self, at_ns: int | None) -> None:
        """Ring then, not when it was said before; None = not at all."""
        if at_ns == self._at_ns:
            return
        if self._event is not None:
            self._clock.cancel(self._event)
            self._event = None
        self._at_ns = at_ns
        if at_ns is not None:
            self._event = self._clock.alarm(max(at_ns - self._clock.now, 0), self._rang)

    def _rang(self) -> None:
        self._at_ns, self._event = None, None
        self._ring()
