"""From names to numbers: defaults, capacities, copies."""

from __future__ import annotations

from typing import Any

import pytest
from worlds import TraceBuilder

from kvsim.config import RunConfig
from kvsim.connectors.base import CopyJob
from kvsim.copy_time import copy_time, num_runs, shared_speed
from kvsim.errors import UserError
from kvsim.resolve import ASSUMED, Plan, resolve


def plan(model: str, gpu: str = "h100-sxm", tp: int = 1, **sections: Any) -> Plan:
    """The plan of a config with an empty workload."""
    builder = TraceBuilder()
    builder.session("s", [(16, 1, 0)])
    parts: dict[str, Any] = {
        "trace": {"path": "unused"},
        "model": {"name": model},
        "hardware": {"gpu": gpu, "tensor_parallel_size": tp},
        **sections,
    }
    return resolve(RunConfig.model_validate(parts), builder.build())


def cpu(size: str, **more: Any) -> dict[str, Any]:
    """An offloading connector."""
    return {"kind": "offloading", "cpu_bytes_to_use": size, **more}


def job(direction: str, blocks: int) -> CopyJob:
    """A copy of so many blocks that lie side by side."""
    return CopyJob(0, "load" if direction == "h2d" else "store", list(range(blocks)), list(range(blocks)))


def test_vllm_defaults_of_an_h100() -> None:
    """70 GiB and more: 8,192 tokens and 1,024 sequences; blocks of 16; the model's own length."""
    found = plan("llama-3.1-8b")
    limits = found.limits
    assert (limits.max_num_batched_tokens, limits.max_num_seqs, limits.max_model_len) == (8192, 1024, 131_072)
    assert found.sizes.block_tokens == 16
    assert found.sizes.block_bytes == 2 * 2**20


def test_a_defaulted_budget_covers_what_can_run() -> None:
    """vLLM: a defaulted budget is at most max_num_seqs * max_model_len; without chunks it covers a whole prompt."""
    assert plan("llama-3.1-8b", engine={"max_num_seqs": 1, "max_model_len": 2048}).limits.max_num_batched_tokens == 2048
    whole = plan("llama-3.1-8b", engine={"enable_chunked_prefill": False})
    assert whole.limits.max_num_batched_tokens == 131_072


def test_replicated_latents_have_one_copy_in_cpu_memory() -> None:
    """MLA under TP8: 0.33.0 keeps one copy of the latent for all ranks, 0.23.0 one each: eight times fewer chunks."""
    new = plan("deepseek-v3", "h200-sxm", 8, connector=cpu("512GiB"))
    old = plan("deepseek-v3", "h200-sxm", 8, connector=cpu("512GiB"), engine={"vllm_version": "0.23.0"})
    assert new.sizes.block_tokens == 64  # the MLA kernels' block
    assert (new.sizes.num_cpu_chunks, new.sizes.cpu_copies) == (122_238, 1)
    assert (old.sizes.num_cpu_chunks, old.sizes.cpu_copies) == (15_279, 8)
    assert any("keeps one copy in CPU" in note for note in new.notes)


def test_ranks_take_turns_storing_a_shared_copy() -> None:
    """With one copy each rank stores an eighth of the blocks, but loads all of them."""
    found = plan("deepseek-v3", "h200-sxm", 8, connector=cpu("512GiB"))
    copy_ns, link, block = copy_time(found), found.link, found.sizes.block_bytes
    load, store = copy_ns(job("h2d", 800), "h2d"), copy_ns(job("d2h", 800), "d2h")
    assert load >= link.copy_ns("h2d", block, 800)
    assert link.copy_ns("d2h", block, 100) <= store < load


def test_kv_heads_are_shared_out_and_every_rank_has_its_copy() -> None:
    """Llama-3.1-70B TP4: blocks of 1.25 MiB a rank, 5 MiB in CPU memory."""
    found = plan("llama-3.1-70b", tp=4, connector=cpu("50GiB"))
    sizes = found.sizes
    assert (sizes.block_bytes, sizes.gpu_block_bytes, sizes.cpu_chunk_bytes) == (5 * 2**18, 5 * 2**20, 5 * 2**20)
    assert sizes.num_cpu_chunks == 10_240


def test_chunks_are_rounded_up_to_pages() -> None:
    """0.33.0 rounds a rank's chunk up to 4 KiB, 0.23.0 does not: Qwen2.5-1.5B in blocks of 1 token, 28 KiB."""
    new = plan("qwen2.5-1.5b", engine={"block_size": 1}, connector=cpu("28MB"))
    assert new.sizes.cpu_chunk_bytes == 28_672
    odd = plan("deepseek-v2-lite", engine={"block_size": 1}, connector=cpu("1GiB"))
    assert (odd.sizes.block_bytes, odd.sizes.cpu_chunk_bytes) == (31_104, 32_768)
    old = plan("deepseek-v2-lite", engine={"block_size": 1, "vllm_version": "0.23.0"}, connector=cpu("1GiB"))
    assert old.sizes.cpu_chunk_bytes == 31_104


