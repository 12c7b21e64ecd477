"""OffloadingConnector, worker side: when copies are submitted, and what the step has to wait for."""

from __future__ import annotations

from collections import deque
from operator import itemgetter

from kvsim.connectors.base import Copier, Direction, WorkerOutput
from kvsim.connectors.offloading import Job, OffloadingMeta


class OffloadingWorker:
    """Stores planned in one step are submitted at the start of the next, behind its forward pass; loads at once.

    Rules: vLLM 0.33.0 distributed/kv_transfer/kv_connector/v1/offloading/worker.py. 0.33.0 submits loads after it has
    launched the forward pass, and their stream waits for the compute stream (kv_offload/cpu/gpu_worker.py), so they
    begin when the pass has ended; the copier sees to that. 0.23.0 submits them before, and nothing holds them up.
    """

    def __init__(self, copier: Copier) -> None:
        self._copier = copier
        self._deferred: dict[int, Job] = {}
        self._num_submitted = 0
        self._open: dict[int, tuple[int, Job]] = {}  # in flight: job id -> (number of its submission, job)
        self._queues: dict[Direction, deque[Job]] = {"load": deque(), "store": deque()}
        self._flushed: list[Job] = []
        self._finished: list[tuple[int, Job]] = []  # to be reported

    def handle_preemptions(self, meta: OffloadingMeta) -> list[Job]:
        """Submit the deferred stores, and this step's own that must be flushed; returns the jobs to wait for."""
        for job_id in sorted(meta.flush):
            if (own := meta.stores.pop(job_id, None)) is not None:
                self._deferred[job_id] = own
        if self._deferred:
            self._submit(self._deferred)
        self._deferred = meta.stores
        if not meta.flush:
            return []
        waiting = [self._open[job_id][1] for job_id in sorted(meta.flush) if job_id in self._open]
        for job in waiting:
            self._copier.flush(job)
        self._flushed += waiting
        return waiting

    def start_load_kv(self, meta: OffloadingMeta) -> None:
        """Submit this step's loads."""
        if meta.loads:
            self._submit(meta.loads)

    def _submit(self, jobs: dict[int, Job]) -> None:
        for job in jobs.values():
            self._open[job.job_id] = (self._num_submitted, job)
            self._num_submitted += 1
            self._queues[job.direction].append(job)
            self._copier.submit(job)

    def is_done(self, job: Job) -> bool:
        """Whether the copy is complete."""
        return self._copier.is_done(job)

    def has_plans(self) -> bool:
        """Whether the next step will submit something that is planned already."""
        return bool(self._deferred)

    def has_finished_load(self) -> bool:
        """Whether a load has finished that was not reported yet."""
        self._collect()
        return any(job.direction == "load" for _, job in self._finished)

    def has_finished(self) -> bool:
        """Whether a job has finished that was not reported yet."""
        self._collect()
        return bool(self._finished)

    def get_finished(self) -> WorkerOutput:
        """Jobs complete since the last call, in the order of their submission."""
        self._collect()
        output = WorkerOutput()
        for _, job in sorted(self._finished, key=itemgetter(0)):
            self._copier.forget(job)
            output.jobs.append(job.job_id)
            output.take_failure(job)
            if job.direction == "load":
                output.received.append(job.request)
        self._finished = []
        return output

    def _collect(self) -> None:
        """Jobs of a direction finish in order, except for those that were flushed."""
        for queue in self._queues.values():
            while queue and (queue[0].job_id not in self._open or self._copier.is_done(queue[0])):
                self._finish(queue.popleft())
        if self._flushed:
            for job in self._flushed:
                if job.job_id in self._open and self._copier.is_done(job):
                    self._finish(job)
            self._flushed = [job for job in self._flushed if job.job_id in self._open]

    def _finish(self, job: Job) -> None:
        if job.job_id in self._open:
            self._finished.append(self._open.pop(job.job_id))


class OffloadingWorker023(OffloadingWorker):
    """0.23.0: a store is never submitted in the step that plans it, flush or not."""

    def handle_preemptions(self, meta: OffloadingMeta) -> list[Job]:
        own = meta.flush & meta.stores.keys()
        if own:
            meta = OffloadingMeta(meta.loads, meta.stores, meta.flush - own)
        return super().handle_preemptions(meta)
