"""Measured logs of real vLLM servers against the whole engine."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "experiments" / "step_time" / "engine_logs.py"


def script() -> ModuleType:
    """The experiment as a module."""
    spec = importlib.util.spec_from_file_location("engine_logs", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("number", [0, 1])
def test_tpot_and_makespan_of_measured_logs(shared_traces: Path, number: int) -> None:
    """TPOT (mean, P50, P99) and makespan stay within 10 % on the RTX 4090 and 5 % on the RTX PRO 6000."""
    module = script()
    log = module.LOGS[number]
    rows = module.read_log(shared_traces / "llmservingsim-vllm-measured", log)
    real, predicted = asdict(module.measured(rows)), asdict(module.simulated(rows, log))
    errors = {key: predicted[key] / real[key] - 1 for key in ("tpot_mean", "tpot_p50", "tpot_p99", "makespan")}
    assert all(abs(error) <= log.target for error in errors.values()), errors
