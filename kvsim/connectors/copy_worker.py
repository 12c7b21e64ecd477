"""A worker side that will often do: loads start with the step, stores after its forward pass."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kvsim.connectors.base import Copier, CopyJob, WorkerOutput
from kvsim.request import Request

UNNUMBERED = -1


@dataclass(eq=False, slots=True)
class RequestCopy(CopyJob):
    """A copy for one request; the worker numbers it when it is submitted."""

    request: Request


@dataclass(slots=True)
class CopyPlan:
    """Metadata of a step for a `CopyWorker`.

    Attributes:
        loads: into blocks of parked requests.
        stores: of what is computed when this step is over.
        preempted: whose blocks are in other hands now: their stores are waited for before the forward pass.
        sending: ended requests that keep their blocks until their stores are done (`request_finished` answered True).
    """

    loads: list[RequestCopy] = field(default_factory=list)
    stores: list[RequestCopy] = field(default_factory=list)
    preempted: Iterable[Request] = ()
    sending: Iterable[Request] = ()

    def load(self, request: Request, source: list[int], blocks: list[int]) -> None:
        """Plan a copy into GPU blocks; ``source`` is whatever the connector calls what it keeps."""
        self.loads.append(RequestCopy(UNNUMBERED, "load", source, blocks, request))

    def store(self, request: Request, blocks: list[int], destination: list[int]) -> None:
        """Plan a copy out of GPU blocks."""
        self.stores.append(RequestCopy(UNNUMBERED, "store", blocks, destination, request))


class CopyWorker:
    """Worker side of connectors whose metadata is a `CopyPlan`. See `ConnectorWorker` for the methods.

    The ``meta`` of its reports is the list of the copies that are done.
    """

    def __init__(self, copier: Copier) -> None:
        self._copier = copier
        self._open: dict[RequestCopy, None] = {}  # submitted, in that order
        self._stores: list[RequestCopy] = []  # of this step, to be submitted after its forward pass
        self._sending: dict[Request, None] = {}
        self._num_submitted = 0

    def handle_preemptions(self, meta: CopyPlan) -> list[RequestCopy]:
        """Stores that still read what others are about to overwrite."""
        self._sending.update(dict.fromkeys(meta.sending))
        gone = set(meta.preempted)
        waiting = [job for job in self._open if job.direction == "store" and job.request in gone]
        for job in waiting:
            self._copier.flush(job)
        return waiting

    def start_load_kv(self, meta: CopyPlan) -> None:
        """Submit this step's loads."""
        self._submit(meta.loads)
        self._stores = meta.stores

    def is_done(self, job: RequestCopy) -> bool:
        """Whether the copy is complete."""
        return self._copier.is_done(job)

    def has_finished(self) -> bool:
        """Whether there is something to report; a store that is still to be submitted may be instant."""
        return bool(self._stores or self._sent()) or any(map(self._copier.is_done, self._open))

    def get_finished(self) -> WorkerOutput:
        """Submit this step's stores, then report what is done, in the order of submission."""
        self._submit(self._stores)
        self._stores = []
        done = [job for job in self._open if self._copier.is_done(job)]
        for job in done:
            self._copier.forget(job)
            del self._open[job]
        sent = self._sent()
        for request in sent:
            del self._sending[request]
        received = [job.request for job in done if job.direction == "load"]
        return WorkerOutput(received=received, jobs=[job.job_id for job in done], sent=sent, meta=done)

    def _submit(self, jobs: Iterable[RequestCopy]) -> None:
        for job in jobs:
            job.job_id = self._num_submitted
            self._num_submitted += 1
            self._open[job] = None
            self._copier.submit(job)

    def _sent(self) -> list[Request]:
        busy = {job.request for job in (*self._open, *self._stores)}
        return [request for request in self._sending if request not in busy]
