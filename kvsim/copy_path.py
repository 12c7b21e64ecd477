"""How vLLM copies a batch of blocks: which way, and what becomes of neighbours."""

from __future__ import annotations

from typing import Literal

from kvsim.hardware import LinkDirection

Way = Literal["dma_batch", "dma_loop", "kernel", "pageable"]  # as in a link profile

# vLLM 0.23.0 and 0.33.0, v1/kv_offload/cpu/swap_blocks_triton.py: THRESHOLD_BYTES and MIN_N, tuned on an H100.
KERNEL_BELOW_BYTES = 28 * 1024
KERNEL_FROM_COUNT = 16


def chosen_way(direction: LinkDirection, page_bytes: int, count: int, *, pinned: bool = True) -> Way:
    """The way in which OffloadingConnector copies a batch.

    vLLM 0.33.0 v1/kv_offload/cpu/gpu_worker.py (_select_swap_blocks_fn): the kernel takes loads of pages below 28 KiB
    that are a multiple of 8 bytes; stores, and loads from memory that is not pinned, go by DMA. swap_blocks_triton.py:
    a batch of less than 16 descriptors goes by DMA too. The page decides, once, when the worker starts: a canonical
    layout (`canonical_layout`, for secondary tiers), whose fragments are smaller than the page, gets the way of its
    page (vllm-project/vllm#57342).

    Args:
        direction: h2d (a load) or d2h (a store).
        page_bytes: of one layer of a block, or of a whole block where its layers lie together.
        count: descriptors in the batch.
        pinned: host memory could be registered.
    """
    if not pinned:
        return "pageable"
    small = page_bytes < KERNEL_BELOW_BYTES and page_bytes % 8 == 0
    return "kernel" if direction == "h2d" and small and count >= KERNEL_FROM_COUNT else "dma_batch"


def run_lengths(source: list[int], destination: list[int]) -> list[int]:
    """Lengths of the stretches in which both sides go up block by block, or both go down.

    vllm-project/vllm#56110 (open, for ROCm): such a stretch is one descriptor. No release joins neighbours on CUDA.
    """
    lengths: list[int] = []
    direction = 0  # of the current stretch; 0 while it is one block long
    for i, (here, there) in enumerate(zip(source, destination, strict=True)):
        step = here - source[i - 1] if i else 0
        adjacent = bool(i) and abs(step) == 1 and there - destination[i - 1] == step
        if adjacent and direction in (0, step):
            lengths[-1] += 1
            direction = step
        else:
            lengths.append(1)
            direction = 0
    return lengths
