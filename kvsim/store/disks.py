"""Disks behind the memory of a shared store: every object goes there too, and is read there when memory has lost it."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvsim.clock import Clock
from kvsim.hardware import CopyCost, DuplexLink, LinkDirection, Transfer
from kvsim.store.master import Master
from kvsim.store.segments import Segment

NS = 10**9


@dataclass(frozen=True, slots=True)
class DiskSpeed:
    """What one node's disk can do."""

    read_bytes_per_s: int
    write_bytes_per_s: int
    latency_ns: int


class NodeDisk:
    """The disk of one node (Mooncake: LOCAL_DISK), or a file system of all (DISK): written behind memory, in order.

    A full disk deletes what it has had longest (Mooncake storage_backend.cpp, SelectFileToEvictByFIFO). An object that
    has left memory before its turn to be written came is not on disk.

    Args:
        object_bytes: of one object.
        instant: disks take no time.
    """

    def __init__(
        self, clock: Clock, master: Master, segment: Segment, speed: DiskSpeed, object_bytes: int, *, instant: bool
    ) -> None:
        self._master, self._segment, self._speed = master, segment, speed
        self._object_bytes, self._instant = object_bytes, instant
        self._link = DuplexLink(clock, self._on_finish)
        self._held: OrderedDict[int, None] = OrderedDict()
        self._writing: deque[tuple[Transfer, list[int]]] = deque()
        self._reading: deque[tuple[Transfer, Callable[[], None]]] = deque()
        self.num_deleted = 0

    def offload(self, keys: Sequence[int]) -> None:
        """Write these behind what is being written."""
        new = [key for key in keys if key not in self._held]
        if new:
            self._writing.append((self._start("d2h", len(new)), new))

    def read(self, count: int, on_done: Callable[[], None]) -> None:
        """Read so many objects, behind what is being read; ``on_done`` is called at the end, also if the node dies."""
        self._reading.append((self._start("h2d", count), on_done))

    @property
    def bytes(self) -> dict[LinkDirection, int]:
        """Read (h2d) and written (d2h) so far."""
        return self._link.bytes

    def close(self) -> None:
        """The node is gone."""
        self._writing.clear()
        self._link.reset()
        waiting, self._reading = self._reading, deque()
        for _, on_done in waiting:
            on_done()

    def _start(self, direction: LinkDirection, count: int) -> Transfer:
        speed, size = self._speed, count * self._object_bytes
        rate = speed.read_bytes_per_s if direction == "h2d" else speed.write_bytes_per_s
        alone = 0 if self._instant else speed.latency_ns + -(-size * NS // rate)
        return self._link.submit(direction, CopyCost(alone), size)

    def _on_finish(self) -> None:
        while self._writing and self._writing[0][0].is_done:
            for key in self._writing.popleft()[1]:
                self._keep(key)
        while self._reading and self._reading[0][0].is_done:
            self._reading.popleft()[1]()

    def _keep(self, key: int) -> None:
        if not self._segment.disk_capacity or not self._master.add_disk(key, self._segment):
            return
        while len(self._held) >= self._segment.disk_capacity:
            oldest, _ = self._held.popitem(last=False)
            self._master.lose_disk(oldest)
            self.num_deleted += 1
        self._held[key] = None
        self._segment.disk_used = len(self._held)
