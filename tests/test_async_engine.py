"""Two steps in flight, in time."""

from __future__ import annotations

import random
from typing import Any

import pytest
from worlds import MS, TraceBuilder, config, random_config, random_trace, run

from kvsim.errors import ConfigError
from kvsim.results.records import RunRecord

STEP = MS + 10_000  # one token


def play(builder: TraceBuilder, **parts: Any) -> RunRecord:
    """Run with asynchronous scheduling."""
    engine = {"async_scheduling": True, **parts.pop("engine", {})}
    return run(builder.build(), config(engine=engine, **parts))[1]


def test_one_request_is_served_as_in_synchronous_mode() -> None:
    """Steps follow each other without a gap and none is computed in vain: two chunks and two tokens more."""
    builder = TraceBuilder()
    builder.session("s", [(300, 3, 0)])
    record = play(builder)
    (entry,) = record.requests
    chunks = (MS + 256 * 10_000) + (MS + 44 * 10_000)
    assert (entry.first_scheduled_ns, entry.first_token_ns, entry.finish_ns) == (0, chunks, chunks + 2 * STEP)
    assert (record.totals.steps, record.totals.gpu_busy_ns) == (4, chunks + 2 * STEP)


def test_an_arrival_waits_for_the_step_that_is_already_decided() -> None:
    """Who comes during a step joins the one after the next: that is what deciding ahead costs."""
    builder = TraceBuilder()
    builder.session("a", [(16, 40, 0)], start_ns=0)
    builder.session("b", [(16, 1, 0)], start_ns=5 * MS)
    prompt = MS + 16 * 10_000
    during = (5 * MS - prompt) // STEP + 1  # b comes during a's decode step of this number
    decided = prompt + during * STEP
    assert play(builder).requests[1].first_scheduled_ns == decided
    both = MS + 17 * 10_000
    assert play(builder).requests[1].first_token_ns == decided + STEP + both


def test_a_store_is_copied_behind_the_step_that_computes_it() -> None:
    """Nothing is read before it is written: the prompt's blocks reach the CPU after its forward pass, not during."""
    builder = TraceBuilder()
    builder.session("s", [(256, 30, 0)])
    record = play(builder, connector={"kind": "offloading", "cpu_bytes_to_use": "1GiB"})
    busy_from = next(sample.time_ns for sample in record.series.samples if sample.d2h_busy_ns)
    assert busy_from > MS + 256 * 10_000
    assert record.totals.d2h_bytes == 16 * 2 * 2**20


def test_a_load_is_noticed_later_than_in_synchronous_mode() -> None:
    """The worker looks when it launches a step and the scheduler hears of it when that step is computed."""

    def load_wait_ns(*, asynchronous: bool) -> int:
        builder = TraceBuilder()
        builder.session("a", [(400, 1, 0), (16, 1, 100 * MS)])
        builder.session("b", [(600, 1, 0)], start_ns=30 * MS)
        builder.session("c", [(32, 150, 0)], start_ns=50 * MS)  # keeps the GPU busy
        engine = {"num_gpu_blocks_override": 51, "async_scheduling": asynchronous}
        settings = config(engine=engine, connector={"kind": "offloading", "cpu_bytes_to_use": "1GiB"})
        (again,) = [entry for entry in run(builder.build(), settings)[1].requests if entry.turn == 1]
        return again.load_wait_ns

    assert load_wait_ns(asynchronous=True) > load_wait_ns(asynchronous=False) > 0


def test_connectors_inside_the_forward_pass_are_refused() -> None:
    """They would have to wait for the step in flight, which is not simulated."""
    builder = TraceBuilder()
    builder.session("s", [(30, 2, 0)])
    with pytest.raises(ConfigError, match="async_scheduling: true: expected false with connector example"):
        play(builder, connector={"kind": "example"})


@pytest.mark.parametrize("kind", ["none", "offloading", "simple_cpu"])
def test_random_worlds_end_well(kind: str) -> None:
    """Every request ends with the tokens it wants, and nothing leaks; invariants hold at every step."""
    rng = random.Random(kind)
    for _ in range(12):
        trace, drawn = random_trace(rng), random_config(rng)
        connector: dict[str, Any] = {"kind": kind}
        if kind != "none":
            connector["cpu_bytes_to_use"] = f"{rng.choice([16, 80, 300, 2000])}MiB"
        engine = drawn.engine.model_dump() | {"vllm_version": "0.33.0", "async_scheduling": True}
        _, record = run(trace, config(engine=engine, connector=connector))
        assert {entry.status for entry in record.requests} <= {"finished", "rejected"}
        assert record.totals.output_tokens == sum(entry.output_tokens for entry in record.requests)
