"""What a config means: names looked up, vLLM's defaults filled in, sizes counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from kvsim.config import (
    CustomStepTime,
    FixedStepTime,
    LMCacheConnectorConfig,
    MediumFaults,
    MultiConnectorConfig,
    OffloadingConnectorConfig,
    RooflineStepTime,
    RunConfig,
)
from kvsim.copy_plan import CopyPlan, block_pieces, link_cautions, plan_copies
from kvsim.errors import ConfigError, UserError
from kvsim.fast_plan import choose_fast
from kvsim.frontend import FrontendTimes
from kvsim.frontend_plan import plan_frontend
from kvsim.gate_plan import GatePlan, plan_gates
from kvsim.host_plan import HostPlan, cpu_chunks, plan_host
from kvsim.kv_groups import KVGroups, kv_groups
from kvsim.limit_plan import limits_of
from kvsim.limits import SchedulerLimits
from kvsim.network_plan import check_remote, notes_of_remote
from kvsim.overlap_plan import check_async_scheduling, drafting_notes, speculation
from kvsim.policy_plan import check_policy, policy_notes
from kvsim.profile import LinkProfile, default_link, load_link
from kvsim.rank_plan import check_ranks, expert_ranks, notes_of_ranks
from kvsim.registry import STEP_TIMES
from kvsim.releases import RELEASES, Release
from kvsim.results.records import ASSUMED
from kvsim.speculation import Speculation
from kvsim.steptime.base import Deployment, StepTimeModel
from kvsim.steptime.capacity import estimate_num_gpu_blocks
from kvsim.steptime.custom import CustomStep
from kvsim.steptime.drafting import WithDrafting
from kvsim.steptime.fixed import FixedStep
from kvsim.steptime.gpu import GpuSpec, load_gpu
from kvsim.steptime.model import load_model
from kvsim.steptime.piecewise import PiecewiseDecode
from kvsim.steptime.roofline import Roofline
from kvsim.steptime.spec import ModelSpec, Quantization
from kvsim.storage import StorageProfile
from kvsim.store_plan import StoreLayout, check_store, store_layout, store_notes
from kvsim.synchronous_plan import blocks_per_chunk, cautions_of, check_tenants, notes_of, one_copy_note
from kvsim.tier_plan import assumed_of_tiers, check_tiers, storages_of
from kvsim.trace.read import read_trace
from kvsim.trace.session import Trace

# vLLM's block size where none is given: 16, or 64 for MLA models (FLASHMLA), v1/attention/backends.
BLOCK_SIZE, MLA_BLOCK_SIZE = 16, 64
MAX_BLOCKS = 20_000_000  # the reference pool keeps about 100 bytes per block
_QUANTIZATIONS = {
    "bf16": Quantization("bf16", 2.0, "bf16", 2.0, "bf16"),
    "fp8": Quantization("fp8", 1.0, "fp8", 1.0, "fp8"),
}
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class KVSizes:
    """Sizes of a KV block and of the pools that hold them."""

    block_tokens: int
    num_gpu_blocks: int  # the null block included
    block_bytes: int  # one block on one rank
    ranks: int
    cpu_copies: int  # how many ranks keep their own copy in CPU memory
    num_cpu_chunks: int
    cpu_chunk_bytes: int  # all copies
    groups: KVGroups

    @property
    def gpu_block_bytes(self) -> int:
        """One block on all ranks."""
        return self.block_bytes * self.ranks

    @property
    def kv_tokens(self) -> int:
        """Tokens that GPU and CPU memory hold, if each is in one of them only."""
        in_cpu = self.num_cpu_chunks * self.cpu_chunk_bytes // (self.block_bytes * self.cpu_copies)
        return (self.num_gpu_blocks - 1 + in_cpu) * self.block_tokens


@dataclass(frozen=True, slots=True)
class Plan:
    """A config with everything looked up: what a run is going to simulate."""

    config: RunConfig
    trace: Trace
    release: Release
    model: ModelSpec
    gpu: GpuSpec
    link: LinkProfile
    storages: tuple[StorageProfile | None, ...]  # of each secondary tier; None = needs none
    step_time: StepTimeModel
    limits: SchedulerLimits
    sizes: KVSizes
    copies: CopyPlan
    store: StoreLayout  # what a block is in a shared store
    host: HostPlan
    frontend: FrontendTimes | None  # None = it takes no time
    speculation: Speculation | None
    gates: GatePlan
    parts: tuple[Plan, ...]  # of a MultiConnector's connectors, each as if it were alone
    fast: bool  # whether the fast engine runs it
    exports_schedule: bool  # every copy is recorded with its blocks
    notes: tuple[str, ...]  # the first one says which engine, and why
    cautions: tuple[str, ...]

    def with_parts(self) -> Plan:
        """The plan of a MultiConnector with what its connectors bring: CPU memory, time, and things to tell."""
        with_cpu = next((part for part in self.parts if part.sizes.num_cpu_chunks), None)
        layered = next((part for part in self.parts if isinstance(part.step_time, PiecewiseDecode)), None)
        sizes = self.sizes
        if with_cpu is not None:
            theirs = with_cpu.sizes
            sizes = replace(sizes, num_cpu_chunks=theirs.num_cpu_chunks, cpu_chunk_bytes=theirs.cpu_chunk_bytes)
        startup_ns = max(part.host.startup_ns for part in self.parts)
        notes = dict.fromkeys((*self.notes, *(note for part in self.parts for note in part.notes[1:])))
        cautions = dict.fromkeys((*self.cautions, *(text for part in self.parts for text in part.cautions)))
        return replace(
            self,
            sizes=sizes,
            step_time=self.step_time if layered is None else layered.step_time,
            host=replace(self.host, startup_ns=startup_ns),
            notes=tuple(notes),
            cautions=tuple(cautions),
        )

    def with_reference_engine(self, reason: str) -> Plan:
        """The same, on the engine that executes every step."""
        return replace(self, fast=False, notes=(f"reference engine, because {reason}", *self.notes[1:]))


def read_trace_of(config: RunConfig, progress: Progress | None = None) -> Trace:
    """The trace that a config names, as far as it is played."""
    return with_max_sessions(read_whole_trace_of(config, progress), config.trace.max_sessions)


def read_whole_trace_of(config: RunConfig, progress: Progress | None = None) -> Trace:
    """The trace that a config names, with all of its sessions. No run changes it: any number may share it."""
    wanted = config.trace
    return read_trace(
        [Path(path) for path in wanted.path],
        wanted.kind,
        wanted.outputs_return,
        spread_arrivals=wanted.spread_arrivals,
        progress=progress,
    )


def with_max_sessions(trace: Trace, most: int | None) -> Trace:
    """The first sessions of a trace; None = all."""
    if most is None or most >= len(trace.sessions):
        return trace
    note = f"only the first {most} of {len(trace.sessions)} sessions are played (counts are of all)"
    return replace(trace, sessions=trace.sessions[:most], notes=(*trace.notes, note))


def resolve(config: RunConfig, trace: Trace, *, exports_schedule: bool = False) -> Plan:
    """Look up model, GPU and link, and fill in vLLM's defaults.

    ``exports_schedule``: all copies are to be recorded (see `kvsim.schedule_plan`).

    Raises:
        ConfigError: unknown names, weights that do not fit, limits that contradict each other.
    """
    try:
        return _resolve(config, trace, exports_schedule=exports_schedule)
    except UserError as error:
        raise ConfigError(str(error)) from None


def _resolve(config: RunConfig, trace: Trace, *, exports_schedule: bool, is_part: bool = False) -> Plan:
    tp = config.hardware.tensor_parallel_size
    with _at("model.name"):
        model = load_model(config.model.name, config.model.kv_cache_dtype)
    ep = expert_ranks(config, model)
    if config.model.weight_dtype != "auto":
        model = model.with_quantization(_QUANTIZATIONS[config.model.weight_dtype])
    with _at("hardware"):
        model.check_tp(tp)
    with _at("hardware.gpu"):
        gpu = load_gpu(config.hardware.gpu)
    with _at("hardware.link"):
        link = load_link(config.hardware.link or default_link(gpu.name))
    with _at("frontend.preset"):
        frontend, frontend_notes = plan_frontend(config)
    config = _with_block_size_factor(config, model)
    storages = storages_of(config.connector)
    check_async_scheduling(config)
    limits = limits_of(config, model, gpu)
    check_tenants(config)
    trace, gates = plan_gates(config, limits, trace)
    sizes, capacity_notes = _sizes(config, model, gpu, limits, ep)
    release = RELEASES[config.engine.vllm_version]
    check_policy(config.connector, release, config.engine.vllm_version)
    pieces = block_pieces(config, model, release, sizes.groups)
    host = plan_host(config, release, sizes, pieces.number)
    copies = plan_copies(config, link, pieces, block_bytes=sizes.block_bytes, pinned=host.pinned, remote=host.remote)
    check_tiers(config.connector, sizes.cpu_chunk_bytes)
    store = store_layout(model, sizes, sizes.groups.layers)
    check_store(config, store)
    _check_faults(config, sizes)
    check_ranks(config, model)
    check_remote(config, sizes.groups, is_part=is_part)
    fast, engine_note = choose_fast(config, sizes.groups, gates, exports_schedule=exports_schedule)
    parts = _parts(config, trace)
    plan = Plan(
        config=config,
        trace=trace,
        release=release,
        model=model,
        gpu=gpu,
        link=link,
        storages=storages,
        step_time=_step_time(config, model, gpu, tp, ep),
        limits=limits,
        sizes=sizes,
        speculation=speculation(config),
        copies=copies,
        store=store,
        host=host,
        frontend=frontend,
        gates=gates,
        parts=parts,
        fast=fast,
        exports_schedule=exports_schedule,
        notes=(
            engine_note,
            *config.notes,
            *trace.notes,
            *model.notes,
            *_hardware_notes(config, gpu),
            *drafting_notes(config),
            *copies.notes,
            *(ASSUMED + line for line in assumed_of_tiers(config.connector, storages)),
            *policy_notes(config.connector),
            *notes_of(config, link),
            *store_notes(config, store),
            *notes_of_remote(config),
            *capacity_notes,
            *gates.notes,
            *(ASSUMED + line for line in gates.assumptions),
            *host.notes,
            *frontend_notes,
        ),
        cautions=(
            *_cautions(config, model, gpu, limits, sizes),
            *link_cautions(link),
            *copies.cautions,
            *cautions_of(config, tp),
            *host.cautions,
        ),
    )
    return plan.with_parts() if parts else plan


def _parts(config: RunConfig, trace: Trace) -> tuple[Plan, ...]:
    """Plans of a MultiConnector's connectors."""
    if not isinstance(config.connector, MultiConnectorConfig):
        return ()
    found: list[Plan] = []
    for number, part in enumerate(config.connector.connectors):
        try:
            part_plan = _resolve(
                config.model_copy(update={"connector": part, "debug": False}),
                trace,
                exports_schedule=False,
                is_part=True,
            )
            found.append(replace(part_plan, fast=False))  # as the engine with several connectors
        except UserError as error:
            place = f"connector.connectors.{number}"
            text = str(error)
            raise UserError(
                f"{place}{text.removeprefix('connector')}" if text.startswith("connector.") else text
            ) from None
    return tuple(found)


