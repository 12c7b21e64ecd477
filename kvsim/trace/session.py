"""What every trace becomes: sessions of turns, with sub-agents beside them.

A turn is one request to the engine. Its think time comes *before* it: it is what passes between the previous
response of the same stream and this request (a tool runs, a user reads), so server time is never part of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from kvsim.chain import Chain, PrefixTree
from kvsim.demands import PLAIN, Demands


@dataclass(frozen=True, slots=True)
class Turn:
    """One request.

    Attributes:
        input_tokens: length of the whole prompt.
        output_tokens: tokens to generate, at least 1.
        chain: the content that other prompts can share: the prompt's known tokens, and the generated ones too
            where they come back in the next prompt. Never longer than ``input_tokens + output_tokens``.
        known_prompt_tokens: prompt tokens that have an id in the trace; the rest of the prompt is private.
        num_ids: trace ids of the prompt.
        think_ns: gap before this turn, after the previous response of its stream.
        recorded_ns: how long the response took when the trace was recorded; None if it does not say.
        model: model named by the trace.
        subagents: start when the previous turn of this stream has ended; the blocking ones must end before
            this turn is sent.
        recorded_output_tokens: output as recorded; 0 for a failed response, which is replayed as 1 token.
        recorded_think_ns: think time as recorded; `think_ns` may be a correction of it. None: not recorded.
        demands: its adapter, grammar and images; as read, only the images that it brings itself (see `trace.demands`).
    """

    input_tokens: int
    output_tokens: int
    chain: Chain
    known_prompt_tokens: int
    num_ids: int
    think_ns: int = 0
    recorded_ns: int | None = None
    model: str | None = None
    subagents: tuple[SubAgent, ...] = ()
    recorded_output_tokens: int = 0
    recorded_think_ns: int | None = None
    demands: Demands = PLAIN


def turn_name(session: str, stream: str, index: int) -> str:
    """Name of a turn, unique within its trace: session, sub-agent (empty: the main stream), number in its stream."""
    return f"{session}{'/' + stream if stream else ''}#{index}"


@dataclass(frozen=True, slots=True)
class SubAgent:
    """A stream of turns started by another stream.

    Attributes:
        name: unique within its session.
        blocking: whether the parent waits for its end before its next turn.
        turns: in order; the first one is sent at the sub-agent's start.
    """

    name: str
    blocking: bool
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation.

    Attributes:
        name: unique within its trace.
        start_ns: fixed time of arrival (open loop); None for a closed loop, where the replay decides.
        turns: the main stream, at least one.
        trailing: sub-agents started after the last turn.
    """

    name: str
    start_ns: int | None
    turns: tuple[Turn, ...]
    trailing: tuple[SubAgent, ...] = ()

    @property
    def streams(self) -> tuple[tuple[str, tuple[Turn, ...]], ...]:
        """Main stream (named "") and then every sub-agent in order of appearance, as (name, turns)."""
        agents = [agent for turn in self.turns for agent in turn.subagents]
        agents.extend(self.trailing)
        return (("", self.turns), *((agent.name, agent.turns) for agent in agents))


@dataclass(frozen=True)
class Trace:
    """A workload, ready to be played.

    Attributes:
        name: for titles.
        kind: the format it was read from.
        block_tokens: tokens per trace id.
        sessions: in order of their start.
        outputs_return: whether generated tokens come back in the next prompt of their stream.
        notes: choices made while reading and counts of odd rows, one line each, to be shown to the user.
        tree: the prefix tree of all chains.
        paths: of the files or folders that it was read from, absolute; empty if it was not read.
    """

    name: str
    kind: str
    block_tokens: int
    sessions: tuple[Session, ...]
    outputs_return: bool
    notes: tuple[str, ...]
    tree: PrefixTree = field(repr=False)
    paths: tuple[Path, ...] = field(default=(), compare=False)

    @property
    def num_requests(self) -> int:
        """Requests of all streams of all sessions."""
        return sum(len(turns) for session in self.sessions for _, turns in session.streams)
