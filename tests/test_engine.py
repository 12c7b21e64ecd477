"""The step loop in time: little simulations that assert what happened when."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
import simpy
from engine_builder import ScriptedConnector, make_request, make_scheduler

from kvsim.clock import Clock
from kvsim.connectors.base import SchedulerOutput, WorkerOutput
from kvsim.engine import Engine, NoProgressError, batch_of
from kvsim.observer import EngineObserver
from kvsim.request import Request


class TenPerToken:
    """A forward pass takes 100 ns and 10 ns per token."""

    def step_ns(self, prefill: Any, decode: Any) -> int:
        """See `StepTime`."""
        return 100 + 10 * (sum(new for new, _ in prefill) + len(decode))


class Diary(EngineObserver):
    """Writes down (what, time)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.entries: list[tuple[str, int]] = []

    def on_step_scheduled(self, output: SchedulerOutput) -> None:
        what = " ".join(f"{r.request_id}:{n}" for r, n in output.num_scheduled_tokens.items())
        self.entries.append((what or "-", self._clock.now))

    def on_step_done(self, output: SchedulerOutput, worker: WorkerOutput | None, ended: list[Request]) -> None:
        self.entries += [(f"{request.request_id} ended", self._clock.now) for request in ended]

    def on_load_stall(self, waited_ns: int) -> None:
        self.entries.append((f"load stall {waited_ns}", self._clock.now))

    def on_flush_stall(self, waited_ns: int) -> None:
        self.entries.append((f"flush stall {waited_ns}", self._clock.now))


