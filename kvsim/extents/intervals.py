"""Sets of positions, kept as intervals."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

Interval = tuple[int, int]  # positions first .. last - 1


class Intervals:
    """Positions of a request that something is true of. Almost always one interval, growing at its end."""

    __slots__ = ("_bounds",)

    def __init__(self) -> None:
        self._bounds: list[int] = []  # first and last of each interval in turn, strictly ascending

    def __iter__(self) -> Iterator[Interval]:
        bounds = self._bounds
        return zip(bounds[::2], bounds[1::2], strict=True)

    def __contains__(self, position: int) -> bool:
        return bisect_right(self._bounds, position) % 2 == 1

    def add(self, first: int, last: int) -> list[Interval]:
        """Add positions ``first .. last - 1``; returns those that are new, ascending."""
        bounds = self._bounds
        if not bounds or bounds[-1] < first:
            bounds += (first, last)
            return [(first, last)]
        if bounds[-1] == first:
            bounds[-1] = last
            return [(first, last)]
        start, stop = bisect_left(bounds, first), bisect_right(bounds, last)
        if start == stop and start % 2 == 1:  # inside one interval
            return []
        new = self._outside(first, last, start, stop)
        bounds[start:stop] = [first] * (start % 2 == 0) + [last] * (stop % 2 == 0)
        return new

    def missing(self, first: int, last: int) -> list[Interval]:
        """Those of the positions ``first .. last - 1`` that are not in the set, ascending."""
        bounds = self._bounds
        return self._outside(first, last, bisect_left(bounds, first), bisect_right(bounds, last))

    def _outside(self, first: int, last: int, start: int, stop: int) -> list[Interval]:
        # An index is even where the position lies outside, odd inside; a bound that equals it makes an empty gap.
        edges = [first] * (start % 2 == 0) + self._bounds[start:stop] + [last] * (stop % 2 == 0)
        return [(left, right) for left, right in zip(edges[::2], edges[1::2], strict=True) if left < right]


def interval_of(positions: Sequence[int]) -> Interval:
    """Positions that follow each other, as an interval.

    Raises:
        NotImplementedError: they don't, as those of several attention groups: that needs the reference ledger.
    """
    if not positions:
        return 0, 0
    first, last = positions[0], positions[-1] + 1
    if last - first != len(positions):
        raise NotImplementedError("positions that don't follow each other need the reference ledger")
    return first, last
