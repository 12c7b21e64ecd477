"""Reader for Mooncake traces: one request per line with block ids, played at its time stamp.

Format: https://github.com/kvcache-ai/Mooncake (FAST25-release/traces), checked against its files.

- ``timestamp`` in ms, sorted; ``hash_ids`` one per 512 tokens, the last one for a partial block.
- Ids are chained and global to the file.
- Optional ``session_id`` and ``delay`` (ms after the previous response of that session) as in Dynamo and
  AIPerf: such rows are later turns of a session, in a closed loop. If a row has both ``timestamp`` and
  ``delay``, the delay counts, except in the first row of its session. A later row of a session without a
  delay is sent at its time stamp, whether or not the previous one has been answered.
- Rows that carry only the new part of a prompt ("mooncake-delta") look the same and cannot be told apart.
"""

from __future__ import annotations

from pathlib import Path

from kvsim.chain import ChainError, PrefixTree
from kvsim.errors import UserError
from kvsim.trace.build import DraftTurn, Names, finish_stream
from kvsim.trace.fields import Fields, Limits, parse_json
from kvsim.trace.files import read_lines
from kvsim.trace.session import Session

MS_NS = 10**6

DEFAULT_BLOCK_TOKENS = 512  # source: README of the traces, "hash_ids ... block size 512"

# Above this mean rate the time stamps are probably seconds; worth a line, not an error.
_ODD_RATE_PER_S = 1000


class MooncakeReader:
    """Collects rows; see the module's description for the format.

    Args:
        limits: largest values accepted.
        block_tokens: tokens per id.
        spread_arrivals: spreads rows with equal time stamps evenly up to the next time stamp. The published
            traces come in steps of 3 s, about ten requests each.
    """

    kind = "mooncake"
    outputs_return = False
    why = "the trace does not say which rows belong to one conversation"

    def __init__(self, limits: Limits, block_tokens: int, spread_arrivals: bool) -> None:
        self.block_tokens = block_tokens
        self.tree = PrefixTree()
        self._limits = limits
        self._spread = spread_arrivals
        self._names = Names()
        self._sessions: list[tuple[str, int, list[DraftTurn]]] = []
        self._files = 0
        self._no_output = 0
        self._delayed = 0
        self._undelayed = 0

    def read(self, path: Path) -> None:
        """Reads one file; its ids are its own."""
        space = f"file {self._files}"
        prefix = f"{path.name.split('.')[0]}:" if self._files else ""
        self._files += 1
        latest: dict[str, list[DraftTurn]] = {}
        previous_ms = 0.0
        rows = 0
        for line, text in read_lines(path):
            where = f"{path}: line {line}"
            row = Fields(where, parse_json(text, where))
            rows += 1
            turn = self._turn(row, space)
            session = row.text("session_id") if row.has("session_id") else None
            stream = latest.get(session) if session is not None else None
            if stream is not None and row.has("delay"):
                turn.think_ns = round(row.number("delay", 0, self._limits.max_seconds * 1e3) * MS_NS)
                turn.recorded_think_ns = turn.think_ns
                self._delayed += 1
                stream.append(turn)
                continue
            now_ms = row.number("timestamp", 0, self._limits.max_seconds * 1e3)
            if now_ms < previous_ms:
                raise UserError(
                    f"{where}: timestamp is {now_ms:.12g}, expected at least {previous_ms:.12g} as in "
                    "the line before (sorted by time)"
                )
            previous_ms = now_ms
            self._undelayed += stream is not None
            turns = [turn]
            name = session if session is not None else f"row{line}"
            self._sessions.append((self._names.unique(prefix + name), round(now_ms * MS_NS), turns))
            if session is not None:
                latest[session] = turns
        self.tree.forget(space)
        if not rows:
            raise UserError(f"{path}: the file is empty, expected one request per line")

    def sessions(self, outputs_return: bool) -> tuple[Session, ...]:
        """All sessions in order of arrival; the first arrival is time 0."""
        starts = self._starts()
        order = sorted(range(len(starts)), key=lambda place: starts[place])
        return tuple(
            Session(
                self._sessions[place][0],
                starts[place],
                finish_stream(self.tree, self._sessions[place][2], self.block_tokens, outputs_return),
            )
            for place in order
        )

    def notes(self) -> list[str]:
        """What was odd or had to be assumed."""
        notes = []
        together = len(self._sessions) - len({start for _, start, _ in self._sessions})
        if self._spread:
            notes.append("requests with equal time stamps are spread evenly up to the next time stamp")
        elif together:
            notes.append(
                f"{together:,} requests have the time stamp of the one before and arrive with it; "
                "spread_arrivals is off"
            )
        if self._no_output:
            notes.append(f"{self._no_output:,} responses have 0 output tokens; each is replayed as 1 token")
        if self._delayed:
            notes.append(f"{self._delayed:,} turns are sent their delay after the previous response")
        if self._undelayed:
            notes.append(
                f"{self._undelayed:,} later rows of a session have no delay; each is sent at its time stamp, "
                "as a session of its own"
            )
        first = min(start for _, start, _ in self._sessions)
        span_s = (max(start for _, start, _ in self._sessions) - first) / 1e9
        if first:
            notes.append(f"time 0 is the first time stamp, {first / 1e9:,.3f} s")
        if span_s and len(self._sessions) > _ODD_RATE_PER_S * span_s:
            rate = len(self._sessions) / span_s
            notes.append(f"{rate:,.0f} requests/s if the time stamps are milliseconds: are they seconds?")
        return notes

    def _turn(self, row: Fields, space: str) -> DraftTurn:
        size = self.block_tokens
        tokens = row.integer("input_length", 1, self._limits.max_input_tokens)
        output = row.integer("output_length", 0, self._limits.max_output_tokens)
        ids = row.ids("hash_ids", -(-tokens // size), f"input_length / {size}, rounded up")
        try:
            leaf = self.tree.add(space, ids, size)
        except ChainError as error:
            raise UserError(
                f"{row.where}: hash_ids: {error}, expected every id to have one position and one predecessor"
            ) from error
        self._no_output += output == 0
        return DraftTurn(
            leaf=leaf,
            input_tokens=tokens,
            recorded_output_tokens=output,
            known_prompt_tokens=tokens,
            num_ids=len(ids),
        )

    def _starts(self) -> list[int]:
        """Arrival times in ns from the first one, in order of reading, spread inside their step if asked."""
        first = min(start for _, start, _ in self._sessions)
        starts = [start - first for _, start, _ in self._sessions]
        if not self._spread:
            return starts
        groups: dict[int, list[int]] = {}
        for place, start in enumerate(starts):
            groups.setdefault(start, []).append(place)
        times = sorted(groups)
        step = 0
        for at, time in enumerate(times):
            # The last step has no end of its own: take it to be as long as the one before.
            step = times[at + 1] - time if at + 1 < len(times) else step
            for rank, place in enumerate(groups[time]):
                starts[place] = time + step * rank // len(groups[time])
        return starts