class SlowWorker:
    """Jobs are numbers; each is done at its own time. Reports the requests whose loads are over."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.engine: Engine | None = None
        self.flush: list[int] = []  # done times of the jobs that the next step must wait for
        self.loads: list[tuple[int, Request]] = []  # (done time, request)

    def wake_at(self, time: int) -> None:
        """The link announces the end of a copy."""
        event = self._clock.timeout(time - self._clock.now)
        assert event.callbacks is not None
        event.callbacks.append(lambda _event: self.engine.notify() if self.engine else None)

    def handle_preemptions(self, meta: Any) -> list[int]:
        waiting, self.flush = self.flush, []
        return waiting

    def start_load_kv(self, meta: Any) -> None:
        """Loads are scripted."""

    def is_done(self, job: int) -> bool:
        return job <= self._clock.now

    def has_finished(self) -> bool:
        return any(time <= self._clock.now for time, _ in self.loads)

    def get_finished(self) -> WorkerOutput:
        done = [request for time, request in self.loads if time <= self._clock.now]
        self.loads = [(time, request) for time, request in self.loads if time > self._clock.now]
        return WorkerOutput(received=done)


def arrivals(clock: Clock, engine: Engine, plan: list[tuple[int, Request]]) -> None:
    """Requests arrive at their times."""

    def process() -> Generator[simpy.Event, Any, None]:
        for time, request in plan:
            yield clock.timeout(time - clock.now)
            engine.submit(request)

    clock.process(process())


def test_steps_follow_each_other() -> None:
    """Prefill, decode, decode, then one empty step that tells of the end, then silence until the next arrival."""
    clock = Clock()
    diary = Diary(clock)
    engine = Engine(clock, make_scheduler(), TenPerToken(), observer=diary)
    arrivals(clock, engine, [(0, make_request("a", "abc", out=3)), (5_000, make_request("b", "x", out=1))])
    clock.run()
    assert diary.entries == [
        ("a:12", 0), ("a:1", 220), ("a:1", 330), ("a ended", 440), ("-", 440),
        ("b:4", 5_000), ("b ended", 5_140), ("-", 5_140),
    ]  # fmt: skip


def test_an_arrival_at_the_end_of_a_step_joins_the_next() -> None:
    """Whatever arrives at the very instant at which a step ends is seen by the next decision."""
    clock = Clock()
    diary = Diary(clock)
    engine = Engine(clock, make_scheduler(), TenPerToken(), observer=diary)
    first = make_request("a", "a", out=2)
    length = 100 + 10 * first.num_prompt_tokens
    arrivals(clock, engine, [(0, first), (length, make_request("b", "b", out=1))])
    clock.run()
    second = diary.entries[1][0]
    assert diary.entries[1][1] == length
    assert second.startswith("a:1 b:")


def test_the_answer_to_an_end_joins_the_next_step() -> None:
    """A turn sent the moment the last one ended, without a pause, is in the very next decision."""
    clock = Clock()
    diary = Diary(clock)
    engine = Engine(clock, make_scheduler(), TenPerToken(), observer=diary)

    def session() -> Generator[simpy.Event, Any, None]:
        yield engine.submit(make_request("a", "a", out=1))
        yield engine.submit(make_request("b", "b", out=1))

    clock.process(session())
    clock.run()
    ended = dict(diary.entries)["a ended"]
    assert any(what.startswith("b:") and time == ended for what, time in diary.entries)


def test_a_flush_holds_the_step_up() -> None:
    """The forward pass starts when the flushed copy is done, and the wait is told."""
    clock = Clock()
    diary = Diary(clock)
    worker = SlowWorker(clock)
    engine = worker.engine = Engine(
        clock, make_scheduler(connector=ScriptedConnector()), TenPerToken(), worker, observer=diary
    )
    worker.flush = [700]
    worker.wake_at(700)
    request = make_request("a", "a", out=1)
    arrivals(clock, engine, [(0, request)])
    clock.run()
    assert ("flush stall 700", 700) in diary.entries
    assert ("a ended", 700 + 100 + 10 * request.num_prompt_tokens) in diary.entries


def test_a_parked_load_leaves_the_gpu_idle() -> None:
    """With nothing else to do the engine waits for the load, says so, and computes the rest of the prompt."""
    clock = Clock()
    diary = Diary(clock)
    worker = SlowWorker(clock)
    request = make_request("a", "abc", out=1)
    scheduler = make_scheduler(connector=ScriptedConnector({"a": [(8, True)]}))
    engine = worker.engine = Engine(clock, scheduler, TenPerToken(), worker, observer=diary)
    worker.loads = [(900, request)]
    worker.wake_at(900)
    arrivals(clock, engine, [(0, request)])
    clock.run()
    assert diary.entries == [
        ("-", 0), ("-", 0), ("load stall 900", 900), ("a:4", 900), ("a ended", 1_040), ("-", 1_040),
    ]  # fmt: skip


def test_waiting_for_a_store_without_requests_is_no_stall() -> None:
    """While only a store is in flight nobody waits for KV, however late the next arrival comes."""
    clock = Clock()
    diary = Diary(clock)
    worker = SlowWorker(clock)
    connector = ScriptedConnector()
    engine = worker.engine = Engine(clock, make_scheduler(connector=connector), TenPerToken(), worker, observer=diary)
    connector.pending = True
    arrivals(clock, engine, [(0, make_request("a", "a", out=1)), (9_000, make_request("b", "b", out=1))])
    clock.run(until=20_000)
    assert not any("stall" in what for what, _ in diary.entries)
    assert ("b:4", 9_000) in diary.entries


def test_time_that_does_not_pass_is_an_error() -> None:
    """Steps that follow each other at one instant for ever are reported, with what waits for what."""
    clock = Clock()

    class Eager(SlowWorker):
        """Always claims that something has finished."""

        def has_finished(self) -> bool:
            return True

    worker = Eager(clock)
    engine = worker.engine = Engine(
        clock, make_scheduler(connector=ScriptedConnector({"a": [(None, False)]})), TenPerToken(), worker
    )
    arrivals(clock, engine, [(3, make_request("a", "a", out=1))])
    with pytest.raises(NoProgressError, match=r"no progress at time 3: a holds 0 GPU blocks, needs 1 more"):
        clock.run(until=10**9)


def test_an_engine_without_requests_is_not_watched_for_ever() -> None:
    """A restless connector's copies end the simulation after a while when no request is left; arrivals are served."""
    clock = Clock()
    diary = Diary(clock)
    connector = ScriptedConnector()
    connector.pending = connector.restless = True

    class Eager(SlowWorker):
        """Always claims that something has finished."""

        def has_finished(self) -> bool:
            return True

    worker = Eager(clock)
    engine = worker.engine = Engine(clock, make_scheduler(connector=connector), TenPerToken(), worker, observer=diary)
    arrivals(clock, engine, [(0, make_request("a", "a", out=1)), (9_000, make_request("b", "b", out=1))])
    clock.run()
    assert ("b ended", 9_140) in diary.entries
    assert clock.now == 9_140


def test_batches() -> None:
    """More than one token is a prefill chunk with what was computed before; one token is a decode with its context."""
    output = SchedulerOutput()
    chunk, single = make_request("a", "abcdef", out=1), make_request("b", "ab", out=1)
    chunk.num_computed_tokens, single.num_computed_tokens = 5, 9
    output.num_scheduled_tokens = {chunk: 3, single: 1}
    assert batch_of(output) == ([(3, 2)], [9])
