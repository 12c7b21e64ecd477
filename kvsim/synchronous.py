"""Synchronous connectors with their workers and storage, on a plan's hardware."""

from __future__ import annotations

from collections.abc import Callable

from kvsim.clock import Clock
from kvsim.config import (
    ExampleConnectorConfig,
    LMCacheConnectorConfig,
    LMCacheDisk,
    LMCacheL2,
    LMCacheMPConnectorConfig,
    LMCacheRemote,
)
from kvsim.connectors.base import ConnectorWorker, KVConnector
from kvsim.connectors.example import ExampleConnector, ExampleWorker
from kvsim.connectors.lmcache import LMCacheConnector
from kvsim.connectors.lmcache_client import Alarm, LMCacheClient, NodeAlarm
from kvsim.connectors.lmcache_mp import LMCacheMPConnector
from kvsim.connectors.lmcache_mp_worker import LMCacheMPWorker
from kvsim.connectors.lmcache_worker import LayerwiseLMCacheWorker, LMCacheWorker
from kvsim.copy_path import Way
from kvsim.copy_time import host_dram_bytes_per_s
from kvsim.hardware import CopyCost, DuplexLink, LinkDirection, Transfer
from kvsim.offload.chunk_store import ChunkStore, Shelf
from kvsim.offload.lmcache_server import L2, PPM, Eviction, LMCacheServer, Quotas
from kvsim.offload.server_health import Restart, outages
from kvsim.profile import Pieces
from kvsim.resolve import Plan

NS = 10**9

Medium = ExampleConnectorConfig | LMCacheDisk | LMCacheRemote | LMCacheL2
Op = Callable[[int], Transfer]  # so many units (blocks or chunks) on all ranks -> their copy, started


