"""When the requests of a trace are sent if responses take as long as recorded: for statistics, not results.

Times are float seconds here, added up turn by turn: where requests of two sessions fall on the same instant,
the last bits decide their order, and with it the fourth digit of some reuse distances. The reference figures
of the kv-cache-tester sessions were computed in this way.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from kvsim.trace.session import Session, SubAgent, Trace, Turn

STAGGER_S = 60.0
MAX_THINK_S = 60.0  # the default of kv-cache-tester's --max-delay
RESPONSE_S = 10.0  # where the trace does not tell; the mean of the recorded ones is 10.24 s


@dataclass(frozen=True, slots=True)
class Pace:
    """What a trace does not tell about the time of its requests.

    Attributes:
        session_interval_s: closed-loop sessions start so far apart.
        max_think_s: longest pause between two turns; None = as recorded.
        response_s: length of a response where the trace does not tell.
        max_concurrent_sessions: sessions at a time, later ones wait; None = no limit.
        time_scale: multiplies arrival times, and think times before they are cut.
    """

    session_interval_s: float = STAGGER_S
    max_think_s: float | None = MAX_THINK_S
    response_s: float = RESPONSE_S
    max_concurrent_sessions: int | None = None
    time_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Request:
    """One request at the time it is sent at the recorded pace.

    Attributes:
        time_s: when it is sent.
        session: index of its session in the trace.
        stream: "" for the main stream, else the sub-agent's name.
        index: place in its stream.
        turn: the request itself.
        end_s: when its response is complete.
    """

    time_s: float
    session: int
    stream: str
    index: int
    turn: Turn
    end_s: float


def recorded_pace(trace: Trace, pace: Pace | None = None) -> list[Request]:
    """All requests in order of time, if every response takes as long as it did when recorded.

    Unless told otherwise, closed-loop sessions start 60 s apart, think times are taken as recorded but cut at
    60 s, and a response of unknown length takes 10 s.
    """
    clock = _Pace(pace or Pace())
    for number, session in enumerate(trace.sessions):
        clock.session(number, session)
    return sorted(clock.requests, key=lambda request: (request.time_s, request.session, request.stream, request.index))


def recorded_think_s(turn: Turn) -> float:
    """Think time before a turn as the trace has it, or as the reader made it up where it has none."""
    return (turn.think_ns if turn.recorded_think_ns is None else turn.recorded_think_ns) / 1e9


class _Pace:
    """Collects the requests of one session after the other."""

    def __init__(self, pace: Pace) -> None:
        self.requests: list[Request] = []
        self._pace = pace
        self._staggered = 0
        self._ends_s: list[float] = []  # of the sessions that hold a place, a heap

    def session(self, number: int, session: Session) -> None:
        if session.start_ns is None:
            start_s = self._pace.session_interval_s * self._staggered
            self._staggered += 1
        else:
            start_s = session.start_ns / 1e9 * self._pace.time_scale
        if len(self._ends_s) == self._pace.max_concurrent_sessions:
            start_s = max(start_s, heapq.heappop(self._ends_s))
        first = len(self.requests)
        end_s = self._stream(number, "", session.turns, start_s)
        self._agents(number, session.trailing, end_s)
        if self._pace.max_concurrent_sessions is not None:
            heapq.heappush(self._ends_s, max(request.end_s for request in self.requests[first:]))

    def _stream(self, session: int, name: str, turns: Sequence[Turn], start_s: float) -> float:
        """Appends the requests of one stream and returns the end of its last response."""
        end_s = start_s
        for index, turn in enumerate(turns):
            waited_s = self._agents(session, turn.subagents, end_s)
            time_s = max(end_s + self._think_s(turn), waited_s) if index else end_s
            end_s = time_s + (self._pace.response_s if turn.recorded_ns is None else turn.recorded_ns / 1e9)
            self.requests.append(Request(time_s, session, name, index, turn, end_s))
        return end_s

    def _agents(self, session: int, agents: Sequence[SubAgent], start_s: float) -> float:
        """Appends the requests of sub-agents and returns the end of the last one that is waited for."""
        waited_s = 0.0
        for agent in agents:
            end_s = self._stream(session, agent.name, agent.turns, start_s)
            if agent.blocking:
                waited_s = max(waited_s, end_s)
        return waited_s

    def _think_s(self, turn: Turn) -> float:
        think_s, limit_s = recorded_think_s(turn) * self._pace.time_scale, self._pace.max_think_s
        return think_s if limit_s is None else min(think_s, limit_s)
