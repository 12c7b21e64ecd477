"""Runs a schedule for real: the engine's thread of vLLM, without its model.

Step by step: jobs that need not wait for this forward pass are submitted, then the pass is launched, then the jobs
behind it; when it is done, finished jobs are looked for (as vLLM's get_finished does, nothing is told to the engine).
Copies of a direction run on one stream in order and loads and stores independently of each other. A step does not begin
before the passes are over that were over in the simulation, nor before `not_before_ns`; how long everything takes is up
to the machine. A load, and a job of files, is not submitted before the jobs are done that it waits for, as in vLLM,
whose engine knows when a block has arrived: batched loads may read their sources before their stream comes to them. A
store waits for copies on its stream. What cannot be submitted yet keeps back all later jobs of its direction.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hwreplay.backends.base import Batch, Copier
from hwreplay.file_tier import FileTier
from hwreplay.host_machine import HostMemory
from hwreplay.layout import PagedMemory
from hwreplay.machine import Compute, Event, Machine, Memory, Stream
from hwreplay.result import JobResult, StepResult
from hwreplay.witness import Witnesses
from kvsim.results.schedule import Direction, Job, Schedule, Step, in_order

_NAP_S = 0.001  # between two looks at running jobs while the engine has nothing to do
_STREAMS: tuple[Direction, ...] = ("store", "load")


@dataclass(slots=True)
class Pools:
    """Both sides' memory and how blocks lie in it."""

    gpu: Memory
    gpu_paged: PagedMemory
    host: HostMemory
    host_paged: PagedMemory


@dataclass(slots=True)
class _Submitted:
    job: Job
    submitted_ns: int
    submit_ns: int
    start: Event
    end: Event
    sealed: Event  # from now on its blocks may be touched
    descriptors: int
    descriptor_bytes: int
    noticed_ns: int = 0


@dataclass(slots=True)
class _Pass:
    step: Step
    start: Event
    end: Event


