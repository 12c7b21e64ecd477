"""The step-time experiment: errors against public measurements stay where they are published."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

EXPERIMENT = Path(__file__).resolve().parents[2] / "experiments" / "step_time"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kvsim" / "aiconfigurator-core-0.12.0"


@pytest.fixture(scope="module")
def result() -> Iterator[dict[str, Any]]:
    """All figures of the experiment; skipped without the third-party measurements."""
    csv = Path(os.environ.get("KVSIM_SILICON_CSV", CACHE / "silicon_sample.csv"))
    if not csv.is_file():
        pytest.skip(f"third-party data absent: {csv} (python experiments/step_time/run.py downloads it)")
    sys.path.insert(0, str(EXPERIMENT))
    try:
        import run  # noqa: PLC0415 - only where the data is

        yield run.measure(csv.parent)
    finally:
        sys.path.remove(str(EXPERIMENT))


def test_tpot_of_h100_and_h200_within_5_percent(result: dict[str, Any]) -> None:
    """Median TPOT error of every H100 and H200 group is at most 5 %, with constants fitted without it."""
    errors = result["groups"]["by release, held out"]
    assert sorted(errors) == [
        "Llama-3.1-70B b200",
        "Llama-3.1-70B h100",
        "Llama-3.1-70B h200",
        "Qwen3-32B h100",
        "gpt-oss-120b h100",
        "gpt-oss-120b h200",
    ]
    assert {g: e.count for g, e in errors.items()}["Qwen3-32B h100"] == 85
    for group, error in errors.items():
        if not group.endswith("b200"):
            assert error.median <= 5.0, group


def test_shipped_host_times_are_the_fitted_ones(result: dict[str, Any]) -> None:
    """The constants in gpus.yaml are the fit, rounded."""
    count, host = result["fit"]["since-0.14"]
    assert count == 67
    assert (host["step_us"], host["request_us"]) == (pytest.approx(150, abs=5), pytest.approx(19, abs=0.5))
    count, host = result["fit"]["before-0.14"]
    assert count == 198
    assert (host["step_us"], host["request_us"]) == (pytest.approx(650, abs=10), pytest.approx(48, abs=0.5))
