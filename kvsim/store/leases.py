"""In which order a master may drop objects: by the end of their leases, which is nearly least recently used."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

_SLACK = 1_000  # keys that may be listed in vain before it is worth while to tidy up


class _Grant:
    """Leases that were granted together; a key that has a later one is listed here in vain."""

    __slots__ = ("end_ns", "keys")

    def __init__(self, end_ns: int, keys: Sequence[int]) -> None:
        self.end_ns, self.keys = end_ns, keys


class Leases:
    """The end of each object's lease, and the objects in that order.

    A lease is granted for so long from now, or for no time at all (an object just written may go at once); it never
    gets shorter. Both kinds are granted in the order of time, so that two queues keep the order without sorting;
    objects granted at one instant are in the order of the grants, as the real clock would have told them apart.
    Rules: Mooncake master_service.h, ObjectMetadata::GrantLease and IsLeaseExpired.
    """

    def __init__(self, ttl_ns: int) -> None:
        self._ttl_ns = ttl_ns
        self._latest: dict[int, _Grant] = {}
        # In each, ends grow from front to back.
        self._written: deque[_Grant] = deque()
        self._read: deque[_Grant] = deque()
        self._num_listed = 0

    def __len__(self) -> int:
        return len(self._latest)

    def write(self, keys: Sequence[int], now_ns: int) -> None:
        """These are new: no lease, but newer than all that had none before."""
        self._grant(self._written, now_ns, keys)

    def read(self, keys: Sequence[int], now_ns: int) -> None:
        """These have been found, or are going to be read."""
        self._grant(self._read, now_ns + self._ttl_ns, keys)

    def forget(self, key: int) -> None:
        """It is gone."""
        self._latest.pop(key, None)

    def expired(self, now_ns: int, count: int) -> list[int]:
        """The first ``count`` objects whose leases have ended, the oldest end first."""
        found: list[int] = []
        written, read = self._in_order(self._written), self._in_order(self._read)
        never = (now_ns + 1, -1)
        first, second = next(written, never), next(read, never)
        while len(found) < count:
            if min(first[0], second[0]) > now_ns:
                break
            if first[0] <= second[0]:
                found.append(first[1])
                first = next(written, never)
            else:
                found.append(second[1])
                second = next(read, never)
        return found

    def first_end(self) -> int | None:
        """When the first lease ends; None = there is no object."""
        ends = [first[0] for queue in (self._written, self._read) if (first := next(self._in_order(queue), None))]
        return min(ends, default=None)

    def _grant(self, queue: deque[_Grant], end_ns: int, keys: Sequence[int]) -> None:
        if not keys:
            return
        grant = _Grant(end_ns, keys)
        self._latest.update(dict.fromkeys(keys, grant))
        queue.append(grant)
        self._num_listed += len(keys)
        if self._num_listed > 4 * len(self._latest) + _SLACK:
            self._tidy_up()

    def _in_order(self, queue: deque[_Grant]) -> Iterator[tuple[int, int]]:
        """(end, key) of a queue; what is at its front in vain goes."""
        latest = self._latest
        while queue and not any(latest.get(key) is queue[0] for key in queue[0].keys):
            self._num_listed -= len(queue.popleft().keys)
        for grant in queue:
            for key in grant.keys:
                if latest.get(key) is grant:
                    yield grant.end_ns, key

    def _tidy_up(self) -> None:
        latest, self._num_listed = self._latest, 0
        for queue in (self._written, self._read):
            kept = []
            for grant in queue:
                keys = [key for key in grant.keys if latest.get(key) is grant]
                if keys:
                    grant.keys = keys
                    kept.append(grant)
                    self._num_listed += len(keys)
            queue.clear()
            queue.extend(kept)
