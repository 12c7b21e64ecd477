"""Reader and writer for our own session format: prompts as lengths, exact for any engine block size.

The format is described in traces/README.md. In short: a header line, then one line per session; a turn is
``[keep, new, out, think_ms]``, and may end with an object that says what else it asks for. Its prompt is the
first `keep` tokens of the previous prompt and answer, followed by `new` tokens that nobody else has. The first
turn keeps tokens of the prefix that all sessions share.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kvsim.chain import ROOT, Leaf, PrefixTree
from kvsim.demands import PLAIN, Demands, EncoderInput
from kvsim.errors import UserError
from kvsim.trace.build import Names
from kvsim.trace.fields import Fields, Limits, parse_json, show
from kvsim.trace.files import read_lines
from kvsim.trace.session import Session, Turn

SCHEMA = "kvsim.sessions"
VERSION = 1
MS_NS = 10**6

_COLUMNS = ("keep", "new", "out", "think_ms")


@dataclass(frozen=True, slots=True)
class TurnLengths:
    """One turn by its lengths.

    Attributes:
        keep_tokens: kept from the start of the previous prompt and answer (first turn: of the shared prefix).
        new_tokens: added behind.
        output_tokens: generated, at least 1.
        think_ms: gap before the turn.
        demands: its grammar, and the images among its new tokens.
    """

    keep_tokens: int
    new_tokens: int
    output_tokens: int
    think_ms: int
    demands: Demands = PLAIN

    @property
    def input_tokens(self) -> int:
        """Length of the prompt."""
        return self.keep_tokens + self.new_tokens


@dataclass(frozen=True, slots=True)
class SessionLengths:
    """One session by its lengths; `start_ms` is None in a closed loop."""

    name: str
    turns: tuple[TurnLengths, ...]
    start_ms: int | None = None


def write_sessions(
    sessions: Sequence[SessionLengths],
    *,
    shared_prefix_tokens: int,
    outputs_return: bool = True,
    origin: Mapping[str, object] | None = None,
) -> Iterator[str]:
    """The lines of a trace file, each with its line end.

    Args:
        sessions: in the order of their start.
        shared_prefix_tokens: length of the prefix whose beginning every session may keep.
        outputs_return: whether an answer's tokens are the ones that come back in the next prompt.
        origin: how the trace was made, stored for the reader's information.
    """
    header: dict[str, object] = {
        "schema": SCHEMA,
        "version": VERSION,
        "outputs_return": outputs_return,
        "shared_prefix_tokens": shared_prefix_tokens,
        "columns": list(_COLUMNS),
    }
    if origin:
        header["origin"] = dict(origin)
    yield _compact(header)
    for session in sessions:
        line: dict[str, object] = {"session": session.name}
        if session.start_ms is not None:
            line["start_ms"] = session.start_ms
        line["turns"] = [[t.keep_tokens, t.new_tokens, t.output_tokens, t.think_ms] for t in session.turns]
        yield _compact(line)


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"


@dataclass(slots=True)
class _Draft:
    lengths: SessionLengths
    leaves: list[Leaf] = field(default_factory=list)


class SessionsReader:
    """Collects files of our own format; every file has its own shared prefix."""

    kind = "sessions"
    block_tokens = 1  # lengths are exact to the token
    why = "the header of the trace says so"

    def __init__(self, limits: Limits, outputs_return: bool | None) -> None:
        self.tree = PrefixTree()
        self.outputs_return = True
        self._limits = limits
        self._asked = outputs_return
        self._names = Names()
        self._drafts: list[_Draft] = []
        self._files = 0
        self._adapters: dict[str, int] = {}  # number of each LoRA adapter by its name

    def read(self, path: Path) -> None:
        """Reads one file."""
        lines = read_lines(path)
        first = next(lines, None)
        if first is None:
            raise UserError(f"{path}: the file is empty, expected a header line")
        shared_tokens = self._header(path, *first)
        shared = self.tree.grow(ROOT, 0, shared_tokens)
        before = len(self._drafts)
        for number, text in lines:
            self._drafts.append(self._session(f"{path}: line {number}", text, shared))
        if len(self._drafts) == before:
            raise UserError(f"{path}: no session after the header, expected one per line")

    def sessions(self, outputs_return: bool) -> tuple[Session, ...]:
        """All sessions, those with a fixed start in order of it."""
        sessions = [self._finish(draft, outputs_return) for draft in self._drafts]
        return tuple(sorted(sessions, key=lambda session: session.start_ns or 0))

    def notes(self) -> list[str]:
        """Nothing is assumed: the format is exact."""
        return []

    def _header(self, path: Path, number: int, text: str) -> int:
        where = f"{path}: line {number}"
        row = Fields(where, parse_json(text, where))
        if row.text("schema") != SCHEMA:
            row.fail("schema", f'"{SCHEMA}"')
        version = row.integer("version", 1, 10**6)
        if version != VERSION:
            row.fail("version", f"{VERSION}, the only one there is so far")
        if row.has("columns") and row.get("columns") != list(_COLUMNS):
            row.fail("columns", str(list(_COLUMNS)))
        returns = row.boolean("outputs_return") if row.has("outputs_return") else True
        if self._files and returns != self.outputs_return:
            row.fail("outputs_return", f"{json.dumps(self.outputs_return)} as in the files before")
        self._files += 1
        self.outputs_return = returns
        return row.integer("shared_prefix_tokens", 0, self._limits.max_input_tokens)

    def _session(self, where: str, text: str, shared: Leaf) -> _Draft:
        row = Fields(where, parse_json(text, where))
        start_ms = None
        if row.has("start_ms"):
            start_ms = row.integer("start_ms", 0, int(self._limits.max_seconds * 1e3))
        name = self._names.unique(row.text("session"))
        adapter = self._adapters.setdefault(row.text("lora"), len(self._adapters) + 1) if row.has("lora") else 0
        entries = row.array("turns")
        if not entries:
            row.fail("turns", "at least one turn")
        returns = self.outputs_return if self._asked is None else self._asked
        turns: list[TurnLengths] = []
        leaves: list[Leaf] = []
        leaf, have = shared, shared.num_tokens
        for place, entry in enumerate(entries):
            turn = self._turn(f"{where}: turns[{place}]", entry, have, first=place == 0)
            turn = replace(turn, demands=_named(turn.demands, adapter, f"{name}#{place}"))
            # If answers do not come back, what is kept of one is other content of the same length.
            keep = turn.keep_tokens
            if turns and not returns:
                keep = min(keep, turns[-1].input_tokens)
            leaf = self.tree.grow(leaf, keep, turn.input_tokens - keep)
            if returns:
                leaf = self.tree.grow(leaf, turn.input_tokens, turn.output_tokens)
            have = turn.input_tokens + turn.output_tokens
            turns.append(turn)
            leaves.append(leaf)
        return _Draft(SessionLengths(name, tuple(turns), start_ms), leaves)

    def _turn(self, where: str, entry: object, have: int, first: bool) -> TurnLengths:
        if type(entry) is not list or not 0 <= len(entry) - len(_COLUMNS) <= 1:
            raise UserError(f"{where} is {show(entry)}, expected a list [{', '.join(_COLUMNS)}]")
        row = Fields(where, dict(zip(_COLUMNS, entry, strict=False)))
        keep = row.integer("keep", 0, self._limits.max_input_tokens)
        if keep > have:
            what = "shared_prefix_tokens" if first else "the previous prompt and its answer"
            row.fail("keep", f"at most {have:,}, the length of {what}")
        new = row.integer("new", 0, self._limits.max_input_tokens)
        if not 1 <= keep + new <= self._limits.max_input_tokens:
            top = self._limits.max_input_tokens
            raise UserError(f"{where}: keep + new is {keep + new:,}, expected 1 to {top:,} tokens")
        output = row.integer("out", 1, self._limits.max_output_tokens)
        think = row.integer("think_ms", 0, int(self._limits.max_seconds * 1e3))
        demands = _demands(f"{where}[{len(_COLUMNS)}]", entry[-1], keep, new) if len(entry) > len(_COLUMNS) else PLAIN
        return TurnLengths(keep, new, output, think, demands)

    def _finish(self, draft: _Draft, outputs_return: bool) -> Session:
        lengths = draft.lengths
        turns: list[Turn] = []
        for place, turn in enumerate(lengths.turns):
            end = turn.input_tokens
            if outputs_return and place + 1 < len(lengths.turns):
                # Only what the next prompt keeps of the answer has to be found again.
                end = max(end, min(lengths.turns[place + 1].keep_tokens, end + turn.output_tokens))
            turns.append(
                Turn(
                    input_tokens=turn.input_tokens,
                    output_tokens=turn.output_tokens,
                    chain=self.tree.chain(draft.leaves[place], end),
                    known_prompt_tokens=turn.input_tokens,
                    num_ids=turn.input_tokens,
                    think_ns=turn.think_ms * MS_NS if place else 0,
                    recorded_think_ns=turn.think_ms * MS_NS if place else None,
                    recorded_output_tokens=turn.output_tokens,
                    demands=turn.demands,
                )
            )
        start_ns = None if lengths.start_ms is None else lengths.start_ms * MS_NS
        return Session(lengths.name, start_ns, tuple(turns))


def _demands(where: str, value: object, keep: int, new: int) -> Demands:
    """What may stand behind a turn's lengths: ``{"grammar": name, "images": [[first new token, tokens], ...]}``."""
    row = Fields(where, value)
    images: list[EncoderInput] = []
    for place, entry in enumerate(row.array("images") if row.has("images") else []):
        at = f"{where}: images[{place}]"
        if type(entry) is not list or len(entry) != 2:
            raise UserError(f"{at} is {show(entry)}, expected a list [first, tokens]")
        image = Fields(at, dict(zip(("first", "tokens"), entry, strict=True)))
        after = images[-1].end_tokens - keep if images else 0
        first = image.integer("first", after, max(after, new - 1))
        images.append(EncoderInput("", keep + first, image.integer("tokens", 1, new - first)))
    return Demands(grammar=row.text("grammar") if row.has("grammar") else "", encoder_inputs=tuple(images))


def _named(demands: Demands, adapter: int, turn: str) -> Demands:
    """The same with the session's adapter, and with names for the images that nobody else has."""
    images = tuple(replace(image, identity=f"{turn}.{n}") for n, image in enumerate(demands.encoder_inputs))
    return replace(demands, adapter=adapter, encoder_inputs=images)
