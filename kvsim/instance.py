"""One vLLM server as its clients see it: it takes the turns of a trace, refuses what can never run, keeps books."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import simpy

from kvsim.chain import BlockIds
from kvsim.clock import Clock
from kvsim.connectors.base import ConnectorWorker, SchedulerOutput, WorkerOutput
from kvsim.connectors.offloading import OffloadingConnector
from kvsim.engine import Engine, EngineObserver, StepTime, stuck_requests
from kvsim.hardware import DuplexLink
from kvsim.offload.manager import OffloadingManager
from kvsim.request import ChainContent, Request, RequestStatus
from kvsim.results.records import NEVER, RequestRecord, RunRecord, Sample
from kvsim.scheduler import Scheduler
from kvsim.trace.session import Session, Turn


@dataclass(slots=True)
class Offload:
    """The parts of an instance with KV offload that its books look at."""

    manager: OffloadingManager
    link: DuplexLink
    connector: OffloadingConnector


class Instance(EngineObserver):
    """Engine and books of one server.

    Args:
        record: filled while the simulation runs.
        on_ended: called once for every request that has ended, whichever way.
    """

    def __init__(self, env: Clock, scheduler: Scheduler, record: RunRecord, on_ended: Callable[[], None]) -> None:
        self.env, self.scheduler, self.record = env, scheduler, record
        self.offload: Offload | None = None
        self._on_ended = on_ended
        self._block_ids = BlockIds(scheduler.kv.block_size)
        self._records: dict[Request, RequestRecord] = {}
        self._parked_ns: dict[Request, int] = {}  # since when a request waits for its load
        self._awaiting_first: list[Request] = []  # scheduled in this step, nothing generated so far
        self._cut_short = 0  # requests whose output ended at max_model_len
        self.engine: Engine | None = None

    def start(
        self, step_time: StepTime, offload: Offload | None, worker: ConnectorWorker | None, *, check: bool
    ) -> None:
        """Create the engine (``check``: with its invariants checked at every step)."""
        self.offload = offload
        self.engine = Engine(self.env, self.scheduler, step_time, worker, observer=self, check_every_step=check)

    def notify(self) -> None:
        """A copy has ended: an engine that waits should look."""
        if self.engine is not None:
            self.engine.notify()

    # -- requests in
    def submit(self, session: Session, stream: str, index: int, turn: Turn) -> simpy.Event:
        """One turn of a session arrives; the event fires when it has ended."""
        assert self.engine is not None
        number = len(self.record.requests)
        name = f"{session.name}{'/' + stream if stream else ''}#{index}"
        entry = RequestRecord(
            request_id=f"{number:06d}:{name}",
            session=session.name,
            stream=stream,
            turn=index,
            arrival_ns=self.env.now,
            prompt_tokens=turn.input_tokens,
        )
        self.record.requests.append(entry)
        reason = self.refusal(turn.input_tokens, turn.output_tokens)
        if reason:
            entry.status, entry.reason = "rejected", reason
            self._on_ended()
            return self.env.event().succeed()
        size = self.scheduler.kv.block_size
        content = ChainContent(turn.chain, self._block_ids, size, turn.input_tokens + turn.output_tokens)
        request = Request(
            entry.request_id,
            content,
            block_size=size,
            num_prompt_tokens=turn.input_tokens,
            max_tokens=turn.output_tokens,
            arrival=self.env.now,
        )
        self._records[request] = entry
        return self.engine.submit(request)

    def refusal(self, prompt_tokens: int, output_tokens: int) -> str | None:
        """Why a request of this size can never run here; None if it can."""
        limits, kv = self.scheduler.limits, self.scheduler.kv
        if prompt_tokens >= limits.max_model_len:  # vLLM answers with an error: no room for a single new token
            return f"prompt too long for max_model_len {limits.max_model_len}"
        total = min(prompt_tokens + output_tokens, limits.max_model_len)
        need, have = -(-total // kv.block_size), kv.pool.num_blocks - 1
        if need > have:
            return f"needs more KV blocks than the {have} of the GPU"
        if not limits.enable_chunked_prefill and total > limits.max_num_batched_tokens:
            return f"longer than an unchunked step of {limits.max_num_batched_tokens} tokens"
        return None

    # -- what happens
    def on_step_scheduled(self, output: SchedulerOutput) -> None:
        now, totals = self.env.now, self.record.totals
        for request, (local, external) in output.hits.items():
            entry = self._records[request]
            if request.status is RequestStatus.WAITING_FOR_REMOTE_KVS:
                self._parked_ns[request] = now
            if request.num_preemptions == 0:
                entry.local_hit_tokens, entry.external_hit_tokens = local, external
                totals.prompt_tokens += request.num_prompt_tokens
                totals.local_hit_tokens += local
                totals.external_hit_tokens += external
        for request in output.new:
            entry = self._records[request]
            if entry.first_scheduled_ns == NEVER:
                entry.first_scheduled_ns = now
        totals.preemptions += len(output.preempted)
        self._awaiting_first = [
            request for request in output.num_scheduled_tokens if request.num_tokens == request.num_prompt_tokens
        ]

    def on_forward(self, duration_ns: int) -> None:
        self.record.totals.steps += 1
        self.record.totals.gpu_busy_ns += duration_ns

    def on_stall(self, waited_ns: int) -> None:
        self.record.totals.stall_ns += waited_ns

    def on_step_done(self, output: SchedulerOutput, worker: WorkerOutput | None, ended: list[Request]) -> None:
        now = self.env.now
        for request in self._awaiting_first:
            if request.num_tokens > request.num_prompt_tokens:
                self._records[request].first_token_ns = now
        if worker is not None:
            for request in worker.received:
                self._records[request].load_wait_ns += now - self._parked_ns.pop(request)
        for request in ended:
            entry = self._records.pop(request)
            entry.status, entry.finish_ns = "finished", now
            entry.output_tokens = request.num_output_tokens
            entry.preemptions = request.num_preemptions
            if request.num_output_tokens < request.max_tokens:
                self._cut_short += 1
            self.record.totals.output_tokens += request.num_output_tokens
            self._on_ended()
        self._observe_peaks()
        if self.record.series.is_due(now):
            self.record.series.add(self._sample())

    # -- books
    def _observe_peaks(self) -> None:
        totals, pool = self.record.totals, self.scheduler.kv.pool
        totals.gpu_used_blocks_peak = max(totals.gpu_used_blocks_peak, pool.num_blocks - 1 - pool.num_free)
        if self.offload is not None:
            totals.cpu_used_blocks_peak = max(totals.cpu_used_blocks_peak, len(self.offload.manager.slots))

    def _sample(self) -> Sample:
        scheduler, totals, offload = self.scheduler, self.record.totals, self.offload
        pool, link = scheduler.kv.pool, None if offload is None else offload.link
        loading = len(self._parked_ns)
        return Sample(
            time_ns=self.env.now,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) - loading,
            loading=loading,
            gpu_used_blocks=pool.num_blocks - 1 - pool.num_free,
            gpu_cached_blocks=len(pool.cached),
            cpu_used_blocks=0 if offload is None else len(offload.manager.slots),
            prompt_tokens=totals.prompt_tokens,
            local_hit_tokens=totals.local_hit_tokens,
            external_hit_tokens=totals.external_hit_tokens,
            output_tokens=totals.output_tokens + sum(request.num_output_tokens for request in scheduler.running),
            h2d_bytes=0 if link is None else link.bytes["h2d"],
            d2h_bytes=0 if link is None else link.bytes["d2h"],
            h2d_busy_ns=0 if link is None else link.busy_ns("h2d"),
            d2h_busy_ns=0 if link is None else link.busy_ns("d2h"),
            gpu_busy_ns=totals.gpu_busy_ns,
            preemptions=totals.preemptions,
        )

    def close(self) -> None:
        """The simulation is over: last sample, totals, and a reason for whatever never ended."""
        totals, offload = self.record.totals, self.offload
        totals.end_ns = self.env.now
        self.record.series.add(self._sample())
        totals.gpu_evicted_blocks = self.scheduler.kv.pool.evicted_blocks
        if offload is not None:
            totals.cpu_evicted_blocks = offload.manager.evicted_keys
            totals.cannot_store = offload.manager.refusals
            totals.load_jobs, totals.store_jobs = (
                offload.connector.num_load_jobs,
                offload.connector.num_store_jobs,
            )
            totals.h2d_bytes, totals.d2h_bytes = offload.link.bytes["h2d"], offload.link.bytes["d2h"]
            totals.h2d_busy_ns, totals.d2h_busy_ns = offload.link.busy_ns("h2d"), offload.link.busy_ns("d2h")
        for request, reason in stuck_requests(self.scheduler):
            entry = self._records[request]
            entry.reason = reason
            entry.output_tokens, entry.preemptions = request.num_output_tokens, request.num_preemptions
        if self._cut_short:
            self.record.notes.append(
                f"{self._cut_short} requests stopped early at max_model_len {self.scheduler.limits.max_model_len}"
            )
