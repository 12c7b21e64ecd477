"""From a plan to objects: the one place that puts the parts of a simulation together."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, TextIO

from kvsim.async_engine import AsyncEngine
from kvsim.books import Books, Offload
from kvsim.build_tiers import build_tiers
from kvsim.cache.hybrid_kv_cache_manager import AnyKVCacheManager, HybridKVCacheManager
from kvsim.cache.kv_cache_manager import KVCacheManager
from kvsim.clock import Clock
from kvsim.compute import ComputeStream
from kvsim.config import (
    CustomConnector,
    ExampleConnectorConfig,
    LMCacheConnectorConfig,
    LMCacheMPConnectorConfig,
    OffloadingConnectorConfig,
    SimpleCPUConnectorConfig,
)
from kvsim.connectors.base import ConnectorWorker, Copier, KVConnector
from kvsim.connectors.compute_fence import COPIES_WAIT, STORES_WAIT, FencedCopier, LaunchQueue
from kvsim.connectors.link_copier import LinkCopier
from kvsim.connectors.site import HeldToProtocol, Site, Traffic
from kvsim.copy_time import copy_time, host_dram_bytes_per_s
from kvsim.data_parallel import DataParallelServer, RankBooks, close, connect
from kvsim.engine import Engine, NoProgressError
from kvsim.errors import UserError
from kvsim.gates.base import Gate
from kvsim.hardware import DuplexLink, LinkDirection
from kvsim.host_memory import HostMemory
from kvsim.instance import Instance
from kvsim.kv_events import GPU, KVEventLog, KVEventWriter
from kvsim.load_balancer import Coordinator
from kvsim.lockstep import Lockstep
from kvsim.offload.manager import PolicyFactory
from kvsim.registry import CONNECTORS, POLICIES
from kvsim.resolve import Plan, Progress
from kvsim.results.records import RunRecord, Series, Totals
from kvsim.scheduler import Scheduler
from kvsim.spec_scheduler import SpeculativeScheduler
from kvsim.streaming import StreamingInstance
from kvsim.synchronous import LMCacheMP, Synchronous
from kvsim.trace.replay import ReplayOptions, Submit, play

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
        self._kv_events_file = kv_events
        self.plan, self.clock = plan, Clock()
        instant = plan.config.transfer.kind == "instant"
        self.host_memory = HostMemory(None if instant else host_dram_bytes_per_s(plan))
        self.record = RunRecord(
            series=Series(plan.config.output.series_points), notes=list(plan.notes), cautions=list(plan.cautions)
        )
        self._progress, self._total, self._done = progress, plan.trace.num_requests, 0
        # Tiers wake an engine that is built on them.
        self._tiers = build_tiers(
            self.clock, plan, on_change=self._notify, on_blocked=self._hold_up, memory=self.host_memory
        )
        self.record.tiers = [tier.totals for tier in self._tiers]
        self._links: list[DuplexLink] = []  # of the rank that is being built
        self._synchronous = Synchronous(plan, self.clock)
        self._lmcache_mp = LMCacheMP(plan, self.clock)
        self._books, self.instances, self._server = self._build()

    def run(self) -> RunRecord:
        """Play the whole trace. Ends when nothing can happen or move any more: requests left then are stuck.

        Raises:
            UserError: time runs for centuries.
        """
        wanted = self.plan.config.trace
        options = ReplayOptions(
            session_interval_ns=wanted.session_interval,
            max_think_ns=wanted.max_think_time,
            max_concurrent_sessions=wanted.max_concurrent_sessions,
            time_scale=wanted.time_scale,
        )
        play(self.clock, self.plan.trace, self._server.submit, options)
        try:
            self.clock.run()
        except NoProgressError as error:
            self.record.cautions.append(f"The simulation was stopped: {error}.")
        if self.clock.now > LONGEST_NS:
            raise UserError(
                f"simulated time ends after {self.clock.now // (NS * 86_400 * 365)} years, expected at most 292:"
                " look at trace.time_scale, max_think_time and step_time"
            )
        close(self._books, self.record, self._total)
        for scheduler in (ledger.scheduler for ledger in self._books):
            if isinstance(scheduler, SpeculativeScheduler):
                accepted, drafts = scheduler.num_accepted_tokens, scheduler.num_draft_tokens
                self.record.notes.append(f"speculative decoding: {accepted:,} of {drafts:,} drafts were accepted")
            if self.plan.config.debug and not scheduler.requests:
                # 0.23.0 stops before storage has finished writing.
                idle = not scheduler.has_requests() and all(tier.is_idle() for tier in self._tiers)
                scheduler.check(at_end=idle)
        return self.record

    @property
    def instance(self) -> Instance:
        """The only rank, or the first."""
        return self.instances[0]

    def _build(self) -> tuple[list[RankBooks], list[Instance], Server]:
        plan, num_ranks = self.plan, self.plan.config.engine.data_parallel_size
        lockstep = Lockstep(self.clock, plan.step_time) if plan.model.moe and num_ranks > 1 else None
        books: list[RankBooks] = []
        ranks: list[Instance] = []
        for rank in range(num_ranks):
            # A lone rank writes into the run's own totals, several are summed up at the end.
            record = self.record if num_ranks == 1 else replace(self.record, totals=Totals())
            self._note_sizes(record.totals)
            ledger, instance = self._build_rank(rank, record, lockstep)
            books.append(ledger)
            ranks.append(instance)
        if num_ranks == 1:
            return books, ranks, ranks[0]
        balancer = plan.release.load_balancer(num_ranks)
        coordinator = Coordinator(self.clock, num_ranks, balancer.hear)
        connect(books, coordinator)
        return books, ranks, DataParallelServer(ranks, balancer, coordinator)

    def _build_rank(self, rank: int, record: RunRecord, lockstep: Lockstep | None) -> tuple[RankBooks, Instance]:
        plan, config = self.plan, self.plan.config
        kv = self._kv_cache_manager()
        self._links.clear()
        self._compute = ComputeStream(self.clock)
        site = self._site(kv)
        connector = self._connector(kv, site)
        gates, compiler = plan.gates.build(self.clock, plan.release)
        launches = LaunchQueue() if config.engine.async_scheduling else None
        scheduler = self._scheduler(kv, connector, gates)
        worker, link = self._worker(connector, site, launches)
        offload = Offload(connector, link, self._tiers) if connector is not None and link is not None else None
        books = RankBooks(self.clock, scheduler, record, offload, self._kv_events(kv, connector, rank), rank=rank)
        engine = self._engine = self._make_engine(scheduler, worker, books, launches, lockstep)
        engine.ready_at = plan.host.startup_ns
        for each in self._links:
            each.on_finish = engine.notify
        if isinstance(link, DuplexLink):
            link.on_slowdown = self._compute.disturber()
        self._lmcache_mp.alarm.on_ring = engine.notify
        if compiler is not None:
            compiler.on_ready = engine.notify
        site.wakes(engine.notify)
        tenants, sessions = config.trace.tenants, plan.trace.sessions
        tenant_of = {session.name: at % len(tenants) for at, session in enumerate(sessions)} if tenants else {}
        kind = StreamingInstance if config.trace.streaming_sessions else Instance
        return books, kind(engine, books, record.requests, self._request_ended, tenants, tenant_of, rank=rank)

    def _kv_cache_manager(self) -> AnyKVCacheManager:
        plan, caching = self.plan, self.plan.config.engine.enable_prefix_caching
        pool, longest = plan.release.block_pool(plan.sizes.num_gpu_blocks), plan.limits.max_model_len
        if not plan.sizes.groups.specs:
            drafts = plan.speculation
            return KVCacheManager(
                pool,
                block_size=plan.sizes.block_tokens,
                max_model_len=longest,
                enable_caching=caching,
                num_lookahead_tokens=drafts.num_lookahead_tokens if drafts else 0,
                drops_last_hit=drafts is not None and drafts.drops_last_hit,
                hash_lookahead_tokens=drafts.hash_lookahead_tokens if drafts else 0,
            )
        return HybridKVCacheManager(
            pool,
            plan.sizes.groups.specs,
            max_model_len=longest,
            max_in_flight_tokens=plan.limits.max_num_batched_tokens,
            enable_caching=caching,
            retention_tokens=plan.config.engine.prefix_cache_retention_interval,
        )

    def _notify(self) -> None:
        self._engine.notify()

    def _hold_up(self, duration_ns: int) -> None:
        self._engine.hold_up(duration_ns)

    def _scheduler(self, kv: AnyKVCacheManager, connector: KVConnector | None, gates: Gate) -> Scheduler:
        plan, release = self.plan, self.plan.release
        is_async, drafts = plan.config.engine.async_scheduling, plan.speculation
        if drafts is not None:
            speculative = release.async_speculative_scheduler if is_async else release.speculative_scheduler
            assert speculative is not None, "the config refuses drafts of other releases"
            return speculative(plan.limits, kv, connector, gates, speculation=drafts)
        kind: type[Scheduler] | None = release.async_scheduler if is_async else release.scheduler
        assert kind is not None, "the config refuses asynchronous scheduling of other releases"
        return kind(plan.limits, kv, connector, gates)

    def _make_engine(
        self,
        scheduler: Scheduler,
        worker: ConnectorWorker | None,
        books: Books,
        launches: LaunchQueue | None,
        lockstep: Lockstep | None,
    ) -> Engine:
        plan, checks = self.plan, self.plan.config.debug
        if launches is None:
            return Engine(
                self.clock,
                scheduler,
                plan.step_time,
                worker,
                lockstep=lockstep,
                observer=books,
                encoder_token_ns=plan.gates.encoder_token_ns,
                check_every_step=checks,
                compute=self._compute,
            )
        return AsyncEngine(
            self.clock,
            scheduler,
            plan.step_time,
            worker,
            launches=launches,
            observer=books,
            encoder_token_ns=plan.gates.encoder_token_ns,
            check_every_step=checks,
        )

    def _site(self, kv: AnyKVCacheManager) -> Site:
        """What a connector of the user's own gets to see."""
        plan, config = self.plan, self.plan.config
        return Site(
            clock=self.clock,
            block_size=plan.sizes.block_tokens,
            block_bytes=plan.sizes.gpu_block_bytes,
            num_gpu_blocks=plan.sizes.num_gpu_blocks,
            tensor_parallel_size=plan.sizes.ranks,
            enable_caching=config.engine.enable_prefix_caching,
            seed=config.seed,
            pool=kv.pool,
            gpu_copy_time=copy_time(plan),
            memory=self.host_memory,
            compute=self._compute,
            instant=config.transfer.kind == "instant",
        )

    def _kv_events(self, kv: AnyKVCacheManager, connector: KVConnector | None, rank: int) -> KVEventWriter | None:
        if self._kv_events_file is None:
            return None
        kv.pool.kv_events = log = KVEventLog(GPU, num_groups=kv.num_groups)
        if connector is None:
            return KVEventWriter(self._kv_events_file, [log.take], rank)
        connector.enable_kv_events()
        return KVEventWriter(self._kv_events_file, [log.take, connector.take_events], rank)

    def _policy(self, config: OffloadingConnectorConfig) -> PolicyFactory:
        policies, name = self.plan.release.policies, config.eviction_policy
        if name in policies:
            return policies[name]
        return POLICIES.factory(name, config.eviction_policy_options, self.plan.config.python_path)

    def _connector(self, kv: AnyKVCacheManager, site: Site) -> KVConnector | None:
        plan, config, release = self.plan, self.plan.config.connector, self.plan.release
        if isinstance(config, CustomConnector):
            connector: KVConnector = CONNECTORS.make(config.kind, [site], config.options, plan.config.python_path)
            setattr(connector, "get_num_new_matched_tokens", HeldToProtocol(config.kind, connector))  # noqa: B010 - mypy
            return connector
        if isinstance(config, OffloadingConnectorConfig):
            primary = release.manager(plan.sizes.num_cpu_chunks, self._policy(config), config.store_threshold)
            ledger = release.tiering_manager(primary, self._tiers) if self._tiers else primary
            if isinstance(kv, HybridKVCacheManager):
                return release.grouped_offloading_connector(
                    ledger,
                    kv,
                    block_size_factor=config.block_size_factor,
                    offload_prompt_only=config.offload_prompt_only,
                    enable_caching=plan.config.engine.enable_prefix_caching,
                )
            return release.offloading_connector(
                ledger,
                block_size=plan.sizes.block_tokens,
                block_size_factor=config.block_size_factor,
                offload_prompt_only=config.offload_prompt_only,
                enable_caching=plan.config.engine.enable_prefix_caching,
            )
        if isinstance(config, SimpleCPUConnectorConfig):
            return release.simple_cpu_connector(
                kv.pool,
                release.block_pool(plan.sizes.num_cpu_chunks),
                block_size=plan.sizes.block_tokens,
                lazy=config.lazy_offload,
                blocks_per_step=2 * -(-plan.limits.max_num_batched_tokens // plan.sizes.block_tokens),
                enable_caching=plan.config.engine.enable_prefix_caching,
            )
        if isinstance(config, ExampleConnectorConfig | LMCacheConnectorConfig):
            return self._synchronous.connector()
        if isinstance(config, LMCacheMPConnectorConfig):
            return self._lmcache_mp.connector()
        return None

    def _worker(
        self, connector: KVConnector | None, site: Site, launches: LaunchQueue | None
    ) -> tuple[ConnectorWorker | None, DuplexLink | Traffic | None]:
        plan = self.plan
        if connector is None:
            return None, None
        if isinstance(plan.config.connector, CustomConnector):
            return connector.make_worker(), Traffic(site.links)
        link = DuplexLink(self.clock, memory=self.host_memory, ranks=plan.sizes.ranks)
        self._links.append(link)
        if isinstance(plan.config.connector, ExampleConnectorConfig | LMCacheConnectorConfig):
            self._links += self._synchronous.storage
            return self._synchronous.worker(link), link
        if isinstance(plan.config.connector, LMCacheMPConnectorConfig):
            self._links += self._lmcache_mp.storage
            return self._lmcache_mp.worker(link), link
        bytes_per_block: dict[LinkDirection, int] = {
            "h2d": plan.sizes.gpu_block_bytes,
            "d2h": plan.sizes.block_bytes * plan.sizes.cpu_copies,
        }
        is_simple = isinstance(plan.config.connector, SimpleCPUConnectorConfig)
        behind = launches is None and plan.release.loads_behind_forward and plan.config.transfer.kind != "instant"
        wait = self._compute if behind and not is_simple else None
        copier: Copier = LinkCopier(link, copy_time(plan), bytes_per_block, wait)
        if launches is not None:
            copier = FencedCopier(copier, self.clock, launches, STORES_WAIT if is_simple else COPIES_WAIT)
        if is_simple:
            return plan.release.simple_cpu_worker(copier), link
        return plan.release.offloading_worker(copier), link

    def _note_sizes(self, totals: Totals) -> None:
        sizes = self.plan.sizes
        totals.num_gpu_blocks, totals.num_cpu_blocks = sizes.num_gpu_blocks - 1, sizes.num_cpu_chunks
        totals.block_tokens = sizes.block_tokens
        totals.gpu_block_bytes, totals.cpu_block_bytes = sizes.gpu_block_bytes, sizes.cpu_chunk_bytes

    def _request_ended(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total)
