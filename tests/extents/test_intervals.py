"""Sets of positions as intervals."""

from __future__ import annotations

import random

import pytest

from kvsim.extents.intervals import Intervals, interval_of


def test_add_returns_what_is_new() -> None:
    """Adding tells exactly the positions that were not there before, and joins what touches."""
    some = Intervals()
    assert some.add(2, 5) == [(2, 5)]
    assert some.add(8, 10) == [(8, 10)]
    assert some.add(4, 9) == [(5, 8)]
    assert list(some) == [(2, 10)]
    assert some.add(0, 12) == [(0, 2), (10, 12)]
    assert some.add(3, 7) == []
    assert list(some) == [(0, 12)]


def test_missing_changes_nothing() -> None:
    """Asking what is not there leaves the set as it is."""
    some = Intervals()
    some.add(2, 4)
    some.add(6, 8)
    assert some.missing(0, 7) == [(0, 2), (4, 6)]
    assert some.missing(2, 4) == []
    assert list(some) == [(2, 4), (6, 8)]


def test_is_a_set_of_positions() -> None:
    """Over random additions it answers as a set of numbers would."""
    rng = random.Random(1)
    for _ in range(300):
        some, plain = Intervals(), set[int]()
        for _ in range(12):
            first = rng.randint(0, 30)
            last = first + rng.randint(1, 8)
            absent = [position for position in range(first, last) if position not in plain]
            assert [p for a, b in some.missing(first, last) for p in range(a, b)] == absent
            assert [p for a, b in some.add(first, last) for p in range(a, b)] == absent
            plain.update(absent)
            assert [p for a, b in some for p in range(a, b)] == sorted(plain)
            assert all((position in some) == (position in plain) for position in range(40))


def test_positions_that_follow_each_other_are_an_interval() -> None:
    """A range is an interval; a list with a hole is refused."""
    assert interval_of(range(3, 7)) == (3, 7)
    assert interval_of([]) == (0, 0)
    with pytest.raises(NotImplementedError, match="need the reference ledger"):
        interval_of([1, 3])