class Replay:
    """One run of one schedule.

    Args:
        schedule: checked (`kvsim.results.schedule.check`), and small enough for the pools.
        machine: where it runs.
        copier: copies between the pools.
        pools: hold what `initial` says already.
        files: for jobs of files; None if there are none.
        compute: kind of work that stands for the forward passes.
        salt: of the patterns.
        witnesses: keep words of every copy; None = they are not kept.
    """

    def __init__(
        self,
        schedule: Schedule,
        machine: Machine,
        copier: Copier,
        pools: Pools,
        files: FileTier | None = None,
        compute: Compute = "gemm",
        salt: int = 0,
        witnesses: Witnesses | None = None,
    ) -> None:
        self._schedule = schedule
        self._machine = machine
        self._copier = copier
        self._pools = pools
        self._files = files
        self._kind: Compute = compute
        self._salt = salt
        self._witnesses = witnesses
        self._compute = machine.stream("compute")
        self._streams: dict[Direction, Stream] = {name: machine.stream(name) for name in _STREAMS}
        self._sizes = np.full(1, pools.gpu_paged.piece_bytes, dtype=np.uint64)
        self._jobs: dict[int, _Submitted] = {}
        self._held: dict[Direction, deque[tuple[Job, Event | None]]] = {
            "store": deque(), "load": deque(), "write": deque(), "read": deque(),
        }  # fmt: skip
        self._running: list[_Submitted] = []
        self._passes: dict[int, _Pass] = {}
        self._last: Event | None = None  # end of the pass that was launched last

    def run(self) -> tuple[tuple[StepResult, ...], tuple[JobResult, ...]]:
        """Run it to the end; times are relative to the start of the first step.

        Raises:
            Exception: whatever went wrong on a stream.
        """
        steps = self._schedule.steps
        zero_ns = self._machine.now_ns()
        idle_ns: dict[int, int] = {}  # moments of steps without a pass
        open_passes: deque[Step] = deque()
        for step in steps:
            ahead = int(_only_computes(step))
            while len(open_passes) > ahead and open_passes[0].end_ns <= step.start_ns:
                self._passes[open_passes.popleft().step].end.wait()
                self._poll()
            if step.not_before_ns is not None:
                self._pause(zero_ns + step.not_before_ns - steps[0].start_ns)
            previous, launched = self._last, False
            for job in in_order(step):
                if job is None:
                    self._complete(step.after)
                    launched = self._launch(step)
                    continue
                behind = {"previous": previous, "this": self._last, None: None}[job.behind]
                self._held[job.direction].append((job, behind))
                self._submit_held()
            if launched:
                open_passes.append(step)
            else:
                idle_ns[step.step] = self._machine.now_ns() - zero_ns
                self._poll()
        self._complete(job.job for step in steps for job in step.jobs)
        if self._last is not None:
            self._last.wait()
        return (
            tuple(self._step_result(step, zero_ns, idle_ns) for step in steps),
            tuple(self._job_result(self._jobs[job.job], zero_ns) for step in steps for job in step.jobs),
        )

    # -- forward passes
    def _launch(self, step: Step) -> bool:
        """Queue a forward pass, which writes its blocks and then computes for the rest of its time."""
        writes = dict(step.writes)
        if not step.compute_ns and not writes:
            return False
        start = self._compute.record()
        rest_ns = step.compute_ns
        if writes:
            heads = self._pools.gpu_paged.heads(self._machine.head_bytes)
            self._machine.fill(self._compute, self._pools.gpu, heads, writes, self._salt)
            rest_ns -= self._machine.fill_ns(len(writes) * heads.block_bytes)
        if rest_ns > 0:
            self._machine.occupy(self._compute, rest_ns, self._kind)
        self._last = self._compute.record()
        self._passes[step.step] = _Pass(step, start, self._last)
        return True

    def _pause(self, until_ns: int) -> None:
        """The engine has nothing to do, but looks at running jobs."""
        while (left_ns := until_ns - self._machine.now_ns()) > 0:
            time.sleep(min(left_ns / 10**9, _NAP_S) if self._running else left_ns / 10**9)
            self._poll()

    # -- jobs
    def _submit_held(self) -> None:
        """Submit what can be; a job that cannot keeps the later ones of its direction back."""
        progress = True
        while progress:
            progress = False
            for direction, held in self._held.items():
                if direction in _STREAMS:
                    while held and self._can_be_submitted(held[0][0]):
                        self._copy(*held.popleft())
                        progress = True
                else:  # files have no order
                    for entry in [each for each in held if self._can_be_submitted(each[0])]:
                        held.remove(entry)
                        self._file_job(entry[0])
                        progress = True

    def _can_be_submitted(self, job: Job) -> bool:
        return all(self._is_behind(job, number) for number in job.after)

    def _is_behind(self, job: Job, number: int) -> bool:
        """Whether what a job waits for is done, or its stream can wait for it."""
        first = self._jobs.get(number)
        if first is None:
            return False
        return (job.direction == "store" and first.job.direction in _STREAMS) or first.sealed.done()

    def _copy(self, job: Job, behind: Event | None) -> None:
        stream, pools = self._streams[job.direction], self._pools
        submitted_ns = self._machine.now_ns()
        for event in [behind, *(self._jobs[number].sealed for number in job.after)]:
            if event is not None and not event.done():
                stream.wait(event)
        start = stream.record()
        on_gpu, on_host = (job.source, job.destination) if job.direction == "store" else (job.destination, job.source)
        gpu = pools.gpu_paged.descriptors(pools.gpu.address, on_gpu)
        host = pools.host_paged.descriptors(pools.host.address, on_host)
        sizes = np.repeat(self._sizes, len(gpu))
        if job.direction == "store":
            self._copier.copy(stream, "d2h", Batch(gpu, host, sizes))
        else:
            self._copier.copy(stream, "h2d", Batch(host, gpu, sizes))
        end = stream.record()
        submit_ns = self._machine.now_ns() - submitted_ns
        sealed = end
        if self._witnesses is not None:
            self._witnesses.keep(job, stream, self._copier)
            sealed = stream.record()
        piece_bytes = pools.gpu_paged.piece_bytes
        self._started(_Submitted(job, submitted_ns, submit_ns, start, end, sealed, len(gpu), piece_bytes))

    def _file_job(self, job: Job) -> None:
        assert self._files is not None, "a schedule with jobs of files needs a file tier"
        submitted_ns = self._machine.now_ns()
        if job.direction == "write":
            start, end = self._files.submit("write", self._pools.host, job.source, job.destination)
        else:
            start, end = self._files.submit("read", self._pools.host, job.destination, job.source)
        submit_ns = self._machine.now_ns() - submitted_ns
        block_bytes = self._pools.host_paged.block_bytes
        self._started(_Submitted(job, submitted_ns, submit_ns, start, end, end, len(job.source), block_bytes))

    def _started(self, submitted: _Submitted) -> None:
        self._jobs[submitted.job.job] = submitted
        self._running.append(submitted)

    def _poll(self) -> None:
        """Notice what is finished, and submit what that lets go."""
        now_ns = self._machine.now_ns()
        running = []
        for each in self._running:
            if each.sealed.done():
                each.noticed_ns = now_ns
                each.sealed.wait()  # raises what went wrong
            else:
                running.append(each)
        self._running = running
        self._submit_held()

    def _complete(self, jobs: Iterable[int]) -> None:
        """Block until these are done, sleeping on whatever they wait for."""
        for number in jobs:
            while (submitted := self._jobs.get(number)) is None or not submitted.noticed_ns:
                if (blocker := self._blocker(number)) is not None:
                    blocker.wait()
                self._poll()

    def _blocker(self, number: int) -> Event | None:
        """Something that has to happen before a job can be done; None if it has happened meanwhile."""
        while (submitted := self._jobs.get(number)) is None:
            job = self._held_job(number)
            first = next((first for first in job.after if not self._is_behind(job, first)), None)
            if first is None:
                return None
            number = first
        return submitted.sealed

    def _held_job(self, number: int) -> Job:
        """The held job of this number, or the first of its direction, which keeps it back."""
        for direction, held in self._held.items():
            for job, _ in held:
                if job.job == number:
                    return held[0][0] if direction in _STREAMS else job
        raise AssertionError(f"job {number} was waited for before it was there")

    # -- results
    def _step_result(self, step: Step, zero_ns: int, idle_ns: dict[int, int]) -> StepResult:
        done = self._passes.get(step.step)
        if done is None:
            return StepResult(step.step, idle_ns[step.step], idle_ns[step.step], 0, 0)
        start_ns, end_ns = done.start.ns() - zero_ns, done.end.ns() - zero_ns
        return StepResult(step.step, start_ns, end_ns, step.compute_ns, end_ns - start_ns)

    @staticmethod
    def _job_result(done: _Submitted, zero_ns: int) -> JobResult:
        return JobResult(
            job=done.job.job,
            direction=done.job.direction,
            descriptors=done.descriptors,
            descriptor_bytes=done.descriptor_bytes,
            bytes=done.descriptors * done.descriptor_bytes,
            submit_ns=done.submit_ns,
            submitted_ns=done.submitted_ns - zero_ns,
            started_ns=done.start.ns() - zero_ns,
            finished_ns=done.end.ns() - zero_ns,
            noticed_ns=done.noticed_ns - zero_ns,
        )


def _only_computes(step: Step) -> bool:
    """Whether its pass may be launched while the one before is still running: nothing has to happen in between.

    The time that the host needs for a step is part of the pass's time already.
    """
    return not step.jobs and not step.after and step.not_before_ns is None


def makespan_ns(steps: Sequence[StepResult], jobs: Sequence[JobResult]) -> int:
    """From the start of the first step to the end of everything."""
    return max([0, *(step.end_ns for step in steps), *(job.finished_ns for job in jobs)])
