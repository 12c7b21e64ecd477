"""MooncakeStoreConnector, worker side: two kinds of I/O threads beside the forward pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import simpy

from kvsim.clock import Clock
from kvsim.compute import ComputeStream
from kvsim.connectors.base import WorkerOutput
from kvsim.connectors.mooncake_store import LoadJob, SaveJob, StoreMeta
from kvsim.request import Request
from kvsim.store.client import StoreClient, Wait


@dataclass(slots=True)
class _Ledger:
    """What the sending thread knows of a request."""

    live: dict[int, None] = field(default_factory=dict)  # its jobs that are not over
    saved: int = 0  # blocks that are in the store; the next job goes on behind them


class _Inbox:
    """Jobs for a thread, first in first out."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._jobs: deque[tuple[SaveJob | LoadJob, simpy.Event | None]] = deque()
        self._idle: deque[simpy.Event] = deque()  # threads that wait

    def put(self, job: SaveJob | LoadJob, fence: simpy.Event | None = None) -> None:
        """One more."""
        self._jobs.append((job, fence))
        if self._idle:
            self._idle.popleft().succeed()

    def __len__(self) -> int:
        return len(self._jobs)

    def wait(self) -> simpy.Event:
        """Fires when there is one."""
        event = self._clock.event()
        self._idle.append(event)
        return event

    def take(self) -> tuple[SaveJob | LoadJob, simpy.Event | None]:
        """The first one."""
        return self._jobs.popleft()


class MooncakeStoreWorker:
    """Loads and saves in the background; the engine never waits for either.

    - Receiving threads (VLLM_MOONCAKE_LOAD_RECV_THREADS, one by default) take loads in order, each one at a time.
    - One sending thread takes saves in order: it asks which blocks are there already, waits for the forward pass that
      was launched with the save, and writes the others. A save goes on where this request's last successful one ended,
      so one that follows a failure tries again. After a save without room (NO_AVAILABLE_HANDLE), saves of that request
      are skipped until any save succeeds.
    - All ranks do the same at the same time, so the threads of one stand for those of all.

    Rules: vLLM 0.33.0 mooncake/store/worker.py, KVCacheStoreSendingThread, KVCacheStoreRecvingThread and
    MooncakeStoreWorker.
    """

    def __init__(
        self,
        clock: Clock,
        client: StoreClient,
        compute: ComputeStream,
        *,
        wake: Callable[[], None],
        recv_threads: int = 1,
    ) -> None:
        self._clock, self._client, self._compute, self._wake = clock, client, compute, wake
        self._loads, self._saves = _Inbox(clock), _Inbox(clock)
        self._ledgers: dict[Request, _Ledger] = {}
        self._closing: dict[Request, None] = {}  # ended, with jobs that are not over
        self._pressed: set[Request] = set()  # whose saves are skipped; never iterated
        self._under_pressure = False
        self._done_loads: list[Request] = []
        self._invalid: set[Any] = set()
        self._done_saves: list[int] = []
        self._is_closed = False
        for _ in range(recv_threads):
            clock.process(self._receive())
        clock.process(self._send())

    def close(self) -> None:
        """The engine has died, and its threads with it."""
        self._is_closed = True

    # -- what the engine calls
    def handle_preemptions(self, meta: StoreMeta) -> tuple[()]:
        """Nothing to wait for: what a save reads is referenced."""
        return ()

    def start_load_kv(self, meta: StoreMeta) -> None:
        """Queue this step's work; saves wait for the forward pass that comes now."""
        for load in meta.loads:
            self._loads.put(load)
        if meta.saves:
            self._queue_saves(meta.saves)
        for request in meta.preempted:
            self._retire(request)
        for request in (*meta.finished, *list(self._closing)):
            ledger = self._ledgers.get(request)
            if ledger is not None and ledger.live:
                self._closing[request] = None
            else:
                self._closing.pop(request, None)
                self._retire(request)

    def _queue_saves(self, saves: Sequence[SaveJob]) -> None:
        fence = self._launch_fence()
        for save in saves:
            self._ledgers.setdefault(save.request, _Ledger()).live[save.number] = None
            self._saves.put(save, fence)

    def _launch_fence(self) -> simpy.Event:
        """Fires when the forward pass that is launched next, at this instant, has ended."""
        fence = self._clock.event()
        self._compute.after_launched(partial(_fire, fence))
        return fence

    def _retire(self, request: Request) -> None:
        self._ledgers.pop(request, None)
        self._pressed.discard(request)

    def is_done(self, job: object) -> bool:
        """Nobody waits for a job."""
        return True

    def has_finished(self) -> bool:
        """Whether `get_finished` has something to report."""
        return bool(self._done_loads or self._done_saves)

    def get_finished(self) -> WorkerOutput:
        """Loads that are complete, saves that are over, and blocks that were not loaded."""
        output = WorkerOutput(received=self._done_loads, meta=self._done_saves, invalid_blocks=self._invalid)
        self._done_loads, self._done_saves, self._invalid = [], [], set()
        return output

    @property
    def num_queued(self) -> tuple[int, int]:
        """Loads and saves that no thread has taken."""
        return len(self._loads), len(self._saves)

    # -- the threads
    def _receive(self) -> Wait:
        while not self._is_closed:
            if not self._loads:
                yield self._loads.wait()
                continue
            job, _ = self._loads.take()
            assert isinstance(job, LoadJob)
            failed = yield from self._client.read(job.keys)
            if not self._is_closed:
                self._invalid.update(job.blocks[place] for place in failed)
                self._done_loads.append(job.request)
                self._wake()

    def _send(self) -> Wait:
        while not self._is_closed:
            if not self._saves:
                yield self._saves.wait()
                continue
            job, fence = self._saves.take()
            assert isinstance(job, SaveJob)
            ledger = self._ledgers.get(job.request)
            skips = self._under_pressure and job.request in self._pressed
            if ledger is not None and job.number in ledger.live and not skips:
                yield from self._save(job, fence)
            if not self._is_closed:
                if ledger is not None:
                    ledger.live.pop(job.number, None)
                self._finish_save(job)

    def _finish_save(self, job: SaveJob) -> None:
        self._done_saves.append(job.number)
        self._wake()

    def _save(self, job: SaveJob, fence: simpy.Event | None) -> Wait:
        request, client = job.request, self._client
        first = self._ledgers[request].saved
        keys = job.keys(first)
        if keys:
            yield client.wait(client.costs.ask(-(-len(keys) // client.shape.readers)))
            asked, keys = len(keys), client.missing(keys)
            client.counts.existing += asked - len(keys)
        if keys:
            if fence is not None and not fence.processed:
                yield fence
            before = client.counts.refused
            is_complete = yield from client.write(keys)
            if client.counts.refused > before:
                self._under_pressure = True
                if self._is_live(job):
                    self._pressed.add(request)
            if job.tells:
                missing = set(client.unwritten)
                job.stored = [key for key in keys if key not in missing]
            if not is_complete:
                return
            self._under_pressure = False
            self._pressed.clear()
        if self._is_live(job):
            self._ledgers[request].saved = job.last

    def _is_live(self, job: SaveJob) -> bool:
        ledger = self._ledgers.get(job.request)
        return ledger is not None and job.number in ledger.live


def _fire(event: simpy.Event) -> None:
    event.succeed()
