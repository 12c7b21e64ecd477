"""From a plan to an engine, with everything that lives and dies with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, cast

from kvsim.async_engine import AsyncEngine
from kvsim.books import Books, Offload
from kvsim.build_fast import run_kv_cache_manager, run_offloading_connector
from kvsim.build_faults import Faults
from kvsim.build_policy import PlanView, admitting, policy_factory
from kvsim.build_remote import Remote
from kvsim.build_store import StorePort
from kvsim.build_tiers import BuiltTier, has_tiers, num_tiers
from kvsim.cache.hybrid_kv_cache_manager import AnyKVCacheManager, HybridKVCacheManager
from kvsim.cache.kv_cache_manager import KVCacheManager
from kvsim.clock import Clock
from kvsim.cohort_scheduler import CohortScheduler
from kvsim.compute import ComputeStream
from kvsim.config import (
    CustomConnector,
    DecodeBenchConnectorConfig,
    ExampleConnectorConfig,
    LMCacheConnectorConfig,
    LMCacheMPConnectorConfig,
    MooncakeStoreConnectorConfig,
    MultiConnectorConfig,
    OffloadingConnectorConfig,
    SimpleCPUConnectorConfig,
)
from kvsim.connectors.base import ConnectorWorker, KVConnector
from kvsim.connectors.compute_fence import COPIES_WAIT, STORES_WAIT, FencedCopier, LaunchQueue
from kvsim.connectors.decode_bench import DecodeBenchConnector
from kvsim.connectors.link_copier import LinkCopier
from kvsim.connectors.lmcache_client import Alarm
from kvsim.connectors.mooncake_store import MooncakeStoreConnector
from kvsim.connectors.mooncake_store_runs import RunSaveJob
from kvsim.connectors.multi import MultiConnector, multi_worker
from kvsim.connectors.nixl import NixlConnector
from kvsim.connectors.site import HeldToProtocol, Moves, Site, Traffic
from kvsim.connectors.split_multi import SplitMultiConnector, SplitMultiWorker
from kvsim.copy_time import copy_time
from kvsim.data_parallel import RankBooks
from kvsim.engine import Engine
from kvsim.fast_engine import FastEngine
from kvsim.gates.base import Gate
from kvsim.hardware import DuplexLink, LinkDirection
from kvsim.host_memory import HostMemory
from kvsim.kv_events import GPU, KVEventListener, KVEventLog, KVEventPublisher
from kvsim.load_failures import LoadFailurePolicy
from kvsim.lockstep import Lockstep
from kvsim.network_plan import REMOTE
from kvsim.offload.ledger import Ledger
from kvsim.offload.manager import OffloadingManager
from kvsim.offload.tiering import TieringManager
from kvsim.registry import CONNECTORS
from kvsim.request import Request
from kvsim.resolve import Plan
from kvsim.schedule_recorder import ScheduleRecorder
from kvsim.schedule_tiers import TierFiles, TierRecorder
from kvsim.scheduler import Scheduler
from kvsim.synchronous import LMCacheMP, LMCacheNode, Synchronous
from kvsim.tiers.storage_tier import StorageTier
from kvsim.timeline_recorder import TimelineRecorder
from kvsim.witness import Witness, WitnessedWorker

OWN_WORKERS = (*REMOTE, "decode_bench")  # connectors that bring their worker side

_NUM_SLOWING = attrgetter("num_slowing")


class EngineBuilder:
    """Builds the engine of a rank; again, after it has died.

    Args:
        host_memory: which all copies share.
        tiers: storage behind CPU memory, which outlives engines, with its counters.
        faults: puts faulty parts before the sound ones.
        kv_events: who listens to a rank's KV events.
        remote: its instance's place in the network, if there is one.
        store: the way to a store that instances share.
        hold_up: the scheduler of the engine built last waits so long.
        lmcache: the node whose LMCache server it shares with others; None = it shares none.
        turn: see `Server`.
    """

    def __init__(
        self,
        clock: Clock,
        plan: Plan,
        host_memory: HostMemory,
        tiers: Sequence[BuiltTier],
        faults: Faults,
        kv_events: Callable[[int], Sequence[KVEventListener]],
        remote: Remote | None = None,
        store: StorePort | None = None,
        hold_up: Callable[[int], None] = lambda _duration_ns: None,
        lmcache: LMCacheNode | None = None,
        turn: int = 0,
    ) -> None:
        self._clock, self._plan, self._tiers, self._faults = clock, plan, tiers, faults
        self._turn = turn
        self._saved: Callable[[RunSaveJob], None] = lambda _job: None  # tells the engine built last
        self._host_memory, self._remote, self._store, self._hold_up = host_memory, remote, store, hold_up
        self._compute = ComputeStream(clock)  # of the engine that is being built
        self._copier: LinkCopier | None = None  # of the engine built last
        self._kv_event_listeners = kv_events
        names, remembers = [tier.totals.name for tier in tiers], plan.release.background_lookups
        self._faulty_tiers = faults.tiers(tiers, names, remembers=remembers, by_run=plan.fast)
        self._links: list[DuplexLink] = []  # of the engine built last
        self._link_of_dead: DuplexLink | None = None  # it outlives its engine, as the tiers do
        self._synchronous = Synchronous(plan, clock)
        self._lmcache_mp = LMCacheMP(plan, clock, lmcache)
        self._witness: Witness | None = None
        self._tiering: TieringManager | None = None
        self._view: PlanView | None = None  # of the eviction policy of the engine built last
        self._parts = [  # of a MultiConnector
            EngineBuilder(
                clock,
                part,
                host_memory,
                tiers if has_tiers(part) else (),
                faults,
                kv_events,
                remote,
                store,
                hold_up,
                lmcache,
            )
            for part in plan.parts
        ]
        self.recorder: ScheduleRecorder | None = None  # of all copies, if they are to be exported
        self.timelines: dict[int, TimelineRecorder] = {}  # by rank, if what happens is to be shown

    def build(self, books: RankBooks, lockstep: Lockstep | None = None) -> Engine:
        """An engine, with everything that lives and dies with it."""
        plan, config = self._plan, self._plan.config
        kv = self._kv_cache_manager()
        self._links.clear()
        self._compute = ComputeStream(self._clock, self._turn)
        site = self._site(kv)
        for part in self._parts:
            part.begin_part(self._compute)
        connector = self._connector(kv, site)
        gates, compiler = plan.gates.build(self._clock, plan.release)
        launches = LaunchQueue() if config.engine.async_scheduling else None
        scheduler = self._scheduler(kv, connector, gates)
        for part in (*self._parts, self):
            part.show_queue(scheduler.waiting)
        worker, link = self._worker(connector, site, launches, kv, scheduler)
        tiers = self._tiers if self._store is None else [*self._tiers, self._store.tier]
        offload = Offload(connector, link, tiers) if connector is not None and link is not None else None
        books.attach(scheduler, offload, self._kv_events(kv, connector, books.rank))
        engine = self._make_engine(scheduler, worker, books, launches, lockstep)
        witness = self._witness
        if witness is not None:
            engine.observe(witness)
        if self.recorder is not None:
            engine.observe(self.recorder)
        if books.rank in self.timelines:
            self._show(self.timelines[books.rank], engine, connector, site)

        def moved() -> None:
            if witness is not None:
                witness.settle()
            (engine.on_copies_done if isinstance(engine, FastEngine) else engine.notify)()

        self._saved = engine.on_saved if isinstance(engine, FastEngine) else lambda _job: engine.notify()
        for each in self._links:
            each.on_finish = moved
        if isinstance(link, DuplexLink):
            link.on_slowdown = self._compute.disturber()
        self._lmcache_mp.alarm.on_ring = engine.notify
        if compiler is not None:
            compiler.on_ready = engine.notify
        site.wakes(engine.notify)
        return engine

    def _show(self, timeline: TimelineRecorder, engine: Engine, connector: KVConnector | None, site: Site) -> None:
        """Tell it what this engine does, and what its links carry."""
        timeline.attach(engine.scheduler, connector)
        engine.observe(timeline)
        behind = [
            link
            for builder in (self, *self._parts)
            for link in (*builder._synchronous.storage, *builder._lmcache_mp.storage)  # noqa: SLF001 - its own kind
        ]
        streams = [link for link in (*self._links, *site.links) if link not in behind]
        for name, links in (("stream", streams), ("to storage", behind)):
            named = [(name if number == 1 else f"{name} {number}", link) for number, link in enumerate(links, start=1)]
            timeline.watch_links(named)

    def _on_saved(self, job: RunSaveJob) -> None:
        self._saved(job)

    def begin_part(self, compute: ComputeStream) -> None:
        """Build one connector of several for an engine with this compute stream."""
        self._links.clear()
        self._compute = compute

    def show_queue(self, queue: Iterable[Request]) -> None:
        """Let the eviction policy of the connector built last look at the requests that wait."""
        if self._view is not None:
            self._view.queue = queue

    def part_connector(self, kv: AnyKVCacheManager, site: Site) -> KVConnector:
        """The scheduler side of one connector of several."""
        connector = self._connector(kv, site)
        assert connector is not None
        return connector

    def part_worker(
        self,
        connector: KVConnector,
        site: Site,
        kv: AnyKVCacheManager,
        scheduler: Scheduler,
        links: list[DuplexLink],
    ) -> tuple[ConnectorWorker, Moves, Alarm]:
        """Its worker side, what the books see of it, and what rings for it; its links are added."""
        worker, link = self._worker(connector, site, None, kv, scheduler)
        assert worker is not None
        assert link is not None
        links += self._links
        return worker, link, self._lmcache_mp.alarm

    def lose(self) -> None:
        """The engine built last has died: what its links carry is lost, and the next one gets them."""
        if self._remote is not None:
            self._remote.lose()
        if self._store is not None:
            self._store.lose()
        for part in (*self._parts, self):
            part.lose_copies()

    def lose_copies(self) -> None:
        """The part that one connector has in it."""
        if self._copier is not None:
            self._copier.close()
        for link in self._links:
            link.reset()
        self._link_of_dead = self._links[0] if self._links else None

    @property
    def tiers_are_idle(self) -> bool:
        """No tier moves anything that somebody waits for."""
        return all(tier.is_idle() for tier in self._faulty_tiers)

    def _kv_cache_manager(self) -> AnyKVCacheManager:
        if self._plan.fast:
            in_runs: Any = run_kv_cache_manager(self._plan)  # the same methods
            return cast("AnyKVCacheManager", in_runs)
        plan, caching = self._plan, self._plan.config.engine.enable_prefix_caching
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

    def _scheduler(self, kv: AnyKVCacheManager, connector: KVConnector | None, gates: Gate) -> Scheduler:
        plan, release = self._plan, self._plan.release
        is_async, drafts = plan.config.engine.async_scheduling, plan.speculation
        policy: LoadFailurePolicy = getattr(plan.config.connector, "kv_load_failure_policy", "fail")
        if plan.fast:
            return release.cohort_scheduler(plan.limits, kv, connector, gates, kv_load_failure_policy=policy)
        if drafts is not None:
            speculative = release.async_speculative_scheduler if is_async else release.speculative_scheduler
            assert speculative is not None, "the config refuses drafts of other releases"
            return speculative(plan.limits, kv, connector, gates, speculation=drafts, kv_load_failure_policy=policy)
        kind: type[Scheduler] | None = release.async_scheduler if is_async else release.scheduler
        assert kind is not None, "the config refuses asynchronous scheduling of other releases"
        return kind(plan.limits, kv, connector, gates, kv_load_failure_policy=policy)

    def _make_engine(
        self,
        scheduler: Scheduler,
        worker: ConnectorWorker | None,
        books: Books,
        launches: LaunchQueue | None,
        lockstep: Lockstep | None,
    ) -> Engine:
        plan, checks = self._plan, self._plan.config.debug
        if plan.fast:
            assert isinstance(scheduler, CohortScheduler)
            return FastEngine(
                self._clock,
                scheduler,
                plan.step_time,
                worker,
                observer=books,
                compute=self._compute,
                turn=self._turn,
                is_disturbed=lambda: any(map(_NUM_SLOWING, self._links)),
                may_copies_begin=lambda: self._faults.hold_back_copies,
            )
        if launches is None:
            return Engine(
                self._clock,
                scheduler,
                plan.step_time,
                worker,
                lockstep=lockstep,
                observer=books,
                encoder_token_ns=plan.gates.encoder_token_ns,
                check_every_step=checks,
                compute=self._compute,
                turn=self._turn,
            )
        return AsyncEngine(
            self._clock,
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
        plan, config = self._plan, self._plan.config
        return Site(
            clock=self._clock,
            block_size=plan.sizes.block_tokens,
            block_bytes=plan.sizes.gpu_block_bytes,
            num_gpu_blocks=plan.sizes.num_gpu_blocks,
            tensor_parallel_size=plan.sizes.ranks,
            enable_caching=config.engine.enable_prefix_caching,
            seed=config.seed,
            pool=kv.pool,
            gpu_copy_time=copy_time(plan),
            memory=self._host_memory,
            compute=self._compute,
            instant=config.transfer.kind == "instant",
        )

    def _kv_events(self, kv: AnyKVCacheManager, connector: KVConnector | None, rank: int) -> KVEventPublisher | None:
        listeners = self._kv_event_listeners(rank)
        if not listeners:
            return None
        kv.pool.kv_events = log = KVEventLog(GPU, num_groups=kv.num_groups)
        if connector is None:
            return KVEventPublisher([log.take], listeners)
        connector.enable_kv_events()
        return KVEventPublisher([log.take, connector.take_events], listeners)

    def _connector(self, kv: AnyKVCacheManager, site: Site) -> KVConnector | None:
        plan, config, release = self._plan, self._plan.config.connector, self._plan.release
        if isinstance(config, CustomConnector):
            connector: KVConnector = CONNECTORS.make(config.kind, [site], config.options, plan.config.python_path)
            setattr(connector, "get_num_new_matched_tokens", HeldToProtocol(config.kind, connector))  # noqa: B010 - mypy
            return connector
        if self._parts:
            parts = [part.part_connector(kv, site) for part in self._parts]
            tiers_of = [num_tiers(part) for part in plan.parts]
            if isinstance(config, MultiConnectorConfig) and config.split:
                return self._split_connector(parts, tiers_of)
            return MultiConnector(parts, tiers_of)
        if isinstance(config, OffloadingConnectorConfig) and plan.fast:
            in_runs: Any = kv
            return run_offloading_connector(plan, config, in_runs, self._faulty_tiers, self._faults)
        if isinstance(config, OffloadingConnectorConfig):
            self._view = PlanView(self._clock, plan, config.block_size_factor)
            policy = policy_factory(plan, config, self._view)
            primary = release.manager(plan.sizes.num_cpu_chunks, policy, config.store_threshold)
            tiers = self._faulty_tiers
            ledger: Ledger = admitting(plan, config, primary)
            if tiers:
                ledger = self._tiering = release.tiering_manager(primary, tiers)
            ledger = self._faults.ledger(ledger, primary)
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
        if isinstance(config, MooncakeStoreConnectorConfig):
            assert self._store is not None
            return self._store.connector(self._clock, kv, self._hold_up, site.wake)
        if isinstance(config, DecodeBenchConnectorConfig):
            return DecodeBenchConnector()
        if self._remote is not None and config.kind in REMOTE:
            return self._remote.connector(site)
        return None

    def _split_connector(self, parts: Sequence[KVConnector], tiers_of: Sequence[int]) -> SplitMultiConnector:
        """Of the hand-over and the store."""
        assert self._remote is not None
        assert self._store is not None
        known = [part for part in parts if isinstance(part, NixlConnector | MooncakeStoreConnector)]
        return SplitMultiConnector(
            known,
            tiers_of,
            store_path=self._store.path,
            peer_path=self._remote.path_from,
            own_bytes_per_s=self._remote.endpoint.bytes_per_s,
            block_size=self._plan.sizes.block_tokens,
        )

    def _worker(
        self,
        connector: KVConnector | None,
        site: Site,
        launches: LaunchQueue | None,
        kv: AnyKVCacheManager,
        scheduler: Scheduler,
    ) -> tuple[ConnectorWorker | None, Moves | None]:
        plan, self._witness = self._plan, None
        if connector is None:
            return None, None
        if isinstance(plan.config.connector, CustomConnector) or plan.config.connector.kind in OWN_WORKERS:
            return connector.make_worker(), Traffic(site.links)
        if isinstance(plan.config.connector, MooncakeStoreConnectorConfig):
            assert self._store is not None
            return self._store.worker(self._clock, self._compute, site.wake, self._on_saved), self._store.traffic
        if isinstance(connector, MultiConnector):
            return self._multi_worker(connector, site, kv, scheduler)
        link = self._link_of_dead or DuplexLink(self._clock, memory=self._host_memory, ranks=plan.sizes.ranks)
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
        self._copier = LinkCopier(link, copy_time(plan), bytes_per_block, wait)
        copier = self._faults.copier(self._copier)
        if plan.exports_schedule:
            copier = self._recorder(self._copier, kv, scheduler, loads_behind_forward=wait is not None)
        if launches is not None:
            copier = FencedCopier(copier, self._clock, launches, STORES_WAIT if is_simple else COPIES_WAIT)
        elif plan.config.debug and isinstance(kv, KVCacheManager) and not plan.speculation:  # drafts are overwritten
            copier = self._witness = Witness(copier, plan.sizes.block_tokens, kv.tables)
            if self._tiering is not None:
                self._tiering.on_promoted = self._witness.on_promoted
        worker: ConnectorWorker
        worker = plan.release.simple_cpu_worker(copier) if is_simple else plan.release.offloading_worker(copier)
        return (worker if self._witness is None else WitnessedWorker(worker, self._witness)), link

    def _multi_worker(
        self, connector: MultiConnector, site: Site, kv: AnyKVCacheManager, scheduler: Scheduler
    ) -> tuple[ConnectorWorker, Moves]:
        workers, links = [], []
        for part, own in zip(self._parts, connector.parts, strict=True):
            worker, link, alarm = part.part_worker(own, site, kv, scheduler, self._links)
            alarm.on_ring = site.wake
            workers.append(worker)
            links.append(link)
        if isinstance(connector, SplitMultiConnector):
            return SplitMultiWorker(workers, range(len(workers))), Traffic(links)
        return multi_worker(workers), Traffic(links)

    def _recorder(
        self, copier: LinkCopier, kv: AnyKVCacheManager, scheduler: Scheduler, *, loads_behind_forward: bool
    ) -> ScheduleRecorder:
        """Stands before the copier. Stores of SimpleCPUOffloadConnector are launched behind the step's own pass."""
        plan, config = self._plan, self._plan.config.connector
        is_simple = isinstance(config, SimpleCPUConnectorConfig)
        assert isinstance(kv, KVCacheManager), "the config refuses KV cache groups"
        recorder = self.recorder = ScheduleRecorder(
            self._clock,
            copier,
            copier,
            block_tokens=plan.sizes.block_tokens,
            blocks_per_slot=config.block_size_factor if isinstance(config, OffloadingConnectorConfig) else 1,
            block_bytes=plan.sizes.block_bytes,
            tables=kv.tables,
            behind={
                "load": "this" if loads_behind_forward else "previous",
                "store": "this" if is_simple else "previous",
            },
            has_requests=scheduler.has_unfinished,
        )
        if self._tiering is not None:
            primary = self._tiering.primary
            assert isinstance(primary, OffloadingManager), "only it knows one slot from another"
            files = TierFiles()
            for number, tier in enumerate(self._tiers):
                assert isinstance(tier, StorageTier), "the config refuses other tiers"
                tier.listener = TierRecorder(recorder, number, files, primary.slots)
        return recorder
