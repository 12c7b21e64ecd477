"""Plays a trace on a SimPy clock: sends every turn when its client would, given how fast the answers come.

Each session is a process. A closed-loop session starts at its place in the stagger, an open-loop one at its
fixed time. A turn is sent when both are over: the think time since the previous response, and every sub-agent
that the stream waits for. Sub-agents start side by side when the previous response has ended and play the
same way.

To play a trace on something else, hand in another `submit`; to shape arrivals differently, give the sessions
other ``start_ns``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import simpy
from simpy.events import URGENT

from kvsim.clock import ARRIVAL_PRIORITY, Clock
from kvsim.trace.session import Session, SubAgent, Trace, Turn

# submit(session, stream, turn index, turn) -> event that fires when the request has ended, whichever way.
Submit = Callable[[Session, str, int, Turn], simpy.Event]
_Process = Generator[simpy.Event, Any, None]


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How a trace is played.

    Attributes:
        session_interval_ns: closed-loop session ``i`` starts at ``i`` times this.
        max_think_ns: longest think time that is really waited; None for no limit.
        max_concurrent_sessions: sessions that may run at a time; the next one starts when one has ended
            completely. None for no limit.
        time_scale: multiplies fixed start times and think times (before `max_think_ns` is applied).
    """

    session_interval_ns: int = 0
    max_think_ns: int | None = None
    max_concurrent_sessions: int | None = None
    time_scale: float = 1.0

    def think_ns(self, turn: Turn) -> int:
        """The think time that is waited before a turn."""
        think = turn.think_ns if self.time_scale == 1.0 else round(turn.think_ns * self.time_scale)
        return think if self.max_think_ns is None else min(think, self.max_think_ns)


def play(
    env: Clock,
    trace: Trace,
    submit: Submit,
    options: ReplayOptions | None = None,
    on_over: Callable[[int], None] = lambda _place: None,
) -> None:
    """Starts every session at its time; each is a process of its own, unless all are single requests.

    Sessions that start at the same instant do so in the order of the trace, sub-agents in that of their turn.

    Args:
        env: clock in integer ns.
        trace: what to play.
        submit: sends one turn. Its event is only waited for: a turn that was rejected or failed is over like
            any other, and the session goes on.
        options: how to play it.
        on_over: told the place of a session in the trace when everything of it has ended.
    """
    options = options or ReplayOptions()
    slots = None
    if options.max_concurrent_sessions is not None:
        slots = simpy.Resource(env, options.max_concurrent_sessions)
    player = _Player(env, submit, options, slots, on_over)
    start = player.start_single if slots is None and all(map(_is_single, trace.sessions)) else player.start
    for place, (session, start_ns) in enumerate(zip(trace.sessions, starts_ns(trace, options), strict=True)):
        start(place, session, start_ns)


def _is_single(session: Session) -> bool:
    """Whether it is one request that waits for nothing and that nothing follows."""
    turn = session.turns[0]
    return len(session.turns) == 1 and not (session.trailing or turn.subagents or turn.think_ns)


def starts_ns(trace: Trace, options: ReplayOptions) -> Iterator[int]:
    """When each session may start."""
    staggered = 0
    for session in trace.sessions:
        if session.start_ns is None:
            yield staggered * options.session_interval_ns
            staggered += 1
        else:
            yield round(session.start_ns * options.time_scale)


def shortest_ns(trace: Trace, options: ReplayOptions) -> int:
    """Time that a replay takes at least: the latest end of a session whose answers take no time."""
    return max(
        (
            start_ns + sum(map(options.think_ns, session.turns))
            for session, start_ns in zip(trace.sessions, starts_ns(trace, options), strict=True)
        ),
        default=0,
    )


class _Player:
    def __init__(
        self,
        env: Clock,
        submit: Submit,
        options: ReplayOptions,
        slots: simpy.Resource | None,
        on_over: Callable[[int], None],
    ) -> None:
        self._env, self._submit, self._options, self._slots, self._on_over = env, submit, options, slots, on_over

    def start(self, place: int, session: Session, start_ns: int) -> None:
        """A session as a process."""
        self._env.process(self._session(place, session, start_ns))

    def start_single(self, place: int, session: Session, start_ns: int) -> None:
        """A session of one request, at the same place among the events of its instant as a process would have."""
        arrival = self._env.at(start_ns, ARRIVAL_PRIORITY if start_ns else URGENT)  # at the beginning the clock shows 0
        assert arrival.callbacks is not None
        arrival.callbacks.append(lambda _event: self._submit_single(place, session))

    def _submit_single(self, place: int, session: Session) -> None:
        ended = self._submit(session, "", 0, session.turns[0])
        if ended.processed:
            self._on_over(place)
            return
        assert ended.callbacks is not None
        ended.callbacks.append(lambda _event: self._on_over(place))

    def _session(self, place: int, session: Session, start_ns: int) -> _Process:
        """One session from its start to the end of its last sub-agent."""
        if start_ns > self._env.now:
            yield self._env.timeout(start_ns - self._env.now)
        slot = None
        if self._slots is not None:
            slot = self._slots.request()
            yield slot
        background: list[simpy.Process] = []
        yield from self._stream(session, "", session.turns, background)
        yield from self._start(session, session.trailing, background)
        yield from background
        if self._slots is not None and slot is not None:
            self._slots.release(slot)
        self._on_over(place)

    def _stream(self, session: Session, name: str, turns: Sequence[Turn], background: list[simpy.Process]) -> _Process:
        for index, turn in enumerate(turns):
            awaited = self._start(session, turn.subagents, background)
            think_ns = self._options.think_ns(turn)
            if think_ns:
                yield self._env.timeout(think_ns)
            yield from awaited
            yield self._submit(session, name, index, turn)

    def _start(
        self, session: Session, agents: Sequence[SubAgent], background: list[simpy.Process]
    ) -> list[simpy.Process]:
        """Starts sub-agents now; returns those to wait for, the others join `background`."""
        awaited: list[simpy.Process] = []
        for agent in agents:
            stream = self._stream(session, agent.name, agent.turns, background)
            process = self._env.process(stream)
            (awaited if agent.blocking else background).append(process)
        return awaited
