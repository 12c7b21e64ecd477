"""How often Python searches for cycles while a simulation runs."""

from __future__ import annotations

import gc

import pytest

from kvsim.garbage import rarely_collected


@pytest.mark.parametrize(("before", "inside"), [(700, 50_000), (90_000, 90_000), (0, 0)])
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
