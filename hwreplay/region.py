"""Host memory for KV blocks: one mapping in /dev/shm, populated, and registered with CUDA in chunks.

As vLLM's shared offload region. The file is unlinked as soon as it is mapped, so that nothing is left behind however a
run ends. Registration is split because one call above 512 GiB fails on any machine (vllm-project/vllm#51080), and at
borders of rows because a copy's host range must lie in one registered range.
"""

from __future__ import annotations

import errno
import math
import mmap
import os
import tempfile
from pathlib import Path
from typing import Protocol

import numpy as np

from hwreplay.layout import Bytes
from kvsim.errors import UserError
from kvsim.units import format_size, parse_size

SHARED = Path("/dev/shm")  # noqa: S108 - the place of shared memory, not of temporary files
CHUNK_BYTES = 64 * 2**30
PAGE = mmap.PAGESIZE
MEMORY_VARIABLE = "HWREPLAY_HOST_MEMORY"
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14; Python does not name it
_NO_ROOM = (errno.ENOSPC, errno.ENOMEM, errno.ENOENT, errno.EACCES, errno.EROFS, errno.EPERM)


class Registrar(Protocol):
    """Page-locks ranges of host memory for a GPU. Both methods raise if that fails."""

    def register(self, address: int, size: int) -> None:
        """Lock a range."""

    def unregister(self, address: int) -> None:
        """Undo `register`."""


class Region:
    """Mapped and populated memory.

    Args:
        size: bytes.
        folder: a tmpfs; None = memory that belongs to no file system.

    Raises:
        UserError: there is not that much memory.

    ``note`` says where the memory came from, if not from the folder.
    """

    def __init__(self, size: int, folder: Path | None = SHARED) -> None:
        self.bytes = size
        self.note: str | None = None
        self._registrar: Registrar | None = None
        self._registered: list[int] = []
        available = _available()
        if available is not None and size > available:
            raise UserError(
                f"{format_size(size)} of host memory are needed and {available / 2**30:.1f} GiB are available:"
                " --max-bytes makes a schedule fit"
            )
        self._map = self._mapped(size, folder)
        _populate(self._map)
        self.array: Bytes = np.frombuffer(self._map, dtype=np.uint8, count=size)
        self.address = int(self.array.ctypes.data)

    def _mapped(self, size: int, folder: Path | None) -> mmap.mmap:
        length = max(1, -(-size // PAGE)) * PAGE
        if folder is not None:
            try:
                with tempfile.TemporaryFile(dir=folder, prefix="hwreplay-") as file:
                    os.posix_fallocate(file.fileno(), 0, length)  # a tmpfs without room would kill us at first use
                    return mmap.mmap(file.fileno(), length)
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                self.note = f"host memory is not in {folder} ({error.strerror}), but anonymous"
        made = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            try:
                made.madvise(mmap.MADV_HUGEPAGE)
            except OSError:  # a kernel without huge pages
                return made
        return made

    def memoryview(self, offset: int, size: int) -> memoryview:
        """A stretch of it for file I/O, without copying."""
        return memoryview(self._map)[offset : offset + size]

    def register(self, registrar: Registrar, row_bytes: int, chunk_bytes: int = CHUNK_BYTES) -> None:
        """Lock all of it, chunk by chunk; if one fails, none stays locked."""
        assert self._registrar is None, "registered twice"
        self._registrar = registrar
        try:
            for start, size in chunks(self.bytes, row_bytes, chunk_bytes):
                registrar.register(self.address + start, size)
                self._registered.append(self.address + start)
        except BaseException:
            self.unregister()
            raise

    def unregister(self) -> None:
        """Unlock what is locked, last first; an error of one chunk does not keep the others locked."""
        failure: Exception | None = None
        while self._registered:
            assert self._registrar is not None
            try:
                self._registrar.unregister(self._registered.pop())
            except Exception as error:  # noqa: BLE001 - raised below, when the others are unlocked
                failure = failure or error
        self._registrar = None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Unlock and unmap. Where somebody still holds a view, the memory goes when the view does."""
        try:
            self.unregister()
        finally:
            self.array = np.empty(0, dtype=np.uint8)
            try:
                self._map.close()
            except BufferError:
                self.note = self.note or "a view outlived its region"


def chunks(size: int, row_bytes: int, chunk_bytes: int = CHUNK_BYTES) -> list[tuple[int, int]]:
    """(start, bytes) of ranges below ``chunk_bytes`` that begin at a row and at a page, and cover ``size`` bytes.

    Rows too long for that are split between pages.
    """
    unit = math.lcm(max(1, row_bytes), PAGE)
    if unit >= chunk_bytes:
        unit = PAGE
    step = max(unit, (chunk_bytes - 1) // unit * unit)
    return [(start, min(step, size - start)) for start in range(0, size, step)]


def _populate(mapped: mmap.mmap) -> None:
    """Have all pages now, so that no copy pays for a page fault."""
    try:
        mapped.madvise(_POPULATE_WRITE)
    except OSError:  # an older kernel
        np.frombuffer(mapped, dtype=np.uint8)[::PAGE] = 0


def _available() -> int | None:
    """Bytes that can be had without swapping; None if the kernel does not say.

    Some virtual machines get their memory only as they use it and show less before: `MEMORY_VARIABLE` says how much.
    """
    if os.environ.get(MEMORY_VARIABLE):
        try:
            return parse_size(os.environ[MEMORY_VARIABLE])
        except ValueError as error:
            raise UserError(f"{MEMORY_VARIABLE}: {error}") from None
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None
