"""Files behind host memory: a block is a file, read and written by two groups of threads.

As vLLM's file system tier: read threads take reads first and write threads writes first, either helps out when its own
queue is empty. Files bypass the page cache (O_DIRECT) where file system and block size allow it; a file gets its name
only when it is whole.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from hwreplay.host_machine import HostEvent, HostMemory
from hwreplay.layout import Bytes, PagedMemory
from kvsim.errors import UserError

Io = Literal["read", "write"]
ALIGNMENT = 4096  # of addresses, offsets and sizes of direct I/O: enough for every device


class FileTier:
    """Writes blocks of a host region to files and reads them back.

    Args:
        folder: made if it is not there.
        paged: how blocks lie in the region.
        read_threads, write_threads: vLLM's n_read_threads and n_write_threads.

    ``note`` says why the page cache is used, if it is.
    """

    def __init__(self, folder: Path, paged: PagedMemory, read_threads: int = 16, write_threads: int = 16) -> None:
        self._folder = folder
        self._paged = paged
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{folder}: cannot be made ({error.strerror or error})") from None
        self.note: str | None = None
        self._direct = self._can_be_direct()
        self._pool = _Pool(read_threads, write_threads)

    def _can_be_direct(self) -> bool:
        if self._paged.block_bytes % ALIGNMENT or self._paged.piece_stride != self._paged.piece_bytes:
            self.note = (
                f"files go through the page cache: {self._paged.block_bytes} bytes are no multiple of {ALIGNMENT}"
            )
            return False
        probe = self._folder / f".direct-{os.getpid()}"
        try:
            os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600))
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise UserError(f"{self._folder}: cannot be written ({error.strerror or error})") from None
            self.note = f"files go through the page cache: {self._folder} does not allow O_DIRECT"
            return False
        finally:
            probe.unlink(missing_ok=True)
        return True

    def submit(
        self, direction: Io, memory: HostMemory, blocks: Sequence[int], files: Sequence[int]
    ) -> tuple[HostEvent, HostEvent]:
        """Queue a job: as many blocks as files. Returns events of its first byte's and its last byte's moment."""
        job = _IoJob(len(blocks))
        move = self._write if direction == "write" else self._read
        size = self._paged.block_bytes

        def task(block: int, file: int) -> Callable[[], None]:
            view = memory.memoryview(self._paged.piece_offset(block, 0), size)
            return lambda: job.run(lambda: move(file, view))

        self._pool.put(direction, [task(block, file) for block, file in zip(blocks, files, strict=True)])
        return job.start, job.end

    def path(self, file: int) -> Path:
        """Where a file lies."""
        return self._folder / f"{file}.kv"

    def contents(self, file: int) -> Bytes:
        """The bytes of a file, through the page cache."""
        return np.frombuffer(self.path(file).read_bytes(), dtype=np.uint8)

    def put(self, file: int, data: Bytes) -> None:
        """Make a file that should be there from the start."""
        self.path(file).write_bytes(data.tobytes())

    def close(self) -> None:
        """End the threads once all that is queued is done. Files stay."""
        self._pool.close()

    def _write(self, file: int, view: memoryview) -> None:
        target = self.path(file)
        temporary = target.with_name(f".{file}.{threading.get_ident()}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | (os.O_DIRECT if self._direct else 0)
        descriptor = os.open(temporary, flags, 0o600)
        try:
            done = 0
            while done < len(view):
                done += os.pwrite(descriptor, view[done:], done)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        temporary.rename(target)

    def _read(self, file: int, view: memoryview) -> None:
        descriptor = os.open(self.path(file), os.O_RDONLY | (os.O_DIRECT if self._direct else 0))
        try:
            done = 0
            while done < len(view):
                got = os.preadv(descriptor, [view[done:]], done)
                if not got:
                    raise OSError(errno.EIO, f"file {file} ends after {done} of {len(view)} bytes")
                done += got
        finally:
            os.close(descriptor)


class _IoJob:
    """Counts the files of a job."""

    def __init__(self, files: int) -> None:
        self.start, self.end = HostEvent(), HostEvent()
        self._left = files
        self._lock = threading.Lock()
        self._failure: BaseException | None = None

    def run(self, move: Callable[[], None]) -> None:
        """One file."""
        with self._lock:
            if not self.start.done():
                self.start.happen(time.perf_counter_ns(), None)
        failure: BaseException | None = None
        try:
            move()
        except BaseException as error:  # noqa: BLE001 - whoever waits for the job gets it
            failure = error
        now = time.perf_counter_ns()
        with self._lock:
            self._failure = self._failure or failure
            self._left -= 1
            if not self._left:
                self.end.happen(now, self._failure)


class _Pool:
    """Two groups of threads over two queues."""

    def __init__(self, read_threads: int, write_threads: int) -> None:
        self._queues: dict[Io, deque[Callable[[], None]]] = {"read": deque(), "write": deque()}
        self._changed = threading.Condition()
        self._closed = False
        own: list[Io] = [*["read"] * read_threads, *["write"] * write_threads]  # type: ignore[list-item]
        self._threads = [threading.Thread(target=self._run, args=(each,), daemon=True) for each in own]
        for thread in self._threads:
            thread.start()

    def put(self, direction: Io, tasks: list[Callable[[], None]]) -> None:
        """Queue tasks."""
        with self._changed:
            self._queues[direction].extend(tasks)
            self._changed.notify(len(tasks))

    def close(self) -> None:
        """Let the threads end when nothing is left to do."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self, own: Io) -> None:
        other: Io = "write" if own == "read" else "read"
        while True:
            with self._changed:
                while not (queue := self._queues[own] or self._queues[other]):
                    if self._closed:
                        return
                    self._changed.wait()
                task = queue.popleft()
            task()
