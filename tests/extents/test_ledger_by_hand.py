"""What the CPU tier's ledger by the run does, in cases small enough to follow by hand."""

from __future__ import annotations

import pytest

from kvsim.extents.arc import B1, T1, T2, RunArcPolicy, RunArcPolicy023
from kvsim.extents.context import RunContext
from kvsim.extents.ledger import RunOffloadingManager, RunOffloadingManager023
from kvsim.extents.lru import RunLruPolicy
from kvsim.extents.lru_023 import RunLruPolicy023
from kvsim.extents.path import Key, Path, Run, Runs


def a_request(name: str, *segments: tuple[int, int]) -> RunContext:
    """A request of whole segments, each given as (segment, its end), all chunks known."""
    path = Path([segment for segment, _ in segments], [end for _, end in segments])
    return RunContext(name, path, len(path))


def store(manager: RunOffloadingManager, request: RunContext, first: int, last: int) -> Runs | None:
    """Offer chunks and complete the store at once; returns what was stored."""
    plan = manager.prepare_store(request, first, last)
    if plan is None:
        return None
    manager.touch(request)
    manager.complete_store(plan.positions)
    return Runs(plan.positions.runs)


def test_a_store_copies_what_is_absent() -> None:
    """Of an offer only the absent stretches are planned, in the order of the request."""
    manager = RunOffloadingManager(20, RunLruPolicy)
    old, young = a_request("old", (1, 4)), a_request("young", (1, 4), (2, 9))
    assert store(manager, old, 1, 3) == Runs([Run(1, 1, 3)])
    assert store(manager, young, 0, 9) == Runs([Run(1, 0, 1), Run(1, 3, 4), Run(2, 4, 9)])
    assert manager.num_chunks == 9
    assert Key(2, 8) in manager
    assert Key(2, 9) not in manager


def test_a_lookup_ends_at_the_first_hole() -> None:
    """Chunks behind a hole don't count, and chunks being written count as pending."""
    manager = RunOffloadingManager(20, RunLruPolicy)
    request = a_request("r", (1, 4), (2, 9))
    store(manager, request, 0, 3)
    store(manager, request, 5, 9)
    assert manager.lookup_prefix(request, 0, 9) == (3, False)
    assert manager.lookup_prefix(request, 6, 9) == (3, False)
    manager.prepare_store(request, 3, 4)
    assert manager.lookup_prefix(request, 1, 9) == (3, True)


def test_the_tail_of_the_oldest_request_goes_first() -> None:
    """LRU of 0.33.0 takes whole stretches from the end of the request that ended first."""
    manager = RunOffloadingManager(10, RunLruPolicy)
    old, young = a_request("old", (1, 6)), a_request("young", (2, 4))
    for request in (old, young):
        store(manager, request, 0, request.num_keys)
        manager.on_request_finished(request)
    store(manager, a_request("new", (3, 3)), 0, 3)
    assert manager.held(Runs([Run(1, 0, 6), Run(2, 0, 4)])) == Runs([Run(1, 0, 3), Run(2, 0, 4)])
    assert manager.num_evicted == 3


def test_what_is_read_is_spared() -> None:
    """Pinned chunks stay; an offer that could only be met by evicting them is refused and changes nothing."""
    manager = RunOffloadingManager(6, RunLruPolicy)
    old, new = a_request("old", (1, 6)), a_request("new", (2, 3))
    store(manager, old, 0, 6)
    keys = manager.prepare_load(old, 0, 4)
    assert manager.prepare_store(new, 0, 3) is None
    assert (manager.num_refusals, manager.num_evicted, manager.num_chunks) == (1, 0, 6)
    manager.complete_load(keys)
    assert store(manager, new, 0, 3) == Runs([Run(2, 0, 3)])
    manager.check(at_end=True)


def test_what_is_offered_is_spared() -> None:
    """Chunks of the offer itself never make room for it."""
    manager = RunOffloadingManager(4, RunLruPolicy)
    request = a_request("r", (1, 6))
    store(manager, request, 0, 4)
    assert manager.prepare_store(request, 0, 6) is None
    assert store(manager, request, 4, 6) == Runs([Run(1, 4, 6)])


def test_a_promotion_takes_what_it_can_get() -> None:
    """Chunks are reserved one after another, also at the cost of the request's own, until one is refused."""
    manager = RunOffloadingManager(5, RunLruPolicy)
    request = a_request("r", (1, 12))
    store(manager, request, 8, 12)
    assert manager.promote(request, 0, 8) == 5
    assert manager.held(request.path.keys(0, 12)) == Runs([Run(1, 0, 5)])
    assert (manager.num_evicted, manager.num_refusals) == (4, 1)


