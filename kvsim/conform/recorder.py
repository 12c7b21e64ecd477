"""Writes one record per executed step, in the fields of the recordings."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvsim.clock import Clock
from kvsim.conform.step_clock import Step
from kvsim.conform.stub import StubMeta
from kvsim.connectors.base import BlockTable, SchedulerOutput, WorkerOutput
from kvsim.connectors.example import ExampleMeta
from kvsim.connectors.offloading import OffloadingMeta
from kvsim.connectors.simple_cpu import SimpleCPUMeta
from kvsim.gates.encoder import EncoderGate
from kvsim.observer import EngineObserver
from kvsim.request import Request
from kvsim.scheduler import Scheduler

Record = dict[str, Any]


class Labels:
    """Block contents by name, as recordings write them, and the numbers that stand for them here."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self.names: list[str] = []

    def number(self, name: str) -> int:
        """The same number for the same name."""
        number = self._numbers.setdefault(name, len(self.names))
        if number == len(self.names):
            self.names.append(name)
        return number


def _empty_logs() -> dict[str, list[Any]]:
    return {name: [] for name in ("evicted", "lookup", "cpu", "dma")}


@dataclass
class Recorder(EngineObserver):
    """Told by engine, pool, policy and copier; `records` grows by one per step."""

    env: Clock
    step: Step
    labels: Labels = field(default_factory=Labels)
    records: list[Record] = field(default_factory=list)
    log: dict[str, list[Any]] = field(default_factory=_empty_logs)  # of the step being executed
    scheduler: Scheduler | None = None
    encoder: EncoderGate | None = None
    num_groups: int = 1  # a content of the pool is hash * num_groups + group
    last_progress: int = 0  # the clock after the last step that computed or ended something
    after_step: Callable[[], None] = lambda: None
    _open: Record = field(default_factory=dict)  # of the step being executed

    def on_evict(self, block: int, content: int) -> None:
        """The GPU pool has lost a block's content."""
        self.log["evicted"].append([block, self.labels.names[content // self.num_groups]])

    def on_cpu_evict(self, count: int, keys: list[int] | None) -> None:
        """The CPU policy was asked for room."""
        names = None if keys is None else [self.labels.names[key // self.num_groups] for key in keys]
        self.log["cpu"].append(["evict", count, names])

    def on_lookup(self, request: Request, local: int, external: int | None, is_async: bool | None) -> None:
        """A prefix lookup was answered."""
        self.log["lookup"].append([request.request_id, local, external, is_async])

    def on_step_start(self) -> None:
        self.step.begin()

    def on_step_scheduled(self, output: SchedulerOutput) -> None:
        self._open = self._describe(output)

    def _describe(self, output: SchedulerOutput) -> Record:
        assert self.scheduler is not None
        tables = {r.request_id: _copied(table) for r, table in output.tables.items()}
        gained = {r.request_id: _copied(blocks) for r, blocks in output.new_blocks.items()}
        record = {
            "step": self.env.now,
            "sched": {r.request_id: n for r, n in output.num_scheduled_tokens.items()},
            "new": [r.request_id for r in output.new],
            "resumed": sorted(r.request_id for r in output.resumed),
            "preempted": [r.request_id for r in output.preempted],
            "finished_prev": sorted(r.request_id for r in output.finished),
            "computed": {r.request_id: r.num_computed_tokens for r in output.num_scheduled_tokens},
            "lookup": list(self.log["lookup"]),
            "running": [r.request_id for r in self.scheduler.running],
            "waiting": [r.request_id for r in self.scheduler.waiting.waiting],
            "skipped": [r.request_id for r in self.scheduler.waiting.second],
            "new_blocks": tables | gained,
            "evicted": list(self.log["evicted"]),
            "free": self.scheduler.kv.pool.num_free,
        }
        if output.connector_meta is not None:
            record["cpu"] = list(self.log["cpu"])
            record["meta"] = describe(output.connector_meta)
        if self.encoder is not None:
            record["encoder"] = {r.request_id: list(inputs) for r, inputs in self.encoder.in_step.items()}
            record["encoder_freed"] = self.encoder.cache.take_evicted()
        return record

    def on_step_done(self, output: SchedulerOutput, worker: WorkerOutput | None, ended: list[Request]) -> None:
        self._note_update(worker, ended)
        if worker is not None:
            self._open["dma"] = list(self.log["dma"])
        self._close()

    def _note_update(self, worker: WorkerOutput | None, ended: list[Request]) -> None:
        self._open["finished"] = [r.request_id for r in ended]
        self._open["kvout"] = None
        if worker is not None:
            received = sorted(r.request_id for r in worker.received)
            self._open["kvout"] = {"recv": received, "send": [], "jobs": sorted(worker.jobs)}

    def _close(self) -> None:
        assert self.scheduler is not None
        record = self._open
        record["free_after"] = self.scheduler.kv.pool.num_free
        self.records.append(record)
        for entries in self.log.values():
            entries.clear()
        if record["sched"] or record["finished"]:
            self.last_progress = self.env.now
        self.after_step()


@dataclass
class AsyncRecorder(Recorder):
    """One record per iteration of the engine's batch queue: a step that was decided and one that came back.

    ``updated`` is the number of the step that came back, null if none did; ``finished`` and ``kvout`` are about it.
    """

    _in_flight: deque[int] = field(default_factory=deque)

    def on_step_start(self) -> None:
        super().on_step_start()
        self._open = self._describe(SchedulerOutput())  # in case nothing is decided
        self._note_update(None, [])
        self._open["updated"] = None

    def on_step_scheduled(self, output: SchedulerOutput) -> None:
        self._open |= self._describe(output)
        self._in_flight.append(self.step.number)

    def on_step_done(self, output: SchedulerOutput, worker: WorkerOutput | None, ended: list[Request]) -> None:
        self._note_update(worker, ended)
        self._open["updated"] = self._in_flight.popleft()

    def on_iteration_done(self) -> None:
        if "meta" in self._open:
            self._open["dma"] = list(self.log["dma"])
        self._close()


def _copied(blocks: BlockTable) -> BlockTable:
    """Block ids as they are now, per group where there are groups."""
    return [list(entry) if isinstance(entry, Sequence) else entry for entry in blocks]


def describe(meta: OffloadingMeta | SimpleCPUMeta | ExampleMeta | StubMeta) -> Record:
    """A connector's metadata, as recordings write it."""
    if isinstance(meta, ExampleMeta | StubMeta):
        return {}  # all of it is in what the worker does
    if isinstance(meta, SimpleCPUMeta):
        return {"load_event": meta.load_event, "store_event": meta.store_event, "need_flush": meta.need_flush}
    # A store of this very step that has to be flushed is taken out by the worker before the recorder looks.
    stores = {str(j): job.request.request_id for j, job in meta.stores.items() if j not in meta.flush}
    loads = {str(j): job.request.request_id for j, job in meta.loads.items()}
    flush = {"jobs_to_flush": sorted(meta.flush)} if meta.flush else {}
    return {"load_jobs": loads, "store_jobs": stores, **flush}
