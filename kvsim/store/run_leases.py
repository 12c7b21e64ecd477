"""RunLeases: the leases of a shared store's objects (`kvsim.store.leases`), by the run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kvsim.extents.path import Run
from kvsim.extents.pieces import Piece, PieceMap

_SLACK = 1_000  # grants that may be listed in vain before it is worth while to tidy up


class _Grant:
    """Leases that were granted together. ``order``: by their end; at the same instant, by who asked."""

    __slots__ = ("order", "runs")

    def __init__(self, order: tuple[int, int], runs: Sequence[Run]) -> None:
        self.order, self.runs = order, runs


class _Leased(Piece):
    """Objects whose latest lease was granted together."""

    __slots__ = ("grant",)

    def __init__(self, segment: int, first: int, last: int, grant: _Grant) -> None:
        super().__init__(segment, first, last)
        self.grant = grant


def _cut(piece: _Leased, position: int) -> _Leased:
    rest = _Leased(piece.segment, position, piece.last, piece.grant)
    piece.last = position
    return rest


class RunLeases:
    """Grants as `kvsim.store.leases.Leases` does, in two queues; but some are told of late.

    What schedulers ask comes last at an instant (`kvsim.clock`), in the order of their turns. A question that was asked
    again and again while nobody looked is told of when somebody does: at its own place among the others.
    """

    def __init__(self, ttl_ns: int) -> None:
        self._ttl_ns = ttl_ns
        self._pieces: PieceMap[_Leased] = PieceMap(_cut)
        self._written: list[_Grant] = []
        self._read: list[_Grant] = []
        self._tidy_at = _SLACK

    def write(self, runs: Sequence[Run], now_ns: int) -> None:
        """These are new: no lease, but newer than all that had none before."""
        self._grant(self._written, (now_ns, 0), runs)

    def read(self, runs: Sequence[Run], asked_ns: int, turn: int = 0) -> None:
        """These have been found, or are going to be read; ``turn`` = whose scheduler has asked, counted from 1."""
        end_ns = asked_ns + self._ttl_ns
        if not turn and self._read and self._read[-1].order[0] == end_ns:
            turn = self._read[-1].order[1]  # what follows from a scheduler's decisions comes behind its questions
        self._grant(self._read, (end_ns, turn), runs)

    def forget(self, runs: Iterable[Run]) -> None:
        """They are gone."""
        for run in runs:
            for piece in self._pieces.cover(run):
                self._pieces.remove(piece)

    def expired(self, now_ns: int, count: int) -> list[Run]:
        """The first ``count`` objects whose leases have ended, the oldest end first."""
        found: list[Run] = []
        written, read = self._in_order(self._written), self._in_order(self._read)
        never = (now_ns + 1, Run(0, 0, 0))
        first, second = next(written, never), next(read, never)
        while count > 0 and min(first[0], second[0]) <= now_ns:
            if first[0] <= second[0]:
                run = first[1]
                first = next(written, never)
            else:
                run = second[1]
                second = next(read, never)
            found.append(Run(run.segment, run.first, min(run.last, run.first + count)))
            count -= run.last - run.first
        return found

    def first_end(self) -> int | None:
        """When the first lease ends; None = there is no object."""
        ends = [first[0] for queue in (self._written, self._read) if (first := next(self._in_order(queue), None))]
        return min(ends, default=None)

    def _grant(self, queue: list[_Grant], order: tuple[int, int], runs: Sequence[Run]) -> None:
        if not runs:
            return
        grant, pieces, is_late = _Grant(order, runs), self._pieces, False
        at = len(queue)
        while at and queue[at - 1].order > order:
            at -= 1
            is_late = True
        queue.insert(at, grant)
        for run in runs:
            older = pieces.cover(run)
            for piece in older:
                if not (is_late and piece.grant.order > order and queue is self._read):
                    pieces.remove(piece)
            for gap in pieces.gaps(run) if is_late else (run,):
                pieces.add(_Leased(*gap, grant))
        if len(self._written) + len(self._read) > self._tidy_at:
            self._tidy_up()

    def _in_order(self, queue: list[_Grant]) -> Iterator[tuple[int, Run]]:
        """(end, objects) of a queue."""
        for grant in queue:
            for run in grant.runs:
                for piece in self._pieces.overlapping(run):
                    if piece.grant is grant:
                        yield grant.order[0], Run(run.segment, max(piece.first, run.first), min(piece.last, run.last))

    def _tidy_up(self) -> None:
        live = {id(piece.grant) for piece in self._pieces}
        for queue in (self._written, self._read):
            queue[:] = [grant for grant in queue if id(grant) in live]
        self._tidy_at = 2 * (len(self._written) + len(self._read)) + _SLACK
