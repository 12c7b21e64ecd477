"""LMCache's storage inside an engine: chunks in CPU memory, copies of them on shelves below (disk, remote)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from itertools import takewhile
from typing import Protocol

CPU = 0  # tier number; shelves follow


class Written(Protocol):
    """A write on its way."""

    @property
    def is_done(self) -> bool:
        """Whether the chunk can be read now."""
        ...


class Shelf:
    """A disk or a remote store: chunks appear when their write is over; the least recently used leave first.

    Args:
        write: starts to write one chunk.
        capacity: chunks; None = unbounded.
    """

    def __init__(self, write: Callable[[], Written], capacity: int | None = None) -> None:
        self._write, self.capacity = write, capacity
        self._chunks: dict[int, None] = {}  # least recently used first
        self._writing: dict[int, Written] = {}
        self._pins: Counter[int] = Counter()
        self.num_evicted = self.num_refused = 0

    def __len__(self) -> int:
        return len(self._chunks)

    def __contains__(self, key: object) -> bool:
        self._collect()
        return key in self._chunks

    def is_writing(self, key: int) -> bool:
        """Whether the source of the write must still be kept."""
        self._collect()
        return key in self._writing

    def put(self, key: int) -> None:
        """Start to write a chunk, unless it is here or on its way, or everything else is in use."""
        if key in self or key in self._writing:
            return
        if self.capacity is not None and len(self._chunks) + len(self._writing) >= self.capacity:
            victim = next((chunk for chunk in self._chunks if not self._pins[chunk]), None)
            if victim is None:
                self.num_refused += 1
                return
            del self._chunks[victim]
            self.num_evicted += 1
        self._writing[key] = self._write()

    def pin(self, keys: Iterable[int], by: int) -> None:
        """Change the number of those who are going to read these chunks."""
        for key in keys:
            self._pins[key] += by
            if not self._pins[key]:
                del self._pins[key]

    def touch(self, keys: Iterable[int]) -> None:
        """These chunks were used, the last one latest."""
        for key in keys:
            if key in self._chunks:
                self._chunks[key] = self._chunks.pop(key)

    def _collect(self) -> None:
        done = [key for key, write in self._writing.items() if write.is_done]
        for key in done:
            del self._writing[key]
            self._chunks[key] = None


class ChunkStore:
    """Chunks by hash. Allocation makes room; what is pinned by a lookup, or being written to a shelf, stays.

    The last chunks of a prompt are stored last, so a prompt that nobody looks up loses its beginning first; a lookup
    turns the order round. A lookup takes from each tier what it holds from where the tier above ends, and never comes
    back to an upper tier.
    Rules: LMCache 0.5.6 v1/cache_engine.py, v1/storage_backend/storage_manager.py, local_cpu_backend.py, lru.py.

    Args:
        capacity: chunks in CPU memory.
        shelves: tiers below, in the order in which they are asked.
    """

    def __init__(self, capacity: int, shelves: Sequence[Shelf] = ()) -> None:
        self.capacity, self.shelves = capacity, list(shelves)
        self._chunks: dict[int, None] = {}  # in CPU memory, least recently used first
        self._pins: Counter[int] = Counter()
        self._owners: dict[Hashable, list[tuple[int, list[int]]]] = {}  # pins of a lookup: (tier, chunks)
        self.num_evicted = self.num_refused = 0

    def __len__(self) -> int:
        return len(self._chunks)

    # -- looking
    def lookup(self, keys: Sequence[int], owner: Hashable) -> int:
        """How many of the first chunks are somewhere; they are pinned until `unpin`, and become the last to leave."""
        found = self.sources(keys)
        self._owners[owner] = found
        for tier, chunks in found:
            if tier == CPU:
                self._pin(chunks, 1)
                for key in reversed(chunks):
                    self._chunks[key] = self._chunks.pop(key)
            else:
                shelf = self.shelves[tier - 1]
                shelf.pin(chunks, 1)
                shelf.touch(reversed(chunks))
        return sum(len(chunks) for _, chunks in found)

    def sources(self, keys: Sequence[int]) -> list[tuple[int, list[int]]]:
        """(tier, chunks) of the longest prefix that can be put together."""
        found: list[tuple[int, list[int]]] = []
        rest = list(keys)
        holders: list[Container[int]] = [self._chunks, *self.shelves]
        for tier, holder in enumerate(holders):
            here = list(takewhile(holder.__contains__, rest))
            if here:
                found.append((tier, here))
                rest = rest[len(here) :]
        return found

    def unpin(self, owner: Hashable) -> None:
        """The lookup's chunks have been read, or never will be."""
        for tier, chunks in self._owners.pop(owner, ()):
            if tier == CPU:
                self._pin(chunks, -1)
            else:
                self.shelves[tier - 1].pin(chunks, -1)

    def _pin(self, keys: Iterable[int], by: int) -> None:
        for key in keys:
            self._pins[key] += by
            if not self._pins[key]:
                del self._pins[key]

    # -- taking in
    def fetched(self, keys: Iterable[int]) -> None:
        """Chunks were read from a shelf through CPU memory, and stay there if there is room."""
        for key in keys:
            if key not in self._chunks and self._make_room(1):
                self._chunks[key] = None

    def store(self, keys: Sequence[int], *, skip_present: bool) -> int:
        """Take chunks in, from the first on, while there is room.

        Args:
            keys: chunks in the order of the prompt.
            skip_present: don't copy what some tier has (layer-wise); otherwise it is copied, and then dropped.

        Returns:
            How many chunks are copied.
        """
        copied: list[int] = []
        for key in keys:
            if skip_present and (key in self._chunks or any(key in shelf for shelf in self.shelves)):
                continue
            if not self._make_room(len(copied) + 1):
                self.num_refused += 1
                break
            copied.append(key)
        for key in copied:
            self._chunks.setdefault(key, None)
            for shelf in self.shelves:
                shelf.put(key)
        return len(copied)

    def _make_room(self, count: int) -> bool:
        """Evict until ``count`` chunks have room beside those that are here; False: not everything could go."""
        while len(self._chunks) + count > self.capacity:
            victim = next((key for key in self._chunks if self._may_leave(key)), None)
            if victim is None:
                return False
            del self._chunks[victim]
            self.num_evicted += 1
        return True

    def _may_leave(self, key: int) -> bool:
        return not self._pins[key] and not any(shelf.is_writing(key) for shelf in self.shelves)

    def check(self, *, at_end: bool) -> None:
        """Raise AssertionError if there are more chunks than room, or (at the end) pins are left."""
        assert len(self._chunks) <= self.capacity, "more chunks than CPU memory holds"
        pinned = Counter(key for owner in self._owners.values() for tier, keys in owner if tier == CPU for key in keys)
        assert pinned == self._pins, "pins differ from the lookups that hold them"
        if at_end:
            assert not self._owners, "chunks are still pinned"
