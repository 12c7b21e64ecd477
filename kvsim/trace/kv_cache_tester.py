"""Reader for kv-cache-tester traces: recorded coding-agent sessions, one JSON file each, with sub-agents.

Format: https://github.com/callanjfox/kv-cache-tester, docs/trace_replay_tester.md, checked against its files.

- ``hash_ids`` name full blocks of ``block_size`` tokens only; the tail of a prompt has no id and is private.
- Ids are local to a file (``hash_id_scope``), and shared by the session and its sub-agents.
- ``think_time`` is the gap before a request. Where sub-agents ran in that gap it contains their run.
- A sub-agent stands in the list before the request that waits for it. If its ``status`` is "completed", its
  ``t`` is its end, so ``t`` says nothing about its start: sub-agents start when the previous response ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvsim.chain import PrefixTree
from kvsim.errors import UserError
from kvsim.trace.build import DraftAgent, DraftTurn, Names, finish_agents, finish_stream
from kvsim.trace.fields import Fields, Limits, show
from kvsim.trace.files import read_text
from kvsim.trace.ids import PromptReader, parse_with_ids
from kvsim.trace.session import Session

SECOND_NS = 10**9

# Response time assumed where api_time is missing. Source: mean of the 6,865 reported in 60 sessions, 10.24 s.
MISSING_API_NS = 10 * SECOND_NS

_STATUS_BLOCKS = {"completed": True, "async_launched": False}


class KvCacheTesterReader:
    """Collects session files; see the module's description for the format.

    Attributes:
        kind: name of the format.
        outputs_return: False: thinking is stripped from the history and input and output are counted by
            different tokenisers, so generated tokens are not known to come back as they were.
        block_tokens: tokens per id, 0 before the first file.
        tree: prefix tree of everything read.
    """

    kind = "kv-cache-tester"
    outputs_return = False
    why = "thinking is stripped from the history and the tokenisers of input and output differ"

    def __init__(self, limits: Limits) -> None:
        self.block_tokens = 0
        self.tree = PrefixTree()
        self._limits = limits
        self._names = Names()
        self._sessions: list[tuple[str, list[DraftTurn], list[DraftAgent]]] = []
        self._counts = dict.fromkeys(_NOTES, 0)

    def read(self, path: Path) -> None:
        """Reads one session file."""
        text = read_text(path)
        top = Fields(str(path), parse_with_ids(text, str(path)))
        size = top.integer("block_size", 1, 1 << 20)
        if self.block_tokens and size != self.block_tokens:
            raise UserError(f"{path}: block_size is {size}, expected {self.block_tokens} as before")
        self.block_tokens = size
        scope = top.get("hash_id_scope")
        if scope not in (None, "local", "global"):
            top.fail("hash_id_scope", '"local" or "global"')
        space = "" if scope == "global" else f"file {len(self._sessions)}"
        prompts = PromptReader(self.tree, space, size, text, str(path))
        turns, trailing = self._main_stream(path, top.array("requests"), prompts)
        if space:
            self.tree.forget(space)
        if not turns:
            raise UserError(f"{path}: requests holds no request of the session itself, expected at least one")
        name = top.text("id") if top.has("id") else path.name.split(".")[0]
        self._counts["local"] += scope != "global"
        self._sessions.append((self._names.unique(name), turns, trailing))
        self._counts["models"] += len({turn.model for turn in turns}) > 1

    def sessions(self, outputs_return: bool) -> tuple[Session, ...]:
        """All sessions; closed loop, so without a start of their own."""
        tree, size = self.tree, self.block_tokens
        return tuple(
            Session(
                name,
                None,
                finish_stream(tree, turns, size, outputs_return),
                finish_agents(tree, trailing, size, outputs_return),
            )
            for name, turns, trailing in self._sessions
        )

    def notes(self) -> list[str]:
        """What was odd or had to be assumed."""
        counts = self._counts
        if len(self._sessions) == 1:
            counts = {**counts, "local": 0}  # one session has nobody to share with
        return [_NOTES[key].format(count) for key, count in counts.items() if count]

    def _main_stream(
        self, path: Path, entries: Sequence[object], prompts: PromptReader
    ) -> tuple[list[DraftTurn], list[DraftAgent]]:
        turns: list[DraftTurn] = []
        agents: list[DraftAgent] = []
        names = Names()
        clock = _Clock(self._counts)
        for place, entry in enumerate(entries):
            row = Fields(f"{path}: requests[{place}]", entry)
            if row.get("type") == "subagent":
                agent = self._agent(row, prompts, names)
                if agent.turns:
                    agents.append(agent)
                else:
                    self._counts["empty"] += 1
                continue
            turn = self._turn(row, prompts, clock)
            turn.subagents = agents
            agents = []
            turns.append(turn)
        return turns, agents

    def _agent(self, row: Fields, prompts: PromptReader, names: Names) -> DraftAgent:
        name = names.unique(row.text("agent_id"))
        status = row.text("status")
        if status not in _STATUS_BLOCKS:
            row.fail("status", " or ".join(f'"{known}"' for known in _STATUS_BLOCKS))
        blocking = _STATUS_BLOCKS[status]
        self._counts["background"] += not blocking
        clock = _Clock(self._counts)
        turns = []
        for place, entry in enumerate(row.array("requests")):
            inner = Fields(f"{row.where}.requests[{place}]", entry)
            if inner.get("type") == "subagent":
                inner.fail("type", '"n" or "s": sub-agents of sub-agents are not part of the format')
            turns.append(self._turn(inner, prompts, clock))
        return DraftAgent(name, blocking, turns)

    def _turn(self, row: Fields, prompts: PromptReader, clock: _Clock) -> DraftTurn:
        limits = self._limits
        if row.text("type") not in ("n", "s"):
            row.fail("type", '"n", "s" or "subagent"')
        tokens = row.integer("in", 1, limits.max_input_tokens)
        output = row.integer("out", 0, limits.max_output_tokens)
        size = self.block_tokens
        num_ids = tokens // size
        leaf = prompts.add(row, num_ids, f"in // block_size = {tokens} // {size}")
        model = row.get("model")
        if model is not None and not isinstance(model, str):
            raise UserError(f"{row.where}: model is {show(model)}, expected a text")
        start_ns = _ns(row.number("t", 0, limits.max_seconds))
        recorded_ns = _ns(row.number("api_time", 0, limits.max_seconds)) if row.has("api_time") else None
        think_ns = _ns(row.number("think_time", 0, limits.max_seconds)) if row.has("think_time") else None
        self._counts["no output"] += output == 0
        return DraftTurn(
            leaf=leaf,
            input_tokens=tokens,
            recorded_output_tokens=output,
            known_prompt_tokens=num_ids * size,
            num_ids=num_ids,
            think_ns=clock.think_ns(start_ns, think_ns, recorded_ns),
            recorded_think_ns=think_ns,
            recorded_ns=recorded_ns,
            model=model,
        )


class _Clock:
    """Works out the real gap before each request of one stream, also where a recorded time is missing."""

    def __init__(self, counts: dict[str, int]) -> None:
        self._counts = counts
        self._previous: tuple[int, int | None] | None = None

    def think_ns(self, start_ns: int, recorded_ns: int | None, api_ns: int | None) -> int:
        """Gap before the request at `start_ns`, whose own response took `api_ns`."""
        previous, self._previous = self._previous, (start_ns, api_ns)
        self._counts["no api_time"] += api_ns is None
        if previous is None:
            return 0
        before_ns, before_api_ns = previous
        # After a response without api_time, think_time counts from an earlier response: it is too long.
        self._counts["no think_time"] += recorded_ns is None
        self._counts["corrected"] += recorded_ns is not None and before_api_ns is None
        if recorded_ns is not None and before_api_ns is not None:
            return recorded_ns
        return max(0, start_ns - before_ns - (MISSING_API_NS if before_api_ns is None else before_api_ns))


def _ns(seconds: float) -> int:
    return round(seconds * SECOND_NS)


_NOTES = {
    "local": "block ids are local to a file: the {:,} sessions share nothing, not even their tools",
    "no output": "{:,} responses were recorded with 0 output tokens; each is replayed as 1 token",
    "no api_time": "{:,} requests have no api_time; where the recorded pace is needed, 10 s are assumed",
    "no think_time": "{:,} requests have no think_time; taken as t minus previous t and api_time, at least 0",
    "corrected": (
        "{:,} requests follow a response without api_time, so their think_time counts from an earlier one; "
        "taken as t minus the previous t minus 10 s, at least 0"
    ),
    "background": "{:,} sub-agents run in the background; nobody waits for them",
    "empty": "{:,} sub-agents without requests are left out",
    "models": "{:,} sessions name several models in their main stream; all are served by one model here",
}
