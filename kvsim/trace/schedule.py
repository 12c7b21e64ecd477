"""When the requests of a trace are sent if responses take as long as recorded: for statistics, not results.

Times are float seconds here, added up turn by turn: where requests of two sessions fall on the same instant,
the last bits decide their order, and with it the fourth digit of some reuse distances. The reference figures
of the kv-cache-tester sessions were computed in this way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvsim.trace.session import SubAgent, Trace, Turn

STAGGER_S = 60.0
MAX_THINK_S = 60.0  # the default of kv-cache-tester's --max-delay
RESPONSE_S = 10.0  # where the trace does not tell; the mean of the recorded ones is 10.24 s


@dataclass(frozen=True, slots=True)
class Request:
    """One request at the time it is sent at the recorded pace.

    Attributes:
        time_s: when it is sent.
        session: index of its session in the trace.
        stream: "" for the main stream, else the sub-agent's name.
        index: place in its stream.
        turn: the request itself.
    """

    time_s: float
    session: int
    stream: str
    index: int
    turn: Turn

    @property
    def end_s(self) -> float:
        """When its response is complete."""
        return self.time_s + _response_s(self.turn)


def recorded_pace(trace: Trace) -> list[Request]:
    """All requests in order of time, if every response takes as long as it did when recorded.

    Closed-loop sessions start 60 s apart, think times are taken as recorded but cut at 60 s, and a response
    of unknown length takes 10 s.
    """
    requests: list[Request] = []
    staggered = 0
    for number, session in enumerate(trace.sessions):
        if session.start_ns is None:
            start_s = STAGGER_S * staggered
            staggered += 1
        else:
            start_s = session.start_ns / 1e9
        end_s = _stream(requests, number, "", session.turns, start_s)
        _agents(requests, number, session.trailing, end_s)
    requests.sort(key=lambda request: (request.time_s, request.session, request.stream, request.index))
    return requests


def recorded_think_s(turn: Turn) -> float:
    """Think time before a turn as the trace has it, or as the reader made it up where it has none."""
    return (turn.think_ns if turn.recorded_think_ns is None else turn.recorded_think_ns) / 1e9


def _stream(requests: list[Request], session: int, name: str, turns: Sequence[Turn], start_s: float) -> float:
    """Appends the requests of one stream and returns the end of its last response."""
    end_s = start_s
    for index, turn in enumerate(turns):
        waited_s = _agents(requests, session, turn.subagents, end_s)
        time_s = max(end_s + min(recorded_think_s(turn), MAX_THINK_S), waited_s) if index else end_s
        requests.append(Request(time_s, session, name, index, turn))
        end_s = time_s + _response_s(turn)
    return end_s


def _agents(requests: list[Request], session: int, agents: Sequence[SubAgent], start_s: float) -> float:
    """Appends the requests of sub-agents and returns the end of the last one that is waited for."""
    waited_s = 0.0
    for agent in agents:
        end_s = _stream(requests, session, agent.name, agent.turns, start_s)
        if agent.blocking:
            waited_s = max(waited_s, end_s)
    return waited_s


def _response_s(turn: Turn) -> float:
    return RESPONSE_S if turn.recorded_ns is None else turn.recorded_ns / 1e9
