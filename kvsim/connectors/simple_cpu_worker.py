"""SimpleCPUOffloadConnector, worker side: one event per step and direction."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from kvsim.connectors.base import Copier, CopyJob, WorkerOutput
from kvsim.connectors.simple_cpu import SimpleCPUMeta
from kvsim.request import Request


@dataclass(eq=False, slots=True)
class _EventJob(CopyJob):
    requests: list[Request]


class SimpleCPUOffloadWorker:
    """Loads are launched with the forward pass, stores behind it, each direction in order, nothing deferred.

    Rules: vLLM 0.33.0 v1/simple_kv_offload/worker.py and copy_backend.py.
    """

    def __init__(self, copier: Copier) -> None:
        self._copier = copier
        self._loads: deque[_EventJob] = deque()
        self._stores: deque[_EventJob] = deque()
        self._store: _EventJob | None = None  # of this step, launched after its forward pass
        # vLLM reports finished stores in the iteration order of a set of event numbers, which orders frees. The same
        # additions and removals on a real set give the same order in every CPython.
        self._open_stores: set[int] = set()

    def handle_preemptions(self, meta: SimpleCPUMeta) -> list[_EventJob]:
        """After a preemption everything in flight must be complete first (this step's copies are launched later)."""
        waiting = [*self._loads, *self._stores] if meta.need_flush else []
        for job in waiting:
            self._copier.flush(job)
        return waiting

    def start_load_kv(self, meta: SimpleCPUMeta) -> None:
        """Launch this step's loads."""
        if meta.load_event >= 0:
            job = _EventJob(meta.load_event, "load", *meta.load, meta.load_requests)
            self._loads.append(job)
            self._copier.submit(job)
        self._store = None
        if meta.store_event >= 0:
            self._store = _EventJob(meta.store_event, "store", *meta.store, [])

    def is_done(self, job: CopyJob) -> bool:
        """Whether the event has happened."""
        return self._copier.is_done(job)

    def has_finished(self) -> bool:
        """Whether an event has happened that was not reported yet; a store to launch counts, it may be instant."""
        return self._store is not None or any(
            queue and self._copier.is_done(queue[0]) for queue in (self._loads, self._stores)
        )

    def get_finished(self) -> WorkerOutput:
        """Launch this step's store, then report."""
        if self._store is not None:
            self._stores.append(self._store)
            self._open_stores.add(self._store.job_id)
            self._copier.submit(self._store)
            self._store = None
        output = WorkerOutput()
        for job in self._take_done(self._loads):
            output.received += job.requests
            output.take_failure(job)
        ready: set[int] = set()
        for job in self._take_done(self._stores):
            ready.add(job.job_id)
            output.take_failure(job)
        output.jobs = [number for number in self._open_stores if number in ready]
        for number in output.jobs:
            self._open_stores.discard(number)  # difference_update() may shrink the set, which vLLM never does
        return output

    def _take_done(self, queue: deque[_EventJob]) -> list[_EventJob]:
        done: list[_EventJob] = []
        while queue and self._copier.is_done(queue[0]):
            done.append(queue.popleft())
            self._copier.forget(done[-1])
        return done
