"""HostMemory: fair shares as literal numbers, and links that feel each other."""

from __future__ import annotations

import pytest

from kvsim.clock import Clock
from kvsim.hardware import CopyCost, DuplexLink
from kvsim.host_memory import HostMemory, MemoryUser


def _users(memory: HostMemory, weights: list[int]) -> list[MemoryUser]:
    def nothing() -> None:
        pass

    return [memory.join(nothing, nothing, weight) for weight in weights]


@pytest.mark.parametrize(
    ("demands", "weights", "granted"),
    [
        ([30, 40], [1, 1], [30, 40]),  # all fit
        ([80, 80], [1, 1], [50, 50]),
        ([20, 70, 90], [1, 1, 1], [20, 40, 40]),  # the small one gets all, the rest is halved
        ([90, 20, 70], [1, 1, 1], [40, 20, 40]),  # whoever joined first
        ([300, 60], [8, 1], [88, 12]),  # one link of eight ranks, one disk: nine equal parts
        ([300, 10], [8, 1], [90, 10]),
        ([0, 70, 0], [1, 1, 1], [0, 70, 0]),
    ],
)
def test_fair_shares_of_100(demands: list[int], weights: list[int], granted: list[int]) -> None:
    """Max-min: demands below an even part are met, the others share what is left by weight."""
    memory = HostMemory(100)
    users = _users(memory, weights)
    memory.demand(dict(zip(users, demands, strict=True)))
    assert [round(user.share_ppm * want / 1e6) for user, want in zip(users, demands, strict=True)] == granted


def test_without_a_limit_everybody_gets_all() -> None:
    """No bandwidth given: shares stay whole, whatever is wanted."""
    memory = HostMemory(None)
    a, b = _users(memory, [1, 1])
    memory.demand({a: 10**15, b: 10**15})
    assert (a.share_ppm, b.share_ppm) == (1_000_000, 1_000_000)


def test_others_are_told_before_and_after() -> None:
    """Whose share changes through somebody else settles at the old share and plans at the new one; others sleep on."""
    memory = HostMemory(100)
    told: list[tuple[str, int]] = []
    users: list[MemoryUser] = []

    def join(name: str) -> MemoryUser:
        number = len(users)
        users.append(
            memory.join(
                lambda: told.append((f"{name} settles", users[number].share_ppm)),
                lambda: told.append((f"{name} plans", users[number].share_ppm)),
            )
        )
        return users[-1]

    big, small, late = join("big"), join("small"), join("late")
    memory.demand({big: 80})
    memory.demand({small: 20})
    assert not told
    memory.demand({late: 100})
    assert told == [("big settles", 1_000_000), ("big plans", 500_000)]  # 40 of 80, and small keeps its 20
    memory.demand({late: 0})
    assert told[2:] == [("big settles", 500_000), ("big plans", 1_000_000)]


def test_links_share_host_memory() -> None:
    """Two links of 2 B/ns on memory of 3 B/ns: three quarters of the speed while both copy, then full speed again."""
    env = Clock()
    memory = HostMemory(3 * 10**9)
    one, other = DuplexLink(env, memory=memory), DuplexLink(env, memory=memory)
    long = one.submit("h2d", CopyCost(1_000, host_bytes=2_000), 1)
    short = other.submit("h2d", CopyCost(300, host_bytes=600), 1)
    env.run()
    assert (short.finished_ns, long.finished_ns) == (400, 1_100)  # 300 / 0.75; 400 ns did 300 of 1,000


def test_directions_and_tiers_share_host_memory() -> None:
    """A load, a store and a disk read want 6, 6 and 2 of 10 GB/s: the disk gets all, the copies 4 each."""
    env = Clock()
    memory = HostMemory(10 * 10**9)
    link = DuplexLink(env, memory=memory)
    [disk] = _users(memory, [1])
    memory.demand({disk: 2 * 10**9})
    load = link.submit("h2d", CopyCost(100, host_bytes=600), 1)
    store = link.submit("d2h", CopyCost(200, host_bytes=1_200), 1)
    assert disk.share_ppm == 1_000_000
    env.run(until=120)
    memory.demand({disk: 0})  # now 5 GB/s each
    env.run()
    # the load: 120 ns at 2/3 do 80 of 100, 24 ns more at 5/6 do the rest; the store: 80 + 20, then 100 alone
    assert (load.finished_ns, store.finished_ns) == (145, 245)


def test_slow_copies_leave_bandwidth_to_others() -> None:
    """A copy of small pieces that moves 1 B/ns does not count with the link's peak."""
    env = Clock()
    link = DuplexLink(env, memory=HostMemory(3 * 10**9))
    pieces = link.submit("h2d", CopyCost(1_000, host_bytes=1_000), 1)
    store = link.submit("d2h", CopyCost(1_000, host_bytes=2_000), 1)
    env.run()
    assert (pieces.finished_ns, store.finished_ns) == (1_000, 1_000)
