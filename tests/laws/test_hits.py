"""Laws about hits when requests come one after another, in a fixed order, and every copy is over in between.

Each law is stated where it holds. Where a release breaks it, the smallest world that does is here too, with its reason.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serial import Prompt, hits, offloading, one_after_another, play, prompts, total_hits

from kvsim.trace.stats import describe

LONGEST = 12 + 2  # blocks of the longest request: its full ones, the rest and 20 tokens of answer
GPU = st.integers(LONGEST, 17)
CPU = st.integers(LONGEST, 28)
MORE = st.integers(1, 8)
SOME = settings(max_examples=40)
MANY = settings(max_examples=80)  # a tier that is first in, first out breaks the law in a quarter of them


def hits_with(
    sequence: Sequence[Prompt | str], cpu: int, gpu: int, version: str = "0.33.0", **more: dict[str, object]
) -> list[tuple[int, int]]:
    """(local, external) hit tokens of each prompt with so many blocks of CPU and GPU memory."""
    return hits(play(one_after_another(sequence), offloading(cpu, version, gpu_blocks=gpu, debug=False, **more)))


def total(found: list[tuple[int, int]]) -> int:
    """Tokens hit by all, wherever."""
    return sum(map(sum, found))


# -- 1. more CPU memory
@MANY
@given(prompts(), GPU, CPU, MORE)
def test_more_cpu_memory_never_lowers_lru_hits(sequence: list[Prompt], gpu: int, cpu: int, more: int) -> None:
    """0.23.0, LRU: every lookup touches the whole prompt, so the tier is a stack: a larger one holds no less."""
    small, large = (hits_with(sequence, size, gpu, "0.23.0") for size in (cpu, cpu + more))
    assert all(sum(one) <= sum(other) for one, other in zip(small, large, strict=True))


@MANY
@given(prompts(), GPU, CPU, MORE)
def test_more_cpu_memory_never_lowers_lru_hits_of_whole_prompts(
    sequence: list[Prompt], gpu: int, cpu: int, more: int
) -> None:
    """0.33.0, LRU: the same, as long as the tier sees whole prompts, that is without hits of the GPU before it."""
    off = {"enable_prefix_caching": False}
    small, large = (hits_with(sequence, size, gpu, engine=off) for size in (cpu, cpu + more))
    assert all(sum(one) <= sum(other) for one, other in zip(small, large, strict=True))


def test_more_cpu_memory_can_lower_lru_hits_behind_gpu_hits() -> None:
    """0.33.0, LRU: with 12 CPU blocks instead of 10, the last prompt loses both of its blocks.

    The fifth prompt, AB, finds A on the GPU. With 10 blocks B has been evicted from the CPU: A and B are offered for
    storing, so A is seen to be used and B is stored anew. With 12, B is still there and is loaded, which sets the
    store cursor behind it: A is never offered, keeps the age of the second prompt, and is evicted by LMNOP and QRS.
    When the GPU has lost A as well, B alone is worth nothing. (0.23.0 touches A in both cases.)
    """
    sequence = ["AB", "ACD", "EFG", "HIJK", "AB", "LMNOP", "QRS", "AB"]
    assert hits_with(sequence, 10, 8)[4:] == [(16, 0), (0, 0), (0, 0), (0, 32)]
    assert hits_with(sequence, 12, 8)[4:] == [(16, 16), (0, 0), (0, 0), (0, 0)]
    assert hits_with(sequence, 12, 8, "0.23.0")[7] == (0, 32)


def test_more_cpu_memory_can_lower_hits_if_a_prompt_exceeds_it() -> None:
    """A tier smaller than a prompt refuses it, all or nothing; with one block more it takes it, and evicts."""
    sequence = ["AB", "CDEFGH", "IJKLMN", "AB"]
    found = {cpu: hits_with(sequence, cpu, 6)[3] for cpu in (5, 6)}
    assert found == {5: (0, 32), 6: (0, 0)}


# -- 3. offloading on
@pytest.mark.parametrize("version", ["0.33.0", "0.23.0"])
@SOME
@given(prompts(), GPU, st.integers(1, 45), st.sampled_from(["lru", "arc"]), st.sampled_from([1, 2, 3]))
def test_offloading_never_lowers_hits(
    version: str, sequence: list[Prompt], gpu: int, cpu: int, policy: str, factor: int
) -> None:
    """BLIS#511: a store is a copy, so every prompt hits on the GPU what it hits without a tier, and may hit more."""
    connector = {"eviction_policy": policy, "block_size_factor": factor, "cpu_bytes_to_use": f"{2 * cpu * factor}MiB"}
    without = hits_with(sequence, 0, gpu, version)
    with_tier = hits_with(sequence, cpu, gpu, version, connector=connector)
    assert [local for local, _ in with_tier] == [local for local, _ in without]


