"""From a cluster's plan to its shared store, and to what each instance needs to use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvsim.clock import Clock
from kvsim.compute import ComputeStream
from kvsim.config import MooncakeStoreConnectorConfig
from kvsim.connectors.mooncake_store import MooncakeStoreConnector
from kvsim.connectors.mooncake_store_runs import (
    RunMooncakeStoreConnector,
    RunMooncakeStoreWorker,
    RunSaveJob,
    RunStoreLookup,
)
from kvsim.connectors.mooncake_store_worker import MooncakeStoreWorker
from kvsim.connectors.path_split import Path
from kvsim.connectors.store_lookup import StoreLookup
from kvsim.hardware import LinkDirection
from kvsim.network import Endpoint, Fabric
from kvsim.profile import Pieces
from kvsim.resolve import Plan
from kvsim.results.records import QuotaTotals, TierTotals
from kvsim.store.client import ClientCosts, Shape, StoreClient
from kvsim.store.disks import DiskSpeed
from kvsim.store.master import Master, MasterRules
from kvsim.store.quotas import TenantQuotas
from kvsim.store.run_master import RunMaster
from kvsim.store.segments import Segments
from kvsim.store.shared import NodeRoom, SharedStore
from kvsim.store_plan import disk_of, store_connector


def build_store(clock: Clock, plan: Plan, fabric: Fabric) -> SharedStore | None:
    """The store that the instances of a plan share, empty and without nodes; None = they use none."""
    cluster, layout = plan.config.cluster, plan.store
    if cluster is None or cluster.store is None or store_connector(plan.config.connector) is None:
        return None
    config = cluster.store
    rules = MasterRules(
        lease_ns=config.lease_ttl,
        watermark=config.eviction_high_watermark_ratio,
        eviction_ratio=config.eviction_ratio,
        client_ttl_ns=config.client_ttl,
        replicas=config.replicas,
    )
    disk, on_disk = disk_of(config), config.disk_per_node // layout.object_bytes
    is_shared, segments = config.disk_path == "shared", Segments(config.placement, plan.config.seed)
    return SharedStore(
        clock,
        RunMaster(clock, segments, rules) if plan.fast else Master(clock, segments, rules, _quotas(plan)),
        fabric,
        NodeRoom(config.memory_per_node // layout.object_bytes, 0 if is_shared else on_disk),
        layout.object_bytes,
        None
        if disk is None
        else DiskSpeed(disk.read.bandwidth.used, disk.write.bandwidth.used, disk.read.latency.used),
        shared_room=on_disk * len(cluster.names) if is_shared else 0,
        instant=plan.config.transfer.kind == "instant",
    )


def _quotas(plan: Plan) -> TenantQuotas | None:
    """Of tenants, in copies of objects; the part of one is lost."""
    cluster, tenants = plan.config.cluster, plan.config.trace.tenants
    if cluster is None or cluster.store is None or not cluster.store.quotas:
        return None
    limits = {tenants.index(name): size // plan.store.object_bytes for name, size in cluster.store.quotas.items()}
    return TenantQuotas(limits, len(tenants), cluster.store.lease_ttl)


def quota_totals(store: SharedStore, tenants: list[str]) -> list[QuotaTotals]:
    """What each tenant with a quota has had of the store."""
    quotas, size = store.master.quotas, store.object_bytes
    rooms = {} if quotas is None else quotas.rooms
    return [
        QuotaTotals(tenants[salt], size, room.limit, room.used, room.peak, room.evicted, room.refused)
        for salt, room in sorted(rooms.items())
    ]


def _copy_up(plan: Plan) -> Callable[[int], int]:
    """Time of a rank's copies of so many objects from host memory to its GPU, alone on its link."""
    layout = plan.store
    if plan.config.transfer.kind == "instant":
        return lambda _objects: 0
    return lambda objects: plan.link.batch_ns(
        "dma_batch", "h2d", (Pieces(layout.message_bytes, objects * layout.descriptors),)
    )


class StoreTier:
    """A store as the books of one instance see it: its own node's memory, and what it reads and writes anywhere."""

    def __init__(self, client: StoreClient, store: SharedStore) -> None:
        self._client, self._store = client, store
        self.chunk_bytes = store.object_bytes
        disks = " and disks" if store.disks or store.has_disks else ""
        self.totals = TierTotals("store", "mooncake", f"memory{disks} of all nodes", self.chunk_bytes)
        self.totals.capacity_chunks = store.room.memory

    def bring_up_to_date(self) -> None:
        """Complete the totals."""
        totals, counts = self.totals, self._client.counts
        totals.read_jobs = totals.read_tasks = counts.reads
        totals.write_jobs = totals.write_tasks = counts.writes
        totals.read_bytes, totals.write_bytes = counts.bytes["h2d"], counts.bytes["d2h"]
        totals.read_wanted_ns, totals.write_wanted_ns = counts.read_ns, counts.write_ns
        totals.lookup_batches, totals.lookup_keys = counts.lookups, counts.lookup_keys
        totals.lookup_ns = counts.lookup_ns
        totals.deduplicated_chunks, totals.refused_chunks = counts.existing, counts.refused
        totals.busy_ns = self.busy_ns()
        own = [each for each in self._store.master.segments.all if each.node == self._client.endpoint.name]
        totals.evicted_chunks = sum(segment.evicted for segment in own)
        totals.used_chunks = sum(segment.used for segment in own if segment.holds)
        totals.used_chunks_peak = max((segment.peak for segment in own), default=0)

    def write_backlog_bytes(self) -> int:
        """What is being written."""
        return self._client.writing * self.chunk_bytes

    def read_queue_bytes(self) -> int:
        """What is being read."""
        return self._client.reading * self.chunk_bytes

    def busy_ns(self) -> int:
        """Time in which this node's NICs brought anything."""
        return self._client.endpoint.busy_in_ns


