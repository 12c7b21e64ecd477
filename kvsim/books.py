"""The books of one server: what its engine does becomes records, samples and totals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvsim.clock import Clock
from kvsim.connectors.base import KVConnector, SchedulerOutput, WorkerOutput
from kvsim.connectors.site import Moves
from kvsim.engine import stuck_requests
from kvsim.kv_events import KVEventPublisher
from kvsim.observer import EngineObserver
from kvsim.request import Request, RequestStatus
from kvsim.results.records import NEVER, RequestRecord, RunRecord, Sample, TierSample, TierTotals, Totals
from kvsim.scheduler import Scheduler


@dataclass(slots=True)
class Offload:
    """What the books look at where KV is offloaded."""

    connector: KVConnector
    link: Moves
    tiers: Sequence[ObservedTier] = ()


class ObservedTier(Protocol):
    """What a secondary tier tells the books."""

    totals: TierTotals
    chunk_bytes: int

    def bring_up_to_date(self) -> None:
        """Complete the totals."""
        ...

    def write_backlog_bytes(self) -> int:
        """Handed over for writing, not written yet."""
        ...

    def read_queue_bytes(self) -> int:
        """Asked for, not read yet."""
        ...

    def busy_ns(self) -> int:
        """Of the whole device."""
        ...


class Books(EngineObserver):
    """Fills a run record while the engine works. Records of requests are opened by whoever submits them."""

    _scheduler: Scheduler

    def __init__(self, clock: Clock, record: RunRecord) -> None:
        self._clock, self._record = clock, record
        self._offload: Offload | None = None
        self._kv_events: KVEventPublisher | None = None
        self._open: dict[Request, RequestRecord] = {}
        self._parked_ns: dict[Request, int] = {}  # since when a request waits for its load
        self._awaiting_first: dict[Request, None] = {}  # admitted, nothing generated so far
        self.sample_of_all: Callable[[], Sample] = self.sample  # of the whole server, if it has other ranks
        self.on_first_token: Callable[[RequestRecord], None] | None = None  # somebody wants to know
        self.on_open: Callable[[Request, RequestRecord], None] | None = None  # somebody wants to know
        self._admitted: set[Request] = set()  # their hits are counted; never iterated
        self._abort_reasons: dict[Request, str] = {}
        self._is_dead = False  # the engine that is attached
        self._cut_short = 0  # requests whose output ended at max_model_len

    def open(self, request: Request, entry: RequestRecord, kept_tokens: int = 0) -> None:
        """The request has been submitted; ``entry`` is kept up to date until it ends.

        ``kept_tokens``: of a streaming session that goes on: computed before and kept, so nobody looks them up.
        """
        self._open[request] = entry
        entry.preemptions = -request.num_preemptions  # those before are in an earlier record
        if kept_tokens or request.num_preemptions:
            self._admitted.add(request)
        if kept_tokens:
            entry.local_hit_tokens = kept_tokens
            self._record.totals.prompt_tokens += request.num_prompt_tokens
            self._record.totals.local_hit_tokens += kept_tokens
        if self.on_open is not None:
            self.on_open(request, entry)

    # -- what the engine tells
    def on_step_scheduled(self, output: SchedulerOutput) -> None:
        now, totals = self._clock.now, self._record.totals
        for request, (local, external) in output.hits.items():
            if request.status is RequestStatus.WAITING_FOR_REMOTE_KVS:
                self._parked_ns[request] = now
            if request not in self._admitted:
                self._admitted.add(request)
                entry = self._open[request]
                if request.handoff is not None and request.handoff.role == "decode":
                    entry.decode_hit_tokens = local  # its prompt was counted before
                    entry.remote_tokens = external - self._tokens_of_tiers(request)
                    continue
                entry.local_hit_tokens, entry.external_hit_tokens = local, external
                totals.prompt_tokens += request.num_prompt_tokens
                totals.local_hit_tokens += local
                totals.external_hit_tokens += external
                if external:
                    self._note_tiers(request, entry)
        for request in output.new:
            entry = self._open[request]
            if entry.first_scheduled_ns == NEVER:
                entry.first_scheduled_ns = now
            if entry.first_token_ns == NEVER:
                self._awaiting_first[request] = None
        totals.preemptions += len(output.preempted)
        totals.encoder_tokens += output.encoder_tokens
        self._note_gpu_peak(totals)
        if self._offload is not None and (used := self._cpu_used_blocks()) > totals.cpu_used_blocks_peak:
            totals.cpu_used_blocks_peak = used

    def on_forward(self, duration_ns: int) -> None:
        self._record.totals.steps += 1
        self._record.totals.gpu_busy_ns += duration_ns

    def on_quiet_steps(self, steps: int, duration_ns: int) -> None:
        totals = self._record.totals
        totals.steps += steps
        totals.gpu_busy_ns += duration_ns
        self._note_gpu_peak(totals)

    def state_wanted_ns(self) -> int:
        return self._record.series.due_ns

    def on_quiet_state(self) -> None:
        if self._record.series.is_due(self._clock.now):
            self._record.series.add(self.sample_of_all())

    def on_slowdown(self, lost_ns: int) -> None:
        self._record.totals.gpu_busy_ns += lost_ns
        self._record.totals.slowdown_ns += lost_ns

    def on_load_stall(self, waited_ns: int) -> None:
        self._record.totals.stall_ns += waited_ns

    def on_sync_stall(self, waited_ns: int) -> None:
        self._record.totals.sync_stall_ns += waited_ns

    def on_flush_stall(self, waited_ns: int) -> None:
        self._record.totals.flush_stall_ns += waited_ns

    def on_step_done(self, output: SchedulerOutput, worker: WorkerOutput | None, ended: list[Request]) -> None:
        now = self._clock.now
        for request in [r for r in self._awaiting_first if r.num_output_tokens or r.is_finished]:
            del self._awaiting_first[request]
            if request.num_output_tokens:
                entry = self._open[request]
                entry.first_token_ns = now
                if self.on_first_token is not None:
                    self.on_first_token(entry)
        if worker is not None:
            for request in worker.received:
                self._unpark(request)
        for request in ended:
            if request.status is RequestStatus.FAILED:
                self._close(request, "failed", "its KV could not be loaded")
            else:
                self._close(request, "finished")
                self._cut_short += request.num_output_tokens < request.max_tokens
        if self._kv_events is not None:
            self._kv_events.publish(now)
        if self._record.series.is_due(now):
            self._record.series.add(self.sample_of_all())

    def on_abort(self, request: Request) -> None:
        self._record.faults.client_aborts += 1
        self._close(request, "aborted", self._abort_reasons.pop(request, "client went away"))

    def on_death(self, orphans: list[Request]) -> None:
        for request in orphans:
            self._close(request, "failed", "the engine died")
        self._awaiting_first = {}
        self._take_counts()
        self._is_dead = True

    def expect_abort(self, request: Request, reason: str) -> None:
        """The client has gone; the engine will hear of it before its next decision, if the request lives so long."""
        self._abort_reasons[request] = reason

    def attach(self, scheduler: Scheduler, offload: Offload | None, kv_events: KVEventPublisher | None) -> None:
        """An engine begins; perhaps it takes over from a dead one."""
        self._scheduler, self._offload, self._kv_events, self._is_dead = scheduler, offload, kv_events, False

    # -- inside
    def _note_tiers(self, request: Request, entry: RequestRecord) -> None:
        if self._offload is not None and self._offload.tiers:
            for number, tokens in self._offload.connector.hit_tokens_by_tier(request).items():
                self._record.tiers[number].hit_tokens += tokens
                entry.secondary_hit_tokens += tokens

    def _tokens_of_tiers(self, request: Request) -> int:
        """Of its load: tokens that come from tiers, such as a store."""
        has_tiers = self._offload is not None and self._offload.tiers
        return sum(self._offload.connector.hit_tokens_by_tier(request).values()) if self._offload and has_tiers else 0

    def _unpark(self, request: Request) -> None:
        """It waits for its load no longer; if it has ended meanwhile, it does not wait already."""
        since = self._parked_ns.pop(request, None)
        if since is None:
            return
        if request.handoff is not None and request.handoff.role == "decode":
            self._open[request].remote_wait_ns += self._clock.now - since
        else:
            self._open[request].load_wait_ns += self._clock.now - since

    def _close(self, request: Request, status: str, reason: str = "") -> None:
        self._unpark(request)
        entry = self._open.pop(request)
        entry.status, entry.reason, entry.finish_ns = status, reason, self._clock.now
        entry.output_tokens = request.num_output_tokens
        entry.preemptions += request.num_preemptions
        if request.handoff is None or request.handoff.role == "decode":  # a prefill's token is thrown away
            self._record.totals.output_tokens += request.num_output_tokens
        self._admitted.discard(request)
        self._awaiting_first.pop(request, None)
        self._abort_reasons.pop(request, None)

    def _take_counts(self) -> None:
        """What the parts of this engine have counted."""
        totals, faults, failures = self._record.totals, self._record.faults, self._scheduler.load_failures
        totals.gpu_evicted_blocks += self._scheduler.kv.pool.evicted_blocks
        faults.hit_requests += failures.num_requests
        faults.lost_tokens += failures.num_lost_tokens
        if self._offload is not None:
            connector = self._offload.connector
            totals.load_jobs += connector.num_load_jobs
            totals.store_jobs += connector.num_store_jobs
            totals.cpu_evicted_blocks += connector.num_evicted_chunks
            totals.cannot_store += connector.num_refusals
            if (use := connector.store_use) is not None:
                totals.stored_blocks += use.num_stored
                totals.unused_stored_blocks += use.num_unused

    def _note_gpu_peak(self, totals: Totals) -> None:
        used = self._gpu_used_blocks()
        totals.gpu_used_blocks_peak = max(totals.gpu_used_blocks_peak, used)

    def _gpu_used_blocks(self) -> int:
        pool = self._scheduler.kv.pool
        return pool.num_blocks - 1 - pool.num_free

    def _cpu_used_blocks(self) -> int:
        return 0 if self._offload is None else self._offload.connector.num_offloaded_chunks

    def sample(self) -> Sample:
        """The state of this rank now."""
        scheduler, totals, link = self._scheduler, self._record.totals, self._offload and self._offload.link
        loading = len(self._parked_ns)
        return Sample(
            time_ns=self._clock.now,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) - loading,
            loading=loading,
            gpu_used_blocks=self._gpu_used_blocks(),
            gpu_cached_blocks=scheduler.num_cached_blocks(),
            cpu_used_blocks=self._cpu_used_blocks(),
            prompt_tokens=totals.prompt_tokens,
            local_hit_tokens=totals.local_hit_tokens,
            external_hit_tokens=totals.external_hit_tokens,
            output_tokens=totals.output_tokens + scheduler.num_open_output_tokens(),
            h2d_bytes=link.bytes["h2d"] if link else 0,
            d2h_bytes=link.bytes["d2h"] if link else 0,
            h2d_busy_ns=link.busy_ns("h2d") if link else 0,
            d2h_busy_ns=link.busy_ns("d2h") if link else 0,
            gpu_busy_ns=totals.gpu_busy_ns,
            preemptions=totals.preemptions,
            tiers=self._sample_tiers(),
        )

    def _sample_tiers(self) -> tuple[TierSample, ...]:
        tiers = () if self._offload is None else self._offload.tiers
        for tier in tiers:
            tier.bring_up_to_date()
        return tuple(
            TierSample(
                time_ns=self._clock.now,
                tier=tier.totals.name,
                used_bytes=tier.totals.used_chunks * tier.chunk_bytes,
                write_backlog_bytes=tier.write_backlog_bytes(),
                read_queue_bytes=tier.read_queue_bytes(),
                read_bytes=tier.totals.read_bytes,
                write_bytes=tier.totals.write_bytes,
                busy_ns=tier.totals.busy_ns,
                hit_tokens=tier.totals.hit_tokens,
            )
            for tier in tiers
        )

    def close(self, hang: str = "") -> None:
        """The simulation is over: last sample, totals, and a reason for whatever never ended.

        ``hang``: what never ends, as far as faults are to blame.
        """
        self._record.series.add(self.sample_of_all())
        self.settle(hang)

    def settle(self, hang: str = "") -> None:
        """Totals of this rank, and a reason for what never ended here (``hang``: what will never end)."""
        record, totals = self._record, self._record.totals
        self._scheduler.settle()
        totals.end_ns = self._clock.now
        if not self._is_dead:
            self._take_counts()
        if self._offload is not None:
            link = self._offload.link
            totals.h2d_bytes, totals.d2h_bytes = link.bytes["h2d"], link.bytes["d2h"]
            totals.h2d_busy_ns, totals.d2h_busy_ns = link.busy_ns("h2d"), link.busy_ns("d2h")
            if not self._is_dead:
                record.cautions += self._offload.connector.cautions()
        for request, reason in () if self._is_dead else stuck_requests(self._scheduler):
            entry = self._open[request]
            entry.reason = f"{reason}; {hang}" if hang else reason
            entry.output_tokens = request.num_output_tokens
            entry.preemptions += request.num_preemptions
        held = set() if self._is_dead else self._scheduler.kv.tables.keys() - self._scheduler.requests.keys()
        if held:
            record.cautions.append(
                f"{len(held)} ended requests hold their GPU blocks for ever: the connector's worker never reported them"
                " as sent (or received, if they were aborted while they were loaded)."
            )
        if totals.slowdown_ns:
            lost, busy = totals.slowdown_ns / 1e9, totals.gpu_busy_ns / 1e9
            record.notes.append(f"copies by kernel held forward passes up for {lost:.3g} s of {busy:.3g} s of GPU time")
        if self._cut_short:
            longest = self._scheduler.limits.max_model_len
            record.notes.append(f"{self._cut_short} requests stopped early at max_model_len {longest}")
