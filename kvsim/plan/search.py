"""Finds the best point of a space while few of its points are simulated.

A point has an index on every axis. Of a *monotone* axis more is better for the SLO and for the makespan: memory,
replicas. The others are *choices*: policies, routers, any key of the config.

1. Branch and bound over boxes of the monotone axes, for each combination of choices. The corner of a box with most of
   everything is simulated: if even that misses the SLO, so do all points of the box; if it meets it, no point of the
   box can be better than the corner's makespan at the price of the box's cheapest point. On one axis this is
   bisection. What costs too much at any speed is not simulated at all.
2. Many combinations of choices are thinned out first: all of them at the best point found so far with a quarter of the
   sessions, the better half with half of them, and so on; the best few join step 1.
3. The caller's `corners` are simulated, as far as they may be better: points without memory, where several servers
   may do better than step 1 believes.
4. All neighbours of the best point, one step on each axis, are simulated; if one is better, it is the best point, and
   so on, until none is. So the answer never rests on the assumption of step 1 alone: closed loops are only nearly
   monotone, as what is faster also changes what comes when. For the same reason step 1 does not trust an SLO that is
   missed by less than `SLACK`.

Nothing here knows what is simulated: `evaluate` does.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

Point = tuple[int, ...]
Score = tuple[float, ...]  # what is to be small, in order of importance

SLACK = 0.05
"""An SLO missed by less may be met by a smaller point after all; our own judgement of how monotone closed loops are."""
MOST_FAMILIES = 4
"""More combinations of choices than that are thinned out with fewer sessions."""
SURVIVORS = 2
FIRST_SHARE = 0.25
NEIGHBOURS_SHARE = 0.35
"""Part of the budget that is kept for the neighbours of the best point."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the search has to know of a point.

    Attributes:
        strain: how far the SLO is missed, by its worst limit: measured / limit; met up to 1. Infinite: no figures.
        score: what is to be small.
        failed: it could not be simulated; tells nothing about other points.
        refuses: requests that another point may serve do not finish; of points that miss the SLO it is not the closest
            if there is one that serves all.
        enough: by number of a monotone axis, an index that would have given the very same run.
        subject: what it is about, for `Grid.bound`.
    """

    strain: float
    score: Score = (math.inf,)
    failed: bool = False
    refuses: bool = False
    enough: Mapping[int, int] = field(default_factory=dict)
    subject: object = None

    @property
    def is_met(self) -> bool:
        """Whether the SLO is."""
        return not self.failed and self.strain <= 1

    @property
    def rank(self) -> tuple[int, Score]:
        """Smaller is better: what meets the SLO by its score and with room, then the rest by how far."""
        if self.failed:
            return 2, ()
        return (0, (*self.score, self.strain)) if self.is_met else (1, (float(self.refuses), self.strain, *self.score))


class Axes(Protocol):
    """The shape of a space."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """Values on each axis."""
        ...

    @property
    def monotone(self) -> tuple[bool, ...]:
        """Which axes are; the others are choices."""
        ...

    def canonical(self, point: Point) -> Point:
        """The one of all points that mean the same config (a policy means nothing without memory)."""
        ...


class Grid(Axes, Protocol):
    """The space, as the search sees it."""

    def bound(self, low: Point, verdict: Verdict) -> Score:
        """No point above ``low`` has a smaller score, if none is faster than the one with this verdict."""
        ...

    def floor(self, low: Point) -> Score:
        """No point above ``low`` has a smaller score, whatever comes of it."""
        ...


Evaluate = Callable[[Sequence[Point], float], list[Verdict | None]]
"""Verdicts of points, simulated with such a share of the sessions; None = not any more, time is up."""


@dataclass(slots=True)
class Budget:
    """How many points may be simulated, and whether there is time for more."""

    points: int
    time_left: Callable[[], float] = lambda: 1.0  # share of it
    used: int = 0

    def room(self, reserve: float = 0.0) -> int:
        """Points that may still be simulated, if a part of the budget is kept."""
        if self.time_left() <= reserve:
            return 0
        return max(0, self.points - math.ceil(reserve * self.points) - self.used)


@dataclass(frozen=True, slots=True)
class Found:
    """What came of a search.

    Attributes:
        best: None if every point failed.
        verdicts: of all points that were simulated in full, in that order.
        thinned: points that were simulated with fewer sessions only, and with what share.
        is_local_best: all neighbours of the best point were simulated, and none is better.
        is_exhaustive: all points of the space were.
        is_complete: the search ended by itself, not by its budget.
    """

    best: Point | None
    verdicts: Mapping[Point, Verdict]
    thinned: Mapping[Point, float]
    is_local_best: bool
    is_exhaustive: bool
    is_complete: bool


def search(
    grid: Grid, evaluate: Evaluate, budget: Budget, *, width: int = 1, exhaustive: bool = False,
    corners: Sequence[Point] = (),
) -> Found:  # fmt: skip
    """Search a space.

    Args:
        grid: the space.
        evaluate: simulates points.
        budget: how many of them.
        width: points that are simulated at a time.
        exhaustive: simulate all of them.
        corners: points that are simulated whatever those above them gave, if nothing else makes them hopeless.
    """
    return _Search(grid, evaluate, budget, width).run(exhaustive=exhaustive, corners=corners)


def all_points(grid: Axes) -> list[Point]:
    """All different points of a space, in order."""
    found = (grid.canonical(point) for point in itertools.product(*(range(length) for length in grid.lengths)))
    return list(dict.fromkeys(found))


def neighbours(grid: Axes, point: Point) -> Iterator[tuple[int, Point]]:
    """The points one step away, each with the number of its axis: next values, or all others of a choice."""
    for axis, length in enumerate(grid.lengths):
        near = (point[axis] - 1, point[axis] + 1)
        for index in near if grid.monotone[axis] else range(length):
            if 0 <= index < length and (found := grid.canonical(_with(point, axis, index))) != point:
                yield axis, found


def _with(point: Point, axis: int, index: int) -> Point:
    return (*point[:axis], index, *point[axis + 1 :])


@dataclass(frozen=True, slots=True, order=True)
class _Box:
    """Points between two corners that differ on monotone axes only."""

    bound: Score
    number: int  # of its making, for ties
    low: Point
    high: Point
    faster: Verdict | None = field(default=None, compare=False)  # of a point that none in the box is faster than


def _sides(box: _Box) -> list[int]:
    """Axes on which the box has more than one value."""
    return [axis for axis, (low, high) in enumerate(zip(box.low, box.high, strict=True)) if low < high]


class _Search:
    def __init__(self, grid: Grid, evaluate: Evaluate, budget: Budget, width: int) -> None:
        self._grid, self._evaluate, self._budget, self._width = grid, evaluate, budget, max(1, width)
        self._known: dict[Point, Verdict] = {}
        self._thinned: dict[Point, float] = {}
        self._numbers = itertools.count()
        self._out_of_budget = False

    def run(self, *, exhaustive: bool, corners: Sequence[Point]) -> Found:
        if exhaustive:
            points = all_points(self._grid)
            slices = range(0, len(points), self._width)  # between two of them the clock is asked
            all(self._simulate(points[start : start + self._width]) for start in slices)
        else:
            families = self._families()
            self._branch(families[:1])  # a good point early: much of the others need not be looked at
            self._branch(families[1:] if len(families) <= MOST_FAMILIES else self._thin_out(families))
            self._try(corners)
        is_local_best = self._climb()
        return Found(
            self._best(),
            self._known,
            {point: share for point, share in self._thinned.items() if point not in self._known},
            is_local_best,
            len(self._known) == self._size(),
            not self._out_of_budget,
        )

    def _size(self) -> int:
        """Points of the space, or more than are known if it is too large to count."""
        return len(all_points(self._grid)) if math.prod(self._grid.lengths) <= 100_000 else len(self._known) + 1

    # Step 1

    def _families(self) -> list[Point]:
        """Every combination of choices, with the lowest index on the monotone axes; the first values first."""
        grid = self._grid
        each = [
            range(1) if is_monotone else range(n) for n, is_monotone in zip(grid.lengths, grid.monotone, strict=True)
        ]
        at_most = [self._canonical_choices(self._top(point)) for point in itertools.product(*each)]
        return list(dict.fromkeys(at_most))

    def _canonical_choices(self, top: Point) -> Point:
        """The family of a point."""
        found = self._grid.canonical(top)
        return tuple(0 if is_monotone else index for index, is_monotone in zip(found, self._grid.monotone, strict=True))

    def _top(self, family: Point) -> Point:
        grid = self._grid
        axes = zip(family, grid.lengths, grid.monotone, strict=True)
        return tuple(length - 1 if is_monotone else index for index, length, is_monotone in axes)

    def _branch(self, families: Sequence[Point]) -> None:
        heap = [_Box((-math.inf,), next(self._numbers), family, self._top(family)) for family in families]
        heapq.heapify(heap)
        while heap:
            wave: list[_Box] = []
            while heap and len(wave) < self._width:
                box = self._trimmed(heapq.heappop(heap))
                if box is not None:
                    wave.append(box)
            corners = [self._grid.canonical(box.high) for box in wave]
            # While there are fewer boxes than processors, the next corners are simulated beside them.
            ahead = [self._grid.canonical(half.high) for box in wave for half in self._halves(box)[:1]]
            if not self._simulate([*corners, *ahead[: self._width - len(wave)]], reserve=NEIGHBOURS_SHARE):
                return
            for box in wave:
                for part in self._parts(box):
                    heapq.heappush(heap, part)

    def _trimmed(self, box: _Box) -> _Box | None:
        """The box without points that cost too much to be better than the best; None if none is left."""

        def may_be_better(low: Point) -> bool:
            least = self._grid.floor(low)
            if box.faster is not None:
                least = max(least, self._grid.bound(low, box.faster))
            return self._is_promising(least)

        if not (self._is_promising(box.bound) and may_be_better(box.low)):
            return None
        high = box.high
        for axis in _sides(box):
            while high[axis] > box.low[axis] and not may_be_better(_with(box.low, axis, high[axis])):
                high = _with(high, axis, high[axis] - 1)
        return replace(box, high=high)

    def _parts(self, box: _Box) -> list[_Box]:
        """What is left to look at in a box whose highest corner is known."""
        verdict = self._known[self._grid.canonical(box.high)]
        if verdict.failed:  # not for want of anything: the rest may be fine
            return self._halves(box)
        if verdict.strain > 1 + SLACK:
            return []
        bound = max(box.bound, self._grid.bound(box.low, verdict))
        if not self._is_promising(bound):
            return []
        sides = _sides(box)
        if len(sides) == 1:
            axis = sides[0]
            high = max(box.low[axis], min(box.high[axis], verdict.enough.get(axis, box.high[axis])))
            if high < box.high[axis]:  # in between is the very same run, at a higher price
                return [replace(box, bound=bound, high=_with(box.high, axis, high), faster=verdict)]
        return self._halves(replace(box, bound=bound, faster=verdict))

    def _halves(self, box: _Box) -> list[_Box]:
        """The box cut across its shortest side, as bounds are closest on one axis alone; the lower half first."""
        sides = _sides(box)
        if not sides:
            return []
        axis = min(sides, key=lambda number: box.high[number] - box.low[number])
        middle = (box.low[axis] + box.high[axis]) // 2
        return [
            replace(box, number=next(self._numbers), high=_with(box.high, axis, middle)),
            replace(box, number=next(self._numbers), low=_with(box.low, axis, middle + 1)),
        ]

    def _is_promising(self, bound: Score) -> bool:
        best = self._best()
        return best is None or not self._known[best].is_met or bound < self._known[best].score

    # Step 2

    def _thin_out(self, families: Sequence[Point]) -> list[Point]:
        """The families that do best at the best point's resources, with more and more of the sessions."""
        best = self._best()
        if best is None:
            return list(families[1 : 1 + SURVIVORS])

        def here(family: Point) -> Point:
            axes = zip(family, best, self._grid.monotone, strict=True)
            return self._grid.canonical(tuple(place if is_monotone else choice for choice, place, is_monotone in axes))

        at = {here(family): family for family in families}
        points, share = list(at), FIRST_SHARE
        while len(points) > SURVIVORS and share < 1:
            room = self._budget.room(NEIGHBOURS_SHARE)
            if room < len(points):
                self._out_of_budget = True
                points = points[:room]
            verdicts = self._call(points, share)
            ranked = [(verdict.rank, point) for point, verdict in zip(points, verdicts, strict=True) if verdict]
            self._thinned |= dict.fromkeys(points, share)
            if not ranked:
                break
            points = [point for _, point in sorted(ranked)[: max(SURVIVORS, math.ceil(len(ranked) / 2))]]
            share *= 2
        return [at[point] for point in points]

    # Step 3

    def _try(self, corners: Sequence[Point]) -> None:
        """Simulate points, but for those that cost too much at any speed to be better than the best."""
        for point in corners:
            if self._is_promising(self._grid.floor(point)) and not self._simulate([point], reserve=NEIGHBOURS_SHARE):
                return

    # Step 4

    def _climb(self) -> bool:
        """Simulate neighbours until the best point has no better one; whether that is certain now."""
        while (best := self._best()) is not None:
            near = dict.fromkeys(point for _, point in neighbours(self._grid, best))
            unknown = [point for point in near if point not in self._known]
            if not unknown:
                return True
            # The search's own order would be to look at all of them; a better one found early saves the rest.
            if not self._simulate(unknown[: self._width]):
                return False
        return False

    # Common

    def _best(self) -> Point | None:
        usable = [point for point, verdict in self._known.items() if not verdict.failed]
        return min(usable, key=lambda point: (self._known[point].rank, point), default=None)

    def _simulate(self, points: Sequence[Point], *, reserve: float = 0.0) -> bool:
        """Simulate what is not known yet; whether all of it is known now."""
        unknown = [point for point in dict.fromkeys(points) if point not in self._known]
        allowed = unknown[: self._budget.room(reserve)] if unknown else []
        for point, verdict in zip(allowed, self._call(allowed, 1.0), strict=True):
            if verdict is not None:
                self._known[point] = verdict
        complete = all(point in self._known for point in unknown)
        self._out_of_budget |= not complete
        return complete

    def _call(self, points: Sequence[Point], share: float) -> list[Verdict | None]:
        if not points:
            return []
        verdicts = self._evaluate(points, share)
        self._budget.used += sum(verdict is not None for verdict in verdicts)
        return verdicts
