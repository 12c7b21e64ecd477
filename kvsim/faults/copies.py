"""Copies between GPU and CPU memory that fail or never end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kvsim.clock import Clock
from kvsim.connectors.base import Copier, CopyJob, Direction, WorkerDiedError
from kvsim.faults.hazard import Hazard
from kvsim.results.records import FaultTotals


class FaultyCopier:
    """A copier some of whose copies go wrong.

    A block that is lost costs the time of the copy all the same; of a load it is reported as invalid, a store fails as
    a whole. A stalled job moves nothing and holds up its stream, which is in order, until the deadline, when it counts
    as failed; without a deadline, for ever. vLLM 0.33.0 and 0.23.0 have no deadline (vllm#49829 asks for one of 60 s),
    and their own workers assert that copies succeed: there a reported failure ends the engine.

    Args:
        copier: what moves the bytes.
        losses: per direction, of blocks (by number: of whole jobs).
        stalls: per direction, of jobs.
        deadline_ns: 0 = none.
        is_fatal: a failed copy ends the engine when it is reported, as in vLLM's own connectors.
        wake: called when a job is over without the copier's help.
    """

    def __init__(
        self,
        clock: Clock,
        copier: Copier,
        *,
        losses: dict[Direction, Hazard],
        stalls: dict[Direction, Hazard],
        deadline_ns: int,
        is_fatal: bool,
        totals: FaultTotals,
        wake: Callable[[], None],
    ) -> None:
        self._is_fatal = is_fatal
        self._clock, self._copier, self._losses, self._stalls = clock, copier, losses, stalls
        self._deadline_ns, self._totals, self._wake = deadline_ns, totals, wake
        self.memory_is_gone = False  # the CPU side: whatever is copied now is lost
        self._num_jobs: dict[Direction, int] = {"load": 0, "store": 0}
        self._stalled: dict[Direction, CopyJob | None] = {"load": None, "store": None}  # at the head of its stream
        self._behind: dict[Direction, deque[CopyJob]] = {"load": deque(), "store": deque()}
        self._will_stall: set[CopyJob] = set()
        self._moving: dict[CopyJob, None] = {}
        self._given_up: set[CopyJob] = set()

    def submit(self, job: CopyJob) -> None:
        """Queue the copy behind those of its direction, and throw the dice."""
        way = job.direction
        number = self._num_jobs[way]
        self._num_jobs[way] += 1
        everything = self.memory_is_gone or self._losses[way].names(number)
        job.failed_blocks.update(block for block in job.gpu_blocks if everything or self._losses[way].strikes())
        if self._stalls[way].names(number) or self._stalls[way].strikes():
            self._will_stall.add(job)
        if self._stalled[way] is None:
            self._start(job)
        else:
            self._behind[way].append(job)

    def _start(self, job: CopyJob) -> None:
        if job not in self._will_stall:
            self._moving[job] = None
            self._copier.submit(job)
            return
        self._will_stall.remove(job)
        self._stalled[job.direction] = job
        self._totals.stalled_jobs += 1
        if self._deadline_ns:
            self._clock.alarm(self._deadline_ns, lambda: self._give_up(job))

    def _give_up(self, job: CopyJob) -> None:
        """The deadline has passed: the job has failed, and its stream goes on."""
        way = job.direction
        if self._stalled[way] is not job:
            return  # its engine is gone
        self._totals.expired_jobs += 1
        job.failed_blocks.update(job.gpu_blocks)
        self._given_up.add(job)
        self._stalled[way] = None
        while self._behind[way] and self._stalled[way] is None:
            self._start(self._behind[way].popleft())
        self._wake()

    @property
    def num_behind(self) -> int:
        """Jobs that wait for a stalled one."""
        return sum(map(len, self._behind.values()))

    @property
    def num_stalled(self) -> int:
        """Jobs that make no progress, with those behind them."""
        return sum(job is not None for job in self._stalled.values()) + self.num_behind

    def lose_memory(self) -> None:
        """The CPU side is gone until further notice; what is moving is lost."""
        self.memory_is_gone = True
        for job in self._moving:
            if not self._copier.is_done(job):
                job.failed_blocks.update(job.gpu_blocks)

    def flush(self, job: CopyJob) -> None:
        """The engine is going to wait; a stalled copy does not care."""
        if job in self._moving:
            self._copier.flush(job)

    def is_done(self, job: CopyJob) -> bool:
        """Whether the copy is over, well or not."""
        return job in self._given_up or (job in self._moving and self._copier.is_done(job))

    def forget(self, job: CopyJob) -> None:
        """The job was reported: what it lost is counted."""
        if job.failed_blocks:
            if job.direction == "load":
                self._totals.failed_loads += 1
                self._totals.failed_load_blocks += len(job.failed_blocks)
            else:
                self._totals.failed_stores += 1
            if self._is_fatal:
                raise WorkerDiedError(f"{job.direction} {job.job_id} has failed")
        if job in self._moving:
            del self._moving[job]
            self._copier.forget(job)
        self._given_up.discard(job)

    def lose_engine(self) -> None:
        """The engine is gone, and its jobs are."""
        self._stalled = {"load": None, "store": None}
        self._behind = {"load": deque(), "store": deque()}
        self._will_stall, self._moving, self._given_up = set(), {}, set()

    def serve(self, copier: Copier) -> None:
        """A new engine has a new copier; numbers and dice go on."""
        self._copier = copier
