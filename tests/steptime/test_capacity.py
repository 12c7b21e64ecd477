"""KV capacity: block sizes and counts that vLLM printed, and how far the estimate is from public logs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvsim.errors import UserError
from kvsim.steptime.capacity import (
    GIB,
    blocks_per_request,
    default_limits,
    estimate_num_gpu_blocks,
    kv_cache_tokens,
    kv_layout,
)
from kvsim.steptime.gpu import load_gpu
from kvsim.steptime.model import load_model
from kvsim.steptime.spec import ModelSpec

KIB, MIB = 1 << 10, 1 << 20
H100 = replace(load_gpu("h100"), memory_bytes=int(79.18 * GIB))


@pytest.mark.parametrize(
    ("name", "tp", "tokens", "slice_bytes", "block_bytes"),
    [
        ("deepseek-r1-distill-qwen-32b", 2, 16, 16 * KIB, 2 * MIB),
        ("llama-3.1-8b", 1, 16, 32 * KIB, 2 * MIB),
        ("llama-3.2-1b", 1, 16, 16 * KIB, MIB // 2),
        ("llama-3.1-70b", 4, 16, 8 * KIB, 5 * MIB // 4),
        ("mistral-7b", 1, 16, 32 * KIB, 2 * MIB),
        ("mistral-small-24b", 1, 16, 32 * KIB, 5 * MIB // 2),
        ("qwen2.5-3b", 1, 16, 8 * KIB, 9 * MIB // 16),
        ("qwen3-0.6b", 1, 16, 32 * KIB, 7 * MIB // 4),
        ("qwen2.5-7b", 1, 16, 16 * KIB, 7 * MIB // 8),
        ("qwen3-4b", 1, 16, 32 * KIB, 9 * MIB // 4),
        ("qwen2.5-1.5b", 1, 16, 8 * KIB, 7 * MIB // 16),
        (
            "qwen3-8b",
            1,
            16,
            32 * KIB,
            9 * MIB // 4,
        ),  # the table in vLLM's post has 28 KiB, 1.97 MiB: a mistake
        ("qwen3-1.7b", 1, 16, 32 * KIB, 7 * MIB // 4),
        ("qwen3-32b", 2, 16, 16 * KIB, 2 * MIB),
    ],
)
def test_physical_block_sizes(name: str, tp: int, tokens: int, slice_bytes: int, block_bytes: int) -> None:
    """Bytes of K (or V) in one layer and of a whole block on one rank, as in vLLM's post of 2026-01-08."""
    layout = kv_layout(load_model(name), tp, tokens)
    assert layout.page_bytes == 2 * slice_bytes
    assert layout.block_bytes == block_bytes


def test_physical_block_size_of_an_mla_model() -> None:
    """DeepSeek-V2-Lite, 64 tokens: one 72 KiB page per layer, 1.9 MiB per block."""
    layout = kv_layout(load_model("deepseek-v2-lite"), 1, 64)
    assert (layout.page_bytes, layout.block_bytes) == (72 * KIB, 27 * 72 * KIB)


def test_qwen3_235b_replicates_heads_at_tp_8() -> None:
    """32,768 tokens over 8 ranks: 12.616 GB, twice the unreplicated cache."""
    assert 8 * 32_768 * load_model("qwen3-235b-a22b").kv_bytes_per_token(8) == 12_616_466_432


@pytest.mark.parametrize(
    ("name", "tokens", "size"),
    [
        ("qwen3-8b", 128 + 16, 20.25 * MIB),
        ("qwen3-8b", 256 + 16, 38.25 * MIB),
        ("qwen3-8b", 512 + 16, 74.25 * MIB),
        ("qwen3-8b", 32_768, 4.5 * GIB),
        ("llama-3.1-70b", 1_000_000, 327_680_000_000),
    ],
)
def test_published_transfer_sizes(name: str, tokens: int, size: float) -> None:
    """Bytes that a Mooncake and an llm-d document printed for so many tokens."""
    assert tokens * load_model(name).kv_bytes_per_token() == size


