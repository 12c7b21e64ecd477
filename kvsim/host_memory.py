"""Bandwidth of host memory, shared by all who move bytes through it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

FULL_PPM = 1_000_000  # share of a user who gets all that it asks for, in parts per million


class MemoryUser:
    """Somebody who moves bytes through host memory: one direction of a link, a tier's reads, a tier's writes.

    ``share_ppm``: part of its demand that it gets, in parts per million; held until the next `settle`.
    """

    __slots__ = ("demand_bytes_per_s", "number", "replan", "settle", "share_ppm", "weight")

    def __init__(self, number: int, settle: Callable[[], None], replan: Callable[[], None], weight: int) -> None:
        self.number, self.settle, self.replan, self.weight = number, settle, replan, weight
        self.demand_bytes_per_s = 0
        self.share_ppm = FULL_PPM


class HostMemory:
    """Max-min fair shares of one bandwidth: nobody gets more than it asks for, and what some leave goes to the others.

    A user joins with two callbacks and then says what it wants whenever that changes. Whoever's share changes through
    another's demand is told twice: ``settle`` before (count what was moved so far at the old share), ``replan`` after
    (look anew when the rest will be there). The user that changes its demand has settled itself and reads its new
    share afterwards. Shares are integers and depend on demands and the order of joining only.

    To add a user::

        reads = memory.join(settle=device.settle, replan=device.replan)
        memory.demand({reads: 7 * 10**9})  # wants 7 GB/s from now on; reads.share_ppm of it is granted
        memory.demand({reads: 0})          # idle

    Args:
        bytes_per_s: the bandwidth; None = no limit, everybody gets all.
    """

    def __init__(self, bytes_per_s: int | None) -> None:
        self.bytes_per_s = bytes_per_s
        self._users: list[MemoryUser] = []
        self._wanted, self._is_short = 0, False

    def join(self, settle: Callable[[], None], replan: Callable[[], None], weight: int = 1) -> MemoryUser:
        """A new user, idle so far. ``weight``: it stands for so many equal ones, such as all TP ranks."""
        user = MemoryUser(len(self._users), settle, replan, weight)
        self._users.append(user)
        return user

    def demand(self, wanted: Mapping[MemoryUser, int]) -> None:
        """From now on these users want so many bytes a second each (0 = idle); the others want what they wanted."""
        if self.bytes_per_s is None:
            return
        for user, demand in wanted.items():
            self._wanted += demand - user.demand_bytes_per_s
            user.demand_bytes_per_s = demand
        was_short, self._is_short = self._is_short, self._wanted > self.bytes_per_s
        if not was_short and not self._is_short:  # everybody gets all
            return
        changed = [(user, share) for user, share in self._fair_shares(self.bytes_per_s) if share != user.share_ppm]
        others = [user for user, _ in changed if user not in wanted]
        for user in others:
            user.settle()
        for user, share in changed:
            user.share_ppm = share
        for user in others:
            user.replan()

    def _fair_shares(self, left: int) -> list[tuple[MemoryUser, int]]:
        """Fill from the smallest demand (by weight) up: each takes its even part of what is left, or all it wants."""
        shares: list[tuple[MemoryUser, int]] = []
        asking = [user for user in self._users if user.demand_bytes_per_s]
        if not self._is_short:
            return [(user, FULL_PPM) for user in self._users]
        asking.sort(key=lambda user: (user.demand_bytes_per_s // user.weight, user.number))
        weights = sum(user.weight for user in asking)
        for user in asking:
            granted = min(user.demand_bytes_per_s, left * user.weight // weights)
            shares.append((user, max(1, FULL_PPM * granted // user.demand_bytes_per_s)))
            left, weights = left - granted, weights - user.weight
        return shares + [(user, FULL_PPM) for user in self._users if not user.demand_bytes_per_s]
