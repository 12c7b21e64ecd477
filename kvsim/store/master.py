"""The master of a shared store: which objects there are, where they lie, and which are dropped when memory is full."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import simpy

from kvsim.clock import Clock
from kvsim.store.leases import Leases
from kvsim.store.quotas import TenantQuotas
from kvsim.store.segments import Segment, Segments

MS = 1_000_000
# Mooncake master_service.h (kEvictionThreadSleepMs): the thread looks every 10 ms.
EVICTION_TICK_NS = 10 * MS
# Mooncake types.h (DEFAULT_PUT_START_DISCARD_TIMEOUT): after 30 s somebody else may write what was never completed.
DISCARD_NS = 30_000 * MS


@dataclass(frozen=True, slots=True)
class MasterRules:
    """What `mooncake_master` is started with; the defaults are its own.

    Attributes:
        lease_ns: --default_kv_lease_ttl, 5 s.
        watermark: --eviction_high_watermark_ratio, 0.95.
        eviction_ratio: --eviction_ratio, 0.05.
        client_ttl_ns: --client_ttl, 10 s: after that a silent node is given up.
        replicas: copies in memory, on different nodes (ReplicateConfig.replica_num, 1).
    """

    lease_ns: int = 5_000 * MS
    watermark: float = 0.95
    eviction_ratio: float = 0.05
    client_ttl_ns: int = 10_000 * MS
    replicas: int = 1


@dataclass(eq=False, slots=True)
class Entry:
    """One object: where its copies are in memory, and on which node's disk."""

    started_ns: int
    memory: list[Segment] = field(default_factory=list)
    disk: Segment | None = None
    complete: bool = False


Keys = Sequence[Any]
"""Names of objects: hashes of blocks, or keys by the run (see `kvsim.store.run_master`)."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one node has of what somebody wants to read.

    Attributes:
        places: in the order asked, of all that is read there.
    """

    segment: Segment
    on_disk: bool
    places: Collection[int]


@dataclass(frozen=True, slots=True)
class Located:
    """Where objects are: on which nodes (in the order of the first object of each), and which are nowhere."""

    parts: list[Part]
    missing: list[int]  # places
    leased_until_ns: int


@dataclass(frozen=True, slots=True)
class PutStart:
    """The answer to somebody who wants to write; all in the order asked.

    Attributes:
        placed: keys to be written, each with its segments.
        existing: keys that are there, or that somebody else is writing.
        refused: keys for which there was no room (NO_AVAILABLE_HANDLE).
    """

    placed: list[tuple[Any, list[Segment]]]
    existing: list[Any]
    refused: list[Any]


