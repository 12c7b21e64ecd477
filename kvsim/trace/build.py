"""From the rows of an id-based format to turns: chains are built when the whole prefix tree is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvsim.chain import Leaf, PrefixTree
from kvsim.trace.session import SubAgent, Turn


@dataclass(slots=True)
class DraftTurn:
    """A request as read; the fields of `Turn`, with a leaf of the growing tree instead of a chain."""

    leaf: Leaf
    input_tokens: int
    recorded_output_tokens: int
    known_prompt_tokens: int
    num_ids: int
    think_ns: int = 0
    recorded_think_ns: int | None = None
    recorded_ns: int | None = None
    model: str | None = None
    subagents: list[DraftAgent] = field(default_factory=list)


@dataclass(slots=True)
class DraftAgent:
    """A sub-agent as read."""

    name: str
    blocking: bool
    turns: list[DraftTurn]


def finish_stream(
    tree: PrefixTree, drafts: Sequence[DraftTurn], block_tokens: int, outputs_return: bool
) -> tuple[Turn, ...]:
    """Turns a stream of drafts into turns.

    Args:
        tree: complete prefix tree.
        drafts: the stream, in order.
        block_tokens: tokens per trace id.
        outputs_return: whether generated tokens are taken to be the ones that come back. A turn's chain then
            goes on along the next prompt through its generated tokens, but only where the next prompt really
            appends: it keeps every full id of this prompt and is at least this prompt and its answer long.
    """
    chains = [tree.chain(draft.leaf, draft.known_prompt_tokens) for draft in drafts]
    turns: list[Turn] = []
    for at, draft in enumerate(drafts):
        chain = chains[at]
        end = draft.input_tokens + draft.recorded_output_tokens
        if outputs_return and at + 1 < len(drafts) and drafts[at + 1].input_tokens >= end:
            full = min(draft.known_prompt_tokens, draft.input_tokens // block_tokens * block_tokens)
            if chain.shared_tokens(chains[at + 1]) >= full:
                chain = chains[at + 1].truncated(end)
        turns.append(
            Turn(
                input_tokens=draft.input_tokens,
                output_tokens=max(1, draft.recorded_output_tokens),
                chain=chain,
                known_prompt_tokens=draft.known_prompt_tokens,
                num_ids=draft.num_ids,
                think_ns=draft.think_ns,
                recorded_ns=draft.recorded_ns,
                model=draft.model,
                subagents=finish_agents(tree, draft.subagents, block_tokens, outputs_return),
                recorded_output_tokens=draft.recorded_output_tokens,
                recorded_think_ns=draft.recorded_think_ns,
            )
        )
    return tuple(turns)


def finish_agents(
    tree: PrefixTree, agents: Sequence[DraftAgent], block_tokens: int, outputs_return: bool
) -> tuple[SubAgent, ...]:
    """The same for the sub-agents of a turn."""
    return tuple(
        SubAgent(agent.name, agent.blocking, finish_stream(tree, agent.turns, block_tokens, outputs_return))
        for agent in agents
    )


class Names:
    """Makes names unique by numbering repeats: ``a``, ``a#2``, ``a#3``."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def unique(self, name: str) -> str:
        """`name` itself if it is new."""
        result, repeat = name, 1
        while result in self._used:
            repeat += 1
            result = f"{name}#{repeat}"
        self._used.add(result)
        return result
