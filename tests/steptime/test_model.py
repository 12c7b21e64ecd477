"""Models: what a config.json means, and that the shipped ones have the published sizes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvsim.errors import UserError
from kvsim.steptime.model import load_model, model_names, spec_from_config

LLAMA = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize(
    ("name", "billions", "kv_bytes"),
    [
        ("llama-2-7b", 6.7, 524_288),
        ("llama-3.1-8b", 8.0, 131_072),
        ("llama-3.1-70b", 70.6, 327_680),
        ("llama-3.1-405b", 405.9, 516_096),
        ("llama-3.2-1b", 1.24, 32_768),
        ("qwen2.5-1.5b", 1.54, 28_672),
        ("qwen2.5-3b", 3.09, 36_864),
        ("qwen2.5-7b", 7.62, 57_344),
        ("qwen2.5-72b", 72.7, 327_680),
        ("qwen3-0.6b", 0.6, 114_688),
        ("qwen3-1.7b", 1.72, 114_688),
        ("qwen3-4b", 4.02, 147_456),
        ("qwen3-8b", 8.19, 147_456),
        ("qwen3-14b", 14.77, 163_840),
        ("qwen3-32b", 32.8, 262_144),
        ("qwen3-30b-a3b", 30.5, 98_304),
        ("qwen3-235b-a22b", 235.1, 192_512),
        ("qwen3-coder-480b-a35b", 480.2, 253_952),
        ("qwen3-next-80b-a3b", 79.7, 24_576),
        ("qwen3.5-27b", 26.9, 65_536),
        ("qwen3.5-35b-a3b", 34.7, 20_480),
        ("gpt-oss-20b", 20.9, 49_152),
        ("gpt-oss-120b", 116.8, 73_728),
        ("gemma-3-27b", 27.0, 507_904),
        ("gemma-4-26b-a4b", 25.2, 225_280),
        ("mistral-7b", 7.25, 131_072),
        ("mistral-small-24b", 23.6, 163_840),
        ("mistral-nemo-12b", 12.2, 163_840),
        ("mixtral-8x7b", 46.7, 131_072),
        ("mixtral-8x22b", 140.6, 229_376),
        ("deepseek-v2-lite", 15.7, 31_104),
        ("deepseek-v3", 671.0, 70_272),
        ("kimi-k2", 1026.4, 70_272),
        ("glm-4.5", 352.8, 376_832),
        ("glm-4.5-air", 106.9, 188_416),
        ("glm-5", 743.2, 89_856),
        ("minimax-m2", 228.7, 253_952),
        ("deepseek-r1-distill-qwen-32b", 32.8, 262_144),
        ("llama-4-maverick", 400.7, 196_608),
    ],
)
def test_presets_have_the_published_parameters_and_kv_bytes(name: str, billions: float, kv_bytes: int) -> None:
    """Parameter counts as on the model cards (1 %), bf16 KV bytes per token over all layers exactly."""
    model = load_model(name)
    assert model.num_params / 1e9 == pytest.approx(billions, rel=0.01)
    assert model.kv_bytes_per_token() == kv_bytes


def test_every_preset_loads_and_names_its_source() -> None:
    """No preset is broken, none is without a source."""
    assert len(model_names()) >= 22
    for name in model_names():
        model = load_model(name)
        assert model.source
        assert sum(g.layers for g in model.groups) + (model.mlp_layers or 0) == model.layers
        assert model.weight_bytes(1) > 0


@pytest.mark.parametrize(
    ("spelling", "preset"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", "llama-3.1-70b"),
        ("LLAMA-3.1-70B", "llama-3.1-70b"),
        ("meta-llama/Meta-Llama-3.1-8B", "llama-3.1-8b"),
        ("Qwen/Qwen3-32B", "qwen3-32b"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("google/gemma-3-27b-it", "gemma-3-27b"),
        ("mistralai/Mistral-7B-Instruct-v0.2", "mistral-7b"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("MiniMaxAI/MiniMax-M2.5", "minimax-m2"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b-2507"),
    ],
)
def test_hugging_face_names_and_short_names_resolve(spelling: str, preset: str) -> None:
    """Organisation, case and endings such as -Instruct do not matter."""
    assert load_model(spelling).name == preset


def test_an_unknown_model_names_the_closest_ones() -> None:
    """A typo costs one line, not a search."""
    with pytest.raises(UserError, match=r"'llama-3.1-9b' is not known; closest: llama-3.1-8b"):
        load_model("llama-3.1-9b")


@pytest.mark.parametrize(("tp", "expected"), [(1, 192_512), (2, 96_256), (4, 48_128), (8, 48_128), (16, 48_128)])
def test_kv_heads_are_replicated_when_ranks_outnumber_them(tp: int, expected: int) -> None:
    """Qwen3-235B has 4 KV heads: from TP 4 on a rank keeps one whole head."""
    assert load_model("qwen3-235b-a22b").kv_bytes_per_token(tp) == expected


def test_an_mla_latent_is_whole_on_every_rank() -> None:
    """Tensor parallelism saves DeepSeek no KV bytes; fp8 halves them."""
    model = load_model("deepseek-v3")
    assert [model.kv_bytes_per_token(tp) for tp in (1, 8)] == [70_272, 70_272]
    assert model.with_kv_cache_dtype("fp8").kv_bytes_per_token() == 35_136


@pytest.mark.parametrize(
    ("name", "tp", "ep", "gigabytes"),
    [
        ("llama-3.1-8b", 1, 1, 16.06),
        ("llama-3.1-70b-fp8", 1, 1, 72.65),
        ("gpt-oss-120b", 1, 1, 65.2),
        ("qwen3-32b", 2, 1, 32.8),
        ("qwen3-235b-a22b-fp8", 4, 1, 59.3),
        ("qwen3-235b-a22b-fp8", 4, 4, 59.3),
        ("kimi-k2.5", 1, 1, 594.2),
    ],
)
def test_weight_bytes_follow_quantization_and_ranks(name: str, tp: int, ep: int, gigabytes: float) -> None:
    """fp8 is a byte a weight, MXFP4 4.25 bits on experts only, int4 with its scales; ranks share."""
    assert load_model(name).weight_bytes(tp, ep) / 1e9 == pytest.approx(gigabytes, rel=0.005)


def test_a_config_file_or_its_folder_is_read(tmp_path: Path) -> None:
    """A path to config.json, or to the folder with it, works like a preset."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    for path in (tmp_path, tmp_path / "config.json"):
        model = load_model(path)
        assert (model.layers, model.kv_bytes_per_token(), model.name) == (32, 131_072, tmp_path.name)


