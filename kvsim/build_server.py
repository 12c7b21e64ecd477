"""From a plan to a server: its memory, its tiers, and the engines of its ranks with their books."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import simpy

from kvsim.build_connector import ConnectorBuilder
from kvsim.build_engine import EngineBuilder
from kvsim.build_faults import Faults
from kvsim.build_policy import admission_notes
from kvsim.build_remote import Remote
from kvsim.build_store import StorePort
from kvsim.build_tiers import BuiltTier, build_tiers
from kvsim.chain import BlockIds
from kvsim.clock import Clock
from kvsim.connectors.split_multi import SplitMultiConnector
from kvsim.copy_time import host_dram_bytes_per_s
from kvsim.data_parallel import DataParallelServer, RankBooks, close, connect
from kvsim.door import Door
from kvsim.engine import Engine
from kvsim.faults.clients import Clients
from kvsim.frontend import Frontend
from kvsim.handoff import Handoff
from kvsim.host_memory import HostMemory
from kvsim.instance import Instance
from kvsim.kv_events import KVEventListener
from kvsim.load_balancer import Coordinator
from kvsim.lockstep import Lockstep
from kvsim.reception import Reception
from kvsim.resolve import Plan
from kvsim.results.records import RequestRecord, RunRecord, Totals
from kvsim.spec_scheduler import SpeculativeScheduler
from kvsim.streaming import StreamingInstance
from kvsim.synchronous import LMCacheNode
from kvsim.tiers.storage_tier import StorageTier
from kvsim.timeline_recorder import TimelineRecorder
from kvsim.trace.replay import Submit
from kvsim.trace.session import Session, Turn


def _nobody(_rank: int) -> Sequence[KVEventListener]:
    return ()


def host_memory_of(plan: Plan) -> HostMemory:
    """The memory of a host."""
    return HostMemory(None if plan.config.transfer.kind == "instant" else host_dram_bytes_per_s(plan))


class Node:
    """A host with several servers: they share its memory's bandwidth and its LMCache server."""

    def __init__(self, clock: Clock, plan: Plan) -> None:
        self.host_memory, self.lmcache = host_memory_of(plan), LMCacheNode(clock)
        self._num_servers = 0

    def is_first(self) -> bool:
        """Asked once by each of its servers: whether the LMCache server's memory is counted with it."""
        self._num_servers += 1
        return self._num_servers == 1


