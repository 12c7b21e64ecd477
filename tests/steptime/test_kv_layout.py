"""Groups, pages and blocks of hybrid models: what vLLM and its users printed."""

from __future__ import annotations

import pytest

from kvsim.errors import UserError
from kvsim.steptime.kv_layout import KVGroup, kv_cache_tokens, kv_layout
from kvsim.steptime.model import load_model

GIB = 1 << 30


def test_groups_come_in_the_order_of_their_first_layers() -> None:
    """gpt-oss begins with a sliding layer, so its sliding group is the first."""
    assert kv_layout(load_model("gpt-oss-20b")).kinds == (
        KVGroup("sliding", 12, 16, window=128),
        KVGroup("full", 12, 16),
    )


def test_layers_are_dealt_out_to_the_groups_of_their_kind() -> None:
    """Gemma 3: 52 sliding layers in six groups are 9, 9, 9, 9, 8 and 8 (vLLM takes every sixth)."""
    kinds = kv_layout(load_model("gemma-3-27b")).kinds
    assert [group.layers for group in kinds] == [9, 9, 9, 9, 8, 8, 10]
    assert [group.kind for group in kinds] == ["sliding"] * 6 + ["full"]


def test_hf_mem_60_gpt_oss_120b() -> None:
    """alvarobartt/hf-mem#60: 5.38 GiB are 78,336 tokens (the log says 78,384, of GiB before rounding)."""
    layout = kv_layout(load_model("gpt-oss-120b"))
    assert layout.block_bytes == 18 * 32_768
    assert layout.num_blocks(int(5.38 * GIB)) // layout.groups * 16 == 78_336
    # Where windows count, as in the log: a request of 131,072 tokens holds 8,192 + 521 blocks.
    assert layout.blocks_per_request(131_072, 8192) == 8_192 + 521


def test_hf_mem_70_gpt_oss_20b_without_the_hybrid_manager() -> None:
    """alvarobartt/hf-mem#70: 32 requests of 8,192 tokens reserve 12.00 GiB if windows keep everything."""
    layout = kv_layout(load_model("gpt-oss-20b"), hybrid=False)
    assert layout.kinds == (KVGroup("full", 24, 16),)
    assert 32 * layout.blocks_per_request(8_192, 8_192) * layout.block_bytes == 12 * GIB


def test_hf_mem_70_gpt_oss_20b_by_window() -> None:
    """alvarobartt/hf-mem#70: 6.09 GiB is what the windows alone hold; vLLM's blocks of a decoding step are close."""
    model = load_model("gpt-oss-20b")
    held = sum(
        group.layers * model.kv_bytes_per_token_layer(group) * min(group.window or 8_192, 8_192)
        for group in model.groups
    )
    assert round(32 * held / GIB, 2) == 6.09
    layout = kv_layout(model)
    assert layout.blocks_per_request(8_192, 1) == 512 + 9  # 128 tokens of a window need not begin at a block's start
    assert round(32 * (512 + 9) * layout.block_bytes / GIB, 2) == 6.11


def test_vllm_40388_gemma_4() -> None:
    """vllm-project/vllm#40388: 12.73 requests of 32,768 in 15.18 GiB (417,022 tokens; 416,964 of rounded GiB)."""
    model = load_model("gemma-4-26b-a4b", "fp8")
    layout = kv_layout(model)
    assert [(g.kind, g.layers, g.block_tokens) for g in layout.kinds] == [("sliding", 5, 16)] * 5 + [("full", 5, 32)]
    blocks = layout.num_blocks(int(15.18 * GIB))
    assert (blocks, layout.blocks_per_request(32_768, 8_192)) == (49_741, 3_909)
    assert kv_cache_tokens(model, blocks, 32_768) == 416_964


def test_qwen3_next_blocks_hold_a_state() -> None:
    """A state of 1,097,728 bytes beside 2,048 bytes of KV per token and layer: blocks of 544 tokens, as vLLM logs.

    Where FlashInfer exports states (Hopper), blocks are a multiple of 64 tokens, and a request holds a third state.
    """
    model = load_model("qwen3-next-80b-a3b")
    assert model.state_bytes_per_request() == 36 * 1_097_728
    plain, hopper = kv_layout(model), kv_layout(model, state_alignment=64)
    assert (plain.block_tokens, plain.page_bytes, plain.kinds[0]) == (
        544,
        1_114_112,
        KVGroup("mamba", 12, 544, states=2),
    )
    assert (hopper.block_tokens, hopper.kinds[0]) == (576, KVGroup("mamba", 12, 576, states=3, checkpoints=True))
    assert plain.blocks_per_request(5_440, 8_192) == 10 + 3 * 2
    assert kv_layout(model, prefix_caching=False).kinds[0] == KVGroup("mamba", 12, 0, states=1)


def test_nemotron_h_keeps_its_matrix_in_fp32() -> None:
    """128 x 64 x 128 floats and a convolution of 3 x 10,240: 4,255,744 bytes, blocks of 1,040 tokens, seven groups."""
    model = load_model("nemotron-h-8b")
    layout = kv_layout(model, state_alignment=1)
    assert model.groups[1].state_bytes == 4_255_744
    assert (layout.block_tokens, layout.block_bytes) == (1_040, 4 * 1_040 * 4_096)
    assert [group.kind for group in layout.kinds] == ["mamba"] * 6 + ["full"]
    assert round(model.num_params / 1e9, 1) == 8.1


def test_vllm_50443_one_page_of_all_layers() -> None:
    """vllm-project/vllm#50443: without the hybrid manager a block has all layers: 3,604,480 bytes of Gemma 4."""
    assert kv_layout(load_model("gemma-4-26b-a4b"), hybrid=False).block_bytes == 3_604_480


def test_recurrent_states_need_the_hybrid_manager() -> None:
    """As in vLLM, whose engine fails at startup."""
    with pytest.raises(UserError, match="recurrent states need vLLM's hybrid KV cache manager"):
        kv_layout(load_model("qwen3-next-80b-a3b"), hybrid=False)
