"""Which way a batch goes, and what neighbours are: vLLM's rules as literal lists."""

from __future__ import annotations

import pytest

from kvsim.copy_path import chosen_way, run_lengths

KIB = 1024


@pytest.mark.parametrize(
    ("direction", "page_bytes", "count", "way"),
    [
        ("h2d", 16 * KIB, 16, "kernel"),
        ("h2d", 16 * KIB, 15, "dma_batch"),  # too few for the launch
        ("h2d", 28 * KIB - 8, 1_000, "kernel"),
        ("h2d", 28 * KIB, 1_000, "dma_batch"),  # the cliff is below
        ("h2d", 16 * KIB + 4, 1_000, "dma_batch"),  # not whole 8-byte words
        ("d2h", 16 * KIB, 1_000, "dma_batch"),  # stores never
    ],
)
def test_the_kernel_takes_many_small_loads(direction: str, page_bytes: int, count: int, way: str) -> None:
    """VLLM 0.33.0 swap_blocks_triton.py: THRESHOLD_BYTES 28 KiB, MIN_N 16, loads only."""
    assert chosen_way(direction, page_bytes, count) == way  # type: ignore[arg-type]


def test_the_page_decides_not_the_fragment() -> None:
    """vllm-project/vllm#57342: a page of 32 KiB goes by DMA although it is copied in two fragments of 16 KiB."""
    assert chosen_way("h2d", 32 * KIB, 2 * 1_000) == "dma_batch"


def test_memory_that_is_not_pinned_is_staged() -> None:
    """0.33.0 keeps the kernel off pageable memory, and the driver stages what DMA copies."""
    assert chosen_way("h2d", 16 * KIB, 1_000, pinned=False) == chosen_way("d2h", 2**21, 1, pinned=False) == "pageable"


@pytest.mark.parametrize(
    ("source", "destination", "lengths"),
    [
        ([4, 5, 6, 9], [1, 2, 3, 4], [3, 1]),  # a gap on one side
        ([4, 5, 6], [1, 3, 4], [1, 2]),
        ([6, 5, 4], [3, 2, 1], [3]),  # lazy stores come in falling pairs
        ([6, 5, 4], [1, 2, 3], [1, 1, 1]),  # opposite ways
        ([1, 2, 1, 0], [5, 6, 5, 4], [2, 2]),  # a turn ends a stretch
        ([3, 3], [7, 7], [1, 1]),
        ([], [], []),
    ],
)
def test_neighbours(source: list[int], destination: list[int], lengths: list[int]) -> None:
    """vllm-project/vllm#56110: both sides up by one or both down by one, no turns, no repeats."""
    assert run_lengths(source, destination) == lengths
