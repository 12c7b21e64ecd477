"""The turns of a trace in time, if every answer takes as long as it did when it was recorded."""

from __future__ import annotations

from dataclasses import dataclass

import simpy

from kvsim.clock import Clock
from kvsim.trace.replay import ReplayOptions, play
from kvsim.trace.session import Session, Trace, Turn, turn_name

# Answer of a turn whose duration the trace does not tell; the mean of the kv-cache-tester sessions is 10.24 s.
UNKNOWN_ANSWER_NS = 10 * 10**9


@dataclass(slots=True)
class PacedTurn:
    """A turn, sent at ``start_ns`` and answered at ``end_ns``.

    Attributes:
        name: see `turn_name`.
        stream: session and sub-agent: its turns follow each other.
        next_start_ns: when the stream's next turn is sent; None if it is the last.
    """

    name: str
    stream: str
    session: Session
    is_subagent: bool
    index: int
    turn: Turn
    start_ns: int
    end_ns: int = 0
    next_start_ns: int | None = None


def at_recorded_pace(trace: Trace, options: ReplayOptions) -> list[PacedTurn]:
    """All turns in the order in which they would be sent; at one instant in that of the trace."""
    env, sent = Clock(), list[PacedTurn]()
    last_of: dict[str, PacedTurn] = {}

    def submit(session: Session, stream: str, index: int, turn: Turn) -> simpy.Event:
        answer_ns = UNKNOWN_ANSWER_NS if turn.recorded_ns is None else turn.recorded_ns
        name, now = f"{session.name}/{stream}", env.now
        paced = PacedTurn(
            turn_name(session.name, stream, index), name, session, bool(stream), index, turn, now, now + answer_ns
        )
        if name in last_of:
            last_of[name].next_start_ns = now
        last_of[name] = paced
        sent.append(paced)
        return env.timeout(answer_ns)

    play(env, trace, submit, options)
    env.run()
    return sent