@contextmanager
def _at(key: str) -> Iterator[None]:
    """Errors from here on are about this key of the config."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{key}: {error}") from None


def _block_tokens(config: RunConfig, model: ModelSpec) -> int:
    return config.engine.block_size or (MLA_BLOCK_SIZE if model.mla else BLOCK_SIZE)


def _with_block_size_factor(config: RunConfig, model: ModelSpec) -> RunConfig:
    """VLLM 0.33.0 v1/offloading/config.py: an offloaded block's tokens are a multiple of the GPU block's."""
    connector, block_tokens = config.connector, _block_tokens(config, model)
    if not isinstance(connector, OffloadingConnectorConfig) or connector.block_size is None:
        return config
    factor, rest = divmod(connector.block_size, block_tokens)
    if rest or not factor:
        raise UserError(
            f"connector.block_size: {connector.block_size}: expected a multiple of the {block_tokens} tokens of a GPU"
            " block"
        )
    found = connector.model_copy(update={"block_size": None, "block_size_factor": factor})
    return config.model_copy(update={"connector": found})


def _check_faults(config: RunConfig, sizes: KVSizes) -> None:
    """What becomes of the other groups' blocks when one group's load fails has not been compared with vLLM."""
    copies_fail = config.faults.cpu != MediumFaults() or any(outage.tier == "cpu" for outage in config.faults.outages)
    if sizes.groups.specs and copies_fail:
        raise UserError(
            f"faults: failing copies between GPU and CPU memory are not simulated with the {len(sizes.groups.specs)} KV"
            f" groups of {config.model.name}; engine.disable_hybrid_kv_cache_manager simulates it as one group"
        )


def _sizes(
    config: RunConfig, model: ModelSpec, gpu: GpuSpec, limits: SchedulerLimits, ep: int
) -> tuple[KVSizes, list[str]]:
    engine, tp = config.engine, config.hardware.tensor_parallel_size
    release = RELEASES[engine.vllm_version]
    block_tokens = _block_tokens(config, model)
    groups = kv_groups(config, model, gpu, release, limits, block_tokens)
    layout, notes, block_tokens = groups.layout, list(groups.notes), groups.layout.block_tokens
    num_blocks = engine.num_gpu_blocks_override
    if num_blocks is None:
        with _at("engine"):
            capacity = estimate_num_gpu_blocks(
                model,
                gpu,
                tp,
                ep,
                block_tokens=block_tokens,
                gpu_memory_utilization=engine.gpu_memory_utilization,
                max_num_seqs=limits.max_num_seqs,
                max_num_batched_tokens=limits.max_num_batched_tokens,
                kv_cache_memory_bytes=engine.kv_cache_memory_bytes,
                version=engine.vllm_version,
                layout=layout,
            )
        num_blocks = capacity.num_blocks
        *parts, blocks = capacity.explanation
        notes += [f"KV capacity: {' '.join(parts)}", f"KV capacity: {blocks}"]
    if groups.specs:
        notes.append(groups.capacity_note(num_blocks, limits))
    elif not groups.simulated:
        num_blocks //= layout.groups
    if not 2 <= num_blocks <= MAX_BLOCKS:
        raise UserError(
            f"engine.num_gpu_blocks_override: {num_blocks} blocks: expected 2 (one is the null block) to {MAX_BLOCKS:,}"
        )
    block_bytes = groups.block_bytes
    connector, copies = config.connector, tp
    if isinstance(connector, OffloadingConnectorConfig) and model.mla and tp > 1 and release.shares_replicated_kv:
        copies = 1
        notes.append(
            f"the {tp} ranks hold the same latent KV of {model.name}: vLLM {engine.vllm_version} keeps one copy in CPU"
            " memory and lets the ranks take turns storing (one node, multiprocessing)"
        )
    if model.mla and tp > 1 and (note := one_copy_note(connector, model.name, tp)):
        copies = 1
        notes.append(note)
    chunk = blocks_per_chunk(connector, block_tokens)
    chunk_bytes, num_chunks = cpu_chunks(connector, block_bytes, tp, copies, release.cpu_chunk_alignment_bytes, chunk)
    return KVSizes(block_tokens, num_blocks, block_bytes, tp, copies, num_chunks, chunk_bytes, groups), notes


def _step_time(config: RunConfig, model: ModelSpec, gpu: GpuSpec, tp: int, ep: int) -> StepTimeModel:
    found: StepTimeModel
    if isinstance(config.step_time, FixedStepTime):
        found = FixedStep(config.step_time.per_step, config.step_time.per_token)
    elif isinstance(config.step_time, CustomStepTime):
        name, options = config.step_time.kind, config.step_time.options
        found = CustomStep(name, STEP_TIMES.make(name, [Deployment(model, gpu, tp, ep)], options, config.python_path))
    else:
        found = Roofline(model, gpu, tp, ep, config.step_time.scale)
    if isinstance(config.connector, LMCacheConnectorConfig) and config.connector.use_layerwise:
        found = PiecewiseDecode(found, config.connector.piecewise_launch * model.attention_layers)
    drafts = config.engine.speculative
    return WithDrafting(found, drafts.draft_time) if drafts and drafts.draft_time else found


def _cautions(config: RunConfig, model: ModelSpec, gpu: GpuSpec, limits: SchedulerLimits, sizes: KVSizes) -> list[str]:
    found: list[str] = []
    room = (sizes.num_gpu_blocks - 1) * sizes.block_tokens
    if sizes.groups.specs:
        found += sizes.groups.cautions(sizes.num_gpu_blocks, limits)
    elif room < limits.max_model_len:
        found.append(
            f"vLLM would refuse to start: max_model_len {limits.max_model_len:,} does not fit the {room:,} tokens of"
            f" GPU KV. Here only requests that do not fit are rejected; set engine.max_model_len to {room} or less."
        )
    if limits.max_model_len > model.max_position:
        found.append(
            f"max_model_len {limits.max_model_len:,} exceeds the {model.max_position:,} of {model.name}:"
            " vLLM needs a rope scaling or VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 for it."
        )
    if config.hardware.expert_parallel and model.moe is None:
        found.append(f"hardware.expert_parallel changes nothing: {model.name} has no experts.")
    if sizes.ranks > 1 and not gpu.nvlink and config.step_time.kind == "roofline":
        found.append("Tensor parallelism over PCIe is predicted about 20 % too fast (one measured case).")
    return found


def _hardware_notes(config: RunConfig, gpu: GpuSpec) -> list[str]:
    notes = notes_of_ranks(config)
    if gpu.fidelity != "fitted" and config.step_time.kind == "roofline":
        notes.append(f"{gpu.name}: step times from generic efficiencies, not fitted to this GPU: expect errors of 20 %")
    if isinstance(config.step_time, RooflineStepTime) and config.step_time.scale != 1:
        notes.append(f"step times are {config.step_time.scale:g} times what the roofline predicts (step_time.scale)")
    return notes
