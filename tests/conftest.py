"""Fixtures that every test may use."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples every time, on machines of any speed.
settings.register_profile("kvsim", deadline=None, derandomize=True)
settings.load_profile("kvsim")

gc.set_threshold(50_000, 10, 10)  # as in a run (see kvsim.garbage): with thousands of tests in memory a search is dear

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO / "tests"))  # for engine_builder, which several folders share


def _shared(part: str) -> Path:
    """The folder of third-party data beside the repository; tests that need it skip when it is absent."""
    root = Path(os.environ.get("KVSIM_SHARED", REPO.parent / "shared"))
    if not (root / part).is_dir():
        pytest.skip(f"third-party data absent: {root / part} (set KVSIM_SHARED to its parent folder)")
    return root / part


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """Folder with the real traces (see their FORMATS.md); not part of this repository."""
    return _shared("traces")


@pytest.fixture(scope="session")
def shared_oracle() -> Path:
    """Folder with what the real vLLM decided on recorded scenarios; not part of this repository."""
    return _shared("oracle")
