"""The sessions of a run as a table."""

from __future__ import annotations

import math
from typing import Any

import pytest
from run_builder import requests_of, small_requests

from kvsim.results.sessions import SESSION_COLUMNS, sessions_frame


def test_by_hand() -> None:
    """Sums, times, hits and waits of the four sessions of the small run, computed by hand."""
    rows: list[dict[str, Any]] = sessions_frame(small_requests()).to_dict("records")  # type: ignore[assignment]
    a, b, c, d = rows
    assert a == {
        "session": "a", "requests": 2, "finished": 2, "start_s": 0.0, "time_s": 4.5, "prompt_tokens": 2500,
        "output_tokens": 32, "gpu_hit_rate": 600 / 2500, "offload_hit_rate": 400 / 2500, "ttft_p50_ms": 300.0,
        "ttft_max_ms": 500.0, "load_wait_s": 0.02, "preemptions": 2,
    }  # fmt: skip
    assert (b["requests"], b["finished"], b["start_s"], b["ttft_max_ms"]) == (2, 1, 1.0, 300.0)
    assert math.isnan(b["time_s"])  # its second request failed
    assert b["gpu_hit_rate"] == pytest.approx(200 / 1500)
    assert (c["session"], c["requests"], c["finished"], c["prompt_tokens"]) == ("c", 2, 0, 18_100)
    assert all(math.isnan(c[key]) for key in ("time_s", "gpu_hit_rate", "offload_hit_rate", "ttft_p50_ms"))
    assert (d["session"], d["start_s"]) == ("d", 4.0)


def test_nothing() -> None:
    """Without requests there are no rows, and all columns."""
    frame = sessions_frame(requests_of([]))
    assert len(frame) == 0
    assert tuple(frame.columns) == SESSION_COLUMNS
