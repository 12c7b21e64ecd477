"""The memory that nodes lend to a shared store: how much, how full, and which node gets the next object."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal

Placement = Literal["random", "local"]


@dataclass(eq=False, slots=True)
class Segment:
    """The memory of one node, and its disk, if it lends that too.

    ``holds``: whether what was written there can be read; a node that was lost holds nothing, although the master may
    not know it yet (``mounted``).
    """

    number: int
    node: str
    capacity: int  # objects
    disk_capacity: int = 0  # objects; 0 = lends no disk
    used: int = 0
    peak: int = 0
    disk_used: int = 0
    evicted: int = 0
    is_shared: bool = False  # a file system of all nodes, without memory
    mounted: bool = True
    holds: bool = True

    @property
    def has_room(self) -> bool:
        """Whether one more object fits."""
        return self.mounted and self.used < self.capacity

    def take(self) -> None:
        """One more object."""
        self.used += 1
        self.peak = max(self.peak, self.used)


class Segments:
    """All segments, in the order in which they were mounted; a node that comes back brings a new one.

    Rules: Mooncake allocation_strategy.h, RandomAllocationStrategy: the preferred segment if one is given and has room,
    else any, drawn at random; where that one is full, the others. Here the others are tried in order behind it, and
    all objects have one size, so that no segment is fragmented.

    Args:
        placement: ``local`` = the writer's own segment is preferred (connector key preferred_segment).
        seed: of the draws.
    """

    def __init__(self, placement: Placement = "random", seed: int = 0) -> None:
        self.all: list[Segment] = []
        self._mounted: list[Segment] = []
        self._of: dict[str, Segment] = {}
        self._is_local, self._draw = placement == "local", Random(seed).random
        self.used = self.capacity = 0  # of those that are mounted

    def mount(self, node: str, capacity: int, disk_capacity: int = 0) -> Segment:
        """A node lends memory."""
        segment = Segment(len(self.all), node, capacity, disk_capacity)
        self.all.append(segment)
        self._mounted.append(segment)
        self._of[node] = segment
        self.capacity += capacity
        return segment

    def lose(self, node: str) -> Segment | None:
        """The node is gone, and all that it held; the master still takes it for mounted."""
        segment = self._of.pop(node, None)
        if segment is not None:
            segment.holds = False
        return segment

    def unmount(self, segment: Segment) -> None:
        """The master knows now."""
        segment.mounted = False
        self._mounted.remove(segment)
        self.used -= segment.used
        self.capacity -= segment.capacity

    def of(self, node: str) -> Segment | None:
        """The segment of a node that is there."""
        return self._of.get(node)

    def allocate(self, writer: str, without: frozenset[Segment] = frozenset()) -> Segment | None:
        """Room for one object, not in ``without``; None = there is none."""
        found = None
        if self._is_local:
            own = self._of.get(writer)
            found = own if own is not None and own.has_room and own not in without else None
        if found is None:
            found = self._any(without)
        if found is not None:
            found.take()
            self.used += 1
        return found

    def _any(self, without: frozenset[Segment]) -> Segment | None:
        mounted = self._mounted
        if self.used >= self.capacity:
            return None
        first = int(self._draw() * len(mounted))
        for at in range(first, first + len(mounted)):
            segment = mounted[at % len(mounted)]
            if segment.has_room and segment not in without:
                return segment
        return None

    def release(self, segment: Segment, count: int = 1) -> None:
        """The room of so many objects is free again."""
        segment.used -= count
        if segment.mounted:
            self.used -= count

    @property
    def used_ratio(self) -> float:
        """Part of all memory that is taken."""
        return self.used / self.capacity if self.capacity else 0.0
