"""From names to numbers: defaults, capacities, copies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from worlds import TraceBuilder, config

from kvsim.config import RunConfig
from kvsim.connectors.base import CopyJob
from kvsim.copy_time import copy_time
from kvsim.errors import ConfigError, UserError
from kvsim.profile import Pieces, dump_link, load_link
from kvsim.resolve import Plan, resolve
from kvsim.results.records import ASSUMED


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
    cost, link, layer = copy_time(found), found.link, found.sizes.block_bytes // 61
    load, store = cost(job("h2d", 800), "h2d").solo_ns, cost(job("d2h", 800), "d2h").solo_ns
    assert load >= link.copy_ns("h2d", layer, 800 * 61)
    assert link.copy_ns("d2h", layer, 100 * 61) <= store < load


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


def test_given_blocks_are_those_of_the_pool() -> None:
    """gpt-oss-120b: 21,628 blocks as in the log; each holds 16 tokens of 18 layers."""
    sizes = plan("gpt-oss-120b", engine={"num_gpu_blocks_override": 21_628}).sizes
    assert (sizes.num_gpu_blocks, sizes.block_bytes) == (21_628, 18 * 32_768)


@pytest.mark.parametrize(
    ("model", "layout", "descriptor_bytes", "pieces"),
    [
        ("llama-3.1-8b", "cross_layer", 2 * 2**20, 1),
        ("llama-3.1-8b", "per_layer_kv", 64 * 2**10, 32),
        ("llama-3.1-8b", "per_layer", 32 * 2**10, 64),
        ("deepseek-v2-lite", "per_layer_kv", 73_728, 27),  # 64-token blocks: 72 KiB a layer, one latent
        ("deepseek-v2-lite", "per_layer", 73_728, 27),
    ],
)
def test_descriptors_of_a_block(model: str, layout: str, descriptor_bytes: int, pieces: int) -> None:
    """A block is one descriptor, or one per layer, or one per layer and K or V (vLLM's block size table)."""
    found = plan(model, connector=cpu("50GiB", kv_layout=layout))
    expected = found.link.copy_ns("h2d", descriptor_bytes, 10 * pieces)
    assert copy_time(found)(job("h2d", 10), "h2d").solo_ns == expected


@pytest.mark.parametrize(
    ("model", "version", "pieces"),
    [
        ("llama-3.1-8b", "0.33.0", 32),
        ("llama-3.1-8b", "0.23.0", 1),
        ("deepseek-v2-lite", "0.33.0", 27),
        ("deepseek-v2-lite", "0.23.0", 27),
        ("gpt-oss-120b", "0.23.0", 36),  # two KV groups
    ],
)
def test_the_layout_is_the_release_s_own(model: str, version: str, pieces: int) -> None:
    """0.33.0 asks for LBHNC, a piece per layer; 0.23.0 for cross-layer blocks, which MLA and hybrids don't have."""
    assert plan(model, connector=cpu("50GiB"), engine={"vllm_version": version}).copies.pieces == pieces


def test_small_loads_go_by_kernel_and_stores_do_not() -> None:
    """Llama-3.1-70B TP4: 16 KiB a layer, 80 layers a block: loads by kernel at 35.2 GB/s, stores by batched DMA."""
    found = plan("llama-3.1-70b", tp=4, connector=cpu("50GiB"))
    load, store = copy_time(found)(job("h2d", 10), "h2d"), copy_time(found)(job("d2h", 10), "d2h")
    assert load.solo_ns == 30_000 + 372_364  # 800 x 16,384 B at 35.2 GB/s after the launch
    assert store.solo_ns == 4_000 + 800 * 650
    assert (load.slowdown_ppm, store.slowdown_ppm) == (1_100_000, 1_000_000)
    assert (load.shared_ppm, store.shared_ppm) == (973_011, 834_000)  # 34.25 of 35.2 GB/s, 41.7 of 50
    assert any("made by a kernel on 12 SMs" in note for note in found.notes)


@pytest.mark.parametrize(
    ("path", "load_ns", "store_ns"),
    [
        ("dma_batch", 4_000 + 1_846_085, 4_000 + 520_000),  # 16 KiB at 7.1 GB/s; 650 ns each
        ("dma_loop", 800 * 6_000, 800 * 6_000),
        ("kernel", 30_000 + 372_364, 30_000 + 248_243),  # 35.2 and 52.8 GB/s
    ],
)
def test_the_way_can_be_forced(path: str, load_ns: int, store_ns: int) -> None:
    """transfer.path takes all copies off the connector's own way, in both directions."""
    found = plan("llama-3.1-70b", tp=4, connector=cpu("50GiB"), transfer={"kind": "profile", "path": path})
    cost = copy_time(found)
    assert (cost(job("h2d", 10), "h2d").solo_ns, cost(job("d2h", 10), "d2h").solo_ns) == (load_ns, store_ns)


def test_a_way_that_the_profile_does_not_know_is_refused(tmp_path: Path) -> None:
    """A measured profile without a kernel section: forced is an error, chosen is batched DMA with a note."""
    link = load_link("pcie5-h100").model_copy(update={"kernel": None, "name": "mine"})
    file = tmp_path / "mine.profile.yaml"
    file.write_text(dump_link(link))
    hardware = {"gpu": "h100-sxm", "tensor_parallel_size": 4, "link": str(file)}
    chosen = plan("llama-3.1-70b", hardware=hardware, connector=cpu("50GiB"))
    assert copy_time(chosen)(job("h2d", 10), "h2d").solo_ns == link.copy_ns("h2d", 16_384, 800)
    assert any("link profile mine has no section kernel: batched DMA" in note for note in chosen.notes)
    forced = {"kind": "profile", "path": "kernel"}
    with pytest.raises(UserError, match=r"transfer\.path: kernel: link profile mine has no section kernel"):
        plan("llama-3.1-70b", hardware=hardware, connector=cpu("50GiB"), transfer=forced)


def simple(**more: Any) -> dict[str, Any]:
    """A SimpleCPU connector."""
    return {"kind": "simple_cpu", **more}


def test_simple_cpu_copies_block_by_block() -> None:
    """VLLM's copy_blocks on CUDA: a descriptor per block and layer, neighbours or not, small or not, always DMA."""
    found = plan("llama-3.1-70b", tp=4, connector=simple())
    cost = copy_time(found)(job("h2d", 8), "h2d")
    assert cost.solo_ns == found.link.copy_ns("h2d", 16_384, 8 * 80)
    assert cost.slowdown_ppm == 1_000_000


def test_simple_cpu_may_join_neighbours() -> None:
    """With coalesce, 3 + 1 + 5 neighbours are pieces of three sizes per layer, each with the time of its own size."""
    found = plan("llama-3.1-70b", tp=4, connector=simple(coalesce=True))
    runs = CopyJob(0, "load", [1, 2, 3, 7, 20, 21, 22, 23, 24], [5, 6, 7, 8, 9, 10, 11, 12, 13])
    batch = (Pieces(16_384, 80), Pieces(3 * 16_384, 80), Pieces(5 * 16_384, 80))
    assert copy_time(found)(runs, "h2d").solo_ns == found.link.batch_ns("dma_batch", "h2d", batch)
    mean = found.link.copy_ns("h2d", 3 * 16_384, 240)
    assert copy_time(found)(runs, "h2d").solo_ns != mean  # the small ones cost more than a mean of sizes tells


def test_a_limit_of_descriptors_cuts_a_batch_into_calls() -> None:
    """640 descriptors with at most 300 in a call: three calls, each with its submit time."""
    found = plan("llama-3.1-70b", tp=4, connector=simple(max_batch_descriptors=300))
    link = found.link
    calls = 2 * link.copy_ns("h2d", 16_384, 300) + link.copy_ns("h2d", 16_384, 40)
    assert copy_time(found)(job("h2d", 8), "h2d").solo_ns == calls
    old = plan("llama-3.1-70b", tp=4, connector=simple(max_batch_descriptors=300), engine={"vllm_version": "0.23.0"})
    assert any("0.23.0 has no VLLM_KV_OFFLOAD_MAX_BATCH_DESCRIPTORS" in caution for caution in old.cautions)


def test_sizes_of_simple_cpu() -> None:
    """8 GiB in total by default, the amount per rank wins, and block 0 is a null block."""
    assert plan("llama-3.1-70b", tp=4, connector={"kind": "simple_cpu"}).sizes.num_cpu_chunks == 8 * 2**30 // (
        5 * 2**20
    )
    each = plan("llama-3.1-70b", tp=4, connector={"kind": "simple_cpu", "cpu_bytes_to_use_per_rank": "10GiB"})
    assert each.sizes.num_cpu_chunks == 8192
    with pytest.raises(UserError, match="expected room for at least two"):
        plan("llama-3.1-8b", connector={"kind": "simple_cpu", "cpu_bytes_to_use": "3MiB"})


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


