"""Runs whose copies are recorded: worlds by a seed, and what must hold of their schedules."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

from worlds import random_config, random_trace

from kvsim.build import Simulation
from kvsim.config import RunConfig
from kvsim.errors import UserError
from kvsim.resolve import Plan, resolve
from kvsim.results.records import RunRecord
from kvsim.results.schedule import Schedule
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


def random_schedule(seed: int) -> Schedule | None:
    """Of a random world; None if nothing was copied, or the simulation came to a stand."""
    try:
        return exported(*random_world(seed))[2]
    except UserError as error:
        if "when the simulation was stopped" not in str(error):
            raise
        return None


def random_world(seed: int) -> tuple[Trace, RunConfig]:
    """A trace and a config that offloads, often with a file system or two behind little CPU memory."""
    rng = random.Random(seed)
    trace, wanted = random_trace(rng), random_config(rng)
    while wanted.connector.kind == "none":
        wanted = random_config(rng)
    data = wanted.model_dump(mode="json")
    if wanted.connector.kind == "offloading" and rng.random() < 0.6:
        size = rng.choice([{}, {}, {"capacity": "100MB", "eviction": "lru"}])
        data["connector"]["store_threshold"] = 0
        data["connector"]["cpu_bytes_to_use"] = f"{rng.choice([60, 70, 100]) * 2}MiB"
        data["connector"]["tiers"] = [
            {"kind": "fs", "storage": "nvme-gen4", "n_read_threads": rng.randint(1, 3), **size}
            for _ in range(rng.choice([1, 1, 2]))
        ]
    if rng.random() < 0.3:
        data["faults"] = {"aborts": {"rate": 0.4, "within": "80ms"}}
    return trace, RunConfig.model_validate(data)


def check_whole(plan: Plan, record: RunRecord, schedule: Schedule) -> None:
    """Every byte that the link has moved is in it, once, and all that tiers have moved; every forward pass too."""
    blocks = Counter[str]()
    for step in schedule.steps:
        for job in step.jobs:
            blocks[job.direction] += len(job.source)
    totals, size = record.totals, plan.sizes.gpu_block_bytes
    assert (blocks["load"] * size, blocks["store"] * size) == (totals.h2d_bytes, totals.d2h_bytes)
    assert blocks["read"] * size == sum(tier.read_bytes for tier in record.tiers)
    assert blocks["write"] * size == sum(tier.write_bytes for tier in record.tiers)
    assert sum(bool(step.compute_ns) for step in schedule.steps) == totals.steps
