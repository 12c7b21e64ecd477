"""A set of keys, by the run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kvsim.extents.path import Key, Run, run_of
from kvsim.extents.pieces import Piece, PieceMap


def _cut(piece: Piece, position: int) -> Piece:
    right = Piece(piece.segment, position, piece.last)
    piece.last = position
    return right


class RunSet:
    """As `set` of keys. What touches is joined, so it costs as little as the fewest runs that can describe it."""

    __slots__ = ("_num_keys", "_pieces")

    def __init__(self) -> None:
        self._pieces: PieceMap[Piece] = PieceMap(_cut)
        self._num_keys = 0

    def __len__(self) -> int:
        return self._num_keys

    def __contains__(self, key: Key) -> bool:
        return key in self._pieces

    def __iter__(self) -> Iterator[Run]:
        """All runs, in any order but ascending within their segment."""
        return (run_of((piece.segment, piece.first, piece.last)) for piece in self._pieces)

    def leading(self, run: Run) -> tuple[bool, int]:
        """Whether the run's first key is in, and of how many from there on the same is true."""
        return self._pieces.leading(run)

    def add(self, runs: Iterable[Run]) -> int:
        """Put keys in; returns how many of them are new."""
        before = self._num_keys
        for run in runs:
            segment, first, last = run
            touching = self._pieces.overlapping((segment, first - 1, last + 1))
            if not touching:
                self._pieces.add(Piece(segment, first, last))
                self._num_keys += last - first
                continue
            piece = touching[0]
            known, end = piece.last - piece.first, piece.last
            for other in touching[1:]:
                known, end = known + other.last - other.first, other.last
                self._pieces.remove(other)
            piece.first, piece.last = min(first, piece.first), max(last, end)
            self._num_keys += piece.last - piece.first - known
        return self._num_keys - before

    def discard(self, runs: Iterable[Run]) -> int:
        """Take keys out; returns how many of them were in."""
        before = self._num_keys
        for run in runs:
            for piece in self._pieces.cover(run):
                self._pieces.remove(piece)
                self._num_keys -= len(piece)
        return before - self._num_keys

    def present(self, runs: Iterable[Run]) -> list[Run]:
        """The keys of these runs that are in, in their order."""
        found: list[Run] = []
        for segment, first, last in runs:
            for piece in self._pieces.overlapping(Run(segment, first, last)):
                found.append(Run(segment, max(first, piece.first), min(last, piece.last)))  # noqa: PERF401
        return found

    def missing(self, runs: Iterable[Run]) -> list[Run]:
        """The keys of these runs that are not in, in their order."""
        return [gap for run in runs for gap in self._pieces.gaps(run)]

    def isdisjoint(self, runs: Iterable[Run]) -> bool:
        """Whether none of these keys is in."""
        return not any(self._pieces.overlapping(run) for run in runs)
