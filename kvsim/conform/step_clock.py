"""Workers on a clock that counts steps: every copy takes a fixed number of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Literal

from kvsim.clock import Clock
from kvsim.connectors.base import ConnectorWorker, CopyJob, Direction, WorkerOutput
from kvsim.connectors.example import ExampleMeta
from kvsim.offload.async_lookup import AsyncLookup
from kvsim.offload.tiering import Answer, TierJob


class OneTick:
    """Every forward pass lasts one step of the clock."""

    def step_ns(self, prefill: Any, decode: Any) -> int:
        """One step."""
        return 1


class Step:
    """The number of the step being executed. The clock itself stands at the step's end when copies are polled."""

    def __init__(self, env: Clock) -> None:
        self._env = env
        self.number = 0

    def begin(self) -> None:
        """A step starts now."""
        self.number = self._env.now


class StepCopier:
    """A copy submitted in step s is done in step s + delay, in order per direction; a flushed one at once.

    Args:
        log: told of every copy ([direction, job, source, destination]) and, if ``log_waits``, of every flush.
        load_failures: blocks that do not arrive, each as (number of the load, place among its blocks).
    """

    def __init__(
        self,
        step: Step,
        delays: dict[Direction, int],
        log: list[list[Any]],
        *,
        log_waits: bool,
        load_failures: Sequence[Sequence[int]] = (),
    ) -> None:
        self._step, self._delays, self._log, self._log_waits = step, delays, log, log_waits
        self._load_failures, self._num_loads = load_failures, 0
        self._last: dict[Direction, int] = dict.fromkeys(delays, -1)
        self._ready: dict[CopyJob, int] = {}  # job -> step

    def submit(self, job: CopyJob) -> None:
        """See `kvsim.connectors.base.Copier`."""
        ready = max(self._last[job.direction], self._step.number + self._delays[job.direction])
        self._last[job.direction] = self._ready[job] = ready
        self._log.append([job.direction, job.job_id, job.source, job.destination])
        if job.direction == "load":
            blocks = job.destination
            job.failed_blocks.update(blocks[i % len(blocks)] for n, i in self._load_failures if n == self._num_loads)
            self._num_loads += 1

    def flush(self, job: CopyJob) -> None:
        """Done in this step; the clock of its direction is not moved."""
        self._ready[job] = self._step.number
        if self._log_waits:
            self._log.append(["wait", job.job_id])

    def is_done(self, job: CopyJob) -> bool:
        """Whether its step has come."""
        return self._ready[job] <= self._step.number

    def forget(self, job: CopyJob) -> None:
        """The job was reported."""
        del self._ready[job]


class StepTier:
    """An unbounded secondary tier with delays in steps."""

    def __init__(self, step: Step, delays: dict[Direction, int]) -> None:
        self._step, self._delays = step, delays
        self._last: dict[Direction, int] = dict.fromkeys(delays, -1)
        self._present: set[int] = set()
        self._jobs: list[tuple[int, Direction, Sequence[int]]] = []  # (ready step, direction, keys)
        self.epoch = 0
        self._lost_of_loads: dict[int, int] = {}  # number of the load -> keys at its end that do not arrive
        self._lost_stores: Sequence[int] = ()
        self._num_done: dict[Direction, int] = dict.fromkeys(delays, 0)

    def fail(self, loads: Sequence[Sequence[int]], stores: Sequence[int], *, partly: bool) -> None:
        """Jobs will fail: loads [number, keys that do not arrive], all keys unless ``partly``; stores by number."""
        self._lost_of_loads = {number: lost if partly else sys.maxsize for number, lost in loads}
        self._lost_stores = stores

    def lookup(self, key: int, request_id: str) -> Answer:
        """Whether the chunk is here."""
        return Answer.HIT if key in self._present else Answer.MISS

    def on_schedule_end(self) -> None:
        """Nothing to find out."""

    def on_request_finished(self, request_id: str) -> None:
        """Nothing to forget."""

    def submit(self, direction: Literal["load", "store"], keys: Sequence[int]) -> None:
        """Start moving; in order per direction."""
        ready = max(self._last[direction], self._step.number + self._delays[direction])
        self._last[direction] = ready
        self._jobs.append((ready, direction, keys))

    def poll(self) -> list[TierJob]:
        """What has finished, in the order of submission."""
        done = [job for job in self._jobs if job[0] <= self._step.number]
        self._jobs = [job for job in self._jobs if job[0] > self._step.number]
        return [outcome for _, direction, keys in done for outcome in self._outcomes(direction, keys)]

    def _outcomes(self, direction: Direction, keys: Sequence[int]) -> list[TierJob]:
        number = self._num_done[direction]
        self._num_done[direction] += 1
        if direction == "store" and number in self._lost_stores:
            return [("failed store", keys)]
        if direction == "store":
            self._present.update(keys)
            self.epoch += 1
        elif lost := self._lost_of_loads.get(number):
            arrived = max(len(keys) - lost, 0)
            return [("load", keys[:arrived]), ("failed load", keys[arrived:])]
        return [(direction, keys)]

    def is_idle(self) -> bool:
        """Nothing in flight."""
        return not self._jobs


class ProbingStepTier(StepTier):
    """A tier that looks in the background: what is asked in a step is known in the next one."""

    def __init__(self, step: Step, delays: dict[Direction, int]) -> None:
        super().__init__(step, delays)
        self._lookup = AsyncLookup()
        self._found: list[tuple[int, bool]] = []  # by the background, not picked up yet

    def lookup(self, key: int, request_id: str) -> Answer:
        """The remembered answer, or RETRY."""
        self._pick_up()
        return self._lookup.ask(key, request_id)

    def on_schedule_end(self) -> None:
        """The background looks for what was asked in this step."""
        self._pick_up()
        self._found = [(key, key in self._present) for key in self._lookup.flush()]

    def on_request_finished(self, request_id: str) -> None:
        """Forget what nobody else has asked for."""
        self._lookup.on_request_finished(request_id)

    def _pick_up(self) -> None:
        if self._found:
            self._lookup.answer(self._found)
            self._found = []


class StepExampleWorker:
    """ExampleConnector's worker: whatever it does is over with the step.

    Args:
        log: told of the tokens of every load and whether its files are there, and of those of every store.
    """

    def __init__(self, block_size: int, log: list[list[Any]]) -> None:
        self._block_size, self._log = block_size, log

    def handle_preemptions(self, meta: ExampleMeta) -> tuple[()]:
        """Nothing is in flight."""
        return ()

    def start_load_kv(self, meta: ExampleMeta) -> None:
        """Loads, then stores."""
        self._log += [["load", load.blocks * self._block_size, load.is_there] for load in meta.loads]
        self._log += [["store", blocks * self._block_size] for blocks in meta.stores]

    def is_done(self, job: object) -> bool:
        """There are no jobs."""
        return True

    def has_finished(self) -> bool:
        """Nothing is reported."""
        return False

    def get_finished(self) -> WorkerOutput:
        """Nothing is reported."""
        return WorkerOutput()


class SortedReports:
    """A worker whose finished loads are reported in order of request id, as the recorder sorts them."""

    def __init__(self, worker: ConnectorWorker) -> None:
        self._worker = worker
        self.handle_preemptions, self.start_load_kv = worker.handle_preemptions, worker.start_load_kv
        self.is_done, self.has_finished = worker.is_done, worker.has_finished

    def get_finished(self) -> WorkerOutput:
        """The worker's report, sorted."""
        output = self._worker.get_finished()
        output.received.sort(key=lambda request: request.request_id)
        return output
