"""How often Python searches for cycles while a simulation runs."""

from __future__ import annotations

import gc
import weakref

import pytest

from kvsim import garbage
from kvsim.garbage import rarely_collected


@pytest.mark.parametrize(("before", "inside"), [(700, 500_000), (900_000, 900_000), (0, 0)])
def test_threshold_is_raised_and_comes_back(before: int, inside: int) -> None:
    """Fewer searches inside; who searches less often or not at all keeps that."""
    usual = gc.get_threshold()
    gc.set_threshold(before, 11, 12)
    try:
        with rarely_collected():
            assert gc.get_threshold() == (inside, 11, 12)
        assert gc.get_threshold() == (before, 11, 12)
    finally:
        gc.set_threshold(*usual)


def test_inside_each_other() -> None:
    """The inner one leaves alone what the outer one has put aside; after the outer one nothing is put aside."""
    assert gc.get_freeze_count() == 0
    with rarely_collected():
        with rarely_collected():
            pass
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize(("keeps", "found"), [(False, 1), (True, 0)])
def test_what_is_here_to_stay_is_not_searched_behind_it(keeps: bool, found: int) -> None:
    """A cycle that nobody holds is found among the youngest objects, unless all of them were said to stay."""
    gc.collect()
    with rarely_collected(keeps=keeps):
        cycle: list[object] = []
        cycle.append(cycle)
        del cycle
    assert gc.collect(0) == found
    gc.collect()


class _Node:
    """Something that holds itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.parametrize(("passed_s", "is_found"), [(9.0, False), (11.0, True)])
def test_simulations_that_are_over_are_found_in_the_end(
    passed_s: float, is_found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one has left behind is put aside with everything else, until ten seconds have been spent on simulations."""
    monkeypatch.setattr(garbage, "_unsearched_s", 0.0)
    with rarely_collected():
        last = weakref.ref(_Node())
    with rarely_collected():
        assert last() is not None
    monkeypatch.setattr(garbage, "_unsearched_s", passed_s)
    with rarely_collected():
        assert (last() is None) is is_found
    del last
    gc.collect()
