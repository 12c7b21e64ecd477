"""From a plan to its connector: both sides, the links it copies over, and what watches the copies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kvsim.build_fast import run_offloading_connector
from kvsim.build_faults import Faults
from kvsim.build_policy import PlanView, admitting, policy_factory
from kvsim.build_remote import Remote
from kvsim.build_store import StorePort
from kvsim.build_tiers import BuiltTier, has_tiers, num_tiers
from kvsim.cache.hybrid_kv_cache_manager import AnyKVCacheManager, HybridKVCacheManager
from kvsim.cache.kv_cache_manager import KVCacheManager
from kvsim.clock import Clock
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
from kvsim.connectors.base import ConnectorWorker, Copier, KVConnector
from kvsim.connectors.compute_fence import COPIES_WAIT, STORES_WAIT, FencedCopier, LaunchQueue
from kvsim.connectors.decode_bench import DecodeBenchConnector
from kvsim.connectors.link_copier import LinkCopier
from kvsim.connectors.mooncake_store import MooncakeStoreConnector
from kvsim.connectors.mooncake_store_runs import RunSaveJob
from kvsim.connectors.multi import MultiConnector, multi_worker
from kvsim.connectors.nixl import NixlConnector
from kvsim.connectors.site import HeldToProtocol, Moves, Site, Traffic
from kvsim.connectors.split_multi import SplitMultiConnector, SplitMultiWorker
from kvsim.copy_time import copy_time
from kvsim.hardware import DuplexLink, LinkDirection
from kvsim.host_memory import HostMemory
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
from kvsim.witness import Witness, WitnessedWorker

OWN_WORKERS = (*REMOTE, "decode_bench")  # connectors that bring their worker side


class ConnectorBuilder:
    """Builds the connector of an engine, or one of several connectors; again, after the engine has died.

    Attributes:
        observed_tiers: what its books look at: its tiers, and the store.
        links: of the connector built last, those of its parts included; always the same list.
        alarm: rings for an LMCache server, if there is one.
        on_saved: told of what the fast engine has saved to a store.
        witness: of the connector built last, if its copies are checked.
        recorder: of all copies, if they are to be exported.

    Args:
        host_memory: which all copies share.
        tiers: storage behind CPU memory, which outlives engines, with its counters.
        faults: puts faulty parts before the sound ones.
        remote: its instance's place in the network, if there is one.
        store: the way to a store that instances share.
        hold_up: the scheduler of the engine built last waits so long.
        lmcache: the node whose LMCache server it shares with others; None = it shares none.
    """

    def __init__(
        self,
        clock: Clock,
        plan: Plan,
        host_memory: HostMemory,
        tiers: Sequence[BuiltTier],
        faults: Faults,
        remote: Remote | None = None,
        store: StorePort | None = None,
        hold_up: Callable[[int], None] = lambda _duration_ns: None,
        lmcache: LMCacheNode | None = None,
    ) -> None:
        self._clock, self._plan, self._tiers, self._faults = clock, plan, tiers, faults
        self._host_memory, self._remote, self._store, self._hold_up = host_memory, remote, store, hold_up
        self.observed_tiers = tiers if store is None else [*tiers, store.tier]
        remembers = plan.release.background_lookups
        own_tiers = () if plan.parts else tiers
        names = [tier.totals.name for tier in own_tiers]
        self._faulty_tiers = faults.tiers(own_tiers, names, remembers=remembers, by_run=plan.fast)
        self._synchronous = Synchronous(plan, clock)
        self._lmcache_mp = LMCacheMP(plan, clock, lmcache)
        self.alarm = self._lmcache_mp.alarm
        self.on_saved: Callable[[RunSaveJob], None] = lambda _job: None
        self.links: list[DuplexLink] = []
        self.witness: Witness | None = None
        self.recorder: ScheduleRecorder | None = None
        self._copier: LinkCopier | None = None  # of the connector built last, as all that follow
        self._link_of_dead: DuplexLink | None = None  # it outlives its engine, as the tiers do
        self._tiering: TieringManager | None = None
        self._view: PlanView | None = None  # of its eviction policy
        self._parts = [  # of a MultiConnector
            ConnectorBuilder(
                clock,
                part,
                host_memory,
                tiers if has_tiers(part) else (),
                faults,
                remote,
                store,
                hold_up,
                lmcache,
            )
            for part in plan.parts
        ]

    @property
    def storage(self) -> list[DuplexLink]:
        """Those of the links that lead to storage."""
        own = [*self._synchronous.storage, *self._lmcache_mp.storage]
        return own + [link for part in self._parts for link in part.storage]

    @property
    def tiers_are_idle(self) -> bool:
        """No tier moves anything that somebody waits for."""
        return all(tier.is_idle() for tier in self._faulty_tiers) and all(part.tiers_are_idle for part in self._parts)

    @property
    def may_copies_begin(self) -> bool:
        """Whether copies may begin that nobody has planned at this moment: they are behind a stalled one."""
        return self._faults.hold_back_copies

    def show_queue(self, queue: Iterable[Request]) -> None:
        """Let the eviction policy of the connector built last look at the requests that wait."""
        for part in self._parts:
            part.show_queue(queue)
        if self._view is not None:
            self._view.queue = queue

    def lose(self) -> None:
        """The engine built last has died: what its links carry is lost, and the next one gets them."""
        if self._remote is not None:
            self._remote.lose()
        if self._store is not None:
            self._store.lose()
        self.lose_copies()

    def lose_copies(self) -> None:
        """The part that every connector has in it, one of several too."""
        for part in self._parts:
            part.lose_copies()
        if self._copier is not None:
            self._copier.close()
        for link in self.links:
            link.reset()
        self._link_of_dead = self.links[0] if self.links else None

    # -- the scheduler side
    def connector(self, kv: AnyKVCacheManager, site: Site) -> KVConnector | None:
        """The scheduler side for one more engine; None = it offloads nothing."""
        plan, config, release = self._plan, self._plan.config.connector, self._plan.release
        self.links.clear()
        if isinstance(config, CustomConnector):
            connector: KVConnector = CONNECTORS.make(config.kind, [site], config.options, plan.config.python_path)
            setattr(connector, "get_num_new_matched_tokens", HeldToProtocol(config.kind, connector))  # noqa: B010 - mypy
            return connector
        if self._parts:
            return self._multi_connector(kv, site)
        if isinstance(config, OffloadingConnectorConfig):
            return self._offloading_connector(config, kv)
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

    def _offloading_connector(self, config: OffloadingConnectorConfig, kv: AnyKVCacheManager) -> KVConnector:
        plan, release, tiers = self._plan, self._plan.release, self._faulty_tiers
        if plan.fast:
            in_runs: Any = kv
            return run_offloading_connector(plan, config, in_runs, tiers, self._faults)
        self._view = PlanView(self._clock, plan, config.block_size_factor)
        policy = policy_factory(plan, config, self._view)
        primary = release.manager(plan.sizes.num_cpu_chunks, policy, config.store_threshold)
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

    def _multi_connector(self, kv: AnyKVCacheManager, site: Site) -> MultiConnector:
        config, parts = self._plan.config.connector, []
        for part in self._parts:
            own = part.connector(kv, site)
            assert own is not None
            parts.append(own)
        tiers_of = [num_tiers(part) for part in self._plan.parts]
        if not (isinstance(config, MultiConnectorConfig) and config.split):
            return MultiConnector(parts, tiers_of)
        assert self._remote is not None
        assert self._store is not None
        return SplitMultiConnector(  # of the hand-over and the store
            [part for part in parts if isinstance(part, NixlConnector | MooncakeStoreConnector)],
            tiers_of,
            store_path=self._store.path,
            peer_path=self._remote.path_from,
            own_bytes_per_s=self._remote.endpoint.bytes_per_s,
            block_size=self._plan.sizes.block_tokens,
        )

    # -- the worker side
    def worker(
        self,
        connector: KVConnector,
        site: Site,
        launches: LaunchQueue | None,
        kv: AnyKVCacheManager,
        scheduler: Scheduler,
    ) -> tuple[ConnectorWorker, Moves]:
        """The worker side of the connector built last, and what the books see of it."""
        plan, config = self._plan, self._plan.config.connector
        if isinstance(config, CustomConnector) or config.kind in OWN_WORKERS:
            return connector.make_worker(), Traffic(site.links)
        if isinstance(config, MooncakeStoreConnectorConfig):
            assert self._store is not None
            return self._store.worker(self._clock, site.compute, site.wake, self._saved), self._store.traffic
        if isinstance(connector, MultiConnector):
            return self._multi_worker(connector, site, kv, scheduler)
        link = self._link_of_dead or DuplexLink(self._clock, memory=self._host_memory, ranks=plan.sizes.ranks)
        self.links.append(link)
        if isinstance(config, ExampleConnectorConfig | LMCacheConnectorConfig):
            self.links += self._synchronous.storage
            return self._synchronous.worker(link), link
        if isinstance(config, LMCacheMPConnectorConfig):
            self.links += self._lmcache_mp.storage
            return self._lmcache_mp.worker(link), link
        return self._copy_worker(link, site, launches, kv, scheduler), link

    def _saved(self, job: RunSaveJob) -> None:
        self.on_saved(job)

    def _multi_worker(
        self, connector: MultiConnector, site: Site, kv: AnyKVCacheManager, scheduler: Scheduler
    ) -> tuple[ConnectorWorker, Moves]:
        workers, links = [], []
        for part, own in zip(self._parts, connector.parts, strict=True):
            worker, link = part.worker(own, site, None, kv, scheduler)
            self.links += part.links
            part.alarm.on_ring = site.wake
            workers.append(worker)
            links.append(link)
        if isinstance(connector, SplitMultiConnector):
            return SplitMultiWorker(workers, range(len(workers))), Traffic(links)
        return multi_worker(workers), Traffic(links)

    def _copy_worker(
        self, link: DuplexLink, site: Site, launches: LaunchQueue | None, kv: AnyKVCacheManager, scheduler: Scheduler
    ) -> ConnectorWorker:
        """Of a connector that copies between GPU and CPU memory."""
        plan, self.witness = self._plan, None
        bytes_per_block: dict[LinkDirection, int] = {
            "h2d": plan.sizes.gpu_block_bytes,
            "d2h": plan.sizes.block_bytes * plan.sizes.cpu_copies,
        }
        is_simple = isinstance(plan.config.connector, SimpleCPUConnectorConfig)
        behind = launches is None and plan.release.loads_behind_forward and plan.config.transfer.kind != "instant"
        wait = site.compute if behind and not is_simple else None
        self._copier = LinkCopier(link, copy_time(plan), bytes_per_block, wait)
        copier: Copier = self._faults.copier(self._copier)
        if plan.exports_schedule:
            copier = self._recorder(self._copier, kv, scheduler, loads_behind_forward=wait is not None)
        if launches is not None:
            copier = FencedCopier(copier, self._clock, launches, STORES_WAIT if is_simple else COPIES_WAIT)
        elif plan.config.debug and isinstance(kv, KVCacheManager) and not plan.speculation:  # drafts are overwritten
            copier = self.witness = Witness(copier, plan.sizes.block_tokens, kv.tables)
            if self._tiering is not None:
                self._tiering.on_promoted = self.witness.on_promoted
        worker: ConnectorWorker
        worker = plan.release.simple_cpu_worker(copier) if is_simple else plan.release.offloading_worker(copier)
        return worker if self.witness is None else WitnessedWorker(worker, self.witness)

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
