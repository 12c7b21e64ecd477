"""A machine without a GPU: a second region of host memory stands for the GPU's, a thread for each stream.

Copies are real, and so is what they do to each other and to computing. Computing is arithmetic in one thread
(PBKDF2: any number of rounds in one call, without Python's lock and almost without memory), so a stream that copies
slows it as far as the machine's cores and clock do. Threads sleep while they wait.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from hwreplay import pattern
from hwreplay.layout import Bytes, PagedMemory
from hwreplay.machine import Compute, Event, Memory, Stream, cpu_name, device_info
from hwreplay.region import Region

Work = Callable[[], int | None]
"""Something a stream does; may say when it was done, if that was before it returned."""

_SWITCH_S = 2e-4
_CHUNK = 4 * 2**20  # bytes of one memmove of memory-bound compute work


class HostEvent:
    """A point in a host stream."""

    def __init__(self) -> None:
        self._set = threading.Event()
        self._ns = 0
        self.failure: BaseException | None = None

    def happen(self, ns: int, failure: BaseException | None) -> None:
        """The stream has come to it."""
        self._ns = ns
        self.failure = failure
        self._set.set()

    def done(self) -> bool:
        return self._set.is_set()

    def wait(self) -> None:
        self._set.wait()
        if self.failure is not None:
            raise self.failure

    def ns(self) -> int:
        assert self.done(), "asked for the time of something that has not happened"
        return self._ns


class HostStream:
    """A thread that does what is queued, in order. After a failure it does nothing more, and its events carry it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._queue: queue.SimpleQueue[Work | HostEvent | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"hwreplay-{name}", daemon=True)
        self._thread.start()

    def enqueue(self, work: Work) -> None:
        """Queue something."""
        self._queue.put(work)

    def record(self) -> HostEvent:
        event = HostEvent()
        self._queue.put(event)
        return event

    def wait(self, event: Event) -> None:
        def blocked() -> None:
            event.wait()

        self._queue.put(blocked)

    def close(self) -> None:
        """End the thread once everything queued is done."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        failure: BaseException | None = None
        done_ns: int | None = None  # when the work just done was, if it said so
        while (item := self._queue.get()) is not None:
            if isinstance(item, HostEvent):
                item.happen(time.perf_counter_ns() if done_ns is None else done_ns, failure)
                done_ns = None
            elif failure is None:
                try:
                    done_ns = item()
                except BaseException as error:  # noqa: BLE001 - whoever waits for an event gets it
                    failure = error
            item = None  # what it holds (events, arrays) is not kept until the next one


class HostMemory:
    """A region as one side of a machine."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.address = region.address
        self.bytes = region.bytes

    def read(self, offset: int, size: int) -> Bytes:
        return self.region.array[offset : offset + size]

    def blocks(self, paged: PagedMemory, blocks: Sequence[int]) -> Bytes:
        return paged.view(self.region.array)[:, list(blocks)]

    def write(self, offset: int, data: Bytes) -> None:
        self.region.array[offset : offset + data.size] = data

    def memoryview(self, offset: int, size: int) -> memoryview:
        """For file I/O, without copying."""
        return self.region.memoryview(offset, size)

    def close(self) -> None:
        self.region.close()


