"""What a run's exported schedule says about its copies, in random worlds."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schedule_runs import check_whole, exported, random_schedule, random_world
from schedule_world import canonical, dropped, execute

from kvsim.build import Simulation
from kvsim.errors import UserError
from kvsim.resolve import resolve
from kvsim.results.records import as_row
from kvsim.results.schedule import Step, check, compacted, cut, ordered, read_schedule, scaled, write_schedule


@pytest.mark.parametrize("seed", range(60))
def test_random_worlds_hold_together(seed: int, tmp_path: Path) -> None:
    """Every copy is told once, with what it reads, and in every allowed order each block ends with the same content."""
    plan, record, schedule = exported(*random_world(seed))
    if schedule is None:
        return
    check_whole(plan, record, schedule)
    check(schedule)
    expected = canonical(schedule)
    for order in range(5):
        assert execute(schedule, random.Random(order).randrange) == expected
    write_schedule(tmp_path / "s.jsonl.gz", schedule)
    assert read_schedule(tmp_path / "s.jsonl.gz") == schedule


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.data_too_large])
@given(st.integers(60, 10_000), st.randoms(use_true_random=False))
def test_any_order_will_do(seed: int, order: random.Random) -> None:
    """Hypothesis picks a world and an order that its dependencies allow: every copy finds what it should."""
    schedule = random_schedule(seed)
    if schedule is not None:
        assert execute(schedule, order.randrange) == canonical(schedule)


@pytest.mark.parametrize("last_first", [False, True])
@pytest.mark.parametrize("seed", [1, 4, 9, 22, 31])
def test_the_extremes_will_do_too(seed: int, last_first: bool) -> None:
    """Whoever can run runs as early as possible, or as late as possible."""
    schedule = random_schedule(seed)
    assert schedule is not None
    assert execute(schedule, lambda count: count - 1 if last_first else 0) == canonical(schedule)


def test_no_dependency_is_superfluous() -> None:
    """Whatever is left out of the ``after`` of a job, `check` notices."""
    left_out = 0
    for seed in range(60, 100):
        schedule = random_schedule(seed)
        for step in () if schedule is None else schedule.steps:
            for job in step.jobs:
                for name in job.after:
                    if left_out % 7 == 0:  # each check reads the whole schedule
                        with pytest.raises(UserError, match=f"job {job.job}: after is without "):
                            check(dropped(schedule, job.job, name))
                    left_out += 1
    assert left_out > 200


def test_recording_changes_nothing() -> None:
    """A run with a recorder is the run without it."""
    for seed in range(100, 120):
        trace, wanted = random_world(seed)
        wanted = wanted.model_copy(update={"debug": False})
        data = wanted.model_copy(update={"engine": wanted.engine.model_copy(update={"kind": "reference"})})
        _, record, _ = exported(trace, wanted)
        plain = Simulation(resolve(data, trace)).run()
        assert list(map(as_row, record.requests)) == list(map(as_row, plain.requests))
        assert as_row(record.totals) == as_row(plain.totals)
        assert list(map(as_row, record.tiers)) == list(map(as_row, plain.tiers))


@pytest.mark.parametrize("seed", range(120, 150))
def test_parts_hold_together(seed: int) -> None:
    """A part by time, by request or by bytes can be run by itself; so can smaller and fewer blocks."""
    schedule = random_schedule(seed)
    if schedule is None:
        return
    rng = random.Random(seed)
    times = [step.start_ns for step in schedule.steps if step.jobs]
    requests = sorted({job.request for step in schedule.steps for job in step.jobs if job.request})
    parts = [cut(schedule, start_ns=rng.choice(times)), cut(schedule, end_ns=rng.choice(times) + 1)]
    parts.append(cut(schedule, max_bytes=schedule.bytes // 2 + max(map(_bytes, schedule.steps))))
    if requests:
        parts += [cut(schedule, requests=[name]) for name in rng.sample(requests, min(2, len(requests)))]
        parts.append(cut(parts[0], requests=None, max_bytes=schedule.bytes))
    for part in parts:
        for changed in (part, compacted(part), scaled(compacted(part), 10**6)):
            check(changed)
            assert execute(changed, rng.randrange) == canonical(changed)
    assert ordered(schedule.steps) == list(schedule.steps)


def _bytes(step: Step) -> int:
    return sum(job.bytes for job in step.jobs)
