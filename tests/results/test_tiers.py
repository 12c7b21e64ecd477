"""The numbers of a secondary tier."""

from __future__ import annotations

import pandas as pd
import pytest

from kvsim.results.tiers import _grows


@pytest.mark.parametrize(
    ("times", "backlog", "expected"),
    [
        ([0, 10, 20, 30, 40, 50], [0, 10, 20, 30, 40, 50], True),
        ([0, 10, 20, 30, 40, 50], [0, 10, 20, 30, 40, 0], False),
        ([0, 1, 2, 3, 4, 90], [0, 10, 20, 30, 40, 50], None),
        ([0, 10, 20], [0, 10, 20], None),
    ],
)
def test_a_backlog_grows(times: list[int], backlog: list[int], expected: bool | None) -> None:
    """It grows from third to third of the run; where a third has no samples, or there are few, nobody can tell."""
    frame = pd.DataFrame({"time_ns": times, "tier": "fs", "write_backlog_bytes": backlog})
    assert _grows(frame, "fs") is expected
