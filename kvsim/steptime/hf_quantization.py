"""What ``quantization_config`` of a checkpoint means for weight bytes and arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kvsim.errors import UserError
from kvsim.steptime.spec import Quantization

# 4-bit floats with one 8-bit scale per block: 32 weights (MXFP4), 16 weights (NVFP4)
_MXFP4_BYTES = (4 + 8 / 32) / 8
_NVFP4_BYTES = (4 + 8 / 16) / 8

FP8 = Quantization("fp8", 1.0, "fp8", 1.0, "fp8")
_ATTENTION_WORDS = ("self_attn", "attention")
_EXPERT_WORDS = ("experts",)


def read_quantization(config: Mapping[str, Any] | None, name: str, notes: list[str]) -> Quantization:
    """Bytes and arithmetic from ``quantization_config`` (None = bf16 weights).

    Appends to ``notes`` what is approximated. Scales of fp8 blocks (0.02 %) are left out.

    Raises:
        UserError: a method that is not known.
    """
    if not config:
        return Quantization()
    method = str(config.get("quant_method", "")).lower()
    skipped = config.get("modules_to_not_convert") or config.get("ignore") or config.get("exclude_modules") or ()
    if method == "mxfp4":
        experts_only = Quantization("mxfp4", expert_bytes=_MXFP4_BYTES, expert_math="mxfp4")
        return (
            experts_only
            if _skips_attention(skipped)
            else Quantization("mxfp4", _MXFP4_BYTES, "bf16", _MXFP4_BYTES, "mxfp4")
        )
    if method in {"fp8", "fbgemm_fp8"}:
        if config.get("weight_block_size"):
            notes.append("block-wise fp8: its GEMMs were not fitted, error up to 60 %")
        return _except_skipped(FP8, skipped)
    if method in {"awq", "gptq", "auto-round", "awq_marlin", "gptq_marlin"}:
        bits, group = (
            _number(config, "bits", "w_bit", default=4),
            _number(config, "group_size", "q_group_size"),
        )
        zero_points = 0.0 if config.get("sym") else bits / group
        size = (bits + 16 / group + zero_points) / 8
        return Quantization(f"{method}-w{bits}a16", size, "bf16", size, "bf16")
    if method == "bitsandbytes":
        size = 1.0 if config.get("load_in_8bit") else (4 + 32 / 64) / 8
        return Quantization("bitsandbytes", size, "bf16", size, "bf16")
    if method == "compressed-tensors":
        return _compressed_tensors(config, skipped, name, notes)
    if method.startswith("modelopt"):
        algo = str(config.get("quant_algo", config.get("quant_method"))).lower()
        if "nvfp4" in algo or "fp4" in method:
            return _nvfp4(skipped, notes)
        return _except_skipped(FP8, skipped)
    raise UserError(
        f"model {name}: config: quantization_config: quant_method {method!r} is not known; expected fp8,"
        " mxfp4, awq, gptq, compressed-tensors, modelopt or bitsandbytes"
    )


def _compressed_tensors(config: Mapping[str, Any], skipped: Any, name: str, notes: list[str]) -> Quantization:
    groups = config.get("config_groups") or {}
    first: Mapping[str, Any] = next(iter(groups.values()), {}) if isinstance(groups, Mapping) else {}
    weights = first.get("weights") or {}
    kind, bits = str(weights.get("type", "")), _number(weights, "num_bits", default=8)
    if kind == "float" and bits == 8:
        return _except_skipped(FP8, skipped)
    if kind == "float" and bits == 4:
        return _nvfp4(skipped, notes)
    if kind == "int" and bits == 8 and first.get("input_activations"):
        notes.append("int8 arithmetic: taken as fp8")
        return _except_skipped(Quantization("w8a8-int8", 1.0, "fp8", 1.0, "fp8"), skipped)
    if kind == "int":
        group = _number(weights, "group_size", default=128)
        size = (bits + 16 / group) / 8
        return _except_skipped(Quantization(f"w{bits}a16", size, "bf16", size, "bf16"), skipped)
    raise UserError(
        f"model {name}: config: quantization_config: weights of type {kind!r} with {bits} bits are not"
        " known; expected float or int with 4 or 8 bits"
    )


def _nvfp4(skipped: Any, notes: list[str]) -> Quantization:
    notes.append("NVFP4: its GEMMs were not fitted, taken as fp8 arithmetic; error up to 60 %")
    return _except_skipped(Quantization("nvfp4", _NVFP4_BYTES, "fp8", _NVFP4_BYTES, "fp8"), skipped)


def _except_skipped(full: Quantization, skipped: Any) -> Quantization:
    """Dense layers stay bf16 if the checkpoint leaves its attention out, experts if it leaves them out."""
    linear = "bf16" if _skips_attention(skipped) else full.linear_math
    expert = "bf16" if _mentions(skipped, _EXPERT_WORDS, whole=True) else full.expert_math
    return Quantization(
        full.name,
        2.0 if _skips_attention(skipped) else full.linear_bytes,
        linear,
        2.0 if _mentions(skipped, _EXPERT_WORDS, whole=True) else full.expert_bytes,
        expert,
    )


def _skips_attention(skipped: Any) -> bool:
    """Every attention layer is named: by a pattern, not layer by layer."""
    return _mentions(skipped, _ATTENTION_WORDS)


def _mentions(skipped: Any, words: Iterable[str], whole: bool = False) -> bool:
    """Some pattern (with ``*`` or ``re:``) in ``skipped`` covers a module of that name in all layers."""
    for entry in skipped if isinstance(skipped, (list, tuple)) else ():
        text = str(entry)
        if "*" not in text and not text.startswith("re:"):
            continue
        if any(word in text for word in words) and not (whole and "shared" in text):
            return True
    return False


def _number(config: Mapping[str, Any], *keys: str, default: int = 128) -> int:
    for key in keys:
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return default
