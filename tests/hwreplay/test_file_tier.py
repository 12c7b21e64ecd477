"""Blocks as files: direct where it can be, whole or not there, readers first."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from hwreplay import pattern
from hwreplay.file_tier import FileTier, _Pool
from hwreplay.host_machine import HostMemory
from hwreplay.layout import PagedMemory
from hwreplay.region import Region

PAGED = PagedMemory(4, 2, 2048, 2048, 4096)


def test_there_and_back(tmp_path: Path) -> None:
    """What was written is read into other blocks; no temporary name is left."""
    memory = HostMemory(Region(4 * 4096))
    view = PAGED.view(memory.read(0, memory.bytes))
    for block in (0, 1):
        pattern.fill(view[:, block], 10 + block)
    tier = FileTier(tmp_path / "kv", PAGED, 2, 2)
    _, end = tier.submit("write", memory, [0, 1], [7, 5])
    end.wait()
    start, end = tier.submit("read", memory, [3, 2], [7, 5])
    end.wait()
    assert start.ns() <= end.ns()
    assert pattern.check(view[:, 3], 10) is None
    assert pattern.check(view[:, 2], 11) is None
    assert sorted(path.name for path in (tmp_path / "kv").iterdir()) == ["5.kv", "7.kv"]
    assert tier.contents(5).tolist() == view[:, 1].ravel().tolist()
    tier.close()
    del view
    memory.close()


def test_blocks_that_direct_io_cannot_take(tmp_path: Path) -> None:
    """They go through the page cache, and the tier says so."""
    tier = FileTier(tmp_path, PagedMemory(4, 2, 100, 100, 200), 1, 1)
    assert tier.note == "files go through the page cache: 200 bytes are no multiple of 4096"
    memory = HostMemory(Region(800))
    memory.write(200, np.arange(200, dtype=np.uint8))
    tier.submit("write", memory, [1], [0])[1].wait()
    tier.submit("read", memory, [0], [0])[1].wait()
    assert memory.read(0, 200).tolist() == list(range(200))
    tier.close()


def test_a_file_that_is_missing_or_short(tmp_path: Path) -> None:
    """The job's end carries the error; other files are read all the same."""
    memory = HostMemory(Region(4 * 4096))
    tier = FileTier(tmp_path, PAGED, 1, 1)
    tier.put(1, np.zeros(4096, dtype=np.uint8))
    _, end = tier.submit("read", memory, [0, 1], [0, 1])
    with pytest.raises(FileNotFoundError):
        end.wait()
    tier.put(2, np.zeros(512, dtype=np.uint8))
    _, end = tier.submit("read", memory, [0], [2])
    with pytest.raises(OSError, match="file 2 ends after"):
        end.wait()
    tier.close()


def test_each_group_takes_its_own_first() -> None:
    """With one thread of a group, its own queue is emptied before the other."""
    pool = _Pool(1, 0)
    order: list[str] = []
    go, done = threading.Event(), threading.Event()
    pool.put("write", [lambda: go.wait() and None])
    pool.put("write", [lambda: order.append("write"), done.set])
    pool.put("read", [lambda: order.append("read")] * 2)
    go.set()
    done.wait()
    pool.close()
    assert order == ["read", "read", "write"]
