"""LMCacheMPConnector, worker side: copies by the server, and when a request's blocks may go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvsim.connectors.base import WorkerOutput
from kvsim.connectors.lmcache_client import LMCacheClient
from kvsim.connectors.lmcache_mp import ChunkJob, LMCacheMPMeta
from kvsim.hardware import Transfer
from kvsim.request import Request

Op = Callable[[int], Transfer]  # so many chunks, on all ranks -> their copy, started


@dataclass(eq=False, slots=True)
class _Flight:
    """A job on its way; without a copy it is over at ``fails_ns``, and has failed."""

    job: ChunkJob
    submitted_ns: int
    keys: Sequence[int]
    copy: Transfer | None = None
    fails_ns: int = 0


class LMCacheMPWorker:
    """Loads are submitted with the forward pass, stores behind it; both are polled after every step.

    Rules: LMCache 0.5.6 integration/vllm/vllm_multi_process_adapter.py, LMCacheMPWorkerAdapter.
    """

    def __init__(self, client: LMCacheClient, load: Op, store: Op) -> None:
        self._client, self._load, self._store = client, load, store
        self._loads: list[_Flight] = []
        self._stores: list[_Flight] = []
        self._meta = LMCacheMPMeta()
        self._finished: dict[Request, None] = {}  # by vLLM, with stores in flight

    def handle_preemptions(self, meta: LMCacheMPMeta) -> list[_Flight]:
        """Stores out of blocks that are handed out again are waited for."""
        return list(self._stores) if meta.flush else []

    def start_load_kv(self, meta: LMCacheMPMeta) -> None:
        """Submit this step's loads."""
        self._meta = meta
        for job in meta.loads:
            flight = self._take_off(job)
            if not flight.fails_ns:
                if all(key in self._client.server.memory for key in job.keys):
                    flight.copy = self._load(len(job.keys))
                else:
                    flight.fails_ns = flight.submitted_ns + 1  # the server has restarted since the lookup
                    self._client.wake_at(flight.fails_ns)
            self._loads.append(flight)

    def _take_off(self, job: ChunkJob) -> _Flight:
        """A job that fails if the server is not there for us."""
        now = self._client.sync()
        flight = _Flight(job, now, [])
        fails_ns = self._client.answers_at(now)
        if fails_ns is not None:
            flight.fails_ns = max(fails_ns, 1)
            self._client.wake_at(fails_ns)
        return flight

    def is_done(self, job: _Flight) -> bool:
        """Whether it is over, one way or the other."""
        return self._fate(job)[0]

    def _fate(self, flight: _Flight) -> tuple[bool, bool]:
        if flight.copy is None:
            return flight.fails_ns <= self._client.sync(), flight.fails_ns > 0
        return self._client.fate(flight.submitted_ns, flight.copy)

    def has_finished(self) -> bool:
        """Whether `get_finished` has something to report."""
        return bool(self._meta.stores or self._meta.finished) or any(map(self.is_done, [*self._loads, *self._stores]))

    def get_finished(self) -> WorkerOutput:
        """Submit this step's stores, then report."""
        for job in self._meta.stores:
            flight = self._take_off(job)
            if not flight.fails_ns:
                flight.keys = self._client.reserve(job.keys)
                if flight.keys:
                    flight.copy = self._store(len(flight.keys))
            self._stores.append(flight)
        output = WorkerOutput()
        for flight, lost in self._landed(self._loads):
            output.received.append(flight.job.request)
            if lost:
                self._client.num_lost += 1
                output.invalid_blocks |= set(flight.job.blocks)
        for flight, lost in self._landed(self._stores):
            self._client.num_lost += lost
            if not lost and flight.keys:
                self._client.stored(flight.keys)
        busy = {flight.job.request for flight in (*self._loads, *self._stores)}
        for request in (*self._finished, *self._meta.finished):
            if request in busy:
                self._finished[request] = None
            else:
                self._finished.pop(request, None)
                output.sent.append(request)
        self._meta = LMCacheMPMeta()
        return output

    def _landed(self, flights: list[_Flight]) -> list[tuple[_Flight, bool]]:
        done: list[tuple[_Flight, bool]] = []
        for flight in list(flights):
            over, lost = self._fate(flight)
            if over:
                flights.remove(flight)
                done.append((flight, lost))
        return done
