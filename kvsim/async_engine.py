"""The step loop of asynchronous scheduling: a queue of two batches between the scheduler and the GPU."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import simpy

from kvsim.async_scheduler import MAX_CONCURRENT_BATCHES
from kvsim.clock import Clock
from kvsim.connectors.base import ConnectorWorker, SchedulerOutput, WorkerOutput
from kvsim.connectors.compute_fence import LaunchQueue
from kvsim.engine import GIVE_UP_AFTER, Engine, StepTime
from kvsim.observer import EngineObserver
from kvsim.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class _Batch:
    """A step in flight: what was decided, what the worker reported when it launched it, and when it is computed."""

    output: SchedulerOutput
    worker_output: WorkerOutput | None
    done_at: int


class AsyncEngine(Engine):
    """Decide and launch the next step, then wait for the oldest in flight; again.

    The decision about step k+1 is made when step k starts to be computed, so it takes no time of the GPU. The worker
    takes a step when it is decided: it submits copies, launches the forward pass behind those before, and reports
    what has been copied until then; the scheduler hears of it when that step is computed, as in vLLM. (Worker and
    engine core share a thread here, as vLLM's do with one GPU: a flush holds both up.)
    Rules: vLLM 0.33.0 v1/engine/core.py, `step_with_batch_queue`.

    Args:
        launches: forward passes in flight; shared with whoever holds copies back for them.
    """

    def __init__(
        self,
        env: Clock,
        scheduler: Scheduler,
        step_time: StepTime,
        worker: ConnectorWorker | None = None,
        *,
        launches: LaunchQueue | None = None,
        observer: EngineObserver | None = None,
        encoder_token_ns: int = 0,
        empty_step: int | None = None,
        give_up_after: int | None = GIVE_UP_AFTER,
        check_every_step: bool = False,
    ) -> None:
        super().__init__(
            env, scheduler, step_time, worker, observer=observer, encoder_token_ns=encoder_token_ns,
            empty_step=empty_step, give_up_after=give_up_after, check_every_step=check_every_step,
        )  # fmt: skip
        self._launches = launches or LaunchQueue()
        self._batches: deque[_Batch] = deque()

    def _has_work(self) -> bool:
        return bool(self._batches) or super()._has_work()

    def _step(self) -> Generator[simpy.Event, Any, None]:
        self._observer.on_step_start()
        if super()._has_work():
            output = yield from self._decide()
            yield from self._launch(output)
            has_room = len(self._batches) < MAX_CONCURRENT_BATCHES
            if has_room and (output.num_scheduled_tokens or self.scheduler.has_requests()):
                yield from self._pass_time(None)  # to fill the queue comes first
                self._observer.on_iteration_done()
                return
        batch = self._batches.popleft()
        yield from self._pass_time(batch)
        self._update(batch.output, batch.worker_output)
        self._observer.on_iteration_done()
        if self._is_quiet(batch):
            yield from self._stall()

    def _launch(self, output: SchedulerOutput) -> Generator[simpy.Event, Any, None]:
        worker, meta, report = self.worker, output.connector_meta, None
        if worker is not None:
            flushed = worker.handle_preemptions(meta)
            if flushed:
                yield from self._wait_for(worker, flushed, gpu_busy_until=self._launches.free_at_ns)
        done_at = self.env.now
        if output.num_scheduled_tokens:
            forward_ns = self._forward_ns(output)
            self._observer.on_forward(forward_ns)
            done_at = self._launches.launch(self.env.now, forward_ns)
        if worker is not None:  # behind the launch: what is submitted from here on follows this forward pass
            worker.start_load_kv(meta)
            report = worker.get_finished()
        self._batches.append(_Batch(output, report, done_at))

    def _pass_time(self, batch: _Batch | None) -> Generator[simpy.Event, Any, None]:
        """Until the batch is computed; under a step clock every iteration lasts one step."""
        if self._empty_step is not None:
            yield self.env.at(self._empty_step)
        elif batch is not None and batch.done_at > self.env.now:
            yield self.env.at(batch.done_at - self.env.now)
            self._take_aborts()  # of clients that left meanwhile

    def _is_quiet(self, batch: _Batch) -> bool:
        """Whether to wait for an event: nothing is computed or reported, for the second time in a row."""
        batches = [batch, *self._batches]
        moves = any(each.output.num_scheduled_tokens or _reports(each.worker_output) for each in batches)
        self._empty_steps = 0 if moves or batches[-1].output.preempted else self._empty_steps + 1
        return (
            self._empty_step is None
            and self._empty_steps > 1
            and self.scheduler.has_requests()
            and not self._news
            and not (self.worker is not None and self.worker.has_finished())
        )


def _reports(report: WorkerOutput | None) -> bool:
    return report is not None and bool(report.received or report.sent or report.jobs)
