"""Cells of probes and of jobs, covered time, and the small fits, each with literal numbers."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

import known_machine as machine

from hwreplay.cells import Cell, Group, bins, probe_cells, run_cells
from hwreplay.grid import rates_of, rising, row_ns
from hwreplay.intervals import Covered, beside, jobs_alone
from hwreplay.sections import fastest, per_call, share_of_both, slowdown_of, submit_from_jobs, submit_from_modes
from kvsim.profile import load_link

H100 = load_link("pcie5-h100")
GROUP = Group("memcpy_batch", "dma_batch", "h2d")


def cell(count: int, ns: int, size: int = 1000, link_ns: int | None = None) -> Cell:
    """A cell of one sample."""
    return Cell(GROUP, size, count, ns, ns, ns, 1, link_ns, scattered=True)


def test_bins() -> None:
    """Similar counts together: within 1.3 of the first, and up to 1.6 while there are less than five samples."""
    samples = [(10, 1)] * 5 + [(13, 1), (14, 1), (22, 1), (23, 1), (1, 9)]
    assert [[count for count, _ in members] for members in bins(samples)] == [
        [1], [10] * 5 + [13], [14, 22], [23]
    ]  # fmt: skip
    assert list(bins([])) == []


def test_jobs_become_cells() -> None:
    """Medians of count and time of the jobs that were alone; where no job was, of all of them."""
    jobs = [machine.job(number, "load", 100 * number, 10 * (number + 1), 4) for number in range(3)]
    jobs += [machine.job(3, "store", 1000, 50), machine.job(4, "load", 1000, 40, 8)]
    found = {(each.group.direction, each.count): each for each in run_cells([machine.run(jobs)])}
    assert {key: (each.ns, each.samples) for key, each in found.items()} == {("h2d", 4): (20, 3), ("d2h", 1): (50, 1)}


def test_scattered_cells_stand_for_a_backend() -> None:
    """Contiguous descriptors are used only where a backend was not measured with scattered ones; repeats are merged."""
    first = machine.copies(H100)[0]
    contiguous = replace(first, scattered=False, job_ns=machine.spread_of(1))
    found = probe_cells([machine.probe(copies=(first, contiguous)), machine.probe(copies=(first,))])
    assert [(each.ns, each.samples) for each in found] == [(first.job_ns.median, 18)]
    assert [each.ns for each in probe_cells([machine.probe(copies=(contiguous,))])] == [1]


def test_covered() -> None:
    """Overlapping stretches count once; an empty one and an empty union cover nothing."""
    covered = Covered([(0, 10), (5, 20), (30, 40), (40, 50), (7, 7)])
    assert covered.within(0, 100) == 40
    assert covered.within(15, 35) == 10
    assert covered.within(20, 30) == 0
    assert covered.share(15, 35) == 0.5
    assert covered.share(3, 3) == 0
    assert Covered([]).within(0, 10) == 0


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=8), st.integers(0, 60), st.integers(0, 40))
def test_covered_counts_nanoseconds(stretches: list[tuple[int, int]], start: int, length: int) -> None:
    """As many as there are instants in any of the stretches."""
    instants = {at for begin, size in stretches for at in range(begin, begin + size)}
    covered = Covered((begin, begin + size) for begin, size in stretches)
    assert covered.within(start, start + length) == pytest.approx(len(instants & set(range(start, start + length))))


def test_alone() -> None:
    """Not alone: beside the other direction, or beside another job of the same one; jobs of files are no matter."""
    jobs = [
        machine.job(0, "load", 0, 10),
        machine.job(1, "store", 5, 10),
        machine.job(2, "load", 20, 20),
        machine.job(3, "load", 30, 20),
        machine.job(4, "load", 60, 10),
        machine.job(5, "read", 0, 100),
    ]
    assert jobs_alone(jobs)[:5] == [False, False, False, False, True]
    assert beside(jobs)[:3] == [0.5, 0.5, 0.0]


def test_rising() -> None:
    """What falls is pooled into its geometric mean, weighted; what rises is left as it is."""
    assert rising([1.0, 2.0, 3.0], [1, 1, 1]) == [1.0, 2.0, 3.0]
    assert rising([4.0, 1.0, 8.0], [1, 1, 1]) == pytest.approx([2.0, 2.0, 8.0])
    assert rising([8.0, 1.0], [2, 1]) == pytest.approx([4.0, 4.0])


def test_between_and_beyond_counts() -> None:
    """A power of the count between two, the same time each beyond them."""
    row = {4: 100.0, 16: 400.0, 64: 400.0}
    assert [row_ns(row, count) for count in (1, 4, 8, 32, 128)] == pytest.approx([25, 100, 200, 400, 800])


def test_missing_cells_are_filled() -> None:
    """Sizes that were measured at fewer counts get the others from their own row."""
    rates = rates_of([cell(1, 100), cell(10, 500), cell(1, 400, 2000)], 0, 10**12)
    assert rates.counts == (1, 10)
    assert rates.gb_per_s == {1000: (10.0, 20.0), 2000: (5.0, 5.0)}


def test_no_cell_is_faster_than_the_peak() -> None:
    """Where noise of the submit cost leaves next to nothing, the time at the peak is taken."""
    assert rates_of([cell(1, 101)], 100, 10 * 10**9).gb_per_s == {1000: (10.0,)}


def test_small_fits() -> None:
    """Submit cost, peak, time of a call, share and slow-down of exact numbers."""
    assert submit_from_modes([cell(1, 150, link_ns=50), cell(1, 250, link_ns=50), cell(9, 900, link_ns=0)]) == 148
    assert submit_from_modes([cell(1, 150)]) is None
    assert submit_from_jobs([cell(1, 110), cell(2, 120), cell(4, 140)]) == 55  # 100, but half of 110 at most
    assert submit_from_jobs([cell(100, 1100), cell(200, 2100), cell(400, 4100)]) == 100
    assert submit_from_jobs([cell(1, 110), cell(2, 120)]) is None
    assert fastest([cell(10, 1001), cell(1, 10**6, link_ns=1)]) == 9_991_000_000  # rounded up to four digits
    assert per_call([cell(10, 500), cell(20, 1000), cell(1, 50)], {"h2d": 10**12}).ns == 50
    assert share_of_both(80, 100) == 0.8
    assert share_of_both(100, 80) == 1.0
    assert slowdown_of(1.25, 1.0) == 1.25
    assert slowdown_of(1.1, 0.55) == pytest.approx(0.55 / (1 / 1.1 - 0.45))
    assert slowdown_of(10.0, 0.5) == 100.0
