"""The search finds what trying everything finds, on made-up surfaces."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.plan.search import Budget, Found, Point, Score, Verdict, all_points, neighbours, search


@dataclass
class Surface:
    """A made-up world: every point takes some time, costs something per hour, and strains the SLO."""

    lengths: tuple[int, ...]
    monotone: tuple[bool, ...]
    hours: dict[Point, float]
    strain: dict[Point, float]
    prices: tuple[float, ...]  # per step of each axis and hour
    failing: frozenset[Point] = frozenset()
    enough: dict[Point, dict[int, int]] = field(default_factory=dict)
    asked: list[tuple[Point, float]] = field(default_factory=list)

    def canonical(self, point: Point) -> Point:
        return point

    def per_hour(self, point: Point) -> float:
        return 1 + sum(index * price for index, price in zip(point, self.prices, strict=True))

    def score(self, point: Point) -> Score:
        return (self.per_hour(point) * self.hours[point],)

    def bound(self, low: Point, verdict: Verdict) -> Score:
        hours = verdict.score[1]
        return (self.per_hour(low) * hours,)

    def floor(self, low: Point) -> Score:
        return (self.per_hour(low) * min(self.hours.values()),)

    def verdict(self, point: Point) -> Verdict:
        if point in self.failing:
            return Verdict(float("inf"), failed=True)
        score = (*self.score(point), self.hours[point])
        return Verdict(self.strain[point], score, enough=self.enough.get(point, {}))

    def evaluate(self, points: Sequence[Point], share: float) -> list[Verdict | None]:
        self.asked += [(point, share) for point in points]
        return [self.verdict(point) for point in points]

    def best(self) -> Point | None:
        usable = [point for point in all_points(self) if point not in self.failing]
        return min(usable, key=lambda point: (self.verdict(point).rank, point), default=None)

    def search(self, points: int = 10_000, width: int = 1, *, exhaustive: bool = False) -> Found:
        return search(self, self.evaluate, Budget(points), width=width, exhaustive=exhaustive)


def monotone_surface(draw: st.DrawFn, *, noise: float = 0.0, choices: bool = True) -> Surface:
    """Random times and strains that fall along the monotone axes, but for some noise in the strain."""
    axes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    kinds = tuple(not choices or draw(st.booleans()) for _ in axes)
    points = list(itertools.product(*map(range, axes)))
    tables = []
    for _ in range(2):
        table: dict[Point, float] = {}
        for point in points:
            own = draw(st.floats(0.5, 2.0))
            below = [
                table[(*point[:axis], point[axis] - 1, *point[axis + 1 :])]
                for axis in range(len(axes))
                if kinds[axis] and point[axis]
            ]
            table[point] = min([own, *below])
        tables.append(table)
    if noise:
        tables[1] = {point: value * draw(st.floats(1 - noise, 1 + noise)) for point, value in tables[1].items()}
    prices = tuple(draw(st.floats(0, 1)) for _ in axes)
    return Surface(tuple(axes), kinds, tables[0], tables[1], prices)


@st.composite
def monotone(draw: st.DrawFn) -> Surface:
    """More is never worse."""
    return monotone_surface(draw)


@st.composite
def bumpy(draw: st.DrawFn) -> Surface:
    """More is mostly better."""
    return monotone_surface(draw, noise=0.3)


def line(strain: Sequence[float], hours: Sequence[float] | None = None, price: float = 0.1) -> Surface:
    """One monotone axis."""
    points = [(index,) for index in range(len(strain))]
    return Surface(
        (len(strain),),
        (True,),
        dict(zip(points, hours or [1.0] * len(strain), strict=True)),
        dict(zip(points, strain, strict=True)),
        (price,),
    )


@given(monotone(), st.integers(1, 3))
@settings(max_examples=150)
def test_finds_the_best_point_of_a_monotone_surface(surface: Surface, width: int) -> None:
    """Where more is never worse, the search finds the point that trying all of them finds, or one as good."""
    found = surface.search(width=width)
    best = surface.best()
    assert best is not None
    assert found.best is not None
    if all(surface.monotone):  # of more than four combinations of choices most are only thinned out
        assert surface.verdict(found.best).rank == surface.verdict(best).rank
    assert found.is_local_best
    assert found.is_complete


@given(bumpy(), st.integers(1, 3))
@settings(max_examples=150)
def test_no_neighbour_of_the_answer_is_better(surface: Surface, width: int) -> None:
    """On any surface the answer was simulated, and so were all its neighbours, of which none is better."""
    found = surface.search(width=width)
    assert found.best is not None
    assert found.is_local_best
    for _, point in neighbours(surface, found.best):
        assert found.verdicts[point].rank >= found.verdicts[found.best].rank


@given(bumpy())
@settings(max_examples=50)
def test_exhaustive_finds_the_best_of_any_surface(surface: Surface) -> None:
    """Asked to try everything, it does, and gives the best of it."""
    found = surface.search(exhaustive=True)
    assert found.is_exhaustive
    assert found.best == surface.best()


@given(bumpy(), st.integers(1, 12))
@settings(max_examples=100)
def test_keeps_to_its_budget(surface: Surface, points: int) -> None:
    """No more points are simulated than allowed, none twice, and the best of them is the answer."""
    found = surface.search(points)
    assert len(surface.asked) <= points
    assert len(set(surface.asked)) == len(surface.asked)
    ranks = {point: surface.verdict(point).rank for point in found.verdicts}
    assert found.best == (min(ranks, key=lambda point: (ranks[point], point)) if ranks else None)
    unknown = [point for _, point in neighbours(surface, found.best) if point not in ranks] if found.best else []
    assert found.is_local_best == (found.best is not None and not unknown)


def test_bisects_a_line() -> None:
    """On one axis of 1,000 sizes the smallest that meets the SLO takes 11 points with its neighbours."""
    surface = line([2.0] * 700 + [0.5] * 300)
    found = surface.search()
    assert found.best == (700,)
    assert len(surface.asked) == 11
    assert {point for point, _ in surface.asked} >= {(699,), (700,), (701,), (999,)}


def test_sees_that_nothing_meets_the_slo() -> None:
    """Where not even the most of everything meets the SLO, the closest point of those simulated is the answer."""
    surface = line([4.0, 3.0, 2.5, 2.0])
    found = surface.search()
    assert found.best == (3,)
    assert not found.verdicts[(3,)].is_met
    assert found.is_local_best


def test_more_memory_may_be_cheaper() -> None:
    """A size beyond the smallest that meets the SLO is found if it saves more hours than it costs."""
    surface = line([2.0, 0.9, 0.8, 0.7, 0.7], hours=[9.0, 8.0, 4.0, 3.9, 3.9])
    found = surface.search()
    assert found.best == (2,)


def test_leaves_out_what_gives_the_same_run() -> None:
    """When the largest size is known to give the run of a smaller one, nothing in between is simulated."""
    surface = line([0.5] * 64)
    surface.enough[(63,)] = {0: 4}
    surface.search()
    assert not {point for point, _ in surface.asked} & {(index,) for index in range(6, 63)}


def test_a_point_that_fails_says_nothing_about_smaller_ones() -> None:
    """If the largest size cannot be simulated at all, the smaller ones are searched as ever."""
    surface = line([2.0, 2.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4])
    surface.failing = frozenset({(6,), (7,)})
    found = surface.search()
    assert found.best == (2,)


def test_all_points_may_fail() -> None:
    """If no point can be simulated there is no answer."""
    surface = line([0.5, 0.5])
    surface.failing = frozenset({(0,), (1,)})
    assert surface.search().best is None


def test_a_near_miss_does_not_end_the_bisection() -> None:
    """A size that misses the SLO by less than 5 % does not rule out smaller ones: loops are only nearly monotone."""
    surface = line([2.0, 0.99, 1.02, 1.03, 1.04, 1.03, 1.02, 1.04])
    assert surface.search().best == (1,)


def test_many_choices_are_thinned_out_with_fewer_sessions() -> None:
    """Of 16 policies all are tried with a quarter of the sessions, 8 with half of them, the best few with all."""
    policies = [(size, policy) for size in range(4) for policy in range(16)]
    strain = {point: 3.0 - point[0] - (1.1 if point[1] == 11 else 0.01 * point[1]) for point in policies}
    surface = Surface((4, 16), (True, False), dict.fromkeys(policies, 1.0), strain, (0.5, 0.0))
    found = surface.search()
    assert found.best == (1, 11)
    assert sum(share == 0.25 for _, share in surface.asked) == 16
    assert sum(share == 0.5 for _, share in surface.asked) == 8
    assert set(found.thinned.values()) <= {0.25, 0.5}


@pytest.mark.parametrize("width", [1, 2, 8])
def test_width_does_not_change_the_answer(width: int) -> None:
    """However many points are simulated at a time, a monotone surface has one answer."""
    points = list(itertools.product(range(3), range(9)))
    strain = {point: 4.0 / (1 + point[0]) - 0.2 * point[1] for point in points}
    surface = Surface((3, 9), (True, True), dict.fromkeys(points, 1.0), strain, (1.0, 0.1))
    assert surface.search(width=width).best == surface.best()


def test_corners_do_not_rest_on_monotony() -> None:
    """Where more memory hurts, the best point below a bad one is found if it is a corner."""
    strain = {(0, 0): 2.0, (0, 1): 0.9, (0, 2): 0.9, (1, 0): 0.5, (1, 1): 3.0, (1, 2): 0.9}

    def surface() -> Surface:
        return Surface((2, 3), (True, True), dict.fromkeys(strain, 1.0), strain, (0.1, 1.0))

    plain = surface()
    assert plain.search().best == (0, 1)
    found = search(surface(), plain.evaluate, Budget(100), corners=[(0, 0), (1, 0)])
    assert found.best == (1, 0)
