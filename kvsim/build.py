"""From a config to objects: the one place that knows the configs of all parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvsim.cache.kv_cache_manager import KVCacheManager
from kvsim.clock import Clock
from kvsim.config import FixedStepTime, OffloadingConnectorConfig, RunConfig
from kvsim.connectors.base import ConnectorWorker
from kvsim.connectors.link_copier import LinkCopier
from kvsim.errors import UserError
from kvsim.hardware import SOLO_PPM, DuplexLink, LinkDirection
from kvsim.instance import Instance, Offload
from kvsim.profile import LinkProfile, default_link, load_link
from kvsim.releases import RELEASES, Release
from kvsim.results.records import RunRecord, Series
from kvsim.scheduler import SchedulerLimits
from kvsim.steptime.base import StepTimeModel
from kvsim.steptime.capacity import KVCapacity, default_limits, estimate_num_gpu_blocks, kv_layout
from kvsim.steptime.fixed import FixedStep
from kvsim.steptime.gpu import GpuSpec, load_gpu
from kvsim.steptime.model import load_model
from kvsim.steptime.roofline import Roofline
from kvsim.steptime.spec import ModelSpec, Quantization
from kvsim.trace.read import read_trace
from kvsim.trace.replay import ReplayOptions, play
from kvsim.trace.session import Trace

NS = 10**9
_QUANTIZATIONS = {
    "bf16": Quantization("bf16", 2.0, "bf16", 2.0, "bf16"),
    "fp8": Quantization("fp8", 1.0, "fp8", 1.0, "fp8"),
}
ASSUMED = "assumed, not measured: "  # begins the note about a number that has no measurement behind it
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """A config with everything looked up and every default filled in: what a run is going to simulate."""

    config: RunConfig
    trace: Trace
    model: ModelSpec
    gpu: GpuSpec
    link: LinkProfile
    step_time: StepTimeModel
    limits: SchedulerLimits
    num_gpu_blocks: int
    gpu_block_bytes: int  # on one rank
    num_cpu_chunks: int
    notes: tuple[str, ...]


def read_trace_of(config: RunConfig, progress: Progress | None = None) -> Trace:
    """The trace that a config names."""
    wanted = config.trace
    trace = read_trace(
        [Path(path) for path in wanted.path],
        wanted.kind,
        wanted.outputs_return,
        spread_arrivals=wanted.spread_arrivals,
        progress=progress,
    )
    if wanted.max_sessions is None or wanted.max_sessions >= len(trace.sessions):
        return trace
    note = f"only the first {wanted.max_sessions} of {len(trace.sessions)} sessions are played"
    return Trace(
        trace.name,
        trace.kind,
        trace.block_tokens,
        trace.sessions[: wanted.max_sessions],
        trace.outputs_return,
        (*trace.notes, note),
        trace.tree,
    )


def resolve(config: RunConfig, trace: Trace) -> Plan:
    """Look up model, GPU and link, and fill in vLLM's defaults.

    Raises:
        UserError: unknown names, weights that do not fit, limits that contradict each other.
    """
    hardware, engine = config.hardware, config.engine
    tp = hardware.tensor_parallel_size
    model = load_model(config.model.name, config.model.kv_cache_dtype)
    if config.model.weight_dtype != "auto":
        model = model.with_quantization(_QUANTIZATIONS[config.model.weight_dtype])
    model.check_tp(tp)
    gpu = load_gpu(hardware.gpu)
    ep = tp if hardware.expert_parallel else 1
    link = load_link(hardware.link or default_link(gpu.name))
    notes = [*trace.notes, *model.notes]
    if config.connector.kind != "none" and config.transfer.kind == "profile":
        notes += [f"{ASSUMED}{link.name} {line}" for line in link.assumptions()]
    if gpu.fidelity != "fitted":
        notes.append(f"{gpu.name}: step times from generic efficiencies, not fitted to this GPU: expect errors of 20 %")
    default_tokens, default_seqs = default_limits(gpu.memory_bytes, gpu.name, engine.vllm_version)
    max_model_len = engine.max_model_len or model.max_position
    budget = engine.max_num_batched_tokens or default_tokens
    if engine.max_num_batched_tokens is None and not engine.enable_chunked_prefill:
        budget = max(budget, max_model_len)  # as vLLM raises a defaulted budget
    if budget < max_model_len and not engine.enable_chunked_prefill:
        raise UserError(
            f"engine.max_num_batched_tokens: {budget}: without chunked prefill expected at least"
            f" max_model_len ({max_model_len})"
        )
    max_num_seqs = engine.max_num_seqs or min(default_seqs, budget)
    if budget < max_num_seqs:
        raise UserError(f"engine.max_num_batched_tokens: {budget}: expected at least max_num_seqs ({max_num_seqs})")
    capacity = _capacity(config, model, gpu, tp, ep, max_num_seqs, budget)
    if capacity is not None:
        *parts, blocks = capacity.explanation
        notes += [f"KV capacity: {' '.join(parts)}", f"KV capacity: {blocks}"]
    layout = kv_layout(model, tp, engine.block_size)
    if layout.groups > 1:
        notes.append(
            f"{model.name} has sliding-window layers: simulated as if all layers kept every token,"
            f" so the pool of {layout.groups} groups is counted as one"
        )
    block_bytes = model.kv_bytes_per_token(tp) * engine.block_size
    num_blocks = engine.num_gpu_blocks_override or _blocks_of(capacity, layout.groups)
    if num_blocks < 2:
        raise UserError(f"engine.num_gpu_blocks_override: {num_blocks}: expected at least 2 (one is the null block)")
    if max_model_len > model.max_position:
        notes.append(
            f"max_model_len {max_model_len:,} exceeds the {model.max_position:,} of {model.name}:"
            " vLLM needs a rope scaling or VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 for it"
        )
    if (num_blocks - 1) * engine.block_size < max_model_len:
        notes.append(
            f"max_model_len {max_model_len:,} does not fit the {(num_blocks - 1) * engine.block_size:,} tokens"
            " of GPU KV: vLLM would refuse to start; here only requests that do not fit are rejected"
        )
    return Plan(
        config=config,
        trace=trace,
        model=model,
        gpu=gpu,
        link=link,
        step_time=_step_time(config, model, gpu, tp, ep),
        limits=SchedulerLimits(
            max_num_batched_tokens=budget,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            scheduling_policy=engine.scheduling_policy,
            enable_chunked_prefill=engine.enable_chunked_prefill,
            long_prefill_token_threshold=engine.long_prefill_token_threshold,
            scheduler_reserve_full_isl=engine.scheduler_reserve_full_isl,
        ),
        num_gpu_blocks=num_blocks,
        gpu_block_bytes=block_bytes,
        num_cpu_chunks=_num_cpu_chunks(config, block_bytes * tp),
        notes=tuple(notes),
    )


def _capacity(
    config: RunConfig, model: ModelSpec, gpu: GpuSpec, tp: int, ep: int, max_num_seqs: int, budget: int
) -> KVCapacity | None:
    """KV capacity by vLLM's rule; not asked for where the number of blocks is given."""
    engine = config.engine
    if engine.num_gpu_blocks_override is not None:
        return None
    return estimate_num_gpu_blocks(
        model,
        gpu,
        tp,
        ep,
        block_tokens=engine.block_size,
        gpu_memory_utilization=engine.gpu_memory_utilization,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        kv_cache_memory_bytes=engine.kv_cache_memory_bytes,
        version=engine.vllm_version,
    )


