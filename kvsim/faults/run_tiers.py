"""A secondary tier that goes wrong, by the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.extents.path import Key, Run, Runs, run_of
from kvsim.extents.pieces import Piece, PieceMap, join_on, joined
from kvsim.extents.run_set import RunSet
from kvsim.faults.hazard import Hazard
from kvsim.faults.tiers import FaultyTier, KeySet, Misses
from kvsim.offload.tiering import Answer

if TYPE_CHECKING:
    from kvsim.extents.tiering import RunTier


class _RunKeys:
    """`KeySet` of `Runs`."""

    def __init__(self) -> None:
        self._keys = RunSet()

    def leading(self, run: Run) -> tuple[bool, int]:
        return self._keys.leading(run)

    def add(self, keys: Runs) -> None:
        self._keys.add(keys.runs)

    def discard(self, keys: Runs) -> int:
        return self._keys.discard(keys.runs)

    def missing(self, keys: Runs) -> Runs:
        return Runs(self._keys.missing(keys.runs))

    def everything(self) -> Runs:
        return Runs(self._keys)


class _Missed(Piece):
    __slots__ = ("asked",)

    def __init__(self, segment: int, first: int, last: int, asked: set[str]) -> None:
        super().__init__(segment, first, last)
        self.asked = asked


def _cut(piece: _Missed, position: int) -> _Missed:
    right = _Missed(piece.segment, position, piece.last, set(piece.asked))
    piece.last = position
    return right


class _RunMisses:
    """`Misses` of `Runs`."""

    def __init__(self) -> None:
        self._pieces: PieceMap[_Missed] = PieceMap(_cut)
        self._runs_of: dict[str, list[Run]] = {}  # what a request has asked for

    def leading(self, run: Run) -> tuple[bool, int]:
        """Whether the run's first chunk is a miss, and of how many from there on the same is true."""
        return self._pieces.leading(run)

    def add(self, keys: Runs) -> None:
        for run in keys.runs:
            for gap in self._pieces.gaps(run):
                self._pieces.add(_Missed(*gap, set()))

    def ask(self, run: Run, request_id: str) -> bool:
        """A request asks for these; returns whether some of them are misses that it has not asked for before."""
        is_new = False
        for piece in self._pieces.overlapping(run):
            if request_id not in piece.asked:
                is_new = True
                for part in self._pieces.cover((run.segment, max(piece.first, run.first), min(piece.last, run.last))):
                    part.asked.add(request_id)
                    join_on(self._runs_of.setdefault(request_id, []), run_of((part.segment, part.first, part.last)))
        return is_new

    def forget(self, request_id: str) -> int:
        over = 0
        for run in self._runs_of.pop(request_id, ()):
            for piece in self._pieces.overlapping(run):
                piece.asked.discard(request_id)
                if not piece.asked:
                    over += len(piece)
                    self._pieces.remove(piece)
        return over


class FaultyRunTier(FaultyTier):
    """`FaultyTier` of `Runs`, before a tier of them. A lookup is a `peek` and an `ask`."""

    _tier: RunTier

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._num_asked = 0  # times that somebody has first asked for what he cannot have

    @property
    def num_changes(self) -> int:
        """See `RunTier`."""
        return self._tier.num_changes + self._num_asked

    @property
    def lookup_version(self) -> int:
        """See `RunTier`; it tells nothing by segment that the tier behind it does not."""
        return self._tier.lookup_version + self._epoch

    def lookup(self, key: Key, request_id: str) -> Answer:  # type: ignore[override]
        run = run_of((key.segment, key.position, key.position + 1))
        answer, _count = self.peek(run)
        self.ask(run, request_id)
        return answer

    def peek(self, run: Run) -> tuple[Answer, int]:
        """What a lookup of the run's first chunk would answer, and of how many from there on."""
        segment, first, last = run
        if self._is_away:
            return Answer.MISS, last - first
        answer, count = self._tier.peek(run)
        is_missed, count = self._missed.leading(run_of((segment, first, first + count)))
        if is_missed:
            return Answer.MISS, count
        if answer is Answer.HIT:
            is_lost, count = self._lost.leading(run_of((segment, first, first + count)))
            if is_lost:
                return Answer.MISS, count
        return answer, count

    def ask(self, run: Run, request_id: str) -> None:
        """The run's chunks have been looked for, in order."""
        if not self._is_away:
            self._tier.ask(run, request_id)
            self._num_asked += self._missed.ask(run, request_id)

    # -- keys, by the run
    def _no_keys(self) -> KeySet:
        return _RunKeys()

    def _no_misses(self) -> Misses:
        return _RunMisses()

    def _divide(self, keys: Runs, losses: Hazard) -> tuple[Runs, Runs]:
        if not losses.may_strike():
            return keys, keys[:0]
        arriving: list[Run] = []
        lost: list[Run] = []
        for segment, position in keys:  # in the same order as key by key
            join_on(lost if losses.strikes() else arriving, run_of((segment, position, position + 1)))
        return Runs(arriving), Runs(lost)

    def _are_equal(self, one: Runs, other: Runs) -> bool:
        """Equal keys may be cut differently."""
        return one is other or (len(one) == len(other) and joined(one.runs) == joined(other.runs))
