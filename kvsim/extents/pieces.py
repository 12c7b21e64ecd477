"""Pieces: what a pool or a tier knows about stretches of blocks, kept in order for each segment."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Generic, TypeVar

from kvsim.extents.path import Key, Run, run_of

Stretch = tuple[int, int, int]  # as a `Run`, whose names nobody needs here
_LINEAR = 6  # in a list this short, looking at each piece beats bisection
_last = attrgetter("last")


class Piece:
    """Blocks ``first .. last - 1`` of a segment that are all in the same state. Subclasses add the state."""

    __slots__ = ("first", "last", "segment")

    def __init__(self, segment: int, first: int, last: int) -> None:
        self.segment, self.first, self.last = segment, first, last

    def __len__(self) -> int:
        return self.last - self.first

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.segment}[{self.first}:{self.last}])"


P = TypeVar("P", bound=Piece)


class PieceMap(Generic[P]):
    """Disjoint pieces, ascending within their segment. Whoever owns the map keeps their queues; it asks for cuts.

    Args:
        cut: splits a piece at a position strictly inside: shortens the piece to one of the parts, returns the other,
            and keeps whatever order the owner has among pieces. The map files the new part itself.
    """

    __slots__ = ("_cut", "_lists")

    def __init__(self, cut: Callable[[P, int], P]) -> None:
        self._cut = cut
        self._lists: dict[int, list[P]] = {}

    def __iter__(self) -> Iterator[P]:
        for pieces in self._lists.values():
            yield from pieces

    def of(self, segment: int) -> list[P]:
        """The segment's pieces, ascending. Not to be changed by the caller."""
        return self._lists.get(segment) or []

    def at(self, key: Key) -> P | None:
        """The piece that holds a block."""
        pieces = self._lists.get(key[0])
        if pieces:
            at = find(pieces, key[1])
            if at < len(pieces) and pieces[at].first <= key[1]:
                return pieces[at]
        return None

    def __contains__(self, key: Key) -> bool:
        return self.at(key) is not None

    def overlapping(self, run: Stretch) -> list[P]:
        """Pieces with blocks of the run, ascending, uncut."""
        segment, first, last = run
        pieces = self._lists.get(segment)
        if not pieces:
            return []
        if len(pieces) == 1:  # as in most segments
            return pieces[:] if pieces[0].first < last and pieces[0].last > first else []
        start = find(pieces, first)
        stop = start
        while stop < len(pieces) and pieces[stop].first < last:
            stop += 1
        return pieces[start:stop]

    def scan(self, run: Run) -> Iterator[P]:
        """The same, one by one, for those who may stop early; the map must not change meanwhile."""
        segment, first, last = run
        pieces = self._lists.get(segment)
        if pieces:
            for at in range(find(pieces, first), len(pieces)):
                piece = pieces[at]
                if piece.first >= last:
                    return
                yield piece

    def cover(self, run: Stretch) -> list[P]:
        """Pieces of exactly the blocks of the run that are here, ascending: those that reach beyond it are cut."""
        _segment, first, last = run
        found = self.overlapping(run)
        if found:
            if found[0].first < first:
                found[0] = self.split(found[0], first)[1]
            if found[-1].last > last:
                found[-1] = self.split(found[-1], last)[0]
        return found

    def split(self, piece: P, position: int) -> tuple[P, P]:
        """Cut a piece in two, strictly inside; returns (left, right)."""
        pieces = self._lists[piece.segment]
        at = find(pieces, piece.first)
        other = self._cut(piece, position)
        if other.first > piece.first:
            pieces.insert(at + 1, other)
            return piece, other
        pieces.insert(at, other)
        return other, piece

    def gaps(self, run: Run) -> list[Run]:
        """The parts of the run that nothing covers, ascending."""
        segment, first, last = run
        missing: list[Run] = []
        for piece in self.overlapping(run):
            if piece.first > first:
                missing.append(run_of((segment, first, piece.first)))
            first = piece.last
        if first < last:
            missing.append(run_of((segment, first, last)))
        return missing

    def leading(self, run: Run) -> tuple[bool, int]:
        """Whether a piece covers the run's first block, and of how many from there on the same is true."""
        _segment, first, last = run
        position = first
        for piece in self.overlapping(run):
            if piece.first > position:
                return (False, piece.first - first) if position == first else (True, position - first)
            position = piece.last
        return position > first, (min(position, last) if position > first else last) - first

    def add(self, piece: P) -> None:
        """File a new piece; nothing may cover its blocks so far."""
        pieces = self._lists.get(piece.segment)
        if pieces is None:
            self._lists[piece.segment] = [piece]
        elif pieces[-1].last <= piece.first:
            pieces.append(piece)
        else:
            pieces.insert(find(pieces, piece.first), piece)

    def remove(self, piece: P) -> None:
        """Forget a piece."""
        pieces = self._lists[piece.segment]
        if len(pieces) == 1:
            del self._lists[piece.segment]
        else:
            del pieces[find(pieces, piece.first)]


def find(pieces: list[P], position: int) -> int:
    """Index of the first piece that ends behind a position."""
    if len(pieces) < _LINEAR:
        for at, piece in enumerate(pieces):
            if piece.last > position:
                return at
        return len(pieces)
    if pieces[-1].last <= position:
        return len(pieces)
    return bisect_right(pieces, position, key=_last)


def total(runs: Iterable[Run]) -> int:
    """Blocks in some runs."""
    return sum(last - first for _segment, first, last in runs)


def joined(runs: Iterable[Run]) -> list[Run]:
    """The same blocks in the same order, in as few runs as possible."""
    found: list[Run] = []
    for run in runs:
        join_on(found, run)
    return found


def join_on(runs: list[Run], run: Run) -> None:
    """Append a run, as part of the last one if it goes on where that ends."""
    if runs and runs[-1].last == run.first and runs[-1].segment == run.segment:
        runs[-1] = run_of((run.segment, runs[-1].first, run.last))
    else:
        runs.append(run)
