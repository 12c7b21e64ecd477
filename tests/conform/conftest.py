"""What the tests of `kvsim conform` share."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from command_line import kvsim, kvsim_process

HERE = Path(__file__).resolve().parent

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
    """Runs `kvsim conform` in a folder of the test; keywords are environment variables."""
    return partial(kvsim, "conform", cwd=tmp_path)


@pytest.fixture
def conform_process(tmp_path: Path) -> Conform:
    """The same, in a process of its own."""
    return partial(kvsim_process, "conform", cwd=tmp_path)
