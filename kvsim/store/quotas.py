"""How much of a shared store's memory each tenant may have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvsim.store.leases import Leases


@dataclass(slots=True)
class TenantRoom:
    """A tenant's part of the memory, in copies of objects.

    Attributes:
        limit: its quota.
        evicted: its objects that had to leave because it wanted to write others.
        refused: its objects that were not written, because none of those it has could leave.
    """

    limit: int
    used: int = 0
    peak: int = 0
    evicted: int = 0
    refused: int = 0


class TenantQuotas:
    """Who has a quota makes room by dropping its own oldest objects, and nobody else's; others share what is left.

    Rules: Mooncake pull request 2549 (enable_tenant_quota, off by default): PutStart that is over the tenant's quota
    evicts objects of that tenant and tries again. What is leased, or being written, stays. Disks have no quotas. vLLM
    0.33.0's connector passes no tenant on; here its cache_salt is the tenant.

    Args:
        limits: of each tenant that has one, copies of objects by the number of its salt.
        num_salts: tenants in all; a key's tenant is its remainder (`kvsim.request.Salted`).
        lease_ns: as the master's.
    """

    def __init__(self, limits: Mapping[int, int], num_salts: int, lease_ns: int) -> None:
        self.rooms = {salt: TenantRoom(limit) for salt, limit in limits.items()}
        self._num_salts = num_salts
        self._leases = {salt: Leases(lease_ns) for salt in limits}

    # -- room
    def free(self, key: int) -> int | None:
        """Copies that the owner of this object may write without dropping any; None = it has no quota."""
        room = self.rooms.get(key % self._num_salts)
        return None if room is None else max(room.limit - room.used, 0)

    def victims(self, keys: Sequence[int], copies: int, now_ns: int) -> list[int]:
        """Objects that have to go for these, with so many copies each, as far as they may; the oldest leases first."""
        found: list[int] = []
        for salt, own in self._by_tenant(keys):
            room = self.rooms[salt]
            lacking = len(own) * copies - (room.limit - room.used)
            going = self._leases[salt].expired(now_ns, -(-lacking // copies))
            room.evicted += len(going)
            found += going
        return found

    def refuse(self, key: int) -> None:
        """It was not written."""
        if (room := self.rooms.get(key % self._num_salts)) is not None:
            room.refused += 1

    def take(self, key: int, copies: int) -> None:
        """So many more copies of it lie in memory, or fewer."""
        if (room := self.rooms.get(key % self._num_salts)) is not None:
            room.used += copies
            room.peak = max(room.peak, room.used)

    # -- order
    def write(self, keys: Sequence[int], now_ns: int) -> None:
        """See `Leases`."""
        for salt, own in self._by_tenant(keys):
            self._leases[salt].write(own, now_ns)

    def read(self, keys: Sequence[int], now_ns: int) -> None:
        """See `Leases`."""
        for salt, own in self._by_tenant(keys):
            self._leases[salt].read(own, now_ns)

    def forget(self, key: int) -> None:
        """It is not in memory any more."""
        if (leases := self._leases.get(key % self._num_salts)) is not None:
            leases.forget(key)

    def check(self, copies: Mapping[int, int]) -> None:
        """Raise AssertionError unless each tenant has as many copies as are listed, and no more than it may."""
        for salt, room in self.rooms.items():
            own = sum(number for key, number in copies.items() if key % self._num_salts == salt)
            assert room.used == own, f"tenant {salt} has {own} copies, not {room.used}"
            assert room.used <= room.limit, f"tenant {salt} has more than its quota"

    def _by_tenant(self, keys: Sequence[int]) -> Iterable[tuple[int, list[int]]]:
        found: dict[int, list[int]] = {}
        for key in keys:
            salt = key % self._num_salts
            if salt in self.rooms:
                found.setdefault(salt, []).append(key)
        return found.items()