def _blocks_of(capacity: KVCapacity | None, groups: int) -> int:
    assert capacity is not None
    return capacity.num_blocks // groups


def _step_time(config: RunConfig, model: ModelSpec, gpu: GpuSpec, tp: int, ep: int) -> StepTimeModel:
    if isinstance(config.step_time, FixedStepTime):
        return FixedStep(config.step_time.per_step, config.step_time.per_token)
    return Roofline(model, gpu, tp, ep)


def _num_cpu_chunks(config: RunConfig, block_bytes: int) -> int:
    """vLLM: cpu_bytes_to_use is the total over all ranks of the engine."""
    connector = config.connector
    if not isinstance(connector, OffloadingConnectorConfig):
        return 0
    chunk_bytes = block_bytes * connector.block_size_factor
    chunks = connector.cpu_bytes_to_use // chunk_bytes
    if chunks < 1:
        raise UserError(
            f"connector.cpu_bytes_to_use: {connector.cpu_bytes_to_use} B: one offloaded block of all ranks takes"
            f" {chunk_bytes} B, expected room for at least one"
        )
    return chunks


class Simulation:
    """A plan on a clock. `run` plays it to the end and returns what it wrote down."""

    def __init__(self, plan: Plan, progress: Progress | None = None) -> None:
        self.plan = plan
        self.env = Clock()
        self.record = RunRecord(series=Series(plan.config.output.series_points), notes=list(plan.notes))
        self._progress, self._total, self._done = progress, plan.trace.num_requests, 0
        self.instance = self._build()

    def run(self) -> RunRecord:
        """Play the whole trace. Ends when nothing can happen any more: requests left then are stuck."""
        plan = self.plan
        wanted = plan.config.trace
        options = ReplayOptions(
            session_interval_ns=wanted.session_interval,
            max_think_ns=wanted.max_think_time,
            max_concurrent_sessions=wanted.max_concurrent_sessions,
            time_scale=wanted.time_scale,
        )
        play(self.env, plan.trace, self.instance.submit, options)
        self.env.run()
        self.instance.close()
        if plan.config.debug and not self.instance.scheduler.requests:
            self.instance.scheduler.check(at_end=True)
        return self.record

    def _build(self) -> Instance:
        plan, config = self.plan, self.plan.config
        release = RELEASES[config.engine.vllm_version]
        pool = release.block_pool(plan.num_gpu_blocks)
        kv = KVCacheManager(
            pool,
            block_size=config.engine.block_size,
            max_model_len=plan.limits.max_model_len,
            enable_caching=config.engine.enable_prefix_caching,
        )
        totals, tp = self.record.totals, config.hardware.tensor_parallel_size
        totals.num_gpu_blocks, totals.num_cpu_blocks = plan.num_gpu_blocks - 1, plan.num_cpu_chunks
        totals.block_tokens = config.engine.block_size
        totals.gpu_block_bytes = plan.gpu_block_bytes * tp
        if not isinstance(config.connector, OffloadingConnectorConfig):
            instance = Instance(self.env, release.scheduler(plan.limits, kv), self.record, self._request_ended)
            instance.start(plan.step_time, None, None, check=config.debug)
            return instance
        totals.cpu_block_bytes = totals.gpu_block_bytes * config.connector.block_size_factor
        manager = release.manager(
            plan.num_cpu_chunks,
            release.policies[config.connector.eviction_policy],
            config.connector.store_threshold,
        )
        connector = release.offloading_connector(
            manager,
            block_size=config.engine.block_size,
            block_size_factor=config.connector.block_size_factor,
            offload_prompt_only=config.connector.offload_prompt_only,
            enable_caching=config.engine.enable_prefix_caching,
        )
        scheduler = release.scheduler(plan.limits, kv, connector)
        instance = Instance(self.env, scheduler, self.record, self._request_ended)
        link, worker = self._copy_path(release, instance)
        instance.start(plan.step_time, Offload(manager, link, connector), worker, check=config.debug)
        return instance

    def _copy_path(self, release: Release, instance: Instance) -> tuple[DuplexLink, ConnectorWorker]:
        plan, config = self.plan, self.plan.config
        assert isinstance(config.connector, OffloadingConnectorConfig)
        instant = config.transfer.kind == "instant"
        share = (SOLO_PPM, SOLO_PPM) if instant else plan.link.bidirectional_share()
        link = DuplexLink(self.env, (share[0], share[1]), instance.notify)
        pieces = 1 if config.connector.kv_layout == "cross_layer" else 2 * plan.model.attention_layers
        copy_ns = copy_time(plan, pieces) if not instant else _no_time
        copier = LinkCopier(link, copy_ns, plan.gpu_block_bytes * config.hardware.tensor_parallel_size)
        return link, release.offloading_worker(copier)

    def _request_ended(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total)


def copy_time(plan: Plan, pieces: int) -> Callable[[LinkDirection, int], int]:
    """Time of a job of so many GPU blocks: every rank copies its shard over its own link, all share host DRAM.

    ``pieces`` = descriptors of one block: 1 if all its layers lie together, else one per layer and K or V.
    """
    tp = plan.config.hardware.tensor_parallel_size
    block_bytes, link = plan.gpu_block_bytes, plan.link
    dram = plan.config.hardware.host_dram_bandwidth or link.host_dram_bytes_per_s

    def copy_ns(direction: LinkDirection, blocks: int) -> int:
        alone = link.copy_ns(direction, block_bytes // pieces, blocks * pieces)
        floor = 0 if not dram else -(-blocks * block_bytes * tp * NS // dram)
        return max(alone, floor)

    return copy_ns


def _no_time(_direction: LinkDirection, _blocks: int) -> int:
    return 0