@pytest.mark.parametrize(
    ("name", "tp", "groups", "layers", "page"),
    [
        ("llama-3.1-8b", 1, 1, 32, 65_536),
        ("gpt-oss-120b", 1, 2, 18, 32_768),
        ("gpt-oss-120b", 8, 2, 18, 4_096),
        ("gemma-3-27b", 1, 7, 10, 131_072),
        ("qwen3-next-80b-a3b", 1, 4, 12, 1_114_112),
        ("nemotron-h-8b", 1, 7, 4, 4_259_840),
        ("llama-4-scout", 1, 4, 12, 65_536),
    ],
)
def test_hybrid_models_share_a_pool(name: str, tp: int, groups: int, layers: int, page: int) -> None:
    """18 + 18 layers: two groups; 10 + 52: one and six, padded; 12 full beside 36 linear: pages as large as a state."""
    layout = kv_layout(load_model(name), tp)
    assert (layout.groups, layout.layers_per_group, layout.page_bytes) == (groups, layers, page)


def test_nearly_equal_layer_counts_share_the_larger_size() -> None:
    """13 + 12 layers (an EAGLE head on gpt-oss-20b): two groups of 13, not of 12."""
    model = load_model("gpt-oss-20b")
    full, sliding = model.groups
    layout = kv_layout(replace(model, layers=25, groups=(replace(full, layers=13), sliding)))
    assert (layout.groups, layout.layers_per_group) == (2, 13)


def test_gpt_oss_120b_on_an_h100() -> None:
    """5.38 GiB are 9,793 blocks, 78,336 tokens; the log says 78,384 (GiB are rounded there)."""
    capacity = estimate_num_gpu_blocks(load_model("gpt-oss-120b"), H100, kv_cache_memory_bytes=int(5.38 * GIB))
    assert (capacity.num_blocks, capacity.tokens, capacity.estimated) == (9_793, 78_336, False)
    assert (capacity.low, capacity.high) == (9_793, 9_793)


def test_gemma_4_with_an_fp8_cache() -> None:
    """15.18 GiB: 49,741 blocks, 3,909 per request of 32,768 tokens, 12.725 of them, 416,964 tokens.

    Global layers need half the bytes per token, so their blocks hold 32 tokens.
    """
    model = load_model("google/gemma-4-26B-A4B-it", "fp8")
    layout = kv_layout(model)
    assert layout.block_bytes == 327_680
    blocks = layout.num_blocks(int(15.18 * GIB))
    assert blocks == 49_741
    assert blocks_per_request(model, 32_768) == 3_909
    assert round(blocks / 3_909, 3) == 12.725
    assert kv_cache_tokens(model, blocks, 32_768) == 416_964


def test_qwen3_235b_at_tp_4_on_h100s() -> None:
    """8.11 GiB per rank are 180,928 tokens (log: 178,880, the minimum over ranks)."""
    layout = kv_layout(load_model("qwen3-235b-a22b"), 4)
    assert layout.num_blocks(int(8.11 * GIB)) * 16 == 180_928


def test_a_full_attention_cache_holds_block_tokens_times_blocks() -> None:
    """2,588 blocks of 16 tokens are 41,408 (LLMServingSim, RTX 4090)."""
    assert kv_cache_tokens(load_model("llama-3.1-8b"), 2_588, 41_408) == 41_408