def test_left_out_fields_take_their_defaults() -> None:
    """head_dim = hidden / heads, every head its own KV head."""
    config = {k: v for k, v in LLAMA.items() if k != "num_key_value_heads"}
    (group,) = spec_from_config(config, "m").groups
    assert (group.head_dim, group.kv_heads, group.kind) == (128, 32, "full")


def test_the_language_model_of_a_multimodal_config_is_found() -> None:
    """text_config is read, the quantization outside it too."""
    model = spec_from_config({"text_config": LLAMA, "quantization_config": {"quant_method": "fp8"}}, "m")
    assert (model.layers, model.quantization.linear_bytes) == (32, 1.0)


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"sliding_window": 4096}, [("sliding", 32, 4096)]),
        ({"sliding_window": 4096, "use_sliding_window": False}, [("full", 32, 0)]),
        ({"sliding_window": None}, [("full", 32, 0)]),
        ({"sliding_window": 1024, "sliding_window_pattern": 6}, [("full", 5, 0), ("sliding", 27, 1024)]),
        (
            {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 30},
            [("full", 30, 0), ("sliding", 2, 4096)],
        ),
        (
            {"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 16},
            [("full", 16, 0), ("sliding", 16, 128)],
        ),
        ({"attention_chunk_size": 8192}, [("full", 8, 0), ("sliding", 24, 8192)]),
    ],
)
def test_which_layers_slide(extra: dict[str, object], expected: list[tuple[str, int, int]]) -> None:
    """Mistral, Qwen2, Gemma 3, gpt-oss and Llama 4 each say it in another way."""
    groups = spec_from_config({**LLAMA, **extra}, "m").groups
    assert [(g.kind, g.layers, g.window) for g in groups] == expected


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"num_local_experts": 8, "num_experts_per_tok": 2}, (32, 8, 2, 14336, 0)),
        (
            {
                "num_experts": 128,
                "num_experts_per_tok": 8,
                "moe_intermediate_size": 768,
                "decoder_sparse_step": 2,
            },
            (16, 128, 8, 768, 0),
        ),
        (
            {
                "n_routed_experts": 64,
                "num_experts_per_tok": 6,
                "moe_intermediate_size": 1408,
                "n_shared_experts": 2,
                "first_k_dense_replace": 3,
            },
            (29, 64, 6, 1408, 2816),
        ),
        (
            {
                "num_experts": 60,
                "num_experts_per_tok": 4,
                "moe_intermediate_size": 1408,
                "shared_expert_intermediate_size": 5632,
                "mlp_only_layers": [0],
            },
            (31, 60, 4, 1408, 5632),
        ),
    ],
)
def test_experts_under_any_name(extra: dict[str, object], expected: tuple[int, ...]) -> None:
    """Mixtral, Qwen and DeepSeek fields: MoE layers, experts, top-k, width, shared width."""
    moe = spec_from_config({**LLAMA, **extra}, "m").moe
    assert moe is not None
    assert (moe.layers, moe.experts, moe.top_k, moe.inter, moe.shared_inter) == expected