class HostMachine:
    """Streams are threads; the clock is `time.perf_counter_ns`.

    Forward passes write one page of each piece: here writing all would fill the memory's bandwidth for as long as a
    pass takes, and slow down the copies beside it, which nothing does on a GPU.
    """

    head_bytes = 4096

    def __init__(self) -> None:
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self.info = device_info("host", cpu_name(), memory_bytes=pages)
        self.notes: list[str] = []
        self._streams: dict[str, HostStream] = {}
        self._memories: list[HostMemory] = []
        self._ps_per_round = 230_000  # until calibrated
        self._ps_per_chunk = 400_000_000
        self._fill_bytes_per_s = 8 * 10**9
        self._traffic: Bytes | None = None
        # A thread that is back from a copy waits for Python's lock no longer than that.
        self._switch_s = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_S)

    def device_memory(self, size: int) -> HostMemory:
        return self._keep(HostMemory(Region(size, None)))

    def host_memory(self, size: int, row_bytes: int, *, pinned: bool = True) -> HostMemory:
        memory = self._keep(HostMemory(Region(size)))
        if memory.region.note:
            self.notes.append(memory.region.note)
        return memory

    def _keep(self, memory: HostMemory) -> HostMemory:
        self._memories.append(memory)
        return memory

    def stream(self, name: str) -> HostStream:
        if name not in self._streams:
            self._streams[name] = HostStream(name)
        return self._streams[name]

    def calibrate(self, kind: Compute, memory: Memory, paged: PagedMemory) -> dict[str, int]:
        """Undisturbed times, each the smaller of two medians: what others do on this machine only ever adds."""
        rounds = 4000
        self._ps_per_round = _median_ns(lambda: self._arithmetic(rounds), 0.1) * 1000 // rounds
        found = {"compute_round_ps": self._ps_per_round}
        if kind == "memory":
            self._ps_per_chunk = _median_ns(lambda: self._memory_traffic(4), 0.1) * 1000 // 4
            found["compute_4mib_ps"] = self._ps_per_chunk
        blocks = min(paged.num_blocks, max(1, 32 * 2**20 // paged.block_bytes))
        if blocks:
            took = _median_ns(lambda: self._fill(memory, paged, dict.fromkeys(range(blocks), 0), 0), 0.1)
            self._fill_bytes_per_s = blocks * paged.block_bytes * 10**9 // max(1, took)
            found["fill_bytes_per_s"] = self._fill_bytes_per_s
        return found

    def occupy(self, stream: Stream, ns: int, kind: Compute = "gemm") -> None:
        assert isinstance(stream, HostStream)
        if kind == "gemm":
            rounds = max(1, ns * 1000 // self._ps_per_round)
            stream.enqueue(lambda: self._arithmetic(rounds))
        else:
            chunks = max(1, round(ns * 1000 / self._ps_per_chunk))
            stream.enqueue(lambda: self._memory_traffic(chunks))

    @staticmethod
    def _arithmetic(rounds: int) -> None:
        hashlib.pbkdf2_hmac("sha256", b"hwreplay", b"", rounds)

    def _memory_traffic(self, chunks: int) -> None:
        if self._traffic is None:
            self._traffic = np.zeros(2 * 16 * _CHUNK, dtype=np.uint8)  # larger than caches
        base = self._traffic.ctypes.data
        for index in range(chunks):
            place = index % 16 * _CHUNK
            ctypes.memmove(base + 16 * _CHUNK + place, base + place, _CHUNK)

    def fill(self, stream: Stream, memory: Memory, paged: PagedMemory, contents: dict[int, int], salt: int) -> None:
        assert isinstance(stream, HostStream)
        stream.enqueue(lambda: self._fill(memory, paged, contents, salt))

    @staticmethod
    def _fill(memory: Memory, paged: PagedMemory, contents: dict[int, int], salt: int) -> None:
        view = paged.view(memory.read(0, memory.bytes))  # a host's memory is read in place
        for block, content in contents.items():
            pattern.fill(view[:, block], content, salt)

    def fill_ns(self, size: int) -> int:
        return size * 10**9 // self._fill_bytes_per_s

    def gated(self, streams: Sequence[Stream], enqueue: Callable[[], None], guess_ns: int) -> bool:
        gate = threading.Event()
        try:
            for stream in streams:
                assert isinstance(stream, HostStream)
                stream.enqueue(lambda: gate.wait() and None)
            enqueue()
        finally:
            gate.set()
        return True

    def registration(self, size: int) -> tuple[int, int]:
        start = time.perf_counter_ns()
        region = Region(size)
        took = time.perf_counter_ns() - start
        region.close()
        return took, 0

    def now_ns(self) -> int:
        return time.perf_counter_ns()

    def synchronize(self) -> None:
        for event in [stream.record() for stream in self._streams.values()]:
            event.wait()

    def close(self) -> None:
        sys.setswitchinterval(self._switch_s)
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()
        self._traffic = None
        while self._memories:
            self._memories.pop().close()


def _median_ns(work: Callable[[], None], seconds: float) -> int:
    """Median time of something, repeated for about so long and at least three times; the smaller of two tries."""
    work()
    tries = []
    for _ in range(2):
        times: list[int] = []
        while len(times) < 3 or (sum(times) < seconds * 10**9 and len(times) < 1000):
            start = time.perf_counter_ns()
            work()
            times.append(time.perf_counter_ns() - start)
        tries.append(sorted(times)[len(times) // 2])
    return min(tries)
