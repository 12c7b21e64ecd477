"""The script for one GPU, as far as it goes without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "experiments" / "gpu" / "run_all.sh"


def test_dry_run() -> None:
    """It names every step, and finds all imports, commands and the schedule that it ships."""
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(
        ["bash", str(SCRIPT), "--dry-run"],  # noqa: S607 - whichever shell there is
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    steps = [line.split("(")[0].strip() for line in done.stdout.splitlines() if line.startswith("step ")]
    assert steps == [
        "step backends",
        "step probe",
        *(f"step run {each}" for each in ("memcpy_batch", "memcpy_async", "cuda", "triton", "torch")),
        "step fit",
        *(f"step compare {each}" for each in ("memcpy_batch", "memcpy_async", "cuda", "triton")),
    ]
    assert "1,724 steps, 75 jobs, 26.5 GB" in done.stdout
    assert done.stdout.splitlines()[-1] == "dry run: all that can be checked here is well"