class Master:
    """Metadata of all objects, which have one size. Answers are instantaneous; who asks adds the time that it takes.

    - An object can be found once it is complete; whoever finds it, or asks where it is, gets a lease.
    - Memory above the watermark, or a write that found no room, wakes the eviction thread at its next tick. It drops
      copies in memory in the order of their leases' ends, as many as the ratio says, and looks again as long as that
      was not enough. What has a copy on a disk is still there then.
    - A lost node's objects are listed until its time to live is over.

    Rules: Mooncake master_service.cpp: ExistKey and GetReplicaList (grant a lease), PutStart, PutEnd, BatchEvict,
    EvictionThreadFunc, ClientMonitorFunc. Its 1,024 shards, each with its share of an eviction, are one here, and so
    are its two passes: exact order of lease ends instead of that order by shard.

    Args:
        segments: the memory of the nodes; mounted and lost through this object.
        quotas: of tenants; None = nobody has one.
    """

    def __init__(
        self, clock: Clock, segments: Segments, rules: MasterRules | None = None, quotas: TenantQuotas | None = None
    ) -> None:
        self._clock, self.segments, self.quotas = clock, segments, quotas
        self.rules = rules or MasterRules()
        self._entries: dict[Any, Entry] = {}
        self._complete: dict[Any, Entry] = {}  # of these, those that can be found
        self._in_memory: set[int] = set()  # and of those, the ones with a copy in memory; never iterated
        self._leases = Leases(self.rules.lease_ns)
        self._wanted = False  # a write found no room: need_eviction_
        self._tick: simpy.Event | None = None  # when the eviction thread looks next, if that could matter
        self._alarms: list[simpy.Event] = []
        self._is_stopped = False
        self.num_refused = self.num_evicted = self.num_lost = 0

    def __len__(self) -> int:
        return len(self._entries)

    # -- reading
    def exist(self, keys: Keys) -> list[bool]:
        """Which of these can be read; a lease for each of them that is in memory."""
        found = list(map(self._complete.__contains__, keys))
        self._lease(keys)
        return found

    def prefix(self, keys: Keys) -> int:
        """How many of these can be read, up to the first that cannot; a lease for each of them that is in memory."""
        there = self.exist(keys)
        return there.index(False) if False in there else len(there)

    def missing(self, keys: Keys) -> Keys:
        """Those that cannot be read; a lease for each of the others that is in memory."""
        return [key for key, is_there in zip(keys, self.exist(keys), strict=True) if not is_there]

    def locate(self, keys: Keys) -> Located:
        """Where these are; a lease for each of them that is in memory."""
        sources: dict[tuple[Segment, bool], list[int]] = {}
        missing: list[int] = []
        for place, entry in enumerate(map(self._complete.get, keys)):
            source = None if entry is None else source_of(entry.memory, entry.disk)
            if source is None:
                missing.append(place)
            else:
                sources.setdefault(source, []).append(place)
        self._lease(keys)
        parts = [Part(*source, places) for source, places in sources.items()]
        return Located(parts, missing, self._clock.now + self.rules.lease_ns)

    def _lease(self, keys: Keys) -> None:
        if not all(map(self._in_memory.__contains__, keys)):
            keys = [key for key in keys if key in self._in_memory]
        self._leases.read(keys, self._clock.now)
        if self.quotas is not None:
            self.quotas.read(keys, self._clock.now)

    # -- writing
    def put_start(self, keys: Keys, writer: str) -> PutStart:
        """Reserve room for objects that ``writer`` is going to write."""
        now, answer = self._clock.now, PutStart([], [], [])
        self._make_room(keys)
        for key in keys:
            entry = self._entries.get(key)
            if entry is not None and (entry.complete or now - entry.started_ns < DISCARD_NS):
                answer.existing.append(key)
                continue
            if entry is not None:
                self._drop(key, entry)
            copies = self._copies(key)
            memory = self._allocate(writer, copies)
            if memory:
                self._entries[key] = Entry(now, memory)
                self._take(key, len(memory))
                answer.placed.append((key, memory))
            else:
                answer.refused.append(key)
                self._wanted = self._wanted or copies > 0  # memory is full; it is not if only a quota is
        self.num_refused += len(answer.refused)
        self._look_soon()
        return answer

    def _make_room(self, keys: Sequence[int]) -> None:
        """Whose quota has no room for these drops what it can spare."""
        if self.quotas is not None:
            new = [key for key in keys if key not in self._entries]
            victims = self.quotas.victims(new, self.rules.replicas, self._clock.now)
            for victim in victims:
                self._evict_one(victim)
            self.num_evicted += len(victims)

    def _copies(self, key: int) -> int:
        """How many its tenant's quota has room for."""
        found = None if self.quotas is None else self.quotas.free(key)
        if self.quotas is not None and found == 0:
            self.quotas.refuse(key)
        return self.rules.replicas if found is None else min(found, self.rules.replicas)

    def _take(self, key: int, copies: int) -> None:
        if self.quotas is not None:
            self.quotas.take(key, copies)

    def _allocate(self, writer: str, copies: int | None = None) -> list[Segment]:
        """The first copy must find room; of the others as many as do (Mooncake: best effort). None = all replicas."""
        memory: list[Segment] = []
        while len(memory) < (self.rules.replicas if copies is None else copies):
            segment = self.segments.allocate(writer, frozenset(memory))
            if segment is None:
                break
            memory.append(segment)
        return memory

    def put_end(self, keys: Iterable[Any]) -> None:
        """They have been written and can be found."""
        done: list[int] = []
        for key in keys:
            entry = self._entries.get(key)
            if entry is not None and not entry.complete:
                entry.complete = True
                self._complete[key] = entry
                done.append(key)
        self._in_memory.update(done)
        self._leases.write(done, self._clock.now)
        if self.quotas is not None:
            self.quotas.write(done, self._clock.now)
        self._look_soon()

    def put_revoke(self, keys: Iterable[Any]) -> None:
        """They could not be written."""
        for key in keys:
            entry = self._entries.get(key)
            if entry is not None and not entry.complete:
                self._drop(key, entry)

    def add_disk(self, key: Any, segment: Segment) -> bool:
        """A copy is on this node's disk now; False = its memory had lost the object before, or has a copy on disk."""
        entry = self._entries.get(key)
        if entry is None or not entry.complete or entry.disk is not None:
            return False
        if segment not in entry.memory and not (segment.is_shared and entry.memory):
            return False
        entry.disk = segment
        return True

    def lose_disk(self, key: Any) -> None:
        """Its copy on a disk was deleted there."""
        entry = self._entries.get(key)
        if entry is not None and entry.disk is not None:
            entry.disk = None
            if not entry.memory:
                self._drop(key, entry)

    # -- nodes
    def mount(self, node: str, capacity: int, disk_capacity: int = 0) -> Segment:
        """A node lends memory for so many objects from now on."""
        return self.segments.mount(node, capacity, disk_capacity)

    def lose(self, node: str) -> None:
        """A node is gone. Its objects are listed until its time to live is over, and reading them fails."""
        segment = self.segments.lose(node)
        if segment is not None and not self._is_stopped:
            self._alarms.append(self._clock.alarm(self.rules.client_ttl_ns, lambda: self._give_up(segment)))

    def _give_up(self, segment: Segment) -> None:
        for key, entry in list(self._entries.items()):
            if segment in entry.memory:
                entry.memory.remove(segment)
                self.segments.release(segment)
                self._take(key, -1)
            if entry.disk is segment:
                entry.disk = None
            if entry.memory:
                continue
            self._leave_memory(key)
            if entry.disk is None:
                self.num_lost += 1
                self._drop(key, entry)
        self.segments.unmount(segment)
        self._look_soon()

    def stop(self) -> None:
        """Nobody will ask any more: the clock need not run on for what would happen here."""
        self._is_stopped = True
        for alarm in (*self._alarms, *([self._tick] if self._tick is not None else ())):
            self._clock.cancel(alarm)

    # -- dropping
    def _drop(self, key: int, entry: Entry) -> None:
        for segment in entry.memory:
            self.segments.release(segment)
        self._take(key, -len(entry.memory))
        entry.memory = []
        self._leave_memory(key)
        del self._entries[key]
        self._complete.pop(key, None)

    def _leave_memory(self, key: int) -> None:
        self._in_memory.discard(key)
        self._leases.forget(key)
        if self.quotas is not None:
            self.quotas.forget(key)

    def _look_soon(self) -> None:
        """Set the alarm of the eviction thread, if there is something for it to do."""
        if self._tick is not None or self._is_stopped or not self._is_too_full():
            return
        first = self._first_end()
        if first is None:
            return  # nothing is complete: whoever completes something comes by here
        now = self._clock.now
        tick = max(now // EVICTION_TICK_NS + 1, -(-first // EVICTION_TICK_NS)) * EVICTION_TICK_NS
        self._tick = self._clock.alarm(tick - now, self._evict)

    def _first_end(self) -> int | None:
        return self._leases.first_end()

    def _is_too_full(self) -> bool:
        wanted = self._wanted and self.rules.eviction_ratio > 0
        return wanted or self.segments.used_ratio > self.rules.watermark

    def _evict(self) -> None:
        self._tick = None
        rules, used = self.rules, self.segments.used_ratio
        if self._is_too_full():
            ratio = max(rules.eviction_ratio, used - rules.watermark + rules.eviction_ratio)
            evicted = self._evict_oldest(ceil(len(self) * ratio))
            self.num_evicted += evicted
            if evicted or not len(self):
                self._wanted = False
        self._look_soon()

    def _evict_oldest(self, count: int) -> int:
        """Drop up to so many objects whose leases have ended from memory; how many it were."""
        keys = self._leases.expired(self._clock.now, count)
        for key in keys:
            self._evict_one(key)
        return len(keys)

    def _evict_one(self, key: int) -> None:
        entry = self._entries[key]
        for segment in entry.memory:
            segment.evicted += 1
            self.segments.release(segment)
        self._take(key, -len(entry.memory))
        entry.memory = []
        self._leave_memory(key)
        if entry.disk is None:
            del self._entries[key]
            del self._complete[key]

    # -- checking
    def check(self) -> None:
        """Raise AssertionError unless segments hold exactly what is listed."""
        used: dict[Segment, int] = {}
        for key, entry in self._entries.items():
            assert entry.memory or entry.disk is not None, f"object {key} lies nowhere"
            for segment in entry.memory:
                used[segment] = used.get(segment, 0) + 1
        for segment in self.segments.all:
            assert segment.used == used.get(segment, 0), f"segment {segment.number} is not as full as it says"
            assert segment.used <= segment.capacity, f"segment {segment.number} is overfull"
        if self.quotas is not None:
            self.quotas.check({key: len(entry.memory) for key, entry in self._entries.items()})
        mounted = sum(segment.used for segment in self.segments.all if segment.mounted)
        assert mounted == self.segments.used, "the sum of all segments is wrong"


def source_of(memory: Sequence[Segment], disk: Segment | None) -> tuple[Segment, bool] | None:
    """(where to read an object, whether from disk): its first copy in memory if there is one, as Mooncake does."""
    if memory:
        return memory[0], False
    return None if disk is None or not disk.holds else (disk, True)
