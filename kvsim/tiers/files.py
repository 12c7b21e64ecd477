"""Which chunks a tier holds: published files, space on the disk, and who may be deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence


class Files:
    """One file per chunk. Space is reserved before a file is written; it is visible once it is published.

    Without eviction (vLLM's own behaviour) a full disk refuses what comes; with it, the least recently used files go
    that nobody reads. Keys come in the order of their prefix and are filed tail first, so that the head of a prefix
    outlives its tail.

    Args:
        max_files: files that fit; None = no limit.
        evict: whether a full disk makes room.
    """

    def __init__(self, max_files: int | None = None, *, evict: bool = False) -> None:
        self.max_files, self._evict = max_files, evict
        self.num_reserved = 0  # files being written
        self.num_evicted = 0
        self.epoch = 0  # grows with every change of what is here
        self.on_evict: Callable[[list[int]], None] | None = None  # if set, told of the keys that had to go
        self._published: dict[int, None] = {}  # least recently used first
        self._readers: dict[int, int] = {}

    def __contains__(self, key: int) -> bool:
        return key in self._published

    def __len__(self) -> int:
        return len(self._published)

    def find(self, keys: Iterable[int]) -> list[tuple[int, bool]]:
        """Which of these files are here, and which are not, in order."""
        return [(key, key in self._published) for key in keys]

    def missing(self, keys: Iterable[int]) -> list[int]:
        """Those that are not here, in order."""
        return [key for key in keys if key not in self._published]

    def reserve(self, wanted: int) -> int:
        """Space for new files; returns for how many there is some."""
        if self.max_files is not None:
            missing = len(self._published) + self.num_reserved + wanted - self.max_files
            if missing > 0 and self._evict:
                missing -= self._make_room(missing)
            wanted -= max(missing, 0)
        self.num_reserved += wanted
        return wanted

    def _make_room(self, count: int) -> int:
        victims: list[int] = []
        for key in self._published:
            if len(victims) == count:
                break
            if key not in self._readers:
                victims.append(key)
        for key in victims:
            del self._published[key]
        if self.on_evict is not None:
            self.on_evict(victims)
        self.num_evicted += len(victims)
        self.epoch += bool(victims)
        return len(victims)

    def publish(self, keys: Sequence[int]) -> None:
        """Reserved files are complete: from now on they can be found. One that is here already is replaced."""
        self.num_reserved -= len(keys)
        for key in reversed(keys):
            self._published[key] = None
        self.epoch += 1

    def open(self, keys: Iterable[int]) -> None:
        """Somebody is going to read these files: they stay."""
        for key in keys:
            self._readers[key] = self._readers.get(key, 0) + 1

    def close(self, keys: Sequence[int]) -> None:
        """They have been read, and become the most recently used."""
        for key in reversed(keys):
            left = self._readers.pop(key) - 1
            if left:
                self._readers[key] = left
            if self._evict and self._published.pop(key, self) is None:
                self._published[key] = None