@pytest.mark.parametrize("lazy", [False, True])
def test_simple_cpu_offloading_can_lower_hits(lazy: bool) -> None:
    """SimpleCPUOffloadConnector pins GPU blocks while it stores them; they come back into the free list head first.

    A request is freed tail first, so that its head lives longest. A block that a store still holds at that moment is
    freed with the store, in the order of the copy: the head of the prompt is evicted first, and the rest is worth
    nothing. The CPU's pool frees in that order as well. Without offloading the last prompt hits its first block.
    """
    sequence, cpu = (["A", "ABCDEFG", "HI", "JKLMN", "AB"], 10) if lazy else (["ABCD", "EFGH", "EFIJKL", "AB"], 10)
    gpu = 13 if lazy else 11
    connector = {"kind": "simple_cpu", "lazy_offload": lazy, "cpu_bytes_to_use": f"{2 * cpu}MiB"}
    assert hits_with(sequence, 0, gpu)[-1] == (16, 0)
    assert hits_with(sequence, cpu, gpu, connector=connector)[-1] == (0, 0)


# -- 4. more GPU memory
@pytest.mark.parametrize("version", ["0.33.0", "0.23.0"])
@MANY
@given(prompts(), GPU, MORE)
def test_more_gpu_blocks_never_lower_hits(version: str, sequence: list[Prompt], gpu: int, more: int) -> None:
    """Without a tier, the prefix cache is a stack: every prompt hits at least as much with more blocks."""
    small, large = (hits_with(sequence, 0, size, version) for size in (gpu, gpu + more))
    assert all(one <= other for one, other in zip(small, large, strict=True))


def test_more_gpu_blocks_can_lower_hits_of_a_tier_behind_them() -> None:
    """0.33.0, LRU: with 14 GPU blocks instead of 10, the last prompt hits one block less in all.

    With 10, the third prompt finds A on the GPU and loads B: A, not offered, is the oldest chunk of the CPU and is
    evicted with three others. With 14, it finds both on the GPU and offers them: both are protected, so four chunks of
    the second prompt have to go, and the last prompt misses G.
    """
    sequence = ["AB", Prompt("CDEFGHIJ", rest=1), "ABKLMNO", "CDEFG"]
    assert hits_with(sequence, 11, 10) == [(0, 0), (0, 0), (16, 16), (48, 32)]
    assert hits_with(sequence, 11, 14) == [(0, 0), (0, 0), (32, 0), (64, 0)]


# -- 5. room for everything
@SOME
@given(prompts())
def test_an_unlimited_gpu_hits_what_the_trace_repeats(sequence: list[Prompt]) -> None:
    """With room for everything the hits are what `kvsim trace stats` counts, the last token computed."""
    trace = one_after_another(sequence)
    found = describe(trace).hits
    assert total_hits(play(trace, offloading(0, gpu_blocks=500))) == round(found.capped_block_rate * found.blocks) * 16


@SOME
@given(prompts(), GPU, st.sampled_from(["0.33.0", "0.23.0"]), st.sampled_from(["lru", "arc"]))
def test_an_unlimited_cpu_tier_hits_what_the_trace_repeats(
    sequence: list[Prompt], gpu: int, version: str, policy: str
) -> None:
    """However small the GPU, a CPU tier for everything gives all hits; it may hit whole prompts, too."""
    trace = one_after_another(sequence)
    settings_ = offloading(500, version, gpu_blocks=gpu, connector={"eviction_policy": policy})
    assert total_hits(play(trace, settings_)) == describe(trace).hits.blocks_hit * 16