@pytest.mark.parametrize(
    ("model", "gpu", "tp", "settings", "real_gib", "estimate_gib"),
    [
        ("llama-3.1-8b", load_gpu("rtx-4090"), 1, (0.9, 14.9889, 256, 2048), 5.055, 4.976),
        ("gpt-oss-120b", H100, 1, (0.95, 65.97, 1024, 1024), 1.71, 2.25),
        ("qwen3-235b-a22b-fp8", H100, 4, (0.9, 55.6, 1024, 8192), 8.11, 10.35),
        ("llama-3.1-70b-fp8", H100, 1, (0.98, 67.7229, 256, 2048), 6.74, 8.67),
    ],
)
def test_the_estimate_against_public_logs(
    model: str,
    gpu: object,
    tp: int,
    settings: tuple[float, float, int, int],
    real_gib: float,
    estimate_gib: float,
) -> None:
    """The estimate is what it was, and the real value lies in the stated range."""
    utilization, weights, seqs, tokens = settings
    spec: ModelSpec = load_model(model)
    capacity = estimate_num_gpu_blocks(
        spec,
        gpu,
        tp,
        gpu_memory_utilization=utilization,
        weight_bytes=int(weights * GIB),  # type: ignore[arg-type]
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
    )
    assert capacity.kv_bytes / GIB == pytest.approx(estimate_gib, abs=0.006)
    assert capacity.low <= capacity.layout.num_blocks(int(real_gib * GIB)) <= capacity.high
    assert capacity.estimated


def test_blocks_of_the_4090() -> None:
    """2,547 estimated where vLLM had 2,588."""
    capacity = estimate_num_gpu_blocks(
        load_model("llama-3.1-8b"),
        load_gpu("rtx-4090"),
        gpu_memory_utilization=0.9,
        weight_bytes=int(14.9889 * GIB),
    )
    assert capacity.num_blocks == 2_547
    assert any("set num_gpu_blocks_override from the log" in line for line in capacity.explanation)


def test_weights_that_leave_no_room_are_an_error_with_the_numbers() -> None:
    """gpt-oss-120b at 0.9 on an H100 fails in vLLM too; so does Llama-70B on one GPU."""
    with pytest.raises(UserError, match=r"65\.97 GiB of weights of gpt-oss-120b .* leave no room .* 71\.26 GiB"):
        estimate_num_gpu_blocks(
            load_model("gpt-oss-120b"),
            H100,
            gpu_memory_utilization=0.9,
            max_num_seqs=1024,
            max_num_batched_tokens=8192,
            weight_bytes=int(65.966 * GIB),
        )
    with pytest.raises(UserError, match=r"do not fit in 72\.85 GiB .* raise tensor_parallel_size"):
        estimate_num_gpu_blocks(load_model("llama-3.1-70b"), H100)
    with pytest.raises(UserError, match="gpu_memory_utilization: 92"):
        estimate_num_gpu_blocks(load_model("llama-3.1-8b"), H100, gpu_memory_utilization=92)
    with pytest.raises(UserError, match="kv_cache_memory_bytes: 1000"):
        estimate_num_gpu_blocks(load_model("llama-3.1-8b"), H100, kv_cache_memory_bytes=1000)


@pytest.mark.parametrize(
    ("gpu", "version", "offline", "expected"),
    [
        ("h100", "0.23.0", False, (8192, 1024)),
        ("h100", "0.33.0", False, (8192, 1024)),
        ("h100", "0.33.0", True, (16384, 1024)),
        ("b200", "0.23.0", False, (8192, 1024)),
        ("b200", "0.33.0", False, (16384, 1024)),
        ("a100", "0.33.0", False, (2048, 256)),
        ("rtx-4090", "0.33.0", False, (2048, 256)),
        ("l40s", "0.23.0", True, (8192, 256)),
    ],
)
def test_default_limits(gpu: str, version: str, offline: bool, expected: tuple[int, int]) -> None:
    """Token budget and sequence limit by memory; an A100 counts as small, 160 GiB only since 0.33.0."""
    spec = load_gpu(gpu)
    assert default_limits(spec.memory_bytes, spec.name, version, offline=offline) == expected


def test_an_unknown_version_has_no_defaults() -> None:
    """Only the two modelled releases."""
    with pytest.raises(UserError, match=r"version: '0\.11\.0'"):
        default_limits(80 * GIB, version="0.11.0")
