"""One instance's client of a shared store: asks the master, and moves bytes between the GPUs and the nodes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import simpy

from kvsim.clock import STORE_PRIORITY, Clock
from kvsim.hardware import LinkDirection
from kvsim.network import Endpoint, Flow
from kvsim.store.master import Keys, Part
from kvsim.store.segments import Segment
from kvsim.store.shared import SharedStore

Wait = Generator[simpy.Event, Any, Any]

# vLLM 0.33.0 mooncake/store/worker.py: a GET from disks is cut into batches that fit the owner's staging buffer
# (DEFAULT_MOONCAKE_DISK_STAGING_BUFFER_BYTES), of which VLLM_MOONCAKE_DISK_STAGING_USABLE_RATIO is used; each key is
# aligned to 4 KiB there, with 8 KiB around it.
STAGING_BYTES, STAGING_USABLE_PERCENT = 1_280 * 2**20, 90
_ALIGNMENT, _PADDING = 4_096, 8_192


@dataclass(frozen=True, slots=True)
class Shape:
    """What an object is on an instance's GPUs.

    Attributes:
        descriptors: pieces of one object that a rank copies, each with an address of its own.
        message_bytes: of one such piece.
        readers: ranks that read each object whole, because all of them hold it (MLA), and take turns in writing; 1 =
            each has its own shard.
    """

    descriptors: int
    message_bytes: int
    readers: int = 1


@dataclass(frozen=True, slots=True)
class ClientCosts:
    """What the host does, in ns.

    Attributes:
        rpc: a question to the master and its answer.
        key: per key of a question: its name is built, sent and looked up.
        descriptor: per descriptor of a copy, on the I/O thread, before anything is sent.
    """

    rpc: int = 0
    key: int = 0
    descriptor: int = 0

    def ask(self, keys: int) -> int:
        """Time of one question about so many keys."""
        return self.rpc + keys * self.key


@dataclass(slots=True)
class ClientCounts:
    """What one client has done; bytes as seen by the GPUs."""

    bytes: dict[LinkDirection, int] = field(default_factory=lambda: {"h2d": 0, "d2h": 0})
    reads: int = 0
    writes: int = 0
    read_ns: int = 0
    write_ns: int = 0
    lookups: int = 0
    lookup_keys: int = 0
    lookup_ns: int = 0
    existing: int = 0  # objects not written, because they were there
    refused: int = 0  # objects not written, for lack of room
    failed_reads: int = 0  # objects that could not be read
    disk_bytes: int = 0  # read from disks


class StoreClient:
    """Reads and writes of one instance. Operations are generators that a thread (a SimPy process) runs to their end.

    Bytes go between GPU and node memory by the NICs of both ends, also if both are the same node (GPUDirect RDMA);
    what lies on a disk only is first read into its owner's staging buffer and scattered from there. From a file system
    of all nodes the reader reads for itself, into memory of its own, and copies that up to its GPUs.

    Args:
        copy_up: time in which a rank copies so many objects from its host's memory to its GPU.
        endpoint: of this instance; it is a node of the store, too, under the same name.
        turn: who comes first of several clients at one instant (see `kvsim.clock`).
    """

    def __init__(
        self,
        store: SharedStore,
        endpoint: Endpoint,
        shape: Shape,
        costs: ClientCosts,
        copy_up: Callable[[int], int] = lambda _objects: 0,
        *,
        turn: int = 0,
    ) -> None:
        self.store, self.endpoint, self.shape, self.costs = store, endpoint, shape, costs
        self._clock, self._master, self._copy_up = store.clock, store.master, copy_up
        self.counts = ClientCounts()
        self._priority = STORE_PRIORITY + turn
        self.reading = self.writing = 0  # objects
        self.unwritten: list[Any] = []  # of the last write: what the store does not have

    def wait(self, duration_ns: int) -> simpy.Event:
        """So long, until it is this client's turn among those who do something at that instant."""
        return self._clock.at(duration_ns, self._priority)

    # -- asking
    def count_lookup(self, keys: int, times: int = 1) -> int:
        """A lookup of so many keys is made, perhaps several times; how long each takes."""
        took = self.costs.ask(keys)
        counts = self.counts
        counts.lookups, counts.lookup_keys = counts.lookups + times, counts.lookup_keys + times * keys
        counts.lookup_ns += times * took
        return took

    def prefix(self, keys: Keys) -> int:
        """How many of these can be read, now, up to the first that cannot."""
        return self._master.prefix(keys)

    def missing(self, keys: Keys) -> Keys:
        """Those that cannot be read, now."""
        return self._master.missing(keys)

    # -- reading
    def read(self, keys: Keys) -> Wait:
        """Read objects into the GPUs' memory. Returns the places of those that could not be read.

        vLLM 0.33.0 mooncake/store/worker.py (KVCacheStoreRecvingThread._handle_request): addresses of all descriptors
        first, then one batch_get_into_multi_buffers per batch, of which there are several only with disks; a batch
        with a failure is the last one. Mooncake client_service.cpp: what arrives after its lease has ended is lost.
        """
        started = self._clock.now
        self.reading += len(keys)
        failed: list[int] = []
        busy_ns = self._describe(len(keys))
        for first, last in self._batches(len(keys)):
            yield self.wait(busy_ns + self.costs.ask(last - first))
            failed = yield from self._read_batch(keys, first, last)
            busy_ns = 0
            if failed:
                break
        self.reading -= len(keys)
        self.counts.reads += 1
        self.counts.read_ns += self._clock.now - started
        self.counts.failed_reads += len(failed)
        return failed

    def _describe(self, objects: int) -> int:
        """Time in which a rank's I/O thread lists the addresses of all their descriptors."""
        return objects * self.shape.descriptors * self.costs.descriptor

    def _batches(self, count: int) -> Iterator[tuple[int, int]]:
        if not self.store.has_disks:
            yield 0, count
            return
        size = -(-self.store.object_bytes // _ALIGNMENT) * _ALIGNMENT + _PADDING
        most = max(1, STAGING_BYTES * STAGING_USABLE_PERCENT // 100 // size)
        for first in range(0, count, most):
            yield first, min(first + most, count)

    def _read_batch(self, keys: Keys, first: int, last: int) -> Wait:
        located = self._master.locate(keys[first:last])
        flights = _Flights(self._clock)
        for part in located.parts:
            self._fetch(part, flights)
        yield flights.over()
        if self._clock.now >= located.leased_until_ns:
            return list(range(first, last))
        return sorted(first + place for place in (*located.missing, *flights.lost))

    def _fetch(self, part: Part, flights: _Flights) -> None:
        """Everything that one node has of a batch."""
        segment, places = part.segment, part.places
        count = len(places) * self.shape.readers
        size = count * self.store.object_bytes

        def arrived(flow: Flow | None = None) -> None:
            if (flow is not None and flow.failed) or not segment.holds:
                flights.lost += places
            else:
                self.counts.bytes["h2d"] += size
            flights.landed()

        def scatter() -> None:
            self._send(self.store.endpoint_of(segment), self.endpoint, size, arrived)

        def copy_up() -> None:
            self._clock.alarm(self._copy_up(len(places)), arrived)

        flights.open += 1
        if part.on_disk:
            self.counts.disk_bytes += size
            self.store.disks[segment].read(count, copy_up if segment.is_shared else scatter)
        else:
            scatter()

    # -- writing
    def write(self, keys: Keys) -> Wait:
        """Write objects from the GPUs' memory. Returns whether all of them are there now.

        vLLM 0.33.0 mooncake/store/worker.py (KVCacheStoreSendingThread._handle_request), batch_put_from_multi_buffers.
        """
        started = self._clock.now
        self.writing += len(keys)
        share = -(-len(keys) // self.shape.readers)
        yield self.wait(self._describe(share) + self.costs.ask(share))
        answer = self._master.put_start(keys, self.endpoint.name)
        self.counts.existing += len(answer.existing)
        self.counts.refused += len(answer.refused)
        targets: dict[Segment, list[Any]] = {}
        for key, segments in answer.placed:
            for segment in segments:
                targets.setdefault(segment, []).append(key)
        flights = _Flights(self._clock)
        for segment, some in targets.items():
            self._deliver(segment, some, flights)
        yield flights.over()
        if targets:
            yield self.wait(self.costs.ask(share))
        lost = set(flights.lost)
        written = [placed for placed in answer.placed if placed[0] not in lost]
        self._master.put_end([key for key, _ in written])
        self._master.put_revoke(sorted(lost))
        self.store.offload(written)
        self.writing -= len(keys)
        self.counts.writes += 1
        self.counts.write_ns += self._clock.now - started
        self.unwritten = [*answer.refused, *lost]
        return not self.unwritten

    def _deliver(self, segment: Segment, keys: list[Any], flights: _Flights) -> None:
        def arrived(flow: Flow) -> None:
            if flow.failed or not segment.holds:
                flights.lost += keys
            else:
                self.counts.bytes["d2h"] += flow.num_bytes
            flights.landed()

        flights.open += 1
        size = len(keys) * self.store.object_bytes
        self._send(self.endpoint, self.store.endpoint_of(segment), size, arrived)

    def _send(self, source: Endpoint, target: Endpoint, size: int, arrived: Callable[[Flow], None]) -> None:
        self.store.fabric.send(source, target, size, message_bytes=self.shape.message_bytes, on_done=arrived)


class _Flights:
    """Flows that an operation waits for; ``lost``: what they did not bring."""

    def __init__(self, clock: Clock) -> None:
        self.open = 0
        self.lost: list[Any] = []
        self._over = clock.event()

    def landed(self) -> None:
        """One of them is over."""
        self.open -= 1
        if not self.open:
            self._over.succeed()

    def over(self) -> simpy.Event:
        """Fires when all of them are."""
        if not self.open and not self._over.triggered:
            self._over.succeed()
        return self._over