class StoreTraffic:
    """What an instance's client has moved, as the books see a link."""

    def __init__(self, client: StoreClient) -> None:
        self._client = client

    @property
    def bytes(self) -> dict[LinkDirection, int]:
        """Of finished transfers."""
        return self._client.counts.bytes

    def busy_ns(self, direction: LinkDirection) -> int:
        """Time in which the I/O threads moved anything this way, added up."""
        counts = self._client.counts
        return counts.read_ns if direction == "h2d" else counts.write_ns


class StorePort:
    """One instance's way to the store. Its counts outlive the instance's engines.

    Args:
        endpoint: of the instance, which is a node of the store too.
        turn: its number among all instances, by which they take turns.
    """

    def __init__(self, plan: Plan, store: SharedStore, endpoint: Endpoint, turn: int) -> None:
        config, layout = store_connector(plan.config.connector), plan.store
        assert config is not None
        assert plan.config.cluster is not None
        assert plan.config.cluster.store is not None
        self._plan, self._store, self._config, self.turn = plan, store, config, turn
        instant, wanted = plan.config.transfer.kind == "instant", plan.config.cluster.store
        costs = ClientCosts() if instant else ClientCosts(wanted.rpc_latency, wanted.key_time, config.descriptor_time)
        shape = Shape(layout.descriptors, layout.message_bytes, layout.readers)
        self._client = StoreClient(store, endpoint, shape, costs, _copy_up(plan), turn=turn)
        self.tier = StoreTier(self._client, store)
        self.traffic = StoreTraffic(self._client)
        self._worker: MooncakeStoreWorker | None = None  # of the engine built last

    @property
    def config(self) -> MooncakeStoreConnectorConfig:
        """Of the connector."""
        return self._config

    def path(self) -> Path:
        """The way on which blocks come, as far as an instance can know it: how many nodes there are, not who has what.

        With ``placement: local`` the blocks of a prompt lie on one node, its writer's; else on all of them.
        """
        end, shape, costs, store = self._client.endpoint, self._client.shape, self._client.costs, self._store
        assert self._plan.config.cluster is not None
        assert self._plan.config.cluster.store is not None
        lines = store.line_rates
        nodes = 1 if self._plan.config.cluster.store.placement == "local" else len(lines)
        return Path(
            min(nodes * min(lines), end.bytes_per_s),
            end.nic.efficiency_ppm(shape.message_bytes),
            store.object_bytes * shape.readers,
            costs.rpc + end.nic.setup_ns + store.fabric.latency_ns,
            costs.key + shape.descriptors * costs.descriptor,
            nodes,
        )

    def join(self) -> None:
        """The node lends its memory from now on."""
        self._store.join(self._client.endpoint)

    def lose(self) -> None:
        """The instance has failed: its engine's threads are gone, and its node's memory is."""
        if self._worker is not None:
            self._worker.close()
        self._store.lose(self._client.endpoint.name)

    def connector(
        self, clock: Clock, kv: Any, hold_up: Callable[[int], None], wake: Callable[[], None]
    ) -> MooncakeStoreConnector:
        """The scheduler side, for one more engine; ``kv``: its KV cache manager."""
        size, config = self._plan.sizes.block_tokens, self._config
        ways: Any = {"hold_up": hold_up, "wake": wake, "in_background": config.lookup_async}
        options: Any = {
            "block_size": size,
            "role": config.role,
            "save_decode_cache": config.save_decode_cache,
            "enable_lookup": config.enable_lookup,
        }
        master = self._store.master
        if isinstance(master, RunMaster):
            in_runs = RunStoreLookup(clock, self._client, size, master=master, turn=self.turn, **ways)
            return RunMooncakeStoreConnector(in_runs, kv, **options)
        return MooncakeStoreConnector(StoreLookup(clock, self._client, size, **ways), kv.pool, **options)

    def worker(
        self, clock: Clock, compute: ComputeStream, wake: Callable[[], None], on_saved: Callable[[RunSaveJob], None]
    ) -> MooncakeStoreWorker:
        """The worker side; ``on_saved``: told of saves by the fast engine's."""
        threads: Any = {"wake": wake, "recv_threads": self._config.load_recv_threads}
        if self._plan.fast:
            self._worker = RunMooncakeStoreWorker(
                clock, self._client, compute, on_saved=on_saved, turn=self.turn, **threads
            )
        else:
            self._worker = MooncakeStoreWorker(clock, self._client, compute, **threads)
        return self._worker
