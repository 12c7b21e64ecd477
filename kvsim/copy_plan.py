"""How a config's copies are made: the pieces of a block, the way of a batch, and what to tell the user about it."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvsim.config import (
    CustomConnector,
    OffloadingConnectorConfig,
    ProfileTransfer,
    RunConfig,
    SimpleCPUConnectorConfig,
)
from kvsim.copy_path import KERNEL_BELOW_BYTES, Way, chosen_way
from kvsim.errors import UserError
from kvsim.hardware import LinkDirection
from kvsim.kv_groups import KVGroups
from kvsim.profile import LinkProfile
from kvsim.releases import Release
from kvsim.results.records import ASSUMED
from kvsim.steptime.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """How blocks are copied.

    Attributes:
        pieces: descriptors of one block on one rank, all of one size.
        piece_bytes: size of a descriptor.
        override: the way of all copies; None = as the connector chooses.
        selects: whether the connector chooses between ways, or has only batched DMA.
        has_kernel: whether the link profile knows what a copy by kernel takes.
        coalesce: join neighbours.
        max_batch_descriptors: descriptors of one call; 0 = no limit.
        pinned: host memory is pinned; else every copy is staged.
        remote: host memory belongs to another socket than the GPU.
        notes, cautions: for the user.
    """

    pieces: int
    piece_bytes: int
    override: Way | None = None
    selects: bool = False
    has_kernel: bool = True
    coalesce: bool = False
    max_batch_descriptors: int = 0
    pinned: bool = True
    remote: bool = False
    notes: tuple[str, ...] = field(default=())
    cautions: tuple[str, ...] = field(default=())

    def way(self, direction: LinkDirection, count: int) -> Way:
        """How a batch of so many descriptors is copied."""
        if not self.pinned:
            return "pageable"
        if self.override is not None:
            return self.override
        way = chosen_way(direction, self.piece_bytes, count) if self.selects else "dma_batch"
        return "dma_batch" if way == "kernel" and not self.has_kernel else way


@dataclass(frozen=True, slots=True)
class BlockPieces:
    """In how many descriptors a block of one rank is copied, and what to tell the user about it."""

    number: int
    notes: tuple[str, ...] = field(default=())
    cautions: tuple[str, ...] = field(default=())


def block_pieces(config: RunConfig, model: ModelSpec, release: Release, groups: KVGroups) -> BlockPieces:
    """The pieces of a block under a config's connector; one if it has none.

    Args:
        config: the run.
        model: whose KV it is.
        release: which vLLM.
        groups: KV groups of the engine, and what a block of them is.
    """
    connector, version = config.connector, config.engine.vllm_version
    if isinstance(connector, OffloadingConnectorConfig):
        return _offloading_pieces(connector.kv_layout, model, release, groups, version)
    if not isinstance(connector, SimpleCPUConnectorConfig):
        return BlockPieces(1)
    # vLLM 0.23.0 and 0.33.0 v1/simple_kv_offload/worker.py: a region per layer, K and V of a block side by side in it
    pieces = groups.layers
    if connector.max_batch_descriptors and not release.limits_batch_descriptors:
        caution = (
            f"vLLM {version} has no VLLM_KV_OFFLOAD_MAX_BATCH_DESCRIPTORS: connector.max_batch_descriptors is applied"
            " all the same."
        )
        return BlockPieces(pieces, cautions=(caution,))
    return BlockPieces(pieces)


def _offloading_pieces(layout: str, model: ModelSpec, release: Release, groups: KVGroups, version: str) -> BlockPieces:
    """Pieces of a block under a layout of OffloadingConnector.

    vLLM 0.33.0 offloading_connector.py (get_required_kvcache_layout): LBHNC, so each layer's K and V of a block are
    one piece; VLLM_KV_CACHE_LAYOUT=BLHNC would join the layers. 0.23.0 prefers one tensor for all layers
    (kv_connector_model_runner_mixin.py, use_uniform_kv_cache): if there is one KV group and the attention backend puts
    blocks in front of layers, as all but those of MLA do.
    """
    layers = groups.layers
    joined = release.cross_layer_kv and groups.in_vllm == 1 and not model.mla
    if layout == "auto":
        each = "one piece of all layers" if joined else f"{layers} pieces, one per layer"
        note = f"KV layout of vLLM {version}: a block is copied in {each} (connector.kv_layout)"
        return BlockPieces(1 if joined else layers, (note,))
    if layout != "cross_layer":
        return BlockPieces(layers if layout == "per_layer_kv" or model.mla else 2 * layers)
    if not release.cross_layer_kv:
        return BlockPieces(1, (f"cross-layer blocks need VLLM_KV_CACHE_LAYOUT=BLHNC with vLLM {version}",))
    if not joined:
        why = "MLA" if model.mla else f"{groups.in_vllm} KV groups"
        return BlockPieces(1, cautions=(f"vLLM {version} has no cross-layer layout for a model with {why}.",))
    return BlockPieces(1)


def plan_copies(
    config: RunConfig, link: LinkProfile, pieces: BlockPieces, *, block_bytes: int, pinned: bool, remote: bool
) -> CopyPlan:
    """How a config's connector copies.

    Args:
        config: the run.
        link: its profile.
        pieces: of a block.
        block_bytes: one block on one rank.
        pinned: host memory is pinned.
        remote: it belongs to another socket than the GPU.

    Raises:
        UserError: a way of copying is needed that the profile knows nothing about.
    """
    connector, transfer = config.connector, config.transfer
    piece_bytes = max(1, block_bytes // pieces.number)
    known = isinstance(connector, OffloadingConnectorConfig | SimpleCPUConnectorConfig | CustomConnector)
    if not known or not isinstance(transfer, ProfileTransfer):
        return CopyPlan(pieces.number, piece_bytes, notes=pieces.notes, cautions=pieces.cautions)
    override = None if transfer.path == "auto" else transfer.path
    if override is not None and not link.has(override):
        raise UserError(f"transfer.path: {override}: link profile {link.name} has no section {override}")
    if override == "kernel" and not pinned:
        raise UserError("transfer.path: kernel: a kernel cannot read host memory that is not pinned")
    for key, needed, section in (("pinned", not pinned, "pageable"), ("numa", remote, "remote")):
        if needed and getattr(link, section) is None and link.h2d is not None:
            raise UserError(f"hardware.host.{key}: link profile {link.name} has no section {section}")
    selects = isinstance(connector, OffloadingConnectorConfig)
    kernel = pinned and (override == "kernel" or (override is None and selects and piece_bytes < KERNEL_BELOW_BYTES))
    used = {
        "kernel": kernel,
        "dma_loop": override == "dma_loop" and pinned,
        "pageable": not pinned,
        "remote": remote,
    }
    notes = list(pieces.notes)
    if kernel and not link.has("kernel"):
        notes.append(
            f"vLLM loads pieces of {piece_bytes:,} bytes by a kernel; link profile {link.name} has no section kernel:"
            " batched DMA is used instead"
        )
    elif kernel:
        which = "all copies" if override else f"loads (pieces of {piece_bytes:,} bytes, less than 28 KiB)"
        slows = "which slows forward passes while it runs"
        if config.engine.async_scheduling:
            slows = "which would slow forward passes while it runs; not simulated with asynchronous scheduling"
        notes.append(f"{which} are made by a kernel on 12 SMs, {slows}")
    unused = [section for section, needed in used.items() if not needed]
    notes += [f"{ASSUMED}{link.name} {line}" for line in link.assumptions(without=unused)]
    simple = connector if isinstance(connector, SimpleCPUConnectorConfig) else None
    return CopyPlan(
        pieces.number,
        piece_bytes,
        override,
        selects,
        link.has("kernel"),
        simple is not None and simple.coalesce,
        simple.max_batch_descriptors if simple is not None else 0,
        pinned,
        remote,
        tuple(notes),
        pieces.cautions,
    )


def link_cautions(link: LinkProfile) -> tuple[str, ...]:
    """What is questionable about a link profile as a whole."""
    if link.kind != "host":
        return ()
    without = f"Link profile {link.name} ({link.device}) was measured with copies by CPU threads, no GPU"
    return (f"{without}: its times say nothing about a GPU. It is only for checking the method.",)