def test_given_blocks_are_shared_by_the_groups_like_computed_ones() -> None:
    """gpt-oss has two groups in one pool: of 21,628 blocks from the log, 10,814 hold all layers."""
    assert plan("gpt-oss-120b", engine={"num_gpu_blocks_override": 21_628}).sizes.num_gpu_blocks == 10_814


@pytest.mark.parametrize(
    ("model", "layout", "descriptor_bytes", "pieces"),
    [
        ("llama-3.1-8b", "cross_layer", 2 * 2**20, 1),
        ("llama-3.1-8b", "per_layer", 32 * 2**10, 64),
        ("deepseek-v2-lite", "per_layer", 73_728, 27),  # 64-token blocks: 72 KiB a layer, one latent
    ],
)
def test_descriptors_of_a_block(model: str, layout: str, descriptor_bytes: int, pieces: int) -> None:
    """A block is one descriptor, or one per layer and K or V (facts of vLLM's block size table)."""
    found = plan(model, connector=cpu("50GiB", kv_layout=layout))
    expected = found.link.copy_ns("h2d", descriptor_bytes, 10 * pieces)
    assert copy_time(found)(job("h2d", 10), "h2d") == expected


def test_simple_cpu_joins_neighbours() -> None:
    """Blocks that follow each other on both sides are one descriptor per layer: 8 blocks in 2 runs, 64 descriptors."""
    assert num_runs([4, 5, 6, 9], [1, 2, 3, 4]) == 2
    assert num_runs([4, 5, 6], [1, 3, 4]) == 2
    assert num_runs([], []) == 0
    found = plan("llama-3.1-8b", connector={"kind": "simple_cpu"})
    two_runs = CopyJob(0, "load", [1, 2, 3, 4, 9, 10, 11, 12], [5, 6, 7, 8, 9, 10, 11, 12])
    assert copy_time(found)(two_runs, "h2d") == found.link.copy_ns("h2d", 8 * 2 * 2**20 // 64, 64)


def test_sizes_of_simple_cpu() -> None:
    """8 GiB in total by default, the amount per rank wins, and block 0 is a null block."""
    assert plan("llama-3.1-70b", tp=4, connector={"kind": "simple_cpu"}).sizes.num_cpu_chunks == 8 * 2**30 // (
        5 * 2**20
    )
    each = plan("llama-3.1-70b", tp=4, connector={"kind": "simple_cpu", "cpu_bytes_to_use_per_rank": "10GiB"})
    assert each.sizes.num_cpu_chunks == 8192
    with pytest.raises(UserError, match="expected room for at least two"):
        plan("llama-3.1-8b", connector={"kind": "simple_cpu", "cpu_bytes_to_use": "3MiB"})


def test_host_memory_caps_both_directions_together() -> None:
    """TP8: while both directions run, all ranks together move no more than host DRAM gives."""
    found = plan("llama-3.1-70b", tp=8, connector=cpu("50GiB"))
    h2d, d2h = shared_speed(found)
    link, dram = found.link, found.link.host_dram_bytes_per_s
    assert link.h2d is not None
    assert link.d2h is not None
    assert dram is not None
    total = 8 * (link.h2d.peak.used * h2d + link.d2h.peak.used * d2h) / 1e6
    assert total == pytest.approx(dram, rel=1e-4)
    alone = plan("llama-3.1-8b", connector=cpu("50GiB"))
    assert shared_speed(alone) == tuple(alone.link.bidirectional_share())


def test_assumptions_are_told_where_they_matter() -> None:
    """Assumed link figures become notes when copies are timed by them, and only then."""
    assert any(note.startswith(ASSUMED) for note in plan("llama-3.1-8b", connector=cpu("50GiB")).notes)
    assert not any(note.startswith(ASSUMED) for note in plan("llama-3.1-8b").notes)
    instant = plan("llama-3.1-8b", connector=cpu("50GiB"), transfer={"kind": "instant"})
    assert not any(note.startswith(ASSUMED) for note in instant.notes)


@pytest.mark.parametrize(
    ("sections", "complaint"),
    [
        ({"engine": {"num_gpu_blocks_override": 10**9}}, "expected 2 (one is the null block) to 20,000,000"),
        ({"engine": {"kv_cache_memory_bytes": "4000TiB"}}, "expected 2 (one is the null block) to 20,000,000"),
        ({"engine": {"max_num_batched_tokens": 100}, "connector": cpu("1MiB")}, "expected room for at least one"),
        ({"engine": {"max_num_seqs": 9000, "max_num_batched_tokens": 8999}}, "max_num_seqs"),
    ],
)
def test_what_cannot_be(sections: dict[str, Any], complaint: str) -> None:
    """Sizes that make no sense are refused with the value and what was expected."""
    with pytest.raises((UserError, ValueError), match=complaint.replace("(", r"\(").replace(")", r"\)")):
        plan("llama-3.1-8b", **sections)