class Server:
    """What one `vllm serve` is: one rank or several data-parallel ones, on one host.

    Attributes:
        submit: takes a turn (see `Door.submit`).
        ranks: the only one, or all of them.

    Args:
        record: gets what this server writes down.
        reception: enters requests; they are in the record's list.
        clients: those who may give requests up.
        name: among the instances of a cluster; empty = the only server.
        kv_events: who listens to a rank's KV events.
        block_ids: numbers blocks by their size and lookahead; servers that share it give equal blocks equal numbers.
        on_death: called when the engine has died.
        store: the way to a store that instances share.
        may_die: somebody may call `kill`.
        remote: its place in the network, if there is one.
        node: what it shares with its neighbours; None = it has a node for itself.
        turn: who comes first of several servers at one instant (see `kvsim.clock`).
    """

    def __init__(
        self,
        clock: Clock,
        plan: Plan,
        record: RunRecord,
        reception: Reception,
        clients: Clients | None,
        *,
        name: str = "",
        kv_events: Callable[[int], Sequence[KVEventListener]] = _nobody,
        block_ids: Callable[[int, int], BlockIds] = BlockIds,
        on_death: Callable[[], None] = lambda: None,
        store: StorePort | None = None,
        may_die: bool = False,
        remote: Remote | None = None,
        node: Node | None = None,
        turn: int = 0,
    ) -> None:
        self.name, self.plan, self.record, self._remote = name, plan, record, remote
        self._clock, self._block_ids, self._on_death, self._store = clock, block_ids, on_death, store
        self.host_memory = host_memory_of(plan) if node is None else node.host_memory
        # Tiers wake an engine that is built on them.
        self.tiers: Sequence[BuiltTier] = build_tiers(
            clock,
            plan,
            on_change=self._notify,
            on_written=self._on_written,
            on_blocked=self._hold_up,
            memory=self.host_memory,
        )
        record.tiers = [tier.totals for tier in self.tiers] + ([] if store is None else [store.tier.totals])
        config = plan.config
        self.faults = Faults(clock, config.faults, config.seed, record.faults, self._notify, may_die=may_die)
        record.notes += [*self.faults.notes(), *admission_notes(plan)]
        self._connectors = ConnectorBuilder(
            clock,
            plan,
            self.host_memory,
            self.tiers,
            self.faults,
            remote,
            store,
            self._hold_up,
            None if node is None else node.lmcache,
        )
        self._builder = EngineBuilder(clock, plan, self.host_memory, self._connectors, kv_events, turn)
        self._counts_cpu = node is None or node.is_first()
        self.books: list[RankBooks] = []
        self.ranks: list[Instance] = []
        self._build(reception)
        times = plan.frontend
        frontend = None if times is None else Frontend(clock, times, lambda: self._engine.ready_at)
        self._door = Door(clock, reception, clients, self._host(), frontend, record.faults, name)
        first = self.ranks[0]
        self.submit: Submit = first.submit if isinstance(first, StreamingInstance) else self._door.submit

    def listen_to_first_tokens(self, listener: Callable[[RequestRecord], None]) -> None:
        """Tell somebody of each request when its first token is there."""
        for ledger in self.books:
            ledger.on_first_token = listener

    def serve(
        self, entry: RequestRecord, session: Session, turn: Turn, handoff: Handoff
    ) -> simpy.Event | tuple[str, str]:
        """See `Door.serve`."""
        return self._door.serve(entry, session, turn, handoff)

    @property
    def engine_id(self) -> str:
        """Of its engine, as others in the network know it; empty = they don't."""
        return "" if self._remote is None else self._remote.engine_id

    # -- life and death
    @property
    def is_dead(self) -> bool:
        """Whether its engine has died and nobody has taken over."""
        return self._engine.is_dead

    def kill(self) -> None:
        """The engine dies now; it has one rank."""
        self._engine.kill()

    def restart(self, *, starts_up: bool = False) -> None:
        """A new engine takes over, with empty memory. Several ranks are never killed and stay as they are.

        ``starts_up``: it has to prepare its host's memory first, as at the beginning of a run.
        """
        if len(self.ranks) > 1:
            return
        if self._store is not None:
            self._store.join()
        engine = self.ranks[0].engine = self._start_engine(self.books[0])
        if starts_up:
            engine.ready_at += self._clock.now

    def close(self, hang: str) -> None:
        """The simulation is over: see `Books.close`."""
        close(self.books, self.record, hang)
        self._door.settle()
        for rank in self.ranks:
            scheduler = rank.scheduler
            if isinstance(scheduler, SpeculativeScheduler):
                accepted, drafts = scheduler.num_accepted_tokens, scheduler.num_draft_tokens
                self.record.notes.append(f"speculative decoding: {accepted:,} of {drafts:,} drafts were accepted")
            if isinstance(scheduler.connector, SplitMultiConnector):
                split = scheduler.connector
                of_store = f"{split.num_split_blocks:,} blocks of them from the store"
                self.record.notes.append(f"{split.num_splits:,} prefixes came over two paths, {of_store}")
            if self.plan.config.debug and not scheduler.requests and not rank.engine.is_dead:
                # 0.23.0 stops before storage has finished writing, and whether a store has stalled or not.
                idle = not scheduler.has_requests() and self._connectors.tiers_are_idle and not hang
                scheduler.check(at_end=idle)
        for shown in self._builder.timelines.values():
            shown.finish()
        if self._connectors.recorder is not None:
            self.record.schedule = self._connectors.recorder.steps()

    # -- inside
    def _build(self, reception: Reception) -> None:
        plan, num_ranks = self.plan, self.plan.config.engine.data_parallel_size
        lockstep = Lockstep(self._clock, plan.step_time) if plan.model.moe and num_ranks > 1 else None
        kind = StreamingInstance if plan.config.trace.streaming_sessions else Instance
        for rank in range(num_ranks):
            # A lone rank writes into the server's own totals, several are summed up at the end.
            record = self.record if num_ranks == 1 else replace(self.record, totals=Totals())
            self._note_sizes(record.totals)
            ledger = RankBooks(self._clock, record, rank)
            self._show(ledger)
            engine = self._start_engine(ledger, lockstep)
            kv = engine.scheduler.kv
            block_ids = self._block_ids(kv.block_size, kv.hash_lookahead_tokens)
            self.books.append(ledger)
            self.ranks.append(kind(engine, ledger, reception, in_runs=plan.fast, block_ids=block_ids))

    def _show(self, books: RankBooks) -> None:
        """On the timeline, if there is one. Storage belongs to all ranks and is shown with the first."""
        if self.record.timeline is None:
            return
        name = self.name or "server"
        if self.plan.config.engine.data_parallel_size > 1:
            name += f", rank {books.rank}"
        shown = TimelineRecorder(self._clock, self.record.timeline, name, books.record.totals)
        self._builder.timelines[books.rank], books.on_open = shown, shown.on_open
        for tier in self.tiers if books.rank == 0 else ():
            if isinstance(tier, StorageTier):
                shown.watch_tier(tier.totals.name, tier)

    def _host(self) -> Instance | DataParallelServer:
        if len(self.ranks) == 1:
            return self.ranks[0]
        balancer = self.plan.release.load_balancer(len(self.ranks))
        coordinator = Coordinator(self._clock, len(self.ranks), balancer.hear)
        connect(self.books, coordinator)
        return DataParallelServer(self.ranks, balancer, coordinator)

    def _start_engine(self, books: RankBooks, lockstep: Lockstep | None = None) -> Engine:
        engine = self._engine = self._builder.build(books, lockstep)
        engine.ready_at = self.plan.host.startup_ns
        engine.on_death = self._engine_died
        return engine

    def _engine_died(self) -> None:
        """Its memory is lost and its copies are."""
        self.faults.on_engine_death()
        self._connectors.lose()
        self._door.lose()
        self._on_death()

    def _notify(self) -> None:
        self._engine.notify()

    def _on_written(self) -> None:
        self._engine.on_written()

    def _hold_up(self, duration_ns: int) -> None:
        self._engine.hold_up(duration_ns)

    def _note_sizes(self, totals: Totals) -> None:
        sizes = self.plan.sizes
        totals.num_gpu_blocks, totals.num_cpu_blocks = sizes.num_gpu_blocks - 1, sizes.num_cpu_chunks
        if not self._counts_cpu:
            totals.num_cpu_blocks = 0
        totals.block_tokens = sizes.block_tokens
        totals.gpu_block_bytes, totals.cpu_block_bytes = sizes.gpu_block_bytes, sizes.cpu_chunk_bytes
