"""What an eviction policy may know besides the keys of its chunks.

A policy asks its ``view``; whoever builds the policy says what lies behind it (`kvsim.build_policy` a simulation,
`kvsim.plan.replay` a replay of a cache alone). LRU and ARC never ask, and pay nothing. Four kinds of knowledge, from
what every server has to what none has:

- the time, and how long a prefill of some chunks would take: the server's own;
- the session, stream, tenant and turn of a request: clients can send them along (vLLM: `cache_salt`, headers);
- the requests that wait: the scheduler's;
- the pause before a stream's next turn and the next use of a chunk: the future, for upper bounds only.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

NEVER = 2**62  # next use of what is not used again; later than any number of a request or time in ns


@dataclass(frozen=True, slots=True)
class TurnFacts:
    """Who sends a request.

    Attributes:
        stream: session and, of a sub-agent, its name: turns of one stream follow each other.
        tenant: number of its tenant; 0 if there are none.
        is_subagent: sent by a sub-agent, not by the session's main stream.
        turn: number in its stream.
        goes_on: the stream has another turn: this one ends in a tool call or a user reads it.
        pause_ns: from its end to the stream's next turn, as far as that is known beforehand (think time, and what
            sub-agents took when they were recorded); `NEVER` if it is the last.
    """

    stream: str
    tenant: int
    is_subagent: bool
    turn: int
    goes_on: bool
    pause_ns: int


class View:
    """Nothing is known. Subclass it and answer what you can."""

    def now_ns(self) -> int:
        """The time."""
        return 0

    def prefill_ns(self, first: int, last: int) -> int:
        """Time of a forward pass that computes chunks ``first .. last - 1`` of a prompt, the ones before given."""
        return last - first

    def turn(self, request_id: str) -> TurnFacts | None:
        """Who sends a request; None = unknown."""
        return None

    def waiting(self, limit: int) -> Sequence[Collection[int]]:
        """Keys of the first ``limit`` requests that wait, the next one first."""
        return ()

    def next_use(self, request_id: str, position: int) -> int:
        """Number of the next request that has the request's chunk at this position; `NEVER` if none does."""
        return NEVER


BLIND = View()
