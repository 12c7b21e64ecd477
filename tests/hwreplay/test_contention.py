"""What other processes took of the processors."""

from __future__ import annotations

import pytest

from hwreplay.contention import Contention, others_share


def test_share() -> None:
    """All processes' time less our own, over what the processors had."""
    assert others_share((10.0, 100.0, 5.0), (20.0, 112.0, 9.0), 2) == pytest.approx(0.4)
    assert others_share((10.0, 100.0, 5.0), (20.0, 104.0, 9.5), 2) == 0.0
    assert others_share((10.0, 100.0, 5.0), (10.0, 200.0, 5.0), 2) == 1.0


def test_here() -> None:
    """The kernel says it, or nobody does."""
    share = Contention().share()
    assert share is None or 0 <= share <= 1
