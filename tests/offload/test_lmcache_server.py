"""LMCache's server: locks, eviction once per second, quotas of tenants, restarts."""

from __future__ import annotations

import pytest

from kvsim.offload.lmcache_server import L2, Eviction, LMCacheServer, Quotas
from kvsim.offload.server_health import Restart, outages

S = 10**9
LOOSE = Eviction(1_000_000, 200_000)


def server(capacity: int = 10, below: L2 | None = None, eviction: Eviction | None = None) -> LMCacheServer:
    """A server with this memory."""
    return LMCacheServer(capacity, eviction or Eviction(), below)


def put(target: LMCacheServer, *keys: int) -> None:
    """Written, and copied to L2 at once."""
    down = target.finish_write(target.reserve(keys))
    if down:
        target.finish_write_below(down)


def test_chunks_are_found_when_they_are_written() -> None:
    """A reserved chunk is not found before its bytes are there; one that is there is not reserved again."""
    target = server()
    assert target.reserve([1, 2]) == [1, 2]
    assert target.lookup([1, 2], "a") == (0, [])
    target.finish_write([1, 2])
    assert target.lookup([1, 2, 3], "b") == (2, [])
    assert target.reserve([1, 3]) == [3]


def test_memory_does_not_evict_to_make_room() -> None:
    """Five chunks for four places: the fifth is dropped and counted; room comes with the next cycle only."""
    target = server(4)
    assert target.reserve([1, 2, 3, 4, 5]) == [1, 2, 3, 4]
    target.finish_write([1, 2, 3, 4])
    assert target.num_refused == 1
    target.advance(S - 1)
    assert target.reserve([5]) == []
    target.advance(S)
    assert target.reserve([5]) == [5]


def test_a_cycle_takes_a_fifth_of_the_oldest() -> None:
    """At 80 % of ten places a fifth of the eight chunks goes, the last of the oldest prompt first; then it is calm."""
    target = server(10)
    put(target, 1, 2, 3, 4)
    put(target, 5, 6, 7, 8)
    target.advance(S)
    assert [key for key in range(1, 9) if key in target.memory] == [1, 2, 3, 5, 6, 7, 8]
    target.advance(100 * S)
    assert len(target.memory) == 7


def test_locked_chunks_stay() -> None:
    """What a lookup found is kept through any number of cycles until it is unlocked."""
    target = server(4)
    put(target, 1, 2, 3, 4)
    assert target.lookup([1, 2, 3, 4], "a") == (4, [])
    target.advance(5 * S)
    assert len(target.memory) == 4
    target.unlock("a")
    target.advance(6 * S)
    assert len(target.memory) == 3
    target.check(at_end=True)


def test_l2_fills_up_what_memory_lost() -> None:
    """A lookup goes on in L2 where memory ends; what it wants is readable when it has been read."""
    target = server(4, L2(None))
    put(target, 1, 2, 3, 4)
    target.advance(S)
    assert target.lookup([1, 2, 3, 4], "a") == (4, [4])
    assert target.lookup([1, 2, 3, 4], "b") == (3, [])
    target.finish_write([4])
    assert target.lookup([1, 2, 3, 4], "c") == (4, [])


def tenants(quotas: Quotas) -> LMCacheServer:
    """Even keys are of tenant 0, odd ones of tenant 1: ten chunks of each, in L2."""
    target = server(100, L2(Eviction(), quotas=quotas, num_salts=2), LOOSE)
    put(target, *range(0, 20, 2))
    put(target, *range(1, 21, 2))
    return target


def held(target: LMCacheServer) -> dict[int, int]:
    """Chunks of each tenant in L2."""
    assert target.below is not None
    return dict(target.below.chunks.count_by_salt(2))


def test_quotas_are_of_each_tenant() -> None:
    """A quota of 20 leaves ten chunks alone; one of 10 takes a fifth per second until less than 8 are left."""
    target = tenants(Quotas({0: 20, 1: 10}))
    assert held(target) == {0: 10, 1: 10}
    target.advance(S)
    assert held(target) == {0: 10, 1: 8}
    target.advance(2 * S)
    assert held(target) == {0: 10, 1: 7}
    target.advance(99 * S)
    assert held(target) == {0: 10, 1: 7}


def test_a_tenant_without_quota_keeps_nothing() -> None:
    """Quotas are a list of who may store: others lose everything in the next cycle."""
    target = tenants(Quotas({0: 20}))
    target.advance(S)
    assert held(target) == {0: 10}


def test_quotas_change_while_the_server_runs() -> None:
    """A quota set at 30.5 s holds from the cycle at 31 s on, also when nobody asks in between."""
    target = tenants(Quotas({0: 20, 1: 20}, [(30 * S + S // 2, 0, 5), (40 * S, 1, 0)]))
    target.advance(30 * S)
    assert held(target) == {0: 10, 1: 10}
    target.advance(31 * S)
    assert held(target) == {0: 8, 1: 10}
    target.advance(100 * S)
    assert held(target) == {0: 3}


@pytest.mark.parametrize(("keep", "found"), [(False, 0), (True, 2)])
def test_a_restart_loses_or_keeps_the_cache(keep: bool, found: int) -> None:
    """Locks and half-written chunks are gone either way; what was whole is kept only if asked for."""
    target = server(10, L2(None))
    put(target, 1, 2)
    target.lookup([1, 2], "a")
    target.reserve([3])
    target.restart(keep_cache=keep)
    assert target.lookup([1, 2, 3], "b") == (found, [])
    target.unlock("b")
    target.check(at_end=True)


@pytest.mark.parametrize(
    ("down_s", "up_s", "noticed_s", "recovered_s"),
    [
        # A ping is sent every 10 s. 5 s between two of them: nobody sees it.
        (61, 66, None, None),
        # The ping at 70 s is answered when the server is back at 75 s.
        (68, 75, None, None),
        # The ping at 70 s times out at 80 s. The next, at 90 s, is answered.
        (61, 85, 80, 90),
        # The ping at 90 s is answered at 95 s.
        (61, 95, 80, 95),
        # Pings at 70, 90 and 110 s time out, the one at 130 s does not.
        (61, 125, 80, 130),
    ],
)
def test_heartbeats(down_s: int, up_s: int, noticed_s: int | None, recovered_s: int | None) -> None:
    """A restart is noticed by a ping that times out, and is over with the next that is answered."""
    (outage,) = outages([Restart(down_s * S, up_s * S, keep_cache=False)], 10 * S)
    assert outage.noticed_ns == (None if noticed_s is None else noticed_s * S)
    assert outage.recovered_ns == (None if recovered_s is None else recovered_s * S)
