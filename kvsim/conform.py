"""Our steps against a recording of the real vLLM: the reference engine on a step clock, in the recordings' fields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kvsim.cache.kv_cache_manager import KVCacheManager
from kvsim.clock import SCHEDULE_PRIORITY, STEP_END_PRIORITY, Clock
from kvsim.connectors.base import SchedulerOutput, WorkerOutput
from kvsim.connectors.offloading import Job, OffloadingMeta
from kvsim.engine import Engine, EngineObserver
from kvsim.releases import RELEASES
from kvsim.request import Request
from kvsim.scheduler import SchedulerLimits

# What the recorder assumes where a scenario says nothing.
DEFAULTS: dict[str, Any] = {
    "num_gpu_blocks": 700, "block_size": 16, "max_num_batched_tokens": 1024, "max_num_seqs": 8,
    "max_model_len": 8192, "policy": "fcfs", "long_prefill_token_threshold": 0, "reserve_full_isl": True,
    "no_prefix_caching": False, "connector": None, "cpu_blocks": 1500, "cpu_policy": "lru", "chunk_factor": 1,
    "offload_prompt_only": True, "store_threshold": 0, "load_delay": 2, "store_delay": 2, "drain": 5,
}  # fmt: skip
STALL_STEPS = 500  # the recorder stops after so many steps without progress
MAX_STEPS = 30_000

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


@dataclass(slots=True)
class SessionContent:
    """Tokens of one scenario session: a common system prompt, then its own (or another's, if it repeats one)."""

    labels: Labels
    owner: str
    system_tokens: int
    block_size: int

    def block_hashes(self, first: int, last: int) -> list[int]:
        """See `kvsim.request.Content`."""
        return [self.labels.number(self._name(i)) for i in range(first, last)]

    def _name(self, block: int) -> str:
        return f"{'sys' if (block + 1) * self.block_size <= self.system_tokens else self.owner}:{block}"


class StepCopier:
    """A copy submitted in step s is done in step s + delay, in order per direction; a flushed one at once."""

    def __init__(self, env: Clock, delays: dict[str, int], log: list[list[Any]]) -> None:
        self._env, self._delays, self._log = env, delays, log
        self._last = dict.fromkeys(delays, -1)
        self._ready: dict[int, int] = {}  # job -> step
        self.step = 0  # the step being executed (the clock stands at its end when copies are polled)

    def submit(self, job: Job) -> None:
        """See `kvsim.connectors.offloading_worker.Copier`."""
        ready = max(self._last[job.direction], self.step + self._delays[job.direction])
        self._last[job.direction] = self._ready[job.job_id] = ready
        self._log.append([job.direction, job.job_id, job.source, job.destination])

    def flush(self, job: Job) -> None:
        """Done in this step; the clock of its direction is not moved."""
        self._ready[job.job_id] = self.step
        self._log.append(["wait", job.job_id])

    def is_done(self, job: Job) -> bool:
        """Whether its step has come."""
        return self._ready[job.job_id] <= self.step

    def forget(self, job: Job) -> None:
        """The job was reported."""
        del self._ready[job.job_id]


class OneTick:
    """Every forward pass lasts one step of the clock."""

    def step_ns(self, prefill: Any, decode: Any) -> int:
        """One step."""
        return 1


@dataclass
class Recorder(EngineObserver):
    """Writes one record per executed step, in the fields of the recordings."""

    env: Clock
    labels: Labels
    records: list[Record] = field(default_factory=list)
    log: dict[str, list[Any]] = field(default_factory=lambda: {k: [] for k in ("evicted", "lookup", "cpu", "dma")})
    engine: Engine | None = None
    copier: StepCopier | None = None
    last_progress: int = 0
    after_step: Callable[[], None] = lambda: None
    _open: Record = field(default_factory=dict)

    def on_evict(self, block: int, content: int) -> None:
        """The GPU pool has lost a block's content."""
        self.log["evicted"].append([block, self.labels.names[content]])

    def on_cpu_evict(self, count: int, keys: list[int] | None) -> None:
        """The CPU policy was asked for room."""
        names = None if keys is None else [self.labels.names[key] for key in keys]
        self.log["cpu"].append(["evict", count, names])

    def on_lookup(self, request: Request, local: int, external: int | None, is_async: bool | None) -> None:
        """A prefix lookup was answered."""
        self.log["lookup"].append([request.request_id, local, external, is_async])

    def on_step_scheduled(self, output: SchedulerOutput) -> None:
        assert self.engine is not None
        scheduler = self.engine.scheduler
        if self.copier is not None:
            self.copier.step = self.env.now
        tables = {r.request_id: list(table) for r, table in output.tables.items()}
        gained = {r.request_id: list(blocks) for r, blocks in output.new_blocks.items()}
        self._open = {
            "step": self.env.now,
            "sched": {r.request_id: n for r, n in output.num_scheduled_tokens.items()},
            "new": [r.request_id for r in output.new],
            "resumed": sorted(r.request_id for r in output.resumed),
            "preempted": [r.request_id for r in output.preempted],
            "finished_prev": sorted(r.request_id for r in output.finished),
            "computed": {r.request_id: r.num_computed_tokens for r in output.num_scheduled_tokens},
            "lookup": list(self.log["lookup"]),
            "running": [r.request_id for r in scheduler.running],
            "waiting": [r.request_id for r in scheduler.waiting.waiting],
            "skipped": [r.request_id for r in scheduler.waiting.second],
            "new_blocks": tables | gained,
            "evicted": list(self.log["evicted"]),
            "free": scheduler.kv.pool.num_free,
        }
        meta: OffloadingMeta | None = output.connector_meta
        if meta is not None:
            self._open["cpu"] = list(self.log["cpu"])
            # A store of this very step that has to be flushed is taken out by the worker before the recorder looks.
            kept = {j: job for j, job in meta.stores.items() if j not in meta.flush}
            self._open["meta"] = {
                "load_jobs": {str(j): job.request.request_id for j, job in meta.loads.items()},
                "store_jobs": {str(j): job.request.request_id for j, job in kept.items()},
            } | ({"jobs_to_flush": sorted(meta.flush)} if meta.flush else {})

    def on_step_done(self, output: SchedulerOutput, worker: WorkerOutput | None, ended: list[Request]) -> None:
        assert self.engine is not None
        record = self._open
        if worker is not None:
            record["dma"] = list(self.log["dma"])
        record["finished"] = [r.request_id for r in ended]
        record["kvout"] = worker and {
            "recv": sorted(r.request_id for r in worker.received), "send": [], "jobs": sorted(worker.jobs),
        }  # fmt: skip
        record["free_after"] = self.engine.scheduler.kv.pool.num_free
        self.records.append(record)
        for entries in self.log.values():
            entries.clear()
        if output.num_scheduled_tokens or ended:
            self.last_progress = self.env.now
        self.after_step()


class Conformance:
    """One scenario on the reference engine. `run` gives the records and whether it got stuck."""

    def __init__(
        self,
        scenario: dict[str, Any],
        vllm_version: str,
        order_finished: Callable[[list[Request]], list[Request]] = list,
    ) -> None:
        self.scenario = scenario
        options = {**scenario["engine"], **scenario.get("connector", {})}
        unknown = options.keys() - DEFAULTS.keys()
        if unknown:
            raise NotImplementedError(f"scenario options {sorted(unknown)}")
        self.options = DEFAULTS | {key: value for key, value in options.items() if value is not None}
        self.release = RELEASES[vllm_version]
        self.env = Clock()
        self.recorder = Recorder(self.env, Labels())
        self.engine = self._build()
        self.engine.scheduler.order_finished = order_finished
        self.recorder.engine = self.engine
        specs = scenario["sessions"]
        self._due: dict[int, int] = {}  # session -> step of its next turn
        self._turn = [0] * len(specs)
        self._tokens: list[int] = [scenario["system_tokens"]] * len(specs)
        self._left = sum(len(spec["turns"]) for spec in specs)
        self._deadlock = self._stopping = False
        self._stop = self.env.event()

    def _build(self) -> Engine:
        o, release, recorder = self.options, self.release, self.recorder
        pool = release.block_pool(o["num_gpu_blocks"], recorder.on_evict)
        caching = not o["no_prefix_caching"]
        kv = KVCacheManager(pool, block_size=o["block_size"], max_model_len=o["max_model_len"], enable_caching=caching)
        connector = worker = None
        if o["connector"] == "offloading":
            manager = release.manager(
                o["cpu_blocks"],
                release.policies[o["cpu_policy"]],
                o["store_threshold"],
                recorder.on_cpu_evict,
            )
            connector = release.offloading_connector(
                manager,
                block_size=o["block_size"],
                block_size_factor=o["chunk_factor"],
                offload_prompt_only=o["offload_prompt_only"],
                enable_caching=caching,
            )
            delays = {"load": o["load_delay"], "store": o["store_delay"]}
            recorder.copier = StepCopier(self.env, delays, recorder.log["dma"])
            worker = release.offloading_worker(recorder.copier)
        elif o["connector"] is not None:
            raise NotImplementedError(f"connector {o['connector']}")
        limits = SchedulerLimits(
            max_num_batched_tokens=o["max_num_batched_tokens"],
            max_num_seqs=o["max_num_seqs"],
            max_model_len=o["max_model_len"],
            scheduling_policy=o["policy"],
            long_prefill_token_threshold=o["long_prefill_token_threshold"],
            scheduler_reserve_full_isl=o["reserve_full_isl"],
        )
        scheduler = release.scheduler(limits, kv, connector, on_lookup=recorder.on_lookup)
        return Engine(self.env, scheduler, OneTick(), worker, observer=recorder, empty_step=1, check_every_step=True)

    def run(self) -> tuple[list[Record], bool]:
        """Records of all executed steps, and whether the recorder would have called it a deadlock."""
        self.recorder.after_step = self._after_step
        for i, spec in enumerate(self.scenario["sessions"]):
            self._set_due(i, spec["start_step"])
        self.env.run(until=self._stop)
        return self.recorder.records, self._deadlock

    def _set_due(self, session: int, step: int) -> None:
        if step not in self._due.values():
            # Behind the end of a step at that instant, which may add to the arrivals; before the next decision.
            first = self.env.timeout(step - self.env.now)
            assert first.callbacks is not None
            first.callbacks.append(lambda _event: self._then(self._arrivals))
        self._due[session] = step

    def _then(self, action: Callable[[], None]) -> None:
        event = self.env.at(0, STEP_END_PRIORITY)
        assert event.callbacks is not None
        event.callbacks.append(lambda _event: action())

    def _arrivals(self) -> None:
        """Everything due now arrives, in session order."""
        for i in sorted(i for i, step in self._due.items() if step <= self.env.now):
            del self._due[i]
            ended = self.engine.submit(self._next_turn(i))
            assert ended.callbacks is not None
            ended.callbacks.append(partial(self._turn_ended, i))

    def _next_turn(self, session: int) -> Request:
        spec, size = self.scenario["sessions"][session], self.options["block_size"]
        number = self._turn[session]
        user, out = spec["turns"][number]
        prompt = self._tokens[session] + user
        self._tokens[session] = prompt + out
        owner = spec.get("same_as", spec["name"])
        content = SessionContent(self.recorder.labels, owner, self.scenario["system_tokens"], size)
        return Request(
            f"{spec['name']}t{number}", content, block_size=size, num_prompt_tokens=prompt, max_tokens=out,
            priority=spec.get("priority", 0), arrival=self.env.now,
        )  # fmt: skip

    def _turn_ended(self, session: int, _event: object) -> None:
        """A turn that ends in step s is followed by the next at s + 1 + think_steps; the clock says s + 1 now."""
        self._left -= 1
        self._turn[session] += 1
        if self._turn[session] < len(self.scenario["sessions"][session]["turns"]):
            self._set_due(session, self.env.now + self.scenario["think_steps"])
        if not self._left:
            self._stop_after_drain()

    def _after_step(self) -> None:
        if self._left and not self._due and self.env.now - self.recorder.last_progress > STALL_STEPS:
            self._deadlock = True
            self._stop_after_drain()

    def _stop_after_drain(self) -> None:
        """A few more steps are recorded. The stop comes after everything else of its instant."""
        if not self._stopping:
            self._stopping = True
            drained = self.env.at(self.options["drain"], SCHEDULE_PRIORITY + 1)
            assert drained.callbacks is not None
            drained.callbacks.append(self._end)

    def _end(self, _event: object) -> None:
        self._stop.succeed()


def canonical(record: Record) -> Record:
    """A record with what depends on the iteration order of a set put in order, and artefacts dropped."""
    record = {key: value for key, value in record.items() if key != "deferred"}
    record["sched"] = list(record["sched"].items())  # here order matters
    if "dma" in record:
        waits = iter(sorted(entry for entry in record["dma"] if entry[0] == "wait"))
        record["dma"] = [next(waits) if entry[0] == "wait" else entry for entry in record["dma"]]
    return record


def first_difference(ours: list[Record], theirs: list[Record]) -> tuple[int, dict[str, tuple[Any, Any]]] | None:
    """(step, {field: (ours, theirs)}) of the first record that differs, or None."""
    for a, b in zip(map(canonical, ours), map(canonical, theirs), strict=False):
        if a != b:
            return b["step"], {k: (a.get(k), b.get(k)) for k in sorted(a.keys() | b.keys()) if a.get(k) != b.get(k)}
    if len(ours) != len(theirs):
        return min(len(ours), len(theirs)), {"number of records": (len(ours), len(theirs))}
    return None
