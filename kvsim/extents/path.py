"""Keys by the run: which blocks a request consists of, as stretches of the segments of a prefix tree."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, Self, overload


class Key(NamedTuple):
    """One block (or chunk): its segment, and its place in every chain through that segment."""

    segment: int
    position: int


class Run(NamedTuple):
    """Blocks ``first .. last - 1`` of a chain, all in one segment. Positions count from the root of the tree.

    A position determines the segment's place in the tree too, so equal (segment, position) is equal content, and the
    same position in every request that has it.
    """

    segment: int
    first: int
    last: int


run_of: Callable[[tuple[int, int, int]], Run] = partial(tuple.__new__, Run)
"""`Run` of its three numbers without the detour through its own constructor: there are millions of them."""


class Runs(Sequence[Key]):
    """A sequence of keys, run by run: ``len`` counts keys, a slice is again `Runs`. Never empty runs, never changed."""

    __slots__ = ("num_keys", "runs")

    def __init__(self, runs: Iterable[Run] = (), num_keys: int = -1) -> None:
        self.runs: list[Run] = runs if isinstance(runs, list) else list(runs)
        self.num_keys = sum([last - first for _, first, last in self.runs]) if num_keys < 0 else num_keys

    def __len__(self) -> int:
        return self.num_keys

    def __iter__(self) -> Iterator[Key]:
        for segment, first, last in self.runs:
            for position in range(first, last):
                yield Key(segment, position)

    @overload
    def __getitem__(self, at: int) -> Key: ...
    @overload
    def __getitem__(self, at: slice) -> Runs: ...
    def __getitem__(self, at: int | slice) -> Key | Runs:
        if isinstance(at, slice):
            start, stop, step = at.indices(self.num_keys)
            if step != 1:
                raise ValueError(f"a slice with step {step} is not a sequence of runs")
            if not start and stop == self.num_keys:
                return self
            return Runs(self._between(start, stop), max(stop - start, 0))
        for key in self[at : at + 1] if at >= 0 else self[self.num_keys + at : self.num_keys + at + 1]:
            return key
        raise IndexError(at)

    def _between(self, start: int, stop: int) -> list[Run]:
        passed, found = 0, []
        for segment, first, last in self.runs:
            if passed >= stop:
                break
            size = last - first
            if passed + size > start:
                found.append(Run(segment, first + max(start - passed, 0), min(last, first + stop - passed)))
            passed += size
        return found

    def __add__(self, other: Runs) -> Runs:
        return Runs(self.runs + other.runs, self.num_keys + other.num_keys)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Runs) and self.runs == other.runs

    def __hash__(self) -> int:
        return hash(tuple(self.runs))

    def __repr__(self) -> str:
        return f"Runs({', '.join(f'{run.segment}[{run.first}:{run.last}]' for run in self.runs)})"


NO_KEYS = Runs()


class Path:
    """All blocks of one request from the root on, known or still to be generated: position i is block i.

    Attributes:
        segments: from the root down.
        ends: position behind the last block of each that the request uses; ascending.
        num_shared: blocks that other requests may have too; those behind are this request's alone.
    """

    __slots__ = ("ends", "num_shared", "segments")

    def __init__(self, segments: Sequence[int], ends: Sequence[int], num_shared: int | None = None) -> None:
        self.segments, self.ends = segments, ends
        self.num_shared = len(self) if num_shared is None else num_shared

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def segment_at(self, position: int) -> int:
        """The segment of a block."""
        return self.segments[bisect_right(self.ends, position)]

    def runs(self, first: int, last: int) -> list[Run]:
        """Blocks ``first .. last - 1``, root first."""
        if last <= first:
            return []
        segments, ends = self.segments, self.ends
        at = bisect_right(ends, first)
        end = ends[at]
        if end >= last:
            return [run_of((segments[at], first, last))]
        found = [run_of((segments[at], first, end))]
        while True:
            at += 1
            first, end = end, ends[at]
            if end >= last:
                found.append(run_of((segments[at], first, last)))
                return found
            found.append(run_of((segments[at], first, end)))

    def shared_segments(self, first: int) -> Sequence[int]:
        """Segments of the blocks from ``first`` on that other requests may have too."""
        if first >= self.num_shared:
            return ()
        ends = self.ends
        return self.segments[bisect_right(ends, first) : bisect_left(ends, self.num_shared) + 1]

    def keys(self, first: int, last: int) -> Runs:
        """The same as a sequence of keys."""
        return Runs(self.runs(first, last), max(last - first, 0))


class PathKeys(Sequence[Key]):
    """The known keys of a request: the first ``num_keys`` blocks of its path. Stands where the reference has a list."""

    __slots__ = ("num_keys", "path")

    def __init__(self, path: Path, num_keys: int) -> None:
        self.path, self.num_keys = path, num_keys

    def __len__(self) -> int:
        return self.num_keys

    @overload
    def __getitem__(self, at: int) -> Key: ...
    @overload
    def __getitem__(self, at: slice) -> Runs: ...
    def __getitem__(self, at: int | slice) -> Key | Runs:
        if isinstance(at, slice):
            start, stop, _step = at.indices(self.num_keys)
            return self.path.keys(start, stop)
        return Key(self.path.segment_at(at), at)

    def __iadd__(self, more: Sequence[Key]) -> Self:
        self.num_keys += len(more)
        return self