def test_failing_copies_and_groups_are_refused() -> None:
    """Failed loads of a model with several KV groups are not simulated; as one group they are."""
    settings = config(
        model={"name": "gpt-oss-20b"},
        engine={"num_gpu_blocks_override": 2000},
        connector={"kind": "offloading", "cpu_bytes_to_use": "8GiB"},
        faults={"cpu": {"load_failures": {"rate": 0.1}}},
    )
    builder = TraceBuilder()
    builder.session("a", [(100, 1, 0)])
    with pytest.raises(ConfigError, match=r"faults: failing copies .* are not simulated with the 2 KV groups"):
        resolve(settings, builder.build())
    one = settings.model_copy(
        update={"engine": settings.engine.model_copy(update={"disable_hybrid_kv_cache_manager": True})}
    )
    assert not resolve(one, builder.build()).sizes.groups.specs


def test_a_profile_of_host_copies_is_questioned(tmp_path: Path) -> None:
    """A link that was measured with CPU threads can be used, and every run with it says that it is no GPU."""
    host = load_link("pcie5-h100").model_copy(update={"name": "this-host", "kind": "host", "device": "Xeon, 2 cores"})
    path = tmp_path / "host.profile.yaml"
    path.write_text(dump_link(host))
    assert load_link(path).kind == "host"
    with_it = plan("llama-3.1-8b", hardware={"gpu": "h100-sxm", "link": str(path)}, connector=cpu("64GiB"))
    assert with_it.cautions[-1] == (
        "Link profile this-host (Xeon, 2 cores) was measured with copies by CPU threads, no GPU: its times say nothing"
        " about a GPU. It is only for checking the method."
    )
    assert not any("CPU threads" in caution for caution in plan("llama-3.1-8b", connector=cpu("64GiB")).cautions)
