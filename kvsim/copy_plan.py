"""How a config's copies are made: the pieces of a block, the way of a batch, and what to tell the user about it."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvsim.config import OffloadingConnectorConfig, ProfileTransfer, RunConfig, SimpleCPUConnectorConfig
from kvsim.copy_path import KERNEL_BELOW_BYTES, Way, chosen_way
from kvsim.errors import UserError
from kvsim.hardware import LinkDirection
from kvsim.profile import LinkProfile
from kvsim.releases import Release
from kvsim.steptime.spec import ModelSpec

ASSUMED = "assumed, not measured: "  # begins the note about a number that has no measurement behind it


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
        notes, cautions: for the user.
    """

    pieces: int
    piece_bytes: int
    override: Way | None = None
    selects: bool = False
    has_kernel: bool = True
    coalesce: bool = False
    max_batch_descriptors: int = 0
    notes: tuple[str, ...] = field(default=())
    cautions: tuple[str, ...] = field(default=())

    def way(self, direction: LinkDirection, count: int) -> Way:
        """How a batch of so many descriptors is copied."""
        if self.override is not None:
            return self.override
        way = chosen_way(direction, self.piece_bytes, count) if self.selects else "dma_batch"
        return "dma_batch" if way == "kernel" and not self.has_kernel else way


def plan_copies(
    config: RunConfig, model: ModelSpec, release: Release, link: LinkProfile, *, block_bytes: int, groups: int
) -> CopyPlan:
    """The plan of a config with a connector; one piece that nobody copies if it has none.

    Args:
        config: the run.
        model: whose KV it is.
        release: which vLLM.
        link: its profile.
        block_bytes: one block on one rank.
        groups: KV groups of the model.

    Raises:
        UserError: a way of copying was asked for that the profile knows nothing about.
    """
    connector, transfer = config.connector, config.transfer
    notes: list[str] = []
    cautions: list[str] = []
    if isinstance(connector, OffloadingConnectorConfig):
        pieces = _pieces(connector.kv_layout, model, release, groups, config.engine.vllm_version, notes, cautions)
    elif isinstance(connector, SimpleCPUConnectorConfig):
        pieces = model.attention_layers  # vLLM: a region per layer, K and V of a block side by side in it
        if connector.max_batch_descriptors and not release.limits_batch_descriptors:
            cautions.append(
                f"vLLM {config.engine.vllm_version} has no VLLM_KV_OFFLOAD_MAX_BATCH_DESCRIPTORS:"
                " connector.max_batch_descriptors is applied all the same."
            )
    else:
        return CopyPlan(1, max(1, block_bytes))
    simple = isinstance(connector, SimpleCPUConnectorConfig)
    piece_bytes = max(1, block_bytes // pieces)
    if not isinstance(transfer, ProfileTransfer):
        return CopyPlan(pieces, piece_bytes, notes=tuple(notes), cautions=tuple(cautions))
    override = None if transfer.path == "auto" else transfer.path
    if override is not None and not link.has(override):
        raise UserError(f"transfer.path: {override}: link profile {link.name} has no section {override}")
    selects = not simple
    small = piece_bytes < KERNEL_BELOW_BYTES
    kernel = override == "kernel" or (override is None and selects and small)
    if kernel and not link.has("kernel"):
        notes.append(
            f"vLLM loads pieces of {piece_bytes:,} bytes by a kernel; link profile {link.name} has no section kernel:"
            " batched DMA is used instead"
        )
    elif kernel:
        which = "all copies" if override else f"loads (pieces of {piece_bytes:,} bytes, less than 28 KiB)"
        notes.append(f"{which} are made by a kernel on 12 SMs, which slows forward passes while it runs")
    unused = {"dma_loop", "kernel", "pageable", "remote"}
    unused -= {name for name, used in (("kernel", kernel), ("dma_loop", override == "dma_loop")) if used}
    notes += [f"{ASSUMED}{link.name} {line}" for line in link.assumptions(without=unused)]
    return CopyPlan(
        pieces,
        piece_bytes,
        override,
        selects,
        link.has("kernel"),
        connector.coalesce if isinstance(connector, SimpleCPUConnectorConfig) else False,
        connector.max_batch_descriptors if isinstance(connector, SimpleCPUConnectorConfig) else 0,
        tuple(notes),
        tuple(cautions),
    )


def _pieces(
    layout: str,
    model: ModelSpec,
    release: Release,
    groups: int,
    version: str,
    notes: list[str],
    cautions: list[str],
) -> int:
    """Descriptors of a block under a layout of OffloadingConnector.

    vLLM 0.33.0 offloading_connector.py (get_required_kvcache_layout): LBHNC, so each layer's K and V of a block are
    one piece; VLLM_KV_CACHE_LAYOUT=BLHNC would join the layers. 0.23.0 prefers one tensor for all layers
    (kv_connector_model_runner_mixin.py, use_uniform_kv_cache): if there is one KV group and the attention backend puts
    blocks in front of layers, as all but those of MLA do.
    """
    layers = model.attention_layers
    joined = release.cross_layer_kv and groups == 1 and not model.mla
    if layout == "auto":
        pieces = 1 if joined else layers
        each = "one piece of all layers" if joined else f"{layers} pieces, one per layer"
        notes.append(f"KV layout of vLLM {version}: a block is copied in {each} (connector.kv_layout)")
        return pieces
    if layout == "cross_layer":
        if release.cross_layer_kv and not joined:
            why = "MLA" if model.mla else f"{groups} KV groups"
            cautions.append(f"vLLM {version} has no cross-layer layout for a model with {why}.")
        elif not release.cross_layer_kv:
            notes.append(f"cross-layer blocks need VLLM_KV_CACHE_LAYOUT=BLHNC with vLLM {version}")
        return 1
    return layers if layout == "per_layer_kv" or model.mla else 2 * layers
