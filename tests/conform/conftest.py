"""What the tests of `kvsim conform` share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
REPO = HERE.parent.parent

Conform = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def fake_python(tmp_path: Path) -> str:
    """An interpreter that has a fake vLLM: it ignores the script that it should run."""
    path = tmp_path / "fake-python"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{HERE / "fake_vllm.py"}"\n')
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def conform(tmp_path: Path) -> Conform:
    """Runs `kvsim conform` as a user does; keywords are environment variables."""

    def run(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
        variables: dict[str, Any] = {**os.environ, "PYTHONPATH": str(REPO), "COLUMNS": "100", **environment}
        return subprocess.run(  # noqa: S603 - our own interpreter
            [sys.executable, "-m", "kvsim", "conform", *map(str, words)],
            cwd=tmp_path, env=variables, capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip

    return run
