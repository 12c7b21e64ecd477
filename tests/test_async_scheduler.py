"""Asynchronous scheduling: decisions with a step in flight."""

from __future__ import annotations

from engine_builder import ScriptedConnector, ids, make_request, make_scheduler, scheduled

from kvsim.async_scheduler import AsyncScheduler
from kvsim.connectors.base import SchedulerOutput, WorkerOutput


def update(scheduler: AsyncScheduler, output: SchedulerOutput) -> list[str]:
    """A step's output comes back; ids of those that ended."""
    report = None if scheduler.connector is None else WorkerOutput()
    ended = scheduler.update_from_output(output, report)
    scheduler.check()
    return ids(ended)


def make(connector: ScriptedConnector | None = None, **limits: int) -> AsyncScheduler:
    """An asynchronous scheduler over blocks of 4 tokens."""
    scheduler = make_scheduler(AsyncScheduler, connector=connector, **limits)
    assert isinstance(scheduler, AsyncScheduler)
    return scheduler


def test_a_token_that_is_not_known_yet_is_scheduled() -> None:
    """The step behind a prompt is decided while its token is being sampled: one placeholder, one token."""
    scheduler = make()
    request = make_request("a", prompt=6, out=9)
    scheduler.add_request(request)
    first, second = scheduler.schedule(), scheduler.schedule()
    assert (scheduled(first), scheduled(second)) == ([("a", 6)], [("a", 1)])
    assert (request.num_tokens, request.num_computed_tokens, request.num_output_placeholders) == (6, 7, 2)
    assert update(scheduler, first) == []
    assert (request.num_tokens, request.num_output_placeholders, request.num_in_flight_tokens) == (7, 1, 1)


def test_no_step_beyond_the_last_token() -> None:
    """With two tokens to generate, nothing is scheduled once the second is in flight, and it ends the request."""
    scheduler = make()
    scheduler.add_request(make_request("a", prompt=6, out=2))
    first, second = scheduler.schedule(), scheduler.schedule()
    assert update(scheduler, first) == []
    assert scheduled(scheduler.schedule()) == []
    assert update(scheduler, second) == ["a"]
    assert scheduler.kv.pool.num_free == 100


def test_a_block_is_findable_when_its_last_token_is_known() -> None:
    """A block filled by generated tokens gets its hash when they have come back, not when they are scheduled."""
    scheduler = make()
    request = make_request("a", "x", prompt=3, out=9)
    scheduler.add_request(request)
    outputs = [scheduler.schedule(), scheduler.schedule()]
    assert (request.num_computed_tokens, len(scheduler.kv.pool.cached)) == (4, 0)
    update(scheduler, outputs[0])
    assert len(scheduler.kv.pool.cached) == 0
    outputs.append(scheduler.schedule())
    assert len(scheduler.kv.pool.cached) == 1


def test_tokens_in_flight_outlive_a_preemption() -> None:
    """A preempted request gets the token that was being sampled, and is not resumed before."""
    scheduler = make(num_blocks=5)
    first, last = make_request("a", prompt=7, out=9), make_request("b", prompt=7, out=9)
    scheduler.add_request(first)
    scheduler.add_request(last)
    flying = scheduler.schedule()
    update(scheduler, flying)
    flying = scheduler.schedule()  # both fill their last block
    decided = scheduler.schedule()
    assert (ids(decided.preempted), scheduled(decided)) == (["b"], [("a", 1)])
    assert (last.num_computed_tokens, last.num_output_placeholders, last.num_stale_output_tokens) == (0, 0, 1)
    later = scheduler.schedule()
    assert "b" not in dict(scheduled(later))
    assert update(scheduler, flying) == []
    assert (last.num_output_tokens, last.num_stale_output_tokens, last.num_computed_tokens) == (2, 0, 0)


def test_a_preempted_request_may_end() -> None:
    """The token in flight was its last: it ends from the waiting queue."""
    scheduler = make(num_blocks=5)
    scheduler.add_request(make_request("a", prompt=7, out=9))
    scheduler.add_request(make_request("b", prompt=7, out=2))
    update(scheduler, scheduler.schedule())
    flying = scheduler.schedule()
    assert ids(scheduler.schedule().preempted) == ["b"]
    assert update(scheduler, flying) == ["b"]
    assert len(scheduler.waiting) == 0


def test_with_a_connector_freed_blocks_wait_for_the_step_in_flight() -> None:
    """A load could overwrite what the step in flight still writes: the blocks return with its output."""
    scheduler = make(ScriptedConnector())
    request = make_request("a", prompt=8, out=9)
    scheduler.add_request(request)
    flying = scheduler.schedule()
    scheduler.abort_request(request)
    scheduler.check()
    assert scheduler.kv.pool.num_free == 98
    update(scheduler, flying)
    assert scheduler.kv.pool.num_free == 100


def test_without_a_connector_they_return_at_once() -> None:
    """The compute stream itself orders what is written into a block."""
    scheduler = make()
    request = make_request("a", prompt=8, out=9)
    scheduler.add_request(request)
    scheduler.schedule()
    scheduler.abort_request(request)
    assert scheduler.kv.pool.num_free == 100


def test_a_victim_whose_blocks_cannot_be_freed_is_spared() -> None:
    """Preempting it would not help now: nobody is preempted, the request in need waits for a step."""
    scheduler = make(ScriptedConnector(), num_blocks=5)
    scheduler.add_request(make_request("a", prompt=7, out=9))
    scheduler.add_request(make_request("b", prompt=7, out=9))
    update(scheduler, scheduler.schedule())
    flying = scheduler.schedule()
    starved = scheduler.schedule()
    assert (scheduled(starved), ids(starved.preempted)) == ([], [])
    update(scheduler, flying)
    relieved = scheduler.schedule()
    assert (scheduled(relieved), ids(relieved.preempted)) == ([("a", 1)], ["b"])
