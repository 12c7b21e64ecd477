"""Schedules on a link profile: literal times of streams, shares, slow-down and waits."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import known_schedule as known
from worlds import random_config, random_trace

from hwreplay.predict import predict
from hwreplay.timeline import Timeline, simulated
from kvsim.build import Simulation
from kvsim.checked import check
from kvsim.errors import UserError
from kvsim.profile import LinkProfile, Pieces, load_link
from kvsim.resolve import resolve
from kvsim.results.schedule import Schedule
from kvsim.schedule_export import ScheduleExport
from kvsim.schedule_plan import schedule_of
from kvsim.yamlfile import Document


def flat(total: str = "2GB/s", slowdown: float = 1.0) -> LinkProfile:
    """1 GB/s each way without submit: a block of 128 bytes takes 128 ns."""

    def path() -> dict[str, object]:
        known_rate = {"value": "1GB/s", "source": "test"}
        return {
            "path": "dma_batch", "submit": {"value": "0ns", "source": "test"}, "peak": known_rate,
            "per_descriptor": {"value": "0ns", "source": "test"},
        }  # fmt: skip

    document = {
        "name": "flat", "kind": "shipped", "device": "test", "driver": "none", "date": "2026-11-29", "method": "test",
        "h2d": path(), "d2h": path(), "duplex": {"total": {"value": total, "source": "test"}},
        "compute_slowdown": {"value": slowdown, "source": "test"}, "host_dram": None, "numa": "none",
    }  # fmt: skip
    return check(LinkProfile, Document("flat", document))


def times(line: Timeline) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """(start, end) of passes and of jobs."""
    return (
        [(each.start_ns, each.end_ns) for each in line.passes.values()],
        [(each.start_ns, each.end_ns) for each in line.jobs.values()],
    )


def test_alone_and_in_order() -> None:
    """Loads run one after another beside the passes; a pass waits for the load that it needs."""
    steps = [
        known.step(0, 0, 100, known.job(0, "load", 0, 1), known.job(1, "load", 0, 1)),
        known.step(1, 100, 200, after=(1,)),
    ]
    assert times(predict(Schedule(known.header(), steps), flat(), "dma_batch")) == (
        [(0, 100), (256, 356)],
        [(0, 128), (128, 256)],
    )


def test_both_directions_share() -> None:
    """At 1 GB/s for both each runs at half its speed while the other runs."""
    steps = [known.step(0, 0, 100, known.job(0, "load", 0, 1, 2), known.job(1, "store", 0, 1))]
    line = predict(Schedule(known.header(), steps), flat("1GB/s"), "dma_batch")
    assert times(line)[1] == [(0, 384), (0, 256)]  # the load has 128 ns of work left when the store ends
    assert line.makespan_ns == 384


def test_copies_slow_passes_down() -> None:
    """A pass of 200 ns beside a copy of 128 ns at a factor of 1.25 does 102.4 ns of its work meanwhile."""
    steps = [known.step(0, 0, 200, known.job(0, "load", 0, 1))]
    assert times(predict(Schedule(known.header(), steps), flat(slowdown=1.25), "dma_batch"))[0] == [(0, 226)]


def test_behind_and_after() -> None:
    """A store waits for the pass before, a job behind this pass for it, one after a job for that job."""
    steps = [
        known.step(0, 0, 100),
        known.step(1, 50, 200, known.job(0, "store", 0, 1, behind="previous"), compute=100),  # decided at 50
        known.step(2, 200, 300, known.job(1, "load", 0, 1, behind="this", after=(0,)), compute=100),
        known.step(3, 300, 300, known.job(2, "read", 0, 40, after=(1,)), compute=0),
    ]
    found = times(predict(Schedule(known.header(), steps), flat(), "dma_batch"))
    assert found == ([(0, 100), (100, 200), (200, 300)], [(100, 228), (300, 428), (428, 468)])


def test_idle_engine() -> None:
    """A step does not begin before its requests were there; nothing else is waited for."""
    steps = [known.step(0, 1000, 1100), known.step(1, 5000, 5100, not_before_ns=4000)]
    assert times(predict(Schedule(known.header(), steps), flat(), "dma_batch"))[0] == [(0, 100), (3000, 3100)]


def test_the_descriptors_of_a_replay() -> None:
    """Descriptors that were replayed replace those of the layout."""
    steps = [known.step(0, 0, 100, known.job(0, "load", 0, 1))]
    line = predict(Schedule(known.header(), steps), flat(), "dma_batch", {0: Pieces(500, 2)})
    assert times(line)[1] == [(0, 1000)]


def test_a_lifelike_schedule_gives_its_own_times() -> None:
    """What a profile predicts, written into the schedule as simulated, is read back as the same timeline."""
    profile = load_link("pcie5-h100")
    schedule = known.lifelike(profile, 80)
    again, read = predict(schedule, profile, "dma_batch"), simulated(schedule)
    assert again.jobs == read.jobs
    assert again.passes == read.passes


@pytest.mark.parametrize("seed", [1, 4, 7, 13, 29, 43, 53, 64, 69, 80, 94, 115])
def test_what_kvsim_simulates(seed: int) -> None:
    """A run's schedule, played on the run's link profile, gives its own times of each copy and each pass."""
    rng = random.Random(seed)
    trace, config = random_trace(rng), random_config(rng)
    plan = resolve(config, trace, exports_schedule=True)
    steps = Simulation(plan).run().schedule
    assert steps
    schedule = schedule_of(plan, steps, "digest", ScheduleExport(Path("unused")))
    assert schedule.num_jobs
    played, run = predict(schedule, plan.link, "dma_batch"), simulated(schedule)
    assert played.makespan_ns == run.makespan_ns
    assert played.jobs == run.jobs
    assert played.passes == run.passes


def test_refused() -> None:
    """A way that the profile does not know, and a wait that never ends."""
    with pytest.raises(UserError, match="link profile flat has no section kernel"):
        predict(known.small(), flat(), "kernel")
    schedule = known.small()
    steps = [*schedule.steps[:3], replace(schedule.steps[3], after=(99,))]
    with pytest.raises(UserError, match="step 3 waits for what never comes"):
        predict(replace(schedule, steps=steps), flat(), "dma_batch")
