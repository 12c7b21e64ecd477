"""From a plan to objects: the one place that puts the parts of a simulation together."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, TextIO

from kvsim.build_engine import EngineBuilder
from kvsim.build_faults import Faults
from kvsim.build_tiers import build_tiers
from kvsim.clock import Clock
from kvsim.copy_time import host_dram_bytes_per_s
from kvsim.data_parallel import DataParallelServer, RankBooks, close, connect
from kvsim.engine import Engine, NoProgressError
from kvsim.errors import UserError
from kvsim.garbage import rarely_collected
from kvsim.host_memory import HostMemory
from kvsim.instance import Instance
from kvsim.load_balancer import Coordinator
from kvsim.lockstep import Lockstep
from kvsim.resolve import Plan, Progress
from kvsim.results.records import RunRecord, Series, Totals
from kvsim.spec_scheduler import SpeculativeScheduler
from kvsim.streaming import StreamingInstance
from kvsim.trace.replay import ReplayOptions, Submit, play, shortest_ns

NS = 10**9
LONGEST_NS = 2**63 - 1  # what a results table can hold


class Server(Protocol):
    """Whatever takes the turns of a trace."""

    @property
    def submit(self) -> Submit:
        """See `Instance.submit`."""
        ...


class Simulation:
    """A plan on a clock. `run` plays it to the end and returns what it wrote down.

    Args:
        plan: what to simulate.
        progress: told how many of how many requests have ended.
        kv_events: gets a line per batch of KV events.
    """

    def __init__(self, plan: Plan, progress: Progress | None = None, kv_events: TextIO | None = None) -> None:
        self.plan, self.clock = plan, Clock()
        instant = plan.config.transfer.kind == "instant"
        self.host_memory = HostMemory(None if instant else host_dram_bytes_per_s(plan))
        wanted = plan.config.trace
        self._options = ReplayOptions(
            session_interval_ns=wanted.session_interval,
            max_think_ns=wanted.max_think_time,
            max_concurrent_sessions=wanted.max_concurrent_sessions,
            time_scale=wanted.time_scale,
        )
        self.record = RunRecord(
            series=Series(plan.config.output.series_points, shortest_ns(plan.trace, self._options)),
            notes=list(plan.notes),
            cautions=list(plan.cautions),
        )
        self._progress, self._total, self._done = progress, plan.trace.num_requests, 0
        # Tiers wake an engine that is built on them.
        tiers = build_tiers(self.clock, plan, on_change=self._notify, on_blocked=self._hold_up, memory=self.host_memory)
        self.record.tiers = [tier.totals for tier in tiers]
        self._faults = Faults(self.clock, plan.config.faults, plan.config.seed, self.record.faults, self._notify)
        self.record.notes += self._faults.notes()
        self._builder = EngineBuilder(self.clock, plan, self.host_memory, tiers, self._faults, kv_events)
        self._books, self.instances, self._server = self._build()

    def run(self) -> RunRecord:
        """Play the whole trace. Ends when nothing can happen or move any more: requests left then are stuck.

        Raises:
            UserError: time runs for centuries.
        """
        play(self.clock, self.plan.trace, self._server.submit, self._options)
        self._faults.start(self._kill)
        try:
            with rarely_collected():
                self.clock.run()
        except NoProgressError as error:
            self.record.cautions.append(f"The simulation was stopped: {error}.")
        if self.clock.now > LONGEST_NS:
            raise UserError(
                f"simulated time ends after {self.clock.now // (NS * 86_400 * 365)} years, expected at most 292:"
                " look at trace.time_scale, max_think_time and step_time"
            )
        hang = self._faults.explain_hang()
        close(self._books, self.record, self._total, hang)
        for instance in self.instances:
            scheduler = instance.scheduler
            if isinstance(scheduler, SpeculativeScheduler):
                accepted, drafts = scheduler.num_accepted_tokens, scheduler.num_draft_tokens
                self.record.notes.append(f"speculative decoding: {accepted:,} of {drafts:,} drafts were accepted")
            if self.plan.config.debug and not scheduler.requests and not instance.engine.is_dead:
                # 0.23.0 stops before storage has finished writing, and whether a store has stalled or not.
                idle = not scheduler.has_requests() and self._builder.tiers_are_idle and not hang
                scheduler.check(at_end=idle)
        if self._builder.recorder is not None:
            self.record.schedule = self._builder.recorder.steps()
        return self.record

    @property
    def instance(self) -> Instance:
        """The only rank, or the first."""
        return self.instances[0]

    def _build(self) -> tuple[list[RankBooks], list[Instance], Server]:
        plan, num_ranks = self.plan, self.plan.config.engine.data_parallel_size
        lockstep = Lockstep(self.clock, plan.step_time) if plan.model.moe and num_ranks > 1 else None
        clients = self._faults.clients()
        tenants, sessions = plan.config.trace.tenants, plan.trace.sessions
        tenant_of = {session.name: at % len(tenants) for at, session in enumerate(sessions)} if tenants else {}
        kind = StreamingInstance if plan.config.trace.streaming_sessions else Instance
        books: list[RankBooks] = []
        ranks: list[Instance] = []
        for rank in range(num_ranks):
            # A lone rank writes into the run's own totals, several are summed up at the end.
            record = self.record if num_ranks == 1 else replace(self.record, totals=Totals())
            self._note_sizes(record.totals)
            ledger = RankBooks(self.clock, record, rank)
            engine = self._start_engine(ledger, lockstep)
            books.append(ledger)
            entries, ended = record.requests, self._request_ended
            ranks.append(
                kind(engine, ledger, entries, ended, tenants, tenant_of, rank=rank, clients=clients, in_runs=plan.fast)
            )
        if num_ranks == 1:
            return books, ranks, ranks[0]
        balancer = plan.release.load_balancer(num_ranks)
        coordinator = Coordinator(self.clock, num_ranks, balancer.hear)
        connect(books, coordinator)
        return books, ranks, DataParallelServer(ranks, balancer, coordinator)

    def _start_engine(self, books: RankBooks, lockstep: Lockstep | None = None) -> Engine:
        engine = self._engine = self._builder.build(books, lockstep)
        engine.ready_at = self.plan.host.startup_ns
        engine.on_death = self._engine_died
        return engine

    def _kill(self) -> None:
        self._engine.kill()

    def _engine_died(self) -> None:
        """Its memory is lost and its copies are; another engine takes over after a while (there is one rank)."""
        self._faults.on_engine_death()
        self._builder.lose()
        if self._done < self._total:
            self.clock.alarm(self.plan.config.faults.restart_time, self._restart)

    def _restart(self) -> None:
        self.instance.engine = self._start_engine(self._books[0])

    def _notify(self) -> None:
        self._engine.notify()

    def _hold_up(self, duration_ns: int) -> None:
        self._engine.hold_up(duration_ns)

    def _note_sizes(self, totals: Totals) -> None:
        sizes = self.plan.sizes
        totals.num_gpu_blocks, totals.num_cpu_blocks = sizes.num_gpu_blocks - 1, sizes.num_cpu_chunks
        totals.block_tokens = sizes.block_tokens
        totals.gpu_block_bytes, totals.cpu_block_bytes = sizes.gpu_block_bytes, sizes.cpu_chunk_bytes

    def _request_ended(self) -> None:
        self._done += 1
        if self._done == self._total:
            self._faults.stop()
        if self._progress is not None:
            self._progress(self._done, self._total)
