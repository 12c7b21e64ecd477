"""From a plan to objects: the one place that puts the parts of a simulation together."""

from __future__ import annotations

from collections.abc import Callable

from kvsim.books import Books, Offload
from kvsim.cache.kv_cache_manager import KVCacheManager
from kvsim.clock import Clock
from kvsim.config import OffloadingConnectorConfig
from kvsim.connectors.base import ConnectorWorker
from kvsim.connectors.link_copier import LinkCopier
from kvsim.connectors.offloading import OffloadingConnector
from kvsim.engine import Engine, NoProgressError
from kvsim.errors import UserError
from kvsim.hardware import SOLO_PPM, DuplexLink, LinkDirection
from kvsim.instance import Instance
from kvsim.resolve import Plan, Progress
from kvsim.results.records import RunRecord, Series
from kvsim.trace.replay import ReplayOptions, play

NS = 10**9
LONGEST_NS = 2**63 - 1  # what a results table can hold


class Simulation:
    """A plan on a clock. `run` plays it to the end and returns what it wrote down."""

    def __init__(self, plan: Plan, progress: Progress | None = None) -> None:
        self.plan, self.clock = plan, Clock()
        self.record = RunRecord(
            series=Series(plan.config.output.series_points), notes=list(plan.notes), cautions=list(plan.cautions)
        )
        self._progress, self._total, self._done = progress, plan.trace.num_requests, 0
        self._books, self.instance = self._build()

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
        play(self.clock, self.plan.trace, self.instance.submit, options)
        try:
            self.clock.run()
        except NoProgressError as error:
            self.record.cautions.append(f"The simulation was stopped: {error}.")
        if self.clock.now > LONGEST_NS:
            raise UserError(
                f"simulated time ends after {self.clock.now // (NS * 86_400 * 365)} years, expected at most 292:"
                " look at trace.time_scale, max_think_time and step_time"
            )
        self._books.close(self._total)
        scheduler = self.instance.scheduler
        if self.plan.config.debug and not scheduler.requests:
            scheduler.check(at_end=True)
        return self.record

    def _build(self) -> tuple[Books, Instance]:
        plan, config = self.plan, self.plan.config
        kv = KVCacheManager(
            plan.release.block_pool(plan.sizes.num_gpu_blocks),
            block_size=plan.sizes.block_tokens,
            max_model_len=plan.limits.max_model_len,
            enable_caching=config.engine.enable_prefix_caching,
        )
        connector = self._connector()
        scheduler = plan.release.scheduler(plan.limits, kv, connector)
        worker, link = self._worker()
        offload = Offload(connector, link) if connector is not None and link is not None else None
        books = Books(self.clock, scheduler, self.record, offload)
        engine = Engine(self.clock, scheduler, plan.step_time, worker, observer=books, check_every_step=config.debug)
        if link is not None:
            link.on_finish = engine.notify
        self._note_sizes()
        return books, Instance(engine, books, self.record.requests, self._request_ended)

    def _connector(self) -> OffloadingConnector | None:
        plan, config = self.plan, self.plan.config.connector
        if not isinstance(config, OffloadingConnectorConfig):
            return None
        manager = plan.release.manager(
            plan.sizes.num_cpu_chunks, plan.release.policies[config.eviction_policy], config.store_threshold
        )
        return plan.release.offloading_connector(
            manager,
            block_size=plan.sizes.block_tokens,
            block_size_factor=config.block_size_factor,
            offload_prompt_only=config.offload_prompt_only,
            enable_caching=plan.config.engine.enable_prefix_caching,
        )

    def _worker(self) -> tuple[ConnectorWorker | None, DuplexLink | None]:
        plan, config = self.plan, self.plan.config
        if not isinstance(config.connector, OffloadingConnectorConfig):
            return None, None
        instant = config.transfer.kind == "instant"
        link = DuplexLink(self.clock, (SOLO_PPM, SOLO_PPM) if instant else shared_speed(plan))
        copy_ns = _no_time if instant else copy_time(plan, config.connector.kv_layout)
        link_bytes: dict[LinkDirection, int] = {
            "h2d": plan.sizes.gpu_block_bytes,
            "d2h": plan.sizes.block_bytes * plan.sizes.cpu_copies,
        }
        return plan.release.offloading_worker(LinkCopier(link, copy_ns, link_bytes)), link

    def _note_sizes(self) -> None:
        totals, sizes = self.record.totals, self.plan.sizes
        totals.num_gpu_blocks, totals.num_cpu_blocks = sizes.num_gpu_blocks - 1, sizes.num_cpu_chunks
        totals.block_tokens = sizes.block_tokens
        totals.gpu_block_bytes, totals.cpu_block_bytes = sizes.gpu_block_bytes, sizes.cpu_chunk_bytes

    def _request_ended(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total)


def host_dram_bytes_per_s(plan: Plan) -> int | None:
    """Bandwidth of host memory that all ranks share; None = no limit."""
    return plan.config.hardware.host_dram_bandwidth or plan.link.host_dram_bytes_per_s


def copy_time(plan: Plan, kv_layout: str) -> Callable[[LinkDirection, int], int]:
    """Time of a job of so many GPU blocks: every rank copies over its own link, all of them share host DRAM.

    A block is one descriptor if all its layers lie together (vLLM's cross-layer layout since 0.12), else one per
    tensor: K and V of each layer apart, or one latent per layer for MLA. Ranks that hold the same latent take turns
    storing, so each stores only its share of the blocks.
    """
    sizes, link, dram = plan.sizes, plan.link, host_dram_bytes_per_s(plan)
    tensors = 1 if plan.model.mla else 2
    pieces = 1 if kv_layout == "cross_layer" else tensors * plan.model.attention_layers

    def copy_ns(direction: LinkDirection, blocks: int) -> int:
        share = blocks if direction == "h2d" else -(-blocks * sizes.cpu_copies // sizes.ranks)
        alone = link.copy_ns(direction, sizes.block_bytes // pieces, share * pieces)
        floor = 0 if not dram else -(-share * sizes.gpu_block_bytes * NS // dram)
        return max(alone, floor)

    return copy_ns


def shared_speed(plan: Plan) -> tuple[int, int]:
    """Speed of (h2d, d2h) while both are busy, in parts per million: the link's, or what host DRAM leaves of it."""
    h2d, d2h = plan.link.bidirectional_share()
    dram, paths = host_dram_bytes_per_s(plan), (plan.link.h2d, plan.link.d2h)
    if not dram or paths[0] is None or paths[1] is None:
        return h2d, d2h
    wanted = plan.sizes.ranks * (paths[0].peak.used * h2d + paths[1].peak.used * d2h) // SOLO_PPM
    if wanted > dram:
        h2d, d2h = h2d * dram // wanted, d2h * dram // wanted
    return h2d, d2h


def _no_time(_direction: LinkDirection, _blocks: int) -> int:
    return 0
