"""Sizes, knees, windows and tenants in bytes."""

from __future__ import annotations

import pytest
from prompt_worlds import world

from kvsim.plan.mrc import miss_ratio_curve
from kvsim.plan.opt import optimum
from kvsim.plan.prompts import Prompts, prompts_of
from kvsim.plan.sizing import KneeRow, sizing


def _prompts() -> Prompts:
    """A and B of 10 blocks in turn, four times each, every 100 s; a block is 4 tokens."""
    runs = tuple([(number % 2, 10)] for number in range(8))
    return Prompts("by hand", 4, runs, tuple(100.0 * number for number in range(8)), ("a", "b"), (0, 1) * 4)


def test_sizes_that_were_asked_for() -> None:
    """Only whole blocks of 40 bytes count; LRU needs both prompts, the optimum keeps what is left beside one."""
    found = sizing(_prompts(), 10, sizes=[399, 640, 800], bypass=True)
    assert [(row.size_bytes, row.size_blocks) for row in found.sizes] == [(399, 9), (640, 16), (800, 20)]
    # Sixteen blocks: beside B's ten, six of A's stay, and then all of A's three later turns find six.
    assert [round(row.lru_hit_rate * 80) for row in found.sizes] == [0, 36, 60]
    assert [round((row.opt_hit_rate or 0) * 80) for row in found.sizes] == [0, 36, 60]
    assert [round((row.opt_bypass_hit_rate or 0) * 80) for row in found.sizes] == [27, 48, 60]


def test_everything_in_bytes() -> None:
    """Totals, milestones and knees are those of the curve times the bytes of a block."""
    found = sizing(_prompts(), 10, optimum=False)
    assert (found.prompts, found.block_uses, found.compulsory_misses) == (8, 80, 20)
    assert (found.unique_bytes, found.largest_prompt_bytes, found.full_bytes) == (800, 400, 800)
    assert (found.max_hit_rate, found.milestones) == (0.75, {50: 600, 90: 760, 99: 800})
    assert found.knees == ()
    assert all(row.opt_hit_rate is None for row in found.sizes)
    assert [(row.size_bytes, row.marks) for row in found.sizes if row.marks] == [
        *((600, ("50 %",)), (760, ("90 %",)), (800, ("99 %",)))
    ]
    assert [row.size_bytes for row in found.sizes if not row.marks] == [300, 500, 700, 1000]
    assert found.curve[-1] == (1000, 0.75)


def test_windows_begin_with_the_first_prompt() -> None:
    """Windows of 300 s hold three of the prompts, so both, and the last one two."""
    window = next(each for each in sizing(_prompts(), 10).working_set if each.window_s == 300)
    assert (window.windows, window.start_s, window.touched_bytes) == (3, (0, 300, 600), (800, 800, 800))
    assert (window.p50_bytes, window.mean_bytes, window.max_bytes) == (800, 800, 800)
    short = sizing(_prompts(), 10).working_set[0]
    assert (short.window_s, short.windows, short.start_s[:3], short.max_bytes) == (60, 8, (0, 60, 180), 400)


def test_knees_say_what_a_gb_buys() -> None:
    """Percentage points per 1e9 bytes on both sides of the knee."""
    prompts = Prompts("by hand", 1, ([(0, 1)], [(0, 1)], [(0, 1)], [(1, 9)], [(0, 1), (2, 9)], [(1, 9)]))
    knees = sizing(prompts, 10**9).knees
    curve = miss_ratio_curve(prompts)
    assert [knee.size_blocks for knee in knees] == [knee.blocks for knee in curve.knees()] == [1]
    assert knees == (KneeRow(10**9, 1, 2 / 31, pytest.approx(200 / 31), pytest.approx(100 * 10 / 18 / 31)),)


def test_tenants_shared_and_alone() -> None:
    """In twenty blocks both have all hits; in ten each has them only alone."""
    found = sizing(_prompts(), 10, sizes=[400, 800], per_tenant=True)
    assert [each.name for each in found.tenants] == ["a", "b"]
    for each in found.tenants:
        assert (each.prompts, each.block_uses, each.unique_bytes, each.max_hit_rate) == (4, 40, 400, 0.75)
        assert (each.size_bytes, each.shared_hit_rate, each.alone_hit_rate) == ((400, 800), (0.0, 0.75), (0.75, 0.75))


@pytest.mark.parametrize("seed", range(30))
def test_grid_covers_the_curve(seed: int) -> None:
    """On any trace sizes rise from few hits to all of them, and the optimum of each is that of the prompts."""
    prompts = prompts_of(world(seed).trace)
    found = sizing(prompts, 7)
    sizes = [row.size_bytes for row in found.sizes]
    assert sizes == sorted(set(sizes))
    assert found.sizes[-1].lru_hit_rate == found.max_hit_rate == found.curve[-1][1]
    assert found.sizes[0].lru_hit_rate <= max(0.02, 1.5 / max(1, found.block_uses))
    for row in found.sizes[::3]:
        assert round((row.opt_hit_rate or 0) * found.block_uses) == optimum(prompts, row.size_blocks)


def test_progress_is_told() -> None:
    """Every size is counted once."""
    calls: list[tuple[int, int]] = []
    sizing(_prompts(), 10, sizes=[400, 800], progress=lambda done, total: calls.append((done, total)))
    assert calls == [(0, 2), (1, 2)]
