"""The curve over runs equals an LRU cache of single blocks, at every size."""

from __future__ import annotations

from itertools import pairwise

import pytest
from prompt_worlds import lru_hits, world

from kvsim.plan.mrc import Knee, MissRatioCurve, miss_ratio_curve, tenant_curve
from kvsim.plan.prompts import Prompts, prompts_of
from kvsim.trace.reuse import find_reuses


def test_curve_by_hand() -> None:
    """Two prompts of 2 and 3 blocks, then the first again: its beginning is there from 4 blocks on, all from 5."""
    curve = miss_ratio_curve(Prompts("by hand", 1, ([(0, 2)], [(1, 3)], [(0, 2)])))
    assert (curve.corners, curve.corner_hits) == ((0, 3, 5), (0, 0, 2))
    assert [curve.hits(size) for size in (0, 3, 4, 5, 100)] == [0, 0, 1, 2, 2]
    assert (curve.uses, curve.first_uses, curve.full_blocks) == (7, 5, 5)
    assert (curve.max_hit_rate, curve.hit_rate(4), curve.miss_ratio(5)) == (2 / 7, 1 / 7, 5 / 7)
    assert [curve.size_for(percent) for percent in (0, 50, 51, 100)] == [0, 4, 5, 5]


def test_nothing_reused_gives_a_flat_curve() -> None:
    """Prompts without a common block, or none at all, have no hits at any size and no knee."""
    for runs in ((), ([(0, 3)], [(1, 4)])):
        curve = miss_ratio_curve(Prompts("by hand", 1, runs))
        assert (curve.hit_rate(10**9), curve.max_hit_rate, curve.full_blocks, curve.knees()) == (0.0, 0.0, 0, ())
        assert curve.size_for(90) == 0


@pytest.mark.parametrize("batch", range(10))
def test_random_worlds_equal_block_by_block(batch: int) -> None:
    """Hits are those of an LRU cache that is played block by block, of all prompts and of each tenant's."""
    for seed in range(100 * batch, 100 * batch + 100):
        made = world(seed)
        prompts = prompts_of(made.trace, tenants=made.tenants)
        reuses = find_reuses(prompts.runs)
        curve = miss_ratio_curve(prompts, reuses)
        assert curve.uses == sum(map(len, made.prompts))
        assert curve.first_uses == len({block for prompt in made.prompts for block in prompt})
        for capacity in made.capacities:
            hits = lru_hits(made.prompts, capacity)
            assert curve.hits(capacity) == sum(hits), (seed, capacity)
            for tenant in range(len(made.tenants)):
                own = [hit for hit, owner in zip(hits, made.tenant_of, strict=True) if owner == tenant]
                assert tenant_curve(prompts, reuses, tenant).hits(capacity) == sum(own)
                alone = [prompt for prompt, of in zip(made.prompts, made.tenant_of, strict=True) if of == tenant]
                assert miss_ratio_curve(prompts.of_tenant(tenant)).hits(capacity) == sum(lru_hits(alone, capacity))


def test_curve_rises_and_sizes_are_the_least() -> None:
    """More cache never has fewer hits, and `size_for` gives the first size that has enough."""
    for seed in range(50):
        curve = miss_ratio_curve(prompts_of(world(seed).trace))
        hits = [curve.hits(size) for size in range(curve.full_blocks + 3)]
        assert hits == sorted(hits)
        for percent in (1, 50, 90, 99, 100):
            wanted = hits[-1] * percent / 100
            assert curve.size_for(percent) == next(size for size, found in enumerate(hits) if found >= wanted)


def _curve(*points: tuple[int, int]) -> MissRatioCurve:
    sizes, hits = zip(*points, strict=True)
    return MissRatioCurve(Prompts("by hand", 1, ()), 1000, 0, sizes, hits)


def test_knees_by_hand() -> None:
    """A corner counts if the hull would be 5 % of the most hits off without it, and is on the hull at all."""
    steep_then_flat = _curve((0, 0), (10, 500), (20, 500), (110, 600))
    assert steep_then_flat.knees() == (Knee(10, 0.5, 0.05, 0.001),)
    straight = _curve((0, 0), (50, 310), (100, 600))
    assert straight.knees() == ()
    step = _curve((0, 0), (90, 0), (100, 900), (200, 1000))
    assert step.knees() == (Knee(100, 0.9, 0.009, 0.001),)
    two = _curve((0, 0), (10, 400), (60, 900), (160, 1000))
    assert [knee.blocks for knee in two.knees()] == [10, 60]


@pytest.mark.parametrize("seed", range(40))
def test_lines_through_the_knees_are_near_the_hull(seed: int) -> None:
    """The curve is nowhere more than 5 % of its most hits above the lines from knee to knee."""
    curve = miss_ratio_curve(prompts_of(world(seed).trace))
    points = [(0, 0), *((knee.blocks, curve.hits(knee.blocks)) for knee in curve.knees())]
    points.append((curve.full_blocks, curve.corner_hits[-1]))
    for (start, low), (end, high) in pairwise(points):
        for size in range(start, end + 1):
            line = low + (high - low) * (size - start) / max(1, end - start)
            assert curve.hits(size) <= line + 0.05 * curve.corner_hits[-1] + 1e-9
