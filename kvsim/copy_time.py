"""How long a connector's copies take alone on the link, on a plan's hardware."""

from __future__ import annotations

from kvsim.config import OffloadingConnectorConfig
from kvsim.connectors.base import CopyJob
from kvsim.connectors.link_copier import CopyTime
from kvsim.hardware import SOLO_PPM, LinkDirection
from kvsim.resolve import Plan

NS = 10**9


def copy_time(plan: Plan) -> CopyTime:
    """Time of a job: every rank copies its shard over its own link, all of them share host DRAM."""
    if plan.config.transfer.kind == "instant":
        return lambda _job, _direction: 0
    if isinstance(plan.config.connector, OffloadingConnectorConfig):
        return _offloading(plan, plan.config.connector.kv_layout)
    return _simple_cpu(plan)


def _offloading(plan: Plan, kv_layout: str) -> CopyTime:
    """OffloadingConnector: one descriptor per block, or per tensor of a block.

    A block is one descriptor if all its layers lie together (vLLM's cross-layer layout since 0.12), else one per
    tensor: K and V of each layer apart, or one latent per layer for MLA. Ranks that hold the same latent take turns
    storing, so each stores only its share of the blocks.
    """
    sizes = plan.sizes
    tensors = 1 if plan.model.mla else 2
    pieces = 1 if kv_layout == "cross_layer" else tensors * plan.model.attention_layers

    def copy_ns(job: CopyJob, direction: LinkDirection) -> int:
        blocks = len(job.gpu_blocks)
        if direction == "d2h":
            blocks = -(-blocks * sizes.cpu_copies // sizes.ranks)
        return _on_the_link(plan, direction, blocks, blocks * pieces)

    return copy_ns


def _simple_cpu(plan: Plan) -> CopyTime:
    """SimpleCPUOffloadConnector: neighbours on both sides become one descriptor, per layer.

    vLLM 0.33.0 v1/simple_kv_offload/copy_backend.py: descriptors = runs of adjacent (source, destination) x layers.
    """
    layers = plan.model.attention_layers

    def copy_ns(job: CopyJob, direction: LinkDirection) -> int:
        return _on_the_link(plan, direction, len(job.source), num_runs(job.source, job.destination) * layers)

    return copy_ns


def num_runs(source: list[int], destination: list[int]) -> int:
    """Stretches in which both sides go up block by block."""
    breaks = sum(
        source[i] != source[i - 1] + 1 or destination[i] != destination[i - 1] + 1 for i in range(1, len(source))
    )
    return breaks + 1 if source else 0


def _on_the_link(plan: Plan, direction: LinkDirection, blocks: int, descriptors: int) -> int:
    """``blocks`` of one rank in so many descriptors, of equal size here; not faster than host DRAM allows."""
    if not blocks:
        return 0
    num_bytes = blocks * plan.sizes.block_bytes
    alone = plan.link.copy_ns(direction, max(num_bytes // descriptors, 1), descriptors)
    dram = host_dram_bytes_per_s(plan)
    return max(alone, -(-num_bytes * plan.sizes.ranks * NS // dram) if dram else 0)


def host_dram_bytes_per_s(plan: Plan) -> int | None:
    """Bandwidth of host memory that all ranks share; None = no limit."""
    return plan.config.hardware.host_dram_bandwidth or plan.link.host_dram_bytes_per_s


def shared_speed(plan: Plan) -> tuple[int, int]:
    """Speed of (h2d, d2h) while both are busy, in parts per million: the link's, or what host DRAM leaves of it."""
    if plan.config.transfer.kind == "instant":
        return SOLO_PPM, SOLO_PPM
    h2d, d2h = plan.link.bidirectional_share()
    dram, paths = host_dram_bytes_per_s(plan), (plan.link.h2d, plan.link.d2h)
    if not dram or paths[0] is None or paths[1] is None:
        return h2d, d2h
    wanted = plan.sizes.ranks * (paths[0].peak.used * h2d + paths[1].peak.used * d2h) // SOLO_PPM
    if wanted > dram:
        h2d, d2h = h2d * dram // wanted, d2h * dram // wanted
    return h2d, d2h