def test_lost_contents_go_when_nobody_uses_them() -> None:
    """What is being read when the memory is lost stays until it has been read; a store then comes to nothing."""
    manager = RunOffloadingManager(10, RunLruPolicy)
    request = a_request("r", (1, 8))
    store(manager, request, 0, 4)
    keys = manager.prepare_load(request, 0, 2)
    plan = manager.prepare_store(request, 4, 6)
    assert plan is not None
    manager.lose_contents()
    assert manager.held(request.path.keys(0, 8)) == Runs([Run(1, 0, 2), Run(1, 4, 6)])
    manager.complete_load(keys)
    manager.complete_store(plan.positions)
    assert manager.num_chunks == 0
    manager.check(at_end=True)


def test_what_comes_after_a_loss_stays() -> None:
    """A store that began before the memory was lost comes to nothing, the next one beside it is kept."""
    for manager in (RunOffloadingManager(10, RunArcPolicy), RunOffloadingManager023(10, RunLruPolicy023)):
        request = a_request("r", (1, 8))
        manager.prepare_store(request, 4, 8)
        manager.touch(request)
        manager.lose_contents()
        manager.prepare_store(request, 0, 4)
        manager.touch(request)
        manager.complete_store(request.path.keys(0, 8))
        assert manager.held(request.path.keys(0, 8)) == Runs([Run(1, 0, 4)])


def test_a_touch_renews_a_whole_path() -> None:
    """LRU of 0.23.0 evicts what was touched longest ago, of one touch the tail first."""
    manager = RunOffloadingManager023(10, RunLruPolicy023)
    old, young = a_request("old", (1, 6)), a_request("young", (2, 4))
    store(manager, old, 0, 6)
    store(manager, young, 0, 4)
    manager.touch(old)
    store(manager, a_request("new", (3, 5)), 0, 5)
    assert manager.held(Runs([Run(1, 0, 6), Run(2, 0, 4)])) == Runs([Run(1, 0, 5)])


def test_arc_adapts_chunk_by_chunk() -> None:
    """ARC of 0.33.0: each ghost of B1 that is offered again raises the target by max(1, B2 / B1)."""
    manager = RunOffloadingManager(6, RunArcPolicy)
    policy = manager.policy
    assert isinstance(policy, RunArcPolicy)
    old = a_request("old", (1, 6))
    store(manager, old, 0, 6)
    manager.on_request_finished(old)
    store(manager, a_request("new", (2, 4)), 0, 4)
    assert [queue.num_chunks for queue in policy.queues] == [6, 0, 4, 0]
    again = a_request("again", (1, 6))
    manager.prepare_store(again, 2, 4)
    assert policy.target == 2.0
    assert [policy.queues[number].num_chunks for number in (T1, T2, B1)] == [6, 0, 4]  # two came back, two others went


def test_arc_says_that_a_touch_of_ghosts_is_not_idempotent() -> None:
    """Under 0.23.0 every touch of a ghost moves the target again, until it can move no further."""
    manager = RunOffloadingManager023(4, RunArcPolicy023)
    policy = manager.policy
    assert isinstance(policy, RunArcPolicy)
    old, new = a_request("old", (1, 4)), a_request("new", (2, 3))
    plan = manager.prepare_store(old, 0, 4)
    assert plan is not None
    manager.complete_store(plan.positions)  # never touched: still in T1
    store(manager, new, 0, 3)
    seen = []
    for _ in range(4):
        manager.touch(old)
        seen.append((policy.target, manager.num_changes))
    assert seen == [(3.0, 1), (4.0, 2), (4.0, 2), (4.0, 2)]


def test_a_threshold_is_refused() -> None:
    """Offers are counted chunk by chunk: a store_threshold needs the reference."""
    with pytest.raises(ValueError, match="needs the reference ledger"):
        RunOffloadingManager(10, RunLruPolicy, store_threshold=2)


def test_protocol_errors_are_told() -> None:
    """A load of what is being written, and a completion of what was never begun, raise."""
    manager = RunOffloadingManager(10, RunLruPolicy)
    request = a_request("r", (1, 4))
    keys = request.path.keys(0, 2)
    with pytest.raises(KeyError, match="not here"):
        manager.pin(keys)
    manager.prepare_store(request, 0, 2)
    with pytest.raises(ValueError, match="still being written"):
        manager.prepare_load(request, 0, 2)
    manager.complete_store(keys)
    with pytest.raises(ValueError, match="store is completed"):
        manager.complete_store(keys)
    with pytest.raises(ValueError, match="load is completed"):
        manager.complete_load(keys)
