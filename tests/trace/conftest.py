"""Small traces, written the way their tools write them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Row = dict[str, Any]


@pytest.fixture
def request_row() -> Callable[..., Row]:
    """Makes one kv-cache-tester request of as many 64-token blocks as ids are given, and a tail."""

    def make(t: float, ids: list[int], *, tail: int = 0, out: int = 10, **more: Any) -> Row:
        row = {"t": t, "type": "n", "model": "m", "in": 64 * len(ids) + tail, "out": out, "hash_ids": ids}
        return {**row, **more}

    return make


@pytest.fixture
def agent_row() -> Callable[..., Row]:
    """Makes one kv-cache-tester sub-agent."""

    def make(name: str, requests: list[Row], status: str = "completed", t: float = 0.0) -> Row:
        row = {"t": t, "type": "subagent", "agent_id": name, "status": status, "duration_ms": None}
        return {**row, "requests": requests}

    return make


@pytest.fixture
def write_session(tmp_path: Path) -> Callable[..., Path]:
    """Writes a kv-cache-tester file."""

    def write(name: str, requests: list[Row], *, packed: bool = False, **more: Any) -> Path:
        top = {"id": name, "models": ["m"], "block_size": 64, "hash_id_scope": "local", **more}
        data = json.dumps({**top, "requests": requests}).encode()
        path = tmp_path / f"{name}.json{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(data) if packed else data)
        return path

    return write


@pytest.fixture
def write_rows(tmp_path: Path) -> Callable[..., Path]:
    """Writes a JSON-lines file."""

    def write(name: str, rows: list[Row]) -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write
