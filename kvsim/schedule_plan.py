"""Exporting the schedule of a run: of which runs it can be done, and what stands at its head."""

from __future__ import annotations

from collections.abc import Sequence

from kvsim import __version__
from kvsim.config import (
    FaultsConfig,
    FsTierConfig,
    InstantTransfer,
    OffloadingConnectorConfig,
    RunConfig,
    SimpleCPUConnectorConfig,
)
from kvsim.errors import UserError
from kvsim.hardware import LinkDirection
from kvsim.resolve import Plan
from kvsim.results.schedule import Header, Layout, Schedule, Step, Way, WayName, cut
from kvsim.results.schedule.records import LayoutKind
from kvsim.schedule_export import OPTION, ScheduleExport

_DTYPES = {"bf16": "bfloat16", "fp8": "fp8"}
_MANY = 1 << 20  # descriptors: the way of a large batch


def check_exportable(plan: Plan) -> None:
    """Whether the copies of a run can be told as a schedule.

    Raises:
        UserError: names what cannot, and what would do instead.
    """
    config = plan.config
    _check_connector(config)
    engine = config.engine
    for key, given, expected in (
        ("engine.data_parallel_size", engine.data_parallel_size > 1, "1: every rank is an engine of its own"),
        ("engine.async_scheduling", engine.async_scheduling, "false: copies overlap steps in flight"),
        ("engine.speculative", engine.speculative is not None, "null: drafts are overwritten"),
        ("trace.streaming_sessions", config.trace.streaming_sessions, "false"),
    ):
        if given:
            raise UserError(f"{OPTION}: {key}: expected {expected}")
    of_clients = FaultsConfig().model_copy(
        update={"aborts": config.faults.aborts, "client_timeout": config.faults.client_timeout}
    )
    if config.faults.model_copy(update={"restart_time": of_clients.restart_time}) != of_clients:
        raise UserError(f"{OPTION}: faults: expected those of clients only (aborts, client_timeout)")
    sizes = plan.sizes
    if sizes.groups.specs or not sizes.groups.simulated:
        raise UserError(
            f"{OPTION}: {plan.model.name} has several KV cache groups, whose blocks hold different layers: expected a"
            " model of full attention, or engine.disable_hybrid_kv_cache_manager"
        )
    if sizes.cpu_copies != sizes.ranks:
        raise UserError(
            f"{OPTION}: the {sizes.ranks} ranks keep one copy of the latent KV and take turns storing it: expected"
            " hardware.tensor_parallel_size 1"
        )
    layout_of(plan)


def _check_connector(config: RunConfig) -> None:
    connector = config.connector
    if not isinstance(connector, OffloadingConnectorConfig | SimpleCPUConnectorConfig):
        what = "nothing is copied" if connector.kind == "none" else "its copies have no blocks of a CPU pool"
        raise UserError(f"{OPTION}: connector.kind {connector.kind}: {what}, expected offloading or simple_cpu")
    for tier in getattr(connector, "tiers", ()):
        if not isinstance(tier, FsTierConfig):
            raise UserError(f"{OPTION}: connector.tiers: kind {tier.kind} has no files, expected fs (or no tiers)")


def layout_of(plan: Plan) -> Layout:
    """What a block is on one rank.

    Raises:
        UserError: the layers differ in their KV.
    """
    model, sizes, copies = plan.model, plan.sizes, plan.copies
    shapes = {
        (1, model.mla.cached_elements) if model.mla else (model.kv_heads_per_rank(group, sizes.ranks), group.head_dim)
        for group in model.groups
    }
    if len(shapes) > 1:
        raise UserError(f"{OPTION}: layers of {model.name} differ in KV heads or their size: expected all alike")
    heads, head_size = next(iter(shapes))
    layers = sizes.groups.layers
    kind: LayoutKind = "per_layer_kv"
    if model.mla:
        kind = "mla"
    elif copies.pieces == 1:
        kind = "cross_layer"
    elif copies.pieces == 2 * layers:
        kind = "per_layer"
    dtype = _DTYPES[model.kv_cache_dtype]
    return Layout(kind, layers, heads, head_size, dtype, sizes.block_tokens, copies.pieces, copies.piece_bytes)


def schedule_of(plan: Plan, steps: Sequence[Step], digest: str, wanted: ScheduleExport) -> Schedule:
    """The schedule of a run, or the part of it that is wanted.

    Args:
        plan: what was simulated.
        steps: what was recorded.
        digest: of the run's requests.
        wanted: which part.

    Raises:
        UserError: no copy is left.
    """
    config, sizes = plan.config, plan.sizes
    factor = config.connector.block_size_factor if isinstance(config.connector, OffloadingConnectorConfig) else 1
    header = Header(
        run=config.name or "unnamed",
        kvsim=__version__,
        digest=digest,
        model=plan.model.name,
        vllm_version=config.engine.vllm_version,
        gpu=plan.gpu.name,
        link=plan.link.name,
        rank=0,
        tensor_parallel_size=sizes.ranks,
        layout=layout_of(plan),
        gpu_blocks=sizes.num_gpu_blocks,
        host_blocks=sizes.num_cpu_chunks * factor,
        way=Way(_way(plan, "h2d"), _way(plan, "d2h")),
    )
    whole = Schedule(header, steps)
    if not whole.num_jobs:
        raise UserError(f"{OPTION}: nothing was copied in this run, expected one that offloads KV")
    limits = (wanted.start_ns, wanted.end_ns, wanted.requests, wanted.max_bytes)
    return whole if limits == (None, None, None, None) else cut(whole, *limits)


def note_of(schedule: Schedule) -> str:
    """What was exported."""
    jobs, steps, size = schedule.num_jobs, len(schedule.steps), schedule.bytes / 1e9
    part = "exported schedule" if schedule.header.filter is None else "exported part of the schedule"
    return f"{part}: {jobs:,} copies in {steps:,} steps, {size:,.3g} GB on each rank"


def _way(plan: Plan, direction: LinkDirection) -> WayName:
    return "instant" if isinstance(plan.config.transfer, InstantTransfer) else plan.copies.way(direction, _MANY)
