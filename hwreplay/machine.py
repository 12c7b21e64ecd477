"""What a replay needs of a machine: memory on two sides, streams in order, events, and compute work to overlap with.

Two implementations: `hwreplay.host_machine` (threads, runs everywhere) and `hwreplay.cuda_machine` (a GPU, through
torch). Times are ns on one clock per machine, the host's monotonic one; a GPU's event times are brought to it.
"""

from __future__ import annotations

import datetime as dt
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, Protocol

from hwreplay.layout import Bytes, PagedMemory
from hwreplay.result import DeviceInfo, MachineKind

__all__ = ["Compute", "DeviceInfo", "Event", "Machine", "Memory", "Stream", "device_info"]

Compute = Literal["gemm", "memory"]
"""Kind of compute work: arithmetic, or as much memory traffic as the device can do."""


class Event(Protocol):
    """A point in a stream."""

    def done(self) -> bool:
        """Whether everything before it has been done."""

    def wait(self) -> None:
        """Block the calling thread until it is done; raises what went wrong before it, if anything did."""

    def ns(self) -> int:
        """When it was done, on the machine's clock; only once it is."""


class Stream(Protocol):
    """A queue of work that is done in order."""

    name: str

    def record(self) -> Event:
        """An event behind everything that was queued so far."""

    def wait(self, event: Event) -> None:
        """What is queued from now on waits for an event (of another stream)."""


class Memory(Protocol):
    """A stretch of memory on one side."""

    address: int
    bytes: int

    def read(self, offset: int, size: int) -> Bytes:
        """Bytes as they are now; a copy where the memory is a device's."""

    def blocks(self, paged: PagedMemory, blocks: Sequence[int]) -> Bytes:
        """A copy of some blocks, ``[pieces, blocks, piece_bytes]``."""

    def write(self, offset: int, data: Bytes) -> None:
        """Set bytes, at once."""

    def close(self) -> None:
        """Give the memory back."""


class Machine(Protocol):
    """Memory, streams and compute work."""

    info: DeviceInfo
    notes: list[str]  # what a reader of the results should know
    head_bytes: int  # of each piece that a forward pass writes; all of it where that takes no time worth mentioning

    def device_memory(self, size: int) -> Memory:
        """Memory of the GPU, or what stands for it."""

    def host_memory(self, size: int, row_bytes: int, *, pinned: bool = True) -> Memory:
        """Host memory that the GPU may copy from and to; registered in chunks that end where a row ends."""

    def stream(self, name: str) -> Stream:
        """The stream of this name, made when first asked for."""

    def calibrate(self, kind: Compute, memory: Memory, paged: PagedMemory) -> dict[str, int]:
        """Measure how long units of compute work and pattern writing take; what was found, for the result."""

    def occupy(self, stream: Stream, ns: int, kind: Compute = "gemm") -> None:
        """Queue compute work that lasts ``ns`` when nothing disturbs it; its own slow-down shows."""

    def fill(self, stream: Stream, memory: Memory, paged: PagedMemory, contents: dict[int, int], salt: int) -> None:
        """Queue the writing of patterns: block id to content."""

    def fill_ns(self, size: int) -> int:
        """About how long `fill` takes for so many bytes."""

    def gated(self, streams: Sequence[Stream], enqueue: Callable[[], None], guess_ns: int) -> bool:
        """Hold streams back while ``enqueue`` queues work on them, then let all go at once.

        ``guess_ns``: about how long that takes. False if some work could begin before all was queued: such a
        measurement does not count.
        """

    def registration(self, size: int) -> tuple[int, int]:
        """Time to map and populate a host region of so many bytes, and time to register it; it is given back."""

    def now_ns(self) -> int:
        """The machine's clock."""

    def synchronize(self) -> None:
        """Block until all streams are done; raises what went wrong on them."""

    def close(self) -> None:
        """End streams and give back everything."""


def device_info(
    kind: MachineKind, device: str, *, driver: str = "", cuda: str = "", torch: str = "", memory_bytes: int
) -> DeviceInfo:
    """What is known about this machine, with today's date."""
    return DeviceInfo(
        kind=kind,
        device=device,
        driver=driver,
        cuda=cuda,
        torch=torch,
        python=platform.python_version(),
        cpu=cpu_name(),
        kernel=platform.release(),
        date=dt.datetime.now(dt.UTC).date().isoformat(),
        cpus=len(os.sched_getaffinity(0)),
        memory_bytes=memory_bytes,
    )


def cpu_name() -> str:
    """The processor's name, as the kernel knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Hardware", "CPU part") and value.strip():
            return value.strip()
    return platform.processor() or platform.machine()
