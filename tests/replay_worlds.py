"""Random schedules, machines for tests, and copiers that do it wrong."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from schedule_world import header

from hwreplay.backends.base import Batch, Direction
from hwreplay.backends.host import HostBackend
from hwreplay.host_machine import HostMachine
from hwreplay.layout import PagedMemory
from hwreplay.machine import Compute, Machine, Memory, Stream
from kvsim.results.schedule import Header, Job, Layout, Schedule, Step, ordered

PAGE_LAYOUT = Layout("per_layer_kv", 2, 2, 64, "bfloat16", 4, 2, 2048)  # a block is a page


class QuickMachine(HostMachine):
    """Forward passes take no time and write little of large pieces, and nothing is calibrated."""

    head_bytes = 64

    def calibrate(self, kind: Compute, memory: Memory, paged: PagedMemory) -> dict[str, int]:
        return {}

    def occupy(self, stream: Stream, ns: int, kind: Compute = "gemm") -> None:
        pass


def random_schedule(seed: int, steps: int = 30, *, layout: Layout = PAGE_LAYOUT) -> Schedule:
    """Forward passes, stores, loads, writes and reads of random blocks; dependencies are found by `ordered`."""
    rng = random.Random(seed)
    of_all: Header = header(layout=layout, gpu_blocks=12, host_blocks=10)
    gpu: dict[int, int] = {}
    host: dict[int, int] = {}
    files: dict[int, int] = {}
    made: list[Step] = []
    contents = jobs = 0
    for number in range(steps):
        submitted: list[Job] = []

        def job(direction: Any, sources: dict[int, int], targets: dict[int, int], ids: list[int]) -> None:
            nonlocal jobs
            if not sources or not ids:
                return
            chosen = rng.sample(sorted(sources), min(len(sources), len(ids), rng.randint(1, 4)))
            ids = ids[: len(chosen)]
            held = tuple(sources[block] for block in chosen)
            targets.update(zip(ids, held, strict=True))
            behind = {"store": "previous", "load": None}.get(direction)
            size = len(chosen) * layout.block_bytes
            submitted.append(  # noqa: B023 - called at once
                Job(jobs, direction, None, tuple(chosen), tuple(ids), held, behind, (), size, 0, None, 0)  # type: ignore[arg-type]
            )
            jobs += 1

        if rng.random() < 0.6:
            job("store", gpu, host, rng.sample(range(10), 4))
        if rng.random() < 0.3:
            job("write", host, files, [len(files) + each for each in range(4)])
        if rng.random() < 0.3:
            job("read", files, host, rng.sample(range(10), 4))
        if rng.random() < 0.6:
            job("load", host, gpu, rng.sample(range(12), 4))
        writes = {block: contents + place for place, block in enumerate(rng.sample(range(12), rng.randint(0, 3)))}
        contents += len(writes)
        gpu.update(writes)
        start = 10 * number
        compute = 10 if writes else 0
        made.append(Step(number, start, None, compute, start + compute, (), tuple(writes.items()), tuple(submitted)))
    return Schedule(of_all, ordered(made))


class Faulty:
    """The host backend, but `fault` sees each batch and the right way to copy it."""

    key, description, machine, way = "host", "", "host", "dma_batch"

    def __init__(self, fault: Callable[[int, Batch, Callable[[Batch], None]], None]) -> None:
        self._fault = fault
        self._count = -2  # two batches warm up

    def available(self) -> str | None:
        return None

    def open(self, machine: Machine) -> Faulty:
        self._copier = HostBackend().open(machine)
        return self

    def copy(self, stream: Stream, direction: Direction, batch: Batch, *, ordered: bool = False) -> None:
        if ordered:  # what is kept of a job is no job
            self._copier.copy(stream, direction, batch)
            return
        number, self._count = self._count, self._count + 1
        self._fault(number, batch, lambda some: self._copier.copy(stream, direction, some))

    def close(self) -> None:
        pass


def without_files(schedule: Schedule) -> Schedule:
    """The same without what goes to files and what came from there."""
    steps = [
        replace(step, jobs=tuple(job for job in step.jobs if job.direction in ("store", "load")), after=())
        for step in schedule.steps
    ]
    return Schedule(schedule.header, ordered(steps))
