"""One measurement each: a batch alone, both directions at once, a batch beside computing.

Link time is measured behind a gate: everything is queued first and let go at once, so that submitting costs nothing.
Job time is from the submit call to the last byte, as a scheduler sees it. The difference is what the host pays.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from hwreplay.backends.base import Batch, Copier, Direction
from hwreplay.layout import Addresses
from hwreplay.machine import Compute, Event, Machine, Memory, Stream

TRIES = 4  # of a gated measurement that could begin too early
_FIRST_GUESS_NS = 200_000


class Shape(NamedTuple):
    """A batch of equal descriptors."""

    descriptor_bytes: int
    number: int

    @property
    def bytes(self) -> int:
        """Of all descriptors."""
        return self.descriptor_bytes * self.number


class Times(NamedTuple):
    """Of one batch, ns."""

    link: int
    job: int
    submit: int


@dataclass(frozen=True, slots=True)
class Sides:
    """Memory to copy between; both of the same size."""

    device: Memory
    host: Memory

    @property
    def bytes(self) -> int:
        """Of each."""
        return min(self.device.bytes, self.host.bytes)


def batch_of(sides: Sides, direction: Direction, shape: Shape, rng: np.random.Generator, *, scattered: bool) -> Batch:
    """Descriptors at random places, each pair of neighbours a slot apart; or one after another, from a random place.

    Two of them never touch, so that no copy engine can join them where they are scattered.
    """
    size, count = shape
    stride = 2 * size if scattered else size
    slots = sides.bytes // stride
    if slots < count:
        raise ValueError(f"{count} descriptors of {size} bytes do not fit into {sides.bytes}")

    def places() -> Addresses:
        if scattered:
            chosen = rng.permutation(slots)[:count] if slots < 2**16 else rng.choice(slots, count, replace=False)
        else:
            chosen = np.arange(count) + rng.integers(slots - count + 1)
        return chosen.astype(np.uint64) * np.uint64(stride)

    device = places() + np.uint64(sides.device.address)
    host = places() + np.uint64(sides.host.address)
    sizes = np.full(count, size, dtype=np.uint64)
    return Batch(host, device, sizes) if direction == "h2d" else Batch(device, host, sizes)


class Bench:
    """Measures on the streams of a machine.

    Args:
        machine: idle but for what is measured here.
        copier: of the backend under test.

    ``ungated`` counts measurements that no gate could hold back (the driver takes only so many copies at a time): they
    include submitting.
    """

    def __init__(self, machine: Machine, copier: Copier) -> None:
        self._machine = machine
        self._copier = copier
        self._streams: dict[Direction, Stream] = {"h2d": machine.stream("load"), "d2h": machine.stream("store")}
        self._compute = machine.stream("compute")
        self.ungated = 0
        self._too_many = sys.maxsize  # descriptors that were too many for a gate

    def times(self, direction: Direction, batch: Batch, other: Batch, *, gated: bool = True) -> Times:
        """All times of two batches of the same shape, one after the other; without a gate, link time is job time."""
        stream = self._streams[direction]
        begin = self._machine.now_ns()
        self._copier.copy(stream, direction, other)
        submit = self._machine.now_ns() - begin
        end = stream.record()
        end.wait()
        job = max(end.ns() - begin, submit)
        link = self.link(direction, batch, 2 * submit + _FIRST_GUESS_NS) if gated else job
        return Times(link, job, submit)

    def link(self, direction: Direction, batch: Batch, guess_ns: int = _FIRST_GUESS_NS) -> int:
        """Time of a batch alone."""
        return self._gated({direction: [batch]}, guess_ns)[direction]

    def beside(self, direction: Direction, batch: Batch, others: list[Batch]) -> int:
        """Time of a batch while the other direction is busy with `others`."""
        other: Direction = "d2h" if direction == "h2d" else "h2d"
        return self._gated({direction: [batch], other: others}, (1 + len(others)) * _FIRST_GUESS_NS)[direction]

    def compute(self, ns: int, kind: Compute) -> int:
        """Time of compute work alone."""
        return self.overlapped(ns, kind, "h2d", [])[0]

    def overlapped(self, ns: int, kind: Compute, direction: Direction, batches: list[Batch]) -> tuple[int, int]:
        """(compute work, first batch) when both are let go together."""
        stream, marks = self._streams[direction], _Marks()

        def enqueue() -> None:
            marks.add("compute", self._compute, lambda: self._machine.occupy(self._compute, ns, kind))
            for number, batch in enumerate(batches):
                marks.add(str(number), stream, partial(self._copier.copy, stream, direction, batch))

        streams = [self._compute, stream] if batches else [self._compute]
        self._open(streams, enqueue, marks, (2 + len(batches)) * _FIRST_GUESS_NS, batches)
        return marks.ns("compute"), marks.ns("0") if batches else 0

    def _gated(self, work: dict[Direction, list[Batch]], guess_ns: int) -> dict[Direction, int]:
        """Time of the first batch of each direction."""
        marks = _Marks()

        def enqueue() -> None:
            for direction, batches in work.items():
                stream = self._streams[direction]
                for number, batch in enumerate(batches):
                    marks.add(f"{direction}{number}", stream, partial(self._copier.copy, stream, direction, batch))

        streams = [self._streams[direction] for direction in work]
        self._open(streams, enqueue, marks, guess_ns, [batch for batches in work.values() for batch in batches])
        return {direction: marks.ns(f"{direction}0") for direction in work}

    def _open(
        self, streams: list[Stream], enqueue: Callable[[], None], marks: _Marks, guess_ns: int, batches: list[Batch]
    ) -> None:
        descriptors = sum(len(batch.sizes) for batch in batches)
        for _ in range(TRIES if descriptors < self._too_many else 1):
            marks.events.clear()
            held = self._machine.gated(streams, enqueue, guess_ns)
            self._machine.synchronize()
            if held:
                return
            guess_ns *= 4
        self.ungated += 1
        self._too_many = min(self._too_many, max(1, descriptors))


class _Marks:
    """Events around pieces of work."""

    def __init__(self) -> None:
        self.events: dict[str, tuple[Event, Event]] = {}

    def add(self, name: str, stream: Stream, enqueue: Callable[[], None]) -> None:
        """Queue work between two events."""
        start = stream.record()
        enqueue()
        self.events[name] = (start, stream.record())

    def ns(self, name: str) -> int:
        """How long it took."""
        start, end = self.events[name]
        return max(1, end.ns() - start.ns())
