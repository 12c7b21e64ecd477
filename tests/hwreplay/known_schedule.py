"""Schedules by hand, and replays of them that took known times."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import known_machine as machine

from hwreplay.compare import sha256_of
from hwreplay.predict import predict
from hwreplay.result import JobResult, RunResult, StepResult, write_run
from hwreplay.timeline import Timeline
from kvsim.profile import LinkProfile
from kvsim.results.schedule import Header, Job, Layout, Schedule, Step, Way, write_schedule

LAYOUT = Layout("per_layer_kv", 2, 1, 4, "bfloat16", 4, 2, 64)  # a block is 2 pieces of 64 bytes
LLAMA = Layout("per_layer_kv", 32, 8, 128, "bfloat16", 16, 32, 65536)


def header(layout: Layout = LAYOUT, **changes: Any) -> Header:
    """Of pools that are large enough."""
    found = Header(
        run="by-hand", kvsim="0.0.1", digest="d", model="tiny", vllm_version="0.33.0", gpu="h100-sxm",
        link="pcie5-h100", rank=0, tensor_parallel_size=1, layout=layout, gpu_blocks=100_000, host_blocks=100_000,
        way=Way("dma_batch", "dma_batch"),
    )  # fmt: skip
    return replace(found, **changes)


def job(
    number: int, direction: Any, start: int | None, end: int, blocks: int = 1, layout: Layout = LAYOUT, **more: Any
) -> Job:
    """A job that was simulated to run from start to end."""
    ids = tuple(range(blocks))
    submitted = 0 if start is None else start
    values: dict[str, Any] = {
        "request": None, "behind": None, "after": (), "submitted_ns": submitted, "started_ns": start,
        "finished_ns": end,
    } | more  # fmt: skip
    return Job(job=number, direction=direction, source=ids, destination=ids, contents=ids,
               bytes=blocks * layout.block_bytes, **values)  # fmt: skip


def step(number: int, start: int, end: int, *jobs: Job, compute: int | None = None, **more: Any) -> Step:
    """A step whose pass takes all of its time."""
    values: dict[str, Any] = {"not_before_ns": None, "after": (), "writes": ()} | more
    return Step(step=number, start_ns=start, end_ns=end, compute_ns=end - start if compute is None else compute,
                jobs=jobs, **values)  # fmt: skip


def small() -> Schedule:
    """Four passes of 100 ns from 1000 on; a store and a load beside the second, a file written beside the third."""
    return Schedule(
        header(),
        [
            step(0, 1000, 1100),
            step(1, 1100, 1200, job(0, "store", 1100, 1150, 2, behind="previous"), job(1, "load", 1100, 1180)),
            step(2, 1200, 1300, job(2, "write", 1200, 1280, after=(0,))),
            step(3, 1300, 1400, after=(1,)),
        ],
    )


def save(folder: Path, schedule: Schedule, name: str = "s.jsonl") -> Path:
    """Write a schedule."""
    folder.mkdir(parents=True, exist_ok=True)
    write_schedule(folder / name, schedule)
    return folder / name


def replayed(
    schedule: Schedule, times: Timeline, sha256: str, noise: Callable[[int], int] = machine.exact, **more: Any
) -> RunResult:
    """A replay in which everything began as in ``times`` and lasted as long, give or take."""
    layout = schedule.header.layout
    blocks = {job.job: len(job.source) for step in schedule.steps for job in step.jobs}
    jobs = []
    for number, each in times.jobs.items():
        count = blocks[number] * layout.pieces
        end = each.start_ns + noise(each.end_ns - each.start_ns)
        jobs.append(
            JobResult(number, each.direction, count, layout.piece_bytes, count * layout.piece_bytes, 1, each.start_ns,
                      each.start_ns, end, end)
        )  # fmt: skip
    steps = []
    for each_step in schedule.steps:
        done = times.passes.get(each_step.step)
        if done is None:
            steps.append(StepResult(each_step.step, 0, 0, 0, 0))
        else:
            took = noise(done.end_ns - done.start_ns)
            steps.append(StepResult(each_step.step, done.start_ns, done.start_ns + took, each_step.compute_ns, took))
    return machine.run(jobs, steps, sha256=sha256, **more)


def save_replays(folder: Path, path: Path, results: Sequence[RunResult]) -> list[Path]:
    """Write replays of a schedule's file."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, result in enumerate(results):
        paths.append(folder / f"run-{number}.json")
        write_run(paths[-1], replace(result, schedule=replace(result.schedule, sha256=sha256_of(path))))
    return paths


def lifelike(profile: LinkProfile, steps: int = 300, seed: int = 3) -> Schedule:
    """A lifelike schedule of Llama-3.1-8B: stores of some blocks behind each pass, now and then a long load."""
    rng = random.Random(seed)
    made: list[Step] = []
    number = 0
    due: dict[int, int] = {}  # step: load that it waits for
    for place in range(steps):
        jobs: list[Job] = []
        if place and rng.random() < 0.7:
            blocks = rng.choice((1, 2, 4, 8, 64, 128, 256))
            jobs.append(job(number, "store", 0, 1, blocks, LLAMA, behind="previous"))
            number += 1
        if rng.random() < 0.2:
            jobs.append(job(number, "load", 0, 1, int(2 ** rng.uniform(3, 10)), LLAMA))
            due[place + rng.randint(1, 4)] = number
            number += 1
        compute = round(rng.choice((8e6, 9e6, 40e6)) * rng.uniform(0.9, 1.1))
        after = (due[place],) if place in due else ()
        made.append(step(place, place, place + 1, *jobs, compute=compute, after=after))
    # steps one after another, then each with the time that the profile gives it
    draft = Schedule(header(LLAMA), made)
    return timed(draft, predict(draft, profile, "dma_batch"))


def timed(schedule: Schedule, times: Timeline) -> Schedule:
    """The schedule with these simulated times."""
    steps, before = [], 0
    for each in schedule.steps:
        end = times.passes[each.step].end_ns
        jobs = tuple(
            replace(job, submitted_ns=before, started_ns=times.jobs[job.job].start_ns,
                    finished_ns=times.jobs[job.job].end_ns)
            for job in each.jobs
        )  # fmt: skip
        steps.append(replace(each, start_ns=before, end_ns=end, jobs=jobs))
        before = end
    return Schedule(schedule.header, steps)
