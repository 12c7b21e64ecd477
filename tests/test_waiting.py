"""Waiting queues: who is looked at next, and where those go that a scan skips."""

from __future__ import annotations

import pytest
from engine_builder import ids, make_request

from kvsim.request import Request, RequestStatus
from kvsim.waiting import FcfsQueue, PriorityQueue, WaitingQueues, WaitingQueues023


def _loading(name: str, **options: int) -> Request:
    request = make_request(name, **options)
    request.status = RequestStatus.WAITING_FOR_REMOTE_KVS
    return request


def _promoted(name: str) -> Request:
    request = make_request(name)
    request.num_computed_tokens = 8
    return request


def _scan(queues: WaitingQueues, *, skip: set[str], stop_at: str | None = None) -> list[str]:
    """Look at every head: skip those named, stop at ``stop_at``, admit the others. Who was looked at?"""
    seen = []
    queues.begin_scan()
    while (queue := queues.select()) is not None:
        name = queue.head().request_id
        seen.append(name)
        if name == stop_at:
            break
        if name in skip:
            queues.skip(queue)
        else:
            queue.pop_head()
    queues.end_scan()
    return seen


def test_fcfs_queue() -> None:
    """Newcomers go to the end; of two that come back, the later one is first."""
    queue = FcfsQueue()
    for name in "ab":
        queue.add(make_request(name))
    queue.prepend(make_request("c"))
    queue.prepend(make_request("d"))
    assert ids(queue) == ["d", "c", "a", "b"]
    assert queue.pop_head().request_id == "d"
    assert (queue.head().request_id, len(queue)) == ("c", 3)


def test_priority_queue_ignores_how_a_request_comes_back() -> None:
    """Adding and prepending are the same ordered insertion."""
    queue = PriorityQueue()
    queue.add(make_request("b", arrival=2))
    queue.add(make_request("c", arrival=1, priority=1))
    queue.prepend(make_request("d", arrival=3))
    queue.add(make_request("a", arrival=2))
    assert ids(queue) == ["a", "b", "d", "c"]
    assert queue.pop_head().request_id == "a"


@pytest.mark.parametrize("queues", [WaitingQueues, WaitingQueues023])
def test_everybody_is_counted_and_listed(queues: type[WaitingQueues]) -> None:
    """Length and iteration cover both queues, those that are looked at first first."""
    both = queues("fcfs")
    both.waiting.add(make_request("a"))
    both.second.add(_loading("b"))
    assert (len(both), ids(both)) == (2, ["b", "a"])


def test_holders_of_blocks_come_first() -> None:
    """0.33.0: whoever holds blocks (loading or promoted) is looked at before those who hold none."""
    queues = WaitingQueues("fcfs")
    queues.waiting.add(make_request("new"))
    queues.second.add(_loading("loading"))
    queues.second.add(_promoted("promoted"))
    assert _scan(queues, skip=set()) == ["loading", "promoted", "new"]


def test_holders_come_first_whatever_their_priority() -> None:
    """0.33.0 under PRIORITY: the heads of the two queues are not compared."""
    queues = WaitingQueues("priority")
    queues.waiting.add(make_request("urgent", priority=-5))
    queues.second.add(_loading("loading", priority=9))
    assert _scan(queues, skip=set()) == ["loading", "urgent"]


def test_skipped_without_blocks_return_to_the_front_in_scan_order() -> None:
    """0.33.0: requests whose lookup was deferred stay in front of those that were not looked at."""
    queues = WaitingQueues("fcfs")
    for name in "abcde":
        queues.waiting.add(make_request(name))
    assert _scan(queues, skip={"a", "c"}, stop_at="d") == ["a", "b", "c", "d"]
    assert ids(queues.waiting) == ["a", "c", "d", "e"]
    assert ids(queues.second) == []


def test_skipped_with_blocks_go_to_the_holders() -> None:
    """0.33.0: loading and promoted requests that are skipped join the holders, in front, in scan order."""
    queues = WaitingQueues("fcfs")
    queues.second.add(_loading("old"))
    for request in (_loading("x"), make_request("y"), _promoted("z")):
        queues.waiting.add(request)
    assert _scan(queues, skip={"old", "x", "y", "z"}) == ["old", "x", "y", "z"]
    assert ids(queues.second) == ["old", "x", "z"]
    assert ids(queues.waiting) == ["y"]


def test_a_preempted_request_comes_before_a_deferred_one() -> None:
    """0.33.0: a deferred lookup goes back to the front, and a later preemption goes in front of that."""
    queues = WaitingQueues("fcfs")
    queues.waiting.add(make_request("deferred"))
    _scan(queues, skip={"deferred"})
    queues.waiting.prepend(make_request("preempted"))
    queues.waiting.add(make_request("newcomer"))
    assert ids(queues) == ["preempted", "deferred", "newcomer"]


def test_023_skipped_go_before_older_skipped() -> None:
    """0.23.0: all that are skipped go to one queue, in scan order, in front of what was skipped before."""
    queues = WaitingQueues023("fcfs")
    for request in (_loading("a"), _loading("b"), _loading("c")):
        queues.second.add(request)
    for name in "de":
        queues.waiting.add(make_request(name))
    assert _scan(queues, skip={"a", "b"}, stop_at="c") == ["a", "b", "c"]
    assert ids(queues.second) == ["a", "b", "c"]
    queues.second.pop_head()
    assert _scan(queues, skip={"b", "c", "d", "e"}) == ["b", "c", "d", "e"]
    assert ids(queues.second) == ["b", "c", "d", "e"]
    assert ids(queues.waiting) == []


def test_023_newly_skipped_overtake_those_not_looked_at() -> None:
    """0.23.0: if the scan ends early, this step's skipped stand before the one that ended it."""
    queues = WaitingQueues023("priority")
    queues.waiting.add(make_request("new", arrival=1))
    queues.second.add(_loading("old", arrival=2))
    assert _scan(queues, skip={"new"}, stop_at="old") == ["new", "old"]
    assert ids(queues.second) == ["new", "old"]


def test_023_priority_compares_the_two_heads() -> None:
    """0.23.0, PRIORITY: a newcomer goes first only if it is strictly smaller than the first skipped one."""
    queues = WaitingQueues023("priority")
    queues.second.add(_loading("m", arrival=3))
    for name, arrival in (("a", 3), ("z", 3), ("y", 2)):
        queues.waiting.add(make_request(name, arrival=arrival))
    assert _scan(queues, skip=set()) == ["y", "a", "m", "z"]


def test_023_fcfs_looks_at_the_skipped_first() -> None:
    """0.23.0 under FCFS: the skipped ones first, whenever they arrived."""
    queues = WaitingQueues023("fcfs")
    queues.second.add(_loading("skipped", arrival=9))
    queues.waiting.add(make_request("new", arrival=1))
    assert _scan(queues, skip=set()) == ["skipped", "new"]


def test_an_empty_scan_selects_nothing() -> None:
    """With nobody waiting there is no queue to look at."""
    assert WaitingQueues("fcfs").select() is None
    assert WaitingQueues023("priority").select() is None
