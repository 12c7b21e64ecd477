"""OffloadingConnector, worker side: when copies are submitted, and what the step has to wait for."""

from __future__ import annotations

from kvsim.connectors.base import Copier, WorkerOutput
from kvsim.connectors.offloading import Job, OffloadingMeta


class OffloadingWorker:
    """Stores planned in one step are submitted at the start of the next, behind its forward pass; loads at once.

    Rules: vLLM 0.33.0 distributed/kv_transfer/kv_connector/v1/offloading/worker.py. 0.33.0 starts loads after it has
    launched the forward pass; the launch takes host time that nobody has published, so both start together here.
    """

    def __init__(self, copier: Copier) -> None:
        self._copier = copier
        self._deferred: dict[int, Job] = {}
        self._in_flight: dict[int, Job] = {}  # in order of submission

    def handle_preemptions(self, meta: OffloadingMeta) -> list[Job]:
        """Submit the deferred stores, and this step's own that must be flushed; returns the jobs to wait for."""
        for job_id in sorted(meta.flush):
            if (own := meta.stores.pop(job_id, None)) is not None:
                self._deferred[job_id] = own
        self._submit(self._deferred)
        waiting = [self._in_flight[job_id] for job_id in sorted(meta.flush) if job_id in self._in_flight]
        for job in waiting:
            self._copier.flush(job)
        self._deferred = meta.stores
        return waiting

    def start_load_kv(self, meta: OffloadingMeta) -> None:
        """Submit this step's loads."""
        self._submit(meta.loads)

    def _submit(self, jobs: dict[int, Job]) -> None:
        for job in jobs.values():
            self._in_flight[job.job_id] = job
            self._copier.submit(job)

    def is_done(self, job: Job) -> bool:
        """Whether the copy is complete."""
        return self._copier.is_done(job)

    def has_finished(self) -> bool:
        """Whether a job has finished that was not reported yet."""
        return any(self._copier.is_done(job) for job in self._in_flight.values())

    def get_finished(self) -> WorkerOutput:
        """Jobs complete since the last call, in the order of their submission."""
        output = WorkerOutput()
        if self._in_flight:
            output.jobs = [job_id for job_id, job in self._in_flight.items() if self._copier.is_done(job)]
            for job_id in output.jobs:
                job = self._in_flight.pop(job_id)
                self._copier.forget(job)
                if job.direction == "load":
                    output.received.append(job.request)
        return output


class OffloadingWorker023(OffloadingWorker):
    """0.23.0: a store is never submitted in the step that plans it, flush or not."""

    def handle_preemptions(self, meta: OffloadingMeta) -> list[Job]:
        own = meta.flush & meta.stores.keys()
        if own:
            meta = OffloadingMeta(meta.loads, meta.stores, meta.flush - own)
        return super().handle_preemptions(meta)
