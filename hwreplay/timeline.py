"""When forward passes and copies ran: as simulated, as predicted by a link profile, and as measured.

All times are ns since the start of the first step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hwreplay.intervals import Covered
from hwreplay.result import JobDirection, RunResult
from kvsim.results.schedule import Schedule


@dataclass(frozen=True, slots=True)
class PassTime:
    """A forward pass."""

    step: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class JobTime:
    """A copy: from when it began on its stream until its last byte had moved."""

    job: int
    direction: JobDirection
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """What ran when.

    Attributes:
        passes: by number of the step, in order; steps without a forward pass are left out.
        jobs: by number, in order; those whose start nobody knows are left out.
        makespan_ns: from the start of the first step to the end of the last step or job.
    """

    passes: Mapping[int, PassTime]
    jobs: Mapping[int, JobTime]
    makespan_ns: int

    def hidden_ns(self) -> tuple[float, int]:
        """Time during which copies between GPU and host ran beside a forward pass, and their time in all."""
        computing = Covered((each.start_ns, each.end_ns) for each in self.passes.values())
        copies = [job for job in self.jobs.values() if job.direction in ("load", "store")]
        hidden = sum(computing.within(job.start_ns, job.end_ns) for job in copies)
        return hidden, sum(job.end_ns - job.start_ns for job in copies)

    def hidden_share(self) -> float | None:
        """Share of the copies' time that forward passes hide; None without copies."""
        hidden, whole = self.hidden_ns()
        return hidden / whole if whole else None


def simulated(schedule: Schedule) -> Timeline:
    """What kvsim predicted when it wrote the schedule.

    A step says when it was decided; its forward pass began when the one before had ended and the jobs that it waits
    for were complete.
    """
    origin = schedule.steps[0].start_ns if schedule.steps else 0
    finished: dict[int, int] = {}
    passes: dict[int, PassTime] = {}
    jobs: dict[int, JobTime] = {}
    before = last = 0
    for step in schedule.steps:
        for job in step.jobs:
            finished[job.job] = job.finished_ns - origin
            last = max(last, finished[job.job])
            if job.started_ns is not None:
                jobs[job.job] = JobTime(job.job, job.direction, job.started_ns - origin, finished[job.job])
        end = step.end_ns - origin
        last = max(last, end)
        if step.compute_ns:
            ready = max([before, step.start_ns - origin, *(finished[job] for job in step.after)])
            passes[step.step] = PassTime(step.step, min(ready, end), end)
            before = end
    return Timeline(passes, jobs, last)


def measured(result: RunResult) -> Timeline:
    """What a replay measured."""
    passes = {step.step: PassTime(step.step, step.start_ns, step.end_ns) for step in result.steps if step.compute_ns}
    jobs = {job.job: JobTime(job.job, job.direction, job.started_ns, job.finished_ns) for job in result.jobs}
    return Timeline(passes, jobs, result.makespan_ns)
