"""How long a connector's copies take alone on the link, on a plan's hardware."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

from kvsim.config import CustomConnector, OffloadingConnectorConfig
from kvsim.connectors.base import CopyJob
from kvsim.connectors.link_copier import CopyTime
from kvsim.copy_path import run_lengths
from kvsim.hardware import CopyCost, LinkDirection
from kvsim.profile import Pieces
from kvsim.resolve import Plan

NS = 10**9


def copy_time(plan: Plan) -> CopyTime:
    """Cost of a job: every rank copies its shard over its own link, all of them share host DRAM."""
    if plan.config.transfer.kind == "instant":
        return lambda _job, _direction: CopyCost(0)
    if isinstance(plan.config.connector, (OffloadingConnectorConfig, CustomConnector)):
        return _offloading(plan)
    return _simple_cpu(plan)


def _offloading(plan: Plan) -> CopyTime:
    """OffloadingConnector: every piece of every block is a descriptor.

    Ranks that hold the same latent take turns storing, so each stores only its share of the blocks.
    """
    sizes, copies = plan.sizes, plan.copies

    @lru_cache(maxsize=1 << 14)
    def cost_of(blocks: int, direction: LinkDirection) -> CopyCost:
        if direction == "d2h":
            blocks = -(-blocks * sizes.cpu_copies // sizes.ranks)
        return _on_the_link(plan, direction, (Pieces(copies.piece_bytes, blocks * copies.pieces),) if blocks else ())

    return lambda job, direction: cost_of(len(job.gpu_blocks), direction)


def _simple_cpu(plan: Plan) -> CopyTime:
    """SimpleCPUOffloadConnector: a descriptor per block and layer, all of a step in one call or a few.

    vLLM 0.23.0 and 0.33.0 v1/simple_kv_offload/cuda_mem_ops.py (copy_blocks): no release joins neighbours on CUDA, and
    0.33.0 cuts a batch at VLLM_KV_OFFLOAD_MAX_BATCH_DESCRIPTORS. A joined stretch of blocks is one longer descriptor.
    """
    copies = plan.copies

    def cost(job: CopyJob, direction: LinkDirection) -> CopyCost:
        blocks = len(job.source)
        lengths = Counter(run_lengths(job.source, job.destination)) if copies.coalesce else Counter({1: blocks})
        batch = tuple(
            Pieces(length * copies.piece_bytes, count * copies.pieces)
            for length, count in sorted(lengths.items())
            if count
        )
        return _on_the_link(plan, direction, batch)

    return cost


def _on_the_link(plan: Plan, direction: LinkDirection, batch: tuple[Pieces, ...]) -> CopyCost:
    """What a batch of one rank costs; it is not faster than host DRAM allows for all ranks."""
    if not batch:
        return CopyCost(0)
    copies, link = plan.copies, plan.link
    way = copies.way(direction, sum(pieces.number for pieces in batch))
    calls = _calls(batch, copies.max_batch_descriptors)
    alone = sum(link.batch_ns(way, direction, call, remote=copies.remote) for call in calls)
    host_bytes = sum(size * number for size, number in batch) * plan.sizes.ranks
    dram = host_dram_bytes_per_s(plan)
    least = -(-host_bytes * NS // dram) if dram else 0
    shared_ppm = link.shared_ppm(way, direction, remote=copies.remote)
    return CopyCost(max(alone, least), shared_ppm, link.slowdown_ppm(way), host_bytes)


def _calls(batch: tuple[Pieces, ...], limit: int) -> Iterator[tuple[Pieces, ...]]:
    """A batch in calls of at most ``limit`` descriptors; 0 = in one."""
    if not limit:
        yield batch
        return
    call: list[Pieces] = []
    room = limit
    for size, count in batch:
        left = count
        while left:
            taken = min(left, room)
            call.append(Pieces(size, taken))
            left, room = left - taken, room - taken
            if not room:
                yield tuple(call)
                call, room = [], limit
    if call:
        yield tuple(call)


def host_dram_bytes_per_s(plan: Plan) -> int | None:
    """Bandwidth of host memory that all ranks share; None = no limit."""
    return plan.config.hardware.host_dram_bandwidth or plan.link.host_dram_bytes_per_s
