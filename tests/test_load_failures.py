"""Loads that fail: who is cut where, and what becomes of those who counted on the blocks."""

from __future__ import annotations

import pytest
from engine_builder import BLOCK, ScriptedConnector, ids, make_request, make_scheduler, scheduled

from kvsim.connectors.base import WorkerOutput
from kvsim.load_failures import LoadFailurePolicy
from kvsim.request import Request, RequestStatus
from kvsim.scheduler import Scheduler


def parked(policy: LoadFailurePolicy, content: str = "abcdef") -> tuple[Scheduler, Request]:
    """A request of 6 blocks whose first 4 are being loaded into blocks 1-4; the scheduler's second step is next."""
    connector = ScriptedConnector({"r": [(4 * BLOCK, True)]})
    scheduler = make_scheduler(connector=connector, kv_load_failure_policy=policy)
    request = make_request("r", content)
    scheduler.add_request(request)
    output = scheduler.schedule()
    scheduler.update_from_output(output, WorkerOutput())
    assert (request.status, scheduler.kv.tables[request]) == (RequestStatus.WAITING_FOR_REMOTE_KVS, [1, 2, 3, 4])
    return scheduler, request


def report(scheduler: Scheduler, output: WorkerOutput) -> list[str]:
    """A step at whose end the worker reports this; ids of those that ended."""
    ended = scheduler.update_from_output(scheduler.schedule(), output)
    scheduler.check()
    return ids(ended)


def test_a_parked_request_goes_on_from_its_first_invalid_block() -> None:
    """Of blocks 1-4 the third is lost: two blocks count and are hashed, the other four are computed."""
    scheduler, request = parked("recompute")
    assert report(scheduler, WorkerOutput(received=[request], invalid_blocks={3})) == []
    assert scheduled(scheduler.schedule()) == [("r", 4 * BLOCK)]
    assert scheduler.kv.pool.hashes[1:3] == [ord("a"), ord("b")]
    assert scheduler.load_failures.num_lost_tokens == 2 * BLOCK


def test_a_request_with_nothing_valid_looks_again() -> None:
    """The first block is lost: all blocks are given back, and the next lookup finds what the GPU holds by then."""
    scheduler, request = parked("recompute")
    report(scheduler, WorkerOutput(received=[request], invalid_blocks={1}))
    assert isinstance(scheduler.connector, ScriptedConnector)
    scheduler.connector.lookups()
    scheduler.schedule()
    assert scheduler.connector.lookups() == [("r", 0)]


def test_a_load_that_failed_as_a_whole_leaves_nothing_computed() -> None:
    """failed_recving names a request, not blocks: it starts over."""
    scheduler, request = parked("recompute")
    report(scheduler, WorkerOutput(received=[request], failed_recving=[request]))
    assert request.num_computed_tokens == 0
    scheduler.schedule()
    assert scheduler.load_failures.num_lost_tokens == 4 * BLOCK


def test_under_fail_the_request_ends_and_its_blocks_are_freed_when_the_load_reports() -> None:
    """The failure comes before the report: the request has ended, its blocks are held until nobody writes them."""
    scheduler, request = parked("fail")
    assert report(scheduler, WorkerOutput(invalid_blocks={4})) == ["r"]
    assert request.status is RequestStatus.FAILED
    assert scheduler.kv.pool.num_free == 96
    report(scheduler, WorkerOutput(received=[request]))
    assert scheduler.kv.pool.num_free == 100
    scheduler.check(at_end=True)


def test_an_aborted_request_is_not_cut_again() -> None:
    """Its client goes between the failure and the next schedule: nothing of the failure is left behind."""
    scheduler, request = parked("recompute")
    report(scheduler, WorkerOutput(received=[request], invalid_blocks={1}))
    scheduler.abort_request(request)
    report(scheduler, WorkerOutput())
    scheduler.check(at_end=True)


def running(policy: LoadFailurePolicy) -> tuple[Scheduler, list[Request]]:
    """Two requests that share blocks 1-2, loaded synchronously for the first one in the step that is not over yet."""
    connector = ScriptedConnector({"a": [(2 * BLOCK, False)]})
    scheduler = make_scheduler(connector=connector, kv_load_failure_policy=policy)
    requests = [make_request("a", "xyz", prompt=3 * BLOCK + 1, out=5), make_request("b", "xyw", prompt=3 * BLOCK + 1)]
    for request in requests:
        scheduler.add_request(request)
    return scheduler, requests


@pytest.mark.parametrize(("policy", "ended"), [("recompute", []), ("fail", ["a", "b"])])
def test_everybody_who_shares_an_invalid_block_loses_the_step(policy: LoadFailurePolicy, ended: list[str]) -> None:
    """Block 2 is lost: the request that owns the load is cut before it; the other counts on its recomputation."""
    scheduler, (a, b) = running(policy)
    output = scheduler.schedule()
    assert scheduler.kv.tables[a][:2] == scheduler.kv.tables[b][:2] == [1, 2]
    assert ids(scheduler.update_from_output(output, WorkerOutput(invalid_blocks={2}))) == ended
    assert (a.num_output_tokens, b.num_output_tokens) == (0, 0)
    assert (a.num_computed_tokens, b.num_computed_tokens) == (BLOCK, 2 * BLOCK)
    scheduler.check()


def test_recompute_keeps_the_hashes_and_fail_drops_them() -> None:
    """Blocks that will be computed again stay findable; under fail the invalid block and all behind it are evicted."""
    for policy, found in (("recompute", [1, 2]), ("fail", [1])):
        scheduler, _ = running(policy)  # type: ignore[arg-type]
        output = scheduler.schedule()
        scheduler.update_from_output(output, WorkerOutput(invalid_blocks={2}))
        assert scheduler.kv.pool.longest_prefix([ord("x"), ord("y")], 2) == found


def test_a_block_nobody_counts_on_changes_nothing() -> None:
    """Blocks computed in this very step are not loaded ones."""
    scheduler, (a, _) = running("fail")
    output = scheduler.schedule()
    assert ids(scheduler.update_from_output(output, WorkerOutput(invalid_blocks={scheduler.kv.tables[a][2]}))) == ["b"]
