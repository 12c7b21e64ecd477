"""The books of an LMCache server: chunks in its memory (L1) and on a medium below (L2), evicted in the background."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

NS = 10**9
CYCLE_NS = NS  # the eviction threads look once per second (distributed/storage_controllers/eviction_controller.py)
PPM = 1_000_000


@dataclass(frozen=True, slots=True)
class Eviction:
    """When a tier that is this full loses which part of its chunks; parts per million."""

    watermark_ppm: int = 800_000
    ratio_ppm: int = 200_000

    def victims(self, count: int) -> int:
        """How many of ``count`` chunks go: rounded down, but one at least."""
        return max(count * self.ratio_ppm // PPM, 1) if count else 0


class Chunks:
    """Chunks of one tier, least recently used first; of a prompt, the last chunk is the first to leave."""

    def __init__(self) -> None:
        self._order: dict[int, None] = {}
        self.num_evicted = 0

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, key: object) -> bool:
        return key in self._order

    def use(self, keys: Sequence[int]) -> None:
        """Chunks of a prompt are created or touched."""
        for key in reversed(keys):
            self._order.pop(key, None)
            self._order[key] = None

    def evict(self, count: int, locked: Iterable[int] = (), of: tuple[int, int] = (0, 1)) -> None:
        """Drop the oldest chunks that nobody uses; ``of``: (salt, number of salts), those of one tenant only."""
        held, (salt, salts) = set(locked), of
        victims = [key for key in self._order if key not in held and key % salts == salt][:count]
        for key in victims:
            del self._order[key]
        self.num_evicted += len(victims)

    def count_by_salt(self, salts: int) -> Counter[int]:
        """Chunks of each tenant."""
        return Counter(key % salts for key in self._order)

    def lose(self, keys: Iterable[int]) -> None:
        """These chunks are gone, which is no eviction."""
        for key in keys:
            self._order.pop(key, None)

    def clear(self) -> None:
        """Everything is gone, which is no eviction."""
        self._order.clear()


@dataclass(slots=True)
class Quotas:
    """Chunks that each tenant may keep: soft limits, looked at once per cycle. A tenant without one keeps nothing."""

    limits: dict[int, int]  # salt -> chunks
    changes: list[tuple[int, int, int]] = field(default_factory=list)  # (time, salt, chunks), in order of time

    def at(self, now: int) -> Mapping[int, int]:
        """The limits that hold now."""
        while self.changes and self.changes[0][0] <= now:
            _, salt, chunks = self.changes.pop(0)
            self.limits[salt] = chunks
        return self.limits


class L2:
    """The medium below: unbounded or of ``capacity`` chunks; evicted as a whole, by tenant (IsolatedLRU), or never.

    Rules: LMCache 0.5.6 distributed/eviction_policy/isolated_lru.py and L2EvictionController: a tenant that holds at
    least watermark x quota loses ratio x its chunks; one without quota loses all.
    """

    def __init__(
        self,
        eviction: Eviction | None,
        *,
        capacity: int | None = None,
        quotas: Quotas | None = None,
        num_salts: int = 1,
    ) -> None:
        self.chunks, self.capacity, self.quotas = Chunks(), capacity, quotas
        self._eviction, self._num_salts = eviction, num_salts

    def cycle(self, now: int) -> None:
        """The eviction thread looks."""
        eviction, chunks = self._eviction, self.chunks
        if eviction is None:
            return
        if self.quotas is not None:
            limits = self.quotas.at(now)
            for salt, count in sorted(chunks.count_by_salt(self._num_salts).items()):
                limit = limits.get(salt, 0)
                if not limit:
                    chunks.evict(count, of=(salt, self._num_salts))
                elif count * PPM >= eviction.watermark_ppm * limit:
                    chunks.evict(eviction.victims(count), of=(salt, self._num_salts))
        elif self.capacity is not None and len(chunks) * PPM >= eviction.watermark_ppm * self.capacity:
            chunks.evict(eviction.victims(len(chunks)))

    def has_room(self) -> bool:
        """Whether another chunk fits."""
        return self.capacity is None or len(self.chunks) < self.capacity


class LMCacheServer:
    """L1 with locks over an optional L2. Time is told by the caller, and never goes back.

    L1 does not evict to make room: a store that finds none is dropped, and room appears with the next cycle.
    Rules: LMCache 0.5.6 distributed/l1_manager.py, storage_manager.py, storage_controllers/eviction_controller.py.

    Args:
        capacity: chunks in memory.
        eviction: of L1.
        below: L2.
    """

    def __init__(self, capacity: int, eviction: Eviction, below: L2 | None = None) -> None:
        self.capacity, self.below = capacity, below
        self.memory = Chunks()
        self._eviction = eviction
        self._locks: Counter[int] = Counter()  # readers
        self._writing: set[int] = set()  # reserved, not to be read yet; never iterated for decisions
        self._owners: dict[Hashable, list[int]] = {}
        self._cycled_ns = 0
        self.num_refused = 0

    def advance(self, now: int) -> None:
        """Eviction cycles up to now. Between two calls nothing changes, so a cycle without effect ends them."""
        last = now // CYCLE_NS
        while self._cycled_ns < last * CYCLE_NS:
            before = (len(self.memory), self.below and len(self.below.chunks))
            changes = self.below.quotas.changes if self.below and self.below.quotas else []
            self._cycled_ns += CYCLE_NS
            self._cycle(self._cycled_ns)
            if before == (len(self.memory), self.below and len(self.below.chunks)):
                following = -(-changes[0][0] // CYCLE_NS) * CYCLE_NS - CYCLE_NS if changes else last * CYCLE_NS
                self._cycled_ns = min(max(self._cycled_ns, following), last * CYCLE_NS)

    def _cycle(self, now: int) -> None:
        if len(self.memory) * PPM >= self._eviction.watermark_ppm * self.capacity:
            busy = [*self._locks, *self._writing]
            self.memory.evict(self._eviction.victims(len(self.memory)), busy)
        if self.below is not None:
            self.below.cycle(now)

    def lookup(self, keys: Sequence[int], owner: Hashable) -> tuple[int, list[int]]:
        """Lock the prefix that memory holds, and what L2 can bring behind it.

        Returns:
            (chunks found, those of them that must be read from L2 first; they have room in memory, unreadable so far).
        """
        found: list[int] = []
        for key in keys:
            if key not in self.memory or key in self._writing:
                break
            found.append(key)
        fetch: list[int] = []
        for key in keys[len(found) :]:
            if self.below is None or key not in self.below.chunks or len(self.memory) + len(fetch) >= self.capacity:
                break
            if key in self.memory:
                break  # being written
            fetch.append(key)
        if self.below is not None and fetch:
            self.below.chunks.use(fetch)
        self.memory.use([*found, *fetch])
        self._writing.update(fetch)
        self._owners[owner] = [*found, *fetch]
        self._locks.update(self._owners[owner])
        return len(found) + len(fetch), fetch

    def unlock(self, owner: Hashable) -> None:
        """The lookup's chunks have been read, or never will be."""
        self._locks -= Counter(self._owners.pop(owner, ()))

    def reserve(self, keys: Sequence[int]) -> list[int]:
        """Room for what is to be written: not for what is here already, nor where memory is full."""
        wanted = [key for key in keys if key not in self.memory]
        taken = wanted[: max(self.capacity - len(self.memory), 0)]
        self.num_refused += len(taken) < len(wanted)
        self.memory.use(taken)
        self._writing.update(taken)
        return taken

    def finish_write(self, keys: Iterable[int]) -> list[int]:
        """The bytes are here: the chunks can be read. Returns those that L2 should get (they are locked until then)."""
        down: list[int] = []
        for key in keys:
            if key in self._writing:
                self._writing.discard(key)
                if self.below is not None and key not in self.below.chunks and self.below.has_room():
                    down.append(key)
        self._locks.update(down)
        return down

    def finish_write_below(self, keys: Sequence[int]) -> None:
        """L2 has them."""
        assert self.below is not None
        self.below.chunks.use(keys)
        self._locks -= Counter(keys)

    def restart(self, *, keep_cache: bool) -> None:
        """The process is new: nothing is locked or half written, and what it held is lost, or was kept."""
        self._locks.clear()
        self._owners.clear()
        self.memory.lose(self._writing)
        if not keep_cache:
            self.memory.clear()
            if self.below is not None:
                self.below.chunks.clear()
        self._writing.clear()

    def check(self, *, at_end: bool) -> None:
        """Raise AssertionError if there are more chunks than room, or (at the end) locks of lookups are left."""
        assert len(self.memory) <= self.capacity, "more chunks than the server's memory holds"
        assert not at_end or not self._owners, "lookups are still locked"
