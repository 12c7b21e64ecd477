"""From a plan to an engine, with everything that lives and dies with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from kvsim.async_engine import AsyncEngine
from kvsim.books import Books, Offload
from kvsim.build_connector import ConnectorBuilder
from kvsim.build_scheduler import build_kv_cache_manager, build_scheduler
from kvsim.cache.hybrid_kv_cache_manager import AnyKVCacheManager
from kvsim.clock import Clock
from kvsim.cohort_scheduler import CohortScheduler
from kvsim.compute import ComputeStream
from kvsim.connectors.base import ConnectorWorker, KVConnector
from kvsim.connectors.compute_fence import LaunchQueue
from kvsim.connectors.site import Site
from kvsim.copy_time import copy_time
from kvsim.data_parallel import RankBooks
from kvsim.engine import Engine
from kvsim.fast_engine import FastEngine
from kvsim.host_memory import HostMemory
from kvsim.kv_events import GPU, KVEventListener, KVEventLog, KVEventPublisher
from kvsim.lockstep import Lockstep
from kvsim.resolve import Plan
from kvsim.scheduler import Scheduler
from kvsim.timeline_recorder import TimelineRecorder

_NUM_SLOWING = attrgetter("num_slowing")


class EngineBuilder:
    """Builds the engine of a rank; again, after it has died.

    Attributes:
        timelines: by rank, if what happens is to be shown.

    Args:
        host_memory: which all copies share.
        connectors: builds what offloads.
        kv_events: who listens to a rank's KV events.
        turn: see `Server`.
    """

    def __init__(
        self,
        clock: Clock,
        plan: Plan,
        host_memory: HostMemory,
        connectors: ConnectorBuilder,
        kv_events: Callable[[int], Sequence[KVEventListener]],
        turn: int = 0,
    ) -> None:
        self._clock, self._plan, self._host_memory, self._turn = clock, plan, host_memory, turn
        self._connectors, self._kv_event_listeners = connectors, kv_events
        self.timelines: dict[int, TimelineRecorder] = {}

    def build(self, books: RankBooks, lockstep: Lockstep | None = None) -> Engine:
        """An engine, with everything that lives and dies with it."""
        plan, connectors = self._plan, self._connectors
        kv = build_kv_cache_manager(plan)
        site = self._site(kv)
        connector = connectors.connector(kv, site)
        gates, compiler = plan.gates.build(self._clock, plan.release)
        launches = LaunchQueue() if plan.config.engine.async_scheduling else None
        scheduler = build_scheduler(plan, kv, connector, gates)
        connectors.show_queue(scheduler.waiting)
        worker: ConnectorWorker | None = None
        offload: Offload | None = None
        if connector is not None:
            worker, moves = connectors.worker(connector, site, launches, kv, scheduler)
            offload = Offload(connector, moves, connectors.observed_tiers)
        books.attach(scheduler, offload, self._kv_events(kv, connector, books.rank))
        engine = self._make_engine(scheduler, worker, books, site.compute, launches, lockstep)
        witness = connectors.witness
        if witness is not None:
            engine.observe(witness)
        if connectors.recorder is not None:
            engine.observe(connectors.recorder)
        if books.rank in self.timelines:
            self._show(self.timelines[books.rank], engine, connector, site)

        def moved() -> None:
            if witness is not None:
                witness.settle()
            (engine.on_copies_done if isinstance(engine, FastEngine) else engine.notify)()

        if isinstance(engine, FastEngine):
            connectors.on_saved = engine.on_saved
        for each in connectors.links:
            each.on_finish, each.on_slowdown = moved, site.compute.disturber()
        connectors.alarm.on_ring = engine.notify
        if compiler is not None:
            compiler.on_ready = engine.notify
        site.wakes(engine.notify)
        return engine

    def _show(self, timeline: TimelineRecorder, engine: Engine, connector: KVConnector | None, site: Site) -> None:
        """Tell it what this engine does, and what its links carry."""
        timeline.attach(engine.scheduler, connector)
        engine.observe(timeline)
        behind = self._connectors.storage
        streams = [link for link in (*self._connectors.links, *site.links) if link not in behind]
        for name, links in (("stream", streams), ("to storage", behind)):
            named = [(name if number == 1 else f"{name} {number}", link) for number, link in enumerate(links, start=1)]
            timeline.watch_links(named)

    def _make_engine(
        self,
        scheduler: Scheduler,
        worker: ConnectorWorker | None,
        books: Books,
        compute: ComputeStream,
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
                compute=compute,
                turn=self._turn,
                is_disturbed=lambda: any(map(_NUM_SLOWING, self._connectors.links)),
                may_copies_begin=lambda: self._connectors.may_copies_begin,
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
                compute=compute,
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
            compute=ComputeStream(self._clock, self._turn),
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