@pytest.mark.parametrize(
    ("quantization", "linear", "math", "expert"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 1.0, "fp8", 1.0),
        (
            {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
            2.0,
            "bf16",
            0.53125,
        ),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 0.51953125, "bf16", 0.51953125),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128, "sym": True}, 1.015625, "bf16", 1.015625),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 0.5625, "fp8", 0.5625),
    ],
)
def test_quantization_gives_bytes_and_arithmetic(
    quantization: dict[str, object], linear: float, math: str, expert: float
) -> None:
    """Bytes per weight include scales and zero points."""
    q = spec_from_config({**LLAMA, "quantization_config": quantization}, "m").quantization
    assert (q.linear_bytes, q.linear_math, q.expert_bytes) == (linear, math, expert)


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131_072),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 262_144),
        ({"rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 32768}}, 131_072),
        ({"model_type": "gemma3_text", "rope_scaling": {"rope_type": "linear", "factor": 8.0}}, 131_072),
    ],
)
def test_max_position_counts_rotary_scaling_once(extra: dict[str, object], expected: int) -> None:
    """Some scalings are in max_position_embeddings already."""
    assert spec_from_config({**LLAMA, **extra}, "m").max_position == expected


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "config has no num_hidden_layers"),
        ({**LLAMA, "num_hidden_layers": "32"}, "num_hidden_layers: '32': expected an integer >= 1"),
        ({**LLAMA, "layer_types": ["full_attention"]}, "layer_types has 1 entries, num_hidden_layers is 32"),
        ({**LLAMA, "layer_types": ["mamba"] * 32}, "layer_types: 'mamba': expected one of"),
        ({**LLAMA, "quantization_config": {"quant_method": "hqq"}}, "quant_method 'hqq' is not known"),
    ],
)
def test_a_config_that_cannot_be_used_says_which_field(config: dict[str, object], message: str) -> None:
    """The model, the field, the value and what was expected, in one line."""
    with pytest.raises(UserError, match=message):
        spec_from_config(config, "m")


@pytest.mark.parametrize(("content", "message"), [("{", "not readable as JSON"), ("[]", "expected a JSON object")])
def test_a_broken_config_file_is_a_user_error(tmp_path: Path, content: str, message: str) -> None:
    """No traceback for a file that is not what it should be."""
    path = tmp_path / "config.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        load_model(path)
    with pytest.raises(UserError, match="no such file"):
        load_model(tmp_path / "other.json")
    with pytest.raises(UserError, match="kv_cache_dtype: 'int3'"):
        load_model("llama-3.1-8b", "int3")
