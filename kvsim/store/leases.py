"""In which order a master may drop objects: by the end of their leases, which is nearly least recently used."""

from __future__ import annotations

from collections import OrderedDict


class Leases:
    """The end of each object's lease, and the objects in that order.

    A lease is granted for so long from now, or for no time at all (an object just written may go at once); it never
    gets shorter. Both kinds are granted in the order of time, so that two queues keep the order without sorting;
    objects granted at one instant are in the order of the grants, as the real clock would have told them apart.
    Rules: Mooncake master_service.h, ObjectMetadata::GrantLease and IsLeaseExpired.
    """

    def __init__(self, ttl_ns: int) -> None:
        self._ttl_ns = ttl_ns
        # key -> end of the lease; ends grow from front to back
        self._written: OrderedDict[int, int] = OrderedDict()
        self._read: OrderedDict[int, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._written) + len(self._read)

    def write(self, key: int, now_ns: int) -> None:
        """It has been written: no lease, but newer than all that had none before."""
        if key not in self._read:
            self._written[key] = now_ns
            self._written.move_to_end(key)

    def read(self, key: int, now_ns: int) -> None:
        """It has been found, or is going to be read."""
        read = self._read
        if key in read:
            read.move_to_end(key)
        else:
            self._written.pop(key, None)
        read[key] = now_ns + self._ttl_ns

    def forget(self, key: int) -> None:
        """It is gone."""
        if self._read.pop(key, None) is None:
            self._written.pop(key, None)

    def expired(self, now_ns: int, count: int) -> list[int]:
        """The first ``count`` objects whose leases have ended, the oldest end first."""
        found: list[int] = []
        written, read = iter(self._written.items()), iter(self._read.items())
        never = (-1, now_ns + 1)
        first, second = next(written, never), next(read, never)
        while len(found) < count:
            if first[1] <= second[1]:
                if first[1] > now_ns:
                    break
                found.append(first[0])
                first = next(written, never)
            else:
                if second[1] > now_ns:
                    break
                found.append(second[0])
                second = next(read, never)
        return found

    def first_end(self) -> int | None:
        """When the first lease ends; None = there is no object."""
        ends = [next(iter(queue.values())) for queue in (self._written, self._read) if queue]
        return min(ends) if ends else None