class _Hardware:
    """Storage reads and writes without one slowing the other; every rank copies its shard over its own GPU link."""

    def __init__(self, plan: Plan, clock: Clock) -> None:
        self._plan, self._clock = plan, clock
        self._instant = plan.config.transfer.kind == "instant"
        self.storage: list[DuplexLink] = []  # links besides the GPU's

    def _medium(self) -> DuplexLink:
        return DuplexLink(self._clock)

    def _access(self, link: DuplexLink, direction: LinkDirection, medium: Medium, unit_bytes: int) -> Op:
        """Read (h2d) or write (d2h) units in one go; ``unit_bytes`` are of all ranks."""
        rate = medium.read_bandwidth if direction == "h2d" else medium.write_bandwidth

        def access(units: int) -> Transfer:
            alone = 0 if self._instant else medium.latency + -(-units * unit_bytes * NS // rate)
            return link.submit(direction, CopyCost(alone), units * unit_bytes)

        return access

    def _copy(
        self, link: DuplexLink, direction: LinkDirection, unit_bytes: int, ranks: int, *, file: bool = False
    ) -> Op:
        """Copy units over the GPU's link, a descriptor each; ``unit_bytes`` are of all ranks.

        ``file``: all units in one piece, and their memory is not pinned.
        """
        plan, rank_bytes = self._plan, unit_bytes // ranks
        way: Way = "pageable" if file and plan.link.has("pageable") else "dma_batch"

        def cost(units: int) -> CopyCost:
            if not units or self._instant:
                return CopyCost(0)
            batch = (Pieces(units * rank_bytes, 1),) if file else (Pieces(rank_bytes, units),)
            alone, dram = plan.link.batch_ns(way, direction, batch), host_dram_bytes_per_s(plan)
            host_bytes = units * unit_bytes
            least = -(-host_bytes * NS // dram) if dram else 0
            shared_ppm = plan.link.shared_ppm(way, direction)
            return CopyCost(max(alone, least), shared_ppm, plan.link.slowdown_ppm(way), host_bytes)

        return lambda units: link.submit(direction, cost(units), units * unit_bytes)


class Synchronous(_Hardware):
    """What `kvsim.build` needs of the connectors that work inside the forward pass."""

    def __init__(self, plan: Plan, clock: Clock) -> None:
        super().__init__(plan, clock)
        self._layers = plan.model.attention_layers
        self._reads: list[Op] = []

    def connector(self) -> KVConnector:
        """The scheduler side."""
        plan, config, sizes = self._plan, self._plan.config.connector, self._plan.sizes
        salts = max(len(plan.config.trace.tenants), 1)
        if isinstance(config, ExampleConnectorConfig):
            self.storage = [self._medium()]
            return ExampleConnector(block_size=sizes.block_tokens, num_salts=salts)
        assert isinstance(config, LMCacheConnectorConfig)
        shelves: list[Shelf] = []
        for medium in (config.local_disk, config.remote):
            if medium is not None:
                link = self._medium()
                self.storage.append(link)
                self._reads.append(self._access(link, "h2d", medium, sizes.cpu_chunk_bytes))
                write = self._access(link, "d2h", medium, sizes.cpu_chunk_bytes)
                shelves.append(Shelf(lambda write=write: write(1), self._room(medium)))  # type: ignore[misc]
        return LMCacheConnector(
            ChunkStore(sizes.num_cpu_chunks, shelves),
            blocks_per_chunk=config.chunk_size // sizes.block_tokens,
            block_size=sizes.block_tokens,
            min_retrieve_tokens=config.min_retrieve_tokens,
            save_decode_cache=config.save_decode_cache,
            layerwise=config.use_layerwise,
            num_salts=salts,
        )

    def _room(self, medium: Medium) -> int | None:
        if not isinstance(medium, LMCacheDisk):
            return None
        ranks = self._plan.sizes.cpu_copies
        return medium.max_local_disk_size * ranks // self._plan.sizes.cpu_chunk_bytes

    def worker(self, link: DuplexLink) -> ConnectorWorker:
        """The worker side, over the GPU's link; after `connector`."""
        config, sizes, layers = self._plan.config.connector, self._plan.sizes, self._layers
        if isinstance(config, ExampleConnectorConfig):
            (storage,) = self.storage
            file_bytes = sizes.gpu_block_bytes // layers
            return ExampleWorker(
                layers,
                read=self._access(storage, "h2d", config, file_bytes),
                to_gpu=self._copy(link, "h2d", file_bytes, sizes.ranks, file=True),
                from_gpu=self._copy(link, "d2h", file_bytes, sizes.ranks, file=True),
                write=self._access(storage, "d2h", config, file_bytes),
            )
        assert isinstance(config, LMCacheConnectorConfig)
        copies = sizes.cpu_copies
        if config.use_layerwise:
            layer_bytes = sizes.cpu_chunk_bytes // layers
            load, store = (self._copy(link, way, layer_bytes, copies) for way in ("h2d", "d2h"))
            return LayerwiseLMCacheWorker(layers, load, store)
        load, store = (self._copy(link, way, sizes.cpu_chunk_bytes, copies) for way in ("h2d", "d2h"))
        return LMCacheWorker(layers, load, store, self._reads)


class LMCacheNode:
    """A node whose engines share LMCache's server: the first of them that is built brings it."""

    def __init__(self, clock: Clock) -> None:
        self.alarm = NodeAlarm(clock)
        self.client: LMCacheClient | None = None


class LMCacheMP(_Hardware):
    """What `kvsim.build` needs of LMCache's server and its client.

    Args:
        node: whose server it is; None = the engine's own, which dies with it.
    """

    def __init__(self, plan: Plan, clock: Clock, node: LMCacheNode | None = None) -> None:
        super().__init__(plan, clock)
        self.alarm, self._node = Alarm(clock), node
        self._client: LMCacheClient | None = None

    def connector(self) -> LMCacheMPConnector:
        """The scheduler side, with the server."""
        config, sizes, node = self._plan.config.connector, self._plan.sizes, self._node
        assert isinstance(config, LMCacheMPConnectorConfig)
        is_first = node is None or node.client is None
        if node is None:
            self._client = self._new_client(config, self.alarm)
        else:
            node.alarm.members.append(self.alarm)
            node.client = self._client = node.client or self._new_client(config, node.alarm)
        return LMCacheMPConnector(
            self._client,
            blocks_per_chunk=config.chunk_size // sizes.block_tokens,
            block_size=sizes.block_tokens,
            save_decode_cache=config.save_decode_cache,
            tells_of_server=is_first,
        )

    def _new_client(self, config: LMCacheMPConnectorConfig, alarm: Alarm) -> LMCacheClient:
        read, write, below, sizes = None, None, None, self._plan.sizes
        if config.l2 is not None:
            link = self._medium()
            if isinstance(alarm, NodeAlarm):
                link.on_finish = alarm.ring
            else:
                self.storage.append(link)
            read, write = (self._access(link, way, config.l2, sizes.cpu_chunk_bytes) for way in ("h2d", "d2h"))
            below = self._l2(config.l2)
        restarts = [Restart(each.at, each.at + each.downtime, each.keep_cache) for each in config.restarts]
        return LMCacheClient(
            self._clock,
            alarm,
            LMCacheServer(sizes.num_cpu_chunks, _eviction(config), below),
            lookup_ns=config.lookup_latency,
            outages=outages(restarts, config.heartbeat_interval),
            read_below=read,
            write_below=write,
        )

    def _l2(self, config: LMCacheL2) -> L2:
        chunk_bytes, tenants = self._plan.sizes.cpu_chunk_bytes, self._plan.config.trace.tenants or [""]
        quotas = None
        if config.eviction_policy == "IsolatedLRU":
            limits = {tenants.index(name): size // chunk_bytes for name, size in config.quotas.items()}
            changes = [(each.at, tenants.index(each.tenant), each.size // chunk_bytes) for each in config.quota_changes]
            quotas = Quotas(limits, changes)
        capacity = None if config.max_size is None else config.max_size // chunk_bytes
        eviction = _eviction(config) if config.eviction_policy != "noop" else None
        return L2(eviction, capacity=capacity, quotas=quotas, num_salts=len(tenants))

    def worker(self, link: DuplexLink) -> LMCacheMPWorker:
        """The worker side, over the GPU's link; after `connector`."""
        assert self._client is not None
        sizes = self._plan.sizes
        load, store = (self._copy(link, way, sizes.cpu_chunk_bytes, sizes.cpu_copies) for way in ("h2d", "d2h"))
        return LMCacheMPWorker(self._client, load, store)


def _eviction(config: LMCacheMPConnectorConfig | LMCacheL2) -> Eviction:
    return Eviction(round(config.eviction_trigger_watermark * PPM), round(config.eviction_ratio * PPM))
