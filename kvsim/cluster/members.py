"""Which instances of a cluster take turns: they join, drain and fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import simpy

from kvsim.clock import Clock
from kvsim.cluster.views import Joined, Left, News
from kvsim.handoff import Handoff
from kvsim.results.records import RequestRecord
from kvsim.trace.replay import Submit
from kvsim.trace.session import Session, Turn

UP, ABSENT, DRAINING, FAILED = "up", "absent", "draining", "failed"


class Member(Protocol):
    """A server, as the cluster sees it."""

    name: str
    submit: Submit

    @property
    def engine_id(self) -> str:
        """Of its engine, as others in the network know it."""
        ...

    def serve(
        self, entry: RequestRecord, session: Session, turn: Turn, handoff: Handoff
    ) -> simpy.Event | tuple[str, str]:
        """See `kvsim.door.Door.serve`."""
        ...

    def kill(self) -> None:
        """It dies now."""
        ...

    def restart(self, *, starts_up: bool = False) -> None:
        """Another one takes its place, with empty memory."""
        ...


Happening = tuple[int, int, str]  # moment, number of the instance, join | drain | fail


class Members:
    """The states of the instances.

    - *up*: takes turns.
    - *absent*: is not there before it joins; it comes with empty memory.
    - *draining*: gets no new turns and finishes what it has; its memory stays, should it join again.
    - *failed*: its engine has died: requests failed, memory is lost. If it joins again, it begins from nothing.

    Whoever routes hears of a change at once, as from a server that refuses connections.

    Args:
        absent: instances that have to join first.
        happenings: in order.
        tell: told of instances that join and leave.
    """

    def __init__(
        self,
        clock: Clock,
        members: Sequence[Member],
        absent: Sequence[int],
        happenings: Sequence[Happening],
        tell: Callable[[News], None],
    ) -> None:
        self._clock, self._members, self._happenings, self._tell = clock, members, happenings, tell
        self.states = [ABSENT if number in absent else UP for number in range(len(members))]
        self._alarms: list[simpy.Event] = []
        self.notes: list[str] = []
        self._find_up()

    def start(self) -> None:
        """Set the alarms."""
        for at_ns, number, action in self._happenings:
            act = {"join": self._join, "drain": self._drain, "fail": self._fail}[action]
            self._alarms.append(self._clock.alarm(at_ns, lambda act=act, number=number: act(number)))  # type: ignore[misc]

    def stop(self) -> None:
        """Nobody is left who could notice: the clock need not run on."""
        for alarm in self._alarms:
            self._clock.cancel(alarm)

    def why_none(self, pool: Sequence[int] | None = None, role: str = "") -> str:
        """Why no instance (of a pool, which has a role) takes turns now."""
        states = self.states if pool is None else [self.states[number] for number in pool]
        counts = [(state, states.count(state)) for state in (DRAINING, FAILED, ABSENT)]
        why = ", ".join(f"{count} {state}" for state, count in counts if count)
        return f"no {role and role + ' '}instance took requests ({why})"

    def _join(self, number: int) -> None:
        if self.states[number] != DRAINING:
            self._members[number].restart(starts_up=True)
        self._change(number, UP, Joined(number))

    def _drain(self, number: int) -> None:
        self._change(number, DRAINING, Left(number, lost=False))

    def _fail(self, number: int) -> None:
        self._change(number, FAILED, Left(number, lost=True))
        self._members[number].kill()

    def _change(self, number: int, state: str, news: News) -> None:
        self.notes.append(f"{self._clock.now / 1e9:g} s: {self._members[number].name} is {state}")
        self.states[number] = state
        self._find_up()
        self._tell(news)

    def _find_up(self) -> None:
        self.up = [number for number, state in enumerate(self.states) if state == UP]
