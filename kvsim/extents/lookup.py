"""Looking for chunks in the background, by the run."""

from __future__ import annotations

from collections.abc import Iterable

from kvsim.extents.changes import Changes
from kvsim.extents.path import Run, Runs, run_of
from kvsim.extents.pieces import Piece, PieceMap, join_on
from kvsim.offload.tiering import Answer


class _Question(Piece):
    """Chunks with one answer (None = not known yet), asked for by the same requests."""

    __slots__ = ("answer", "askers", "is_looked_for")

    def __init__(self, segment: int, first: int, last: int, askers: set[str]) -> None:
        super().__init__(segment, first, last)
        self.askers = askers
        self.answer: bool | None = None
        self.is_looked_for = False  # by the background, now


def _cut(piece: _Question, position: int) -> _Question:
    right = _Question(piece.segment, position, piece.last, set(piece.askers))
    right.answer, right.is_looked_for = piece.answer, piece.is_looked_for
    piece.last = position
    return right


class RunLookup:
    """`kvsim.offload.async_lookup.AsyncLookup` of runs.

    `AsyncLookup.ask` is two calls here: `peek` tells how far one answer reaches, and `ask` takes note of how much of
    that was really asked.
    """

    def __init__(self) -> None:
        self._pieces: PieceMap[_Question] = PieceMap(_cut)
        self._runs_of: dict[str, list[Run]] = {}
        self._batch: list[Run] = []  # asked in this step
        self.epoch = 0  # grows with every answer
        self.changes = Changes()  # of answers
        self.num_changes = 0  # grows when somebody asks for the first time

    def peek(self, run: Run) -> tuple[Answer, int]:
        """What the run's first chunk is answered, and how many from there on are answered the same."""
        _segment, first, last = run
        found = self._pieces.overlapping(run)
        if not found:
            return Answer.RETRY, last - first
        position, answer = found[0].first, found[0].answer
        if position > first:
            return Answer.RETRY, position - first
        for piece in found:
            if piece.first > position or piece.answer is not answer:
                break
            position = piece.last
        count = min(position, last) - first
        return (Answer.RETRY if answer is None else Answer.HIT if answer else Answer.MISS), count

    def ask(self, run: Run, request_id: str) -> None:
        """A request has asked for these."""
        segment, first, last = run
        found = self._pieces.overlapping(run)
        if len(found) == 1 and request_id in found[0].askers and found[0].first <= first and last <= found[0].last:
            return  # as almost always
        for piece in found:
            if piece.first > first:
                self._ask_new(Run(segment, first, piece.first), request_id)
            first = piece.last
            if request_id not in piece.askers:
                for part in self._pieces.cover(Run(segment, max(piece.first, run.first), min(piece.last, last))):
                    part.askers.add(request_id)
                    self._note(Run(segment, part.first, part.last), request_id)
        if first < last:
            self._ask_new(run_of((segment, first, last)), request_id)

    def _ask_new(self, run: Run, request_id: str) -> None:
        self._pieces.add(_Question(*run, {request_id}))
        join_on(self._batch, run)
        self._note(run, request_id)

    def _note(self, run: Run, request_id: str) -> None:
        join_on(self._runs_of.setdefault(request_id, []), run)
        self.num_changes += 1

    def flush(self) -> Runs:
        """The step's new questions; those that nobody asks any more are left out."""
        runs: list[Run] = []
        for run in self._batch:
            for piece in self._pieces.cover(run):
                if not piece.is_looked_for:  # asked, forgotten and asked again: the first place counts
                    piece.is_looked_for = True
                    join_on(runs, run_of((piece.segment, piece.first, piece.last)))
        self._batch = []
        return Runs(runs)

    def answer(self, found: Iterable[tuple[Run, bool]]) -> None:
        """The background has looked."""
        for run, is_there in found:
            self.changes.note(run[0])
            for piece in self._pieces.cover(run):
                piece.is_looked_for = False
                if piece.askers:
                    piece.answer = is_there
                else:
                    self._pieces.remove(piece)
        self.epoch += 1

    def mark_miss(self, keys: Runs) -> None:
        """These could not be read: whoever asks hears so."""
        for run in keys.runs:
            self.changes.note(run[0])
            for piece in self._pieces.cover(run):
                if piece.answer:
                    piece.answer = False
                    self.epoch += len(piece)

    def on_request_finished(self, request_id: str) -> None:
        """Forget what nobody else has asked for, unless the background is looking for it."""
        for run in self._runs_of.pop(request_id, ()):
            for piece in self._pieces.overlapping(run):
                piece.askers.discard(request_id)
                if not piece.askers and not piece.is_looked_for:
                    self._pieces.remove(piece)
