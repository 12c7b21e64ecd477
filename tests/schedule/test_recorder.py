"""What a run's exported schedule says about its copies, in random worlds."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schedule_world import WrongContentError, canonical, dropped, execute
from worlds import MS, TraceBuilder, config, random_config, random_trace

from kvsim.build import Simulation
from kvsim.config import RunConfig
from kvsim.resolve import Plan, resolve
from kvsim.results.records import RunRecord
from kvsim.results.schedule import Schedule, check, read_schedule, write_schedule
from kvsim.schedule_export import ScheduleExport
from kvsim.schedule_plan import check_exportable, schedule_of
from kvsim.trace.session import Trace


def exported(trace: Trace, wanted: RunConfig, **part: Any) -> tuple[Plan, RunRecord, Schedule | None]:
    """A run with its schedule, None if nothing was copied."""
    plan = resolve(wanted, trace, exports_schedule=True)
    check_exportable(plan)
    record = Simulation(plan).run()
    assert record.schedule is not None
    if not any(step.jobs for step in record.schedule):
        return plan, record, None
    return plan, record, schedule_of(plan, record.schedule, "digest", ScheduleExport(Path("unused"), **part))


def random_world(seed: int) -> tuple[Trace, RunConfig]:
    """A trace and a config that offloads, half of the time with a file system behind CPU memory."""
    rng = random.Random(seed)
    trace, wanted = random_trace(rng), random_config(rng)
    while wanted.connector.kind == "none":
        wanted = random_config(rng)
    data = wanted.model_dump(mode="json")
    if wanted.connector.kind == "offloading" and rng.random() < 0.5:
        size = rng.choice([{}, {"capacity": "100MB", "eviction": "lru"}])
        data["connector"]["store_threshold"] = 0
        data["connector"]["tiers"] = [
            {"kind": "fs", "storage": "nvme-gen4", "n_read_threads": rng.randint(1, 3), **size}
            for _ in range(rng.choice([1, 1, 2]))
        ]
    if rng.random() < 0.3:
        data["faults"] = {"aborts": {"rate": 0.4, "within": "80ms"}}
    return trace, RunConfig.model_validate(data)


def check_whole(plan: Plan, record: RunRecord, schedule: Schedule) -> None:
    """Every byte that the link has moved is in it, once, and all that tiers have moved."""
    blocks = Counter[str]()
    for step in schedule.steps:
        for job in step.jobs:
            blocks[job.direction] += len(job.source)
    totals, size = record.totals, plan.sizes.gpu_block_bytes
    assert (blocks["load"] * size, blocks["store"] * size) == (totals.h2d_bytes, totals.d2h_bytes)
    files = plan.sizes.block_bytes * plan.sizes.cpu_copies
    assert blocks["read"] * files == sum(tier.read_bytes for tier in record.tiers)
    assert blocks["write"] * files == sum(tier.write_bytes for tier in record.tiers)
    assert sum(bool(step.compute_ns) for step in schedule.steps) == totals.steps


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
