"""How many KV blocks vLLM allocates: exact once the bytes are known, an estimate of the bytes before.

Rule of vLLM 0.23.0 (worker/gpu_worker.py, worker/utils.py, core/kv_cache_utils.py): the KV cache gets what is
left of ``ceil(total * gpu_memory_utilization)`` after weights, the peak of a dummy forward, other allocations
since start-up and an estimate of the CUDA graphs; blocks are cut out of it layer by layer. The peak cannot be
known without running the model, so :func:`estimate_num_gpu_blocks` states a range. Given the number that vLLM
logs, use that instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from kvsim.errors import UserError
from kvsim.steptime.gpu import GpuSpec
from kvsim.steptime.kv_layout import KVLayout, blocks_per_request, kv_cache_tokens, kv_layout
from kvsim.steptime.spec import ModelSpec

__all__ = [
    "GIB",
    "KVCapacity",
    "KVLayout",
    "blocks_per_request",
    "default_limits",
    "estimate_num_gpu_blocks",
    "forward_peak_bytes",
    "kv_cache_tokens",
    "kv_layout",
    "sampler_peak_bytes",
]

GIB = 1 << 30

# Set on three public logs (RTX 4090 Llama-3.1-8B, gpt-oss-120b on H100 twice), tested on two more.
# Per logit: bf16 and fp32, sorted values and indices with double buffers, cumulative sums.
_SAMPLER_BYTES_PER_LOGIT = 36
_NON_TORCH_BYTES = GIB // 10  # allocations outside torch between start-up and the dummy forward
# The five logs against this estimate: real minus estimate from -3.1 % to +0.4 % of the budget.
_MAX_OVER = 0.032
_MAX_UNDER = 0.005


@dataclass(frozen=True, slots=True)
class KVCapacity:
    """KV cache of one engine.

    Attributes:
        num_blocks: best estimate, the null block included as in vLLM's log.
        low, high: range that the five public logs behind the estimate span.
        kv_bytes: bytes for KV on one rank (best estimate).
        layout: block layout on one rank.
        tokens: what vLLM logs as "GPU KV cache size" when no sliding window frees anything: blocks of one
            request grow in every group.
        estimated: False where the number of blocks or bytes was given.
        explanation: lines for the user.
    """

    num_blocks: int
    low: int
    high: int
    kv_bytes: int
    layout: KVLayout
    tokens: int
    estimated: bool
    explanation: tuple[str, ...]


def default_limits(
    memory_bytes: int, gpu_name: str = "", version: str = "0.33.0", *, offline: bool = False
) -> tuple[int, int]:
    """(max_num_batched_tokens, max_num_seqs) that vLLM takes when neither is given.

    Args:
        memory_bytes: total device memory.
        gpu_name: A100s are treated as small whatever their memory.
        version: ``0.23.0`` or ``0.33.0``; since 0.33.0 devices of 160 GiB and more get 16,384 tokens.
        offline: the ``LLM`` class instead of ``vllm serve``.

    Source: vLLM engine/arg_utils.py, 0.23.0 and 0.33.0; limits by model length and features come later.
    """
    if version not in {"0.23.0", "0.33.0"}:
        raise UserError(f"version: {version!r}: expected '0.23.0' or '0.33.0'")
    big = memory_bytes >= 70 * GIB and "a100" not in gpu_name.lower()
    if version == "0.33.0" and memory_bytes >= 160 * GIB:
        return 16384, 1024
    if big:
        return (16384 if offline else 8192), 1024
    return (8192 if offline else 2048), 256


def estimate_num_gpu_blocks(
    model: ModelSpec,
    gpu: GpuSpec,
    tp: int = 1,
    ep: int = 1,
    *,
    block_tokens: int = 16,
    gpu_memory_utilization: float = 0.92,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    kv_cache_memory_bytes: int | None = None,
    weight_bytes: int | None = None,
    cuda_graph_bytes: int = 0,
    version: str = "0.33.0",
    layout: KVLayout | None = None,
) -> KVCapacity:
    """KV blocks of one engine by vLLM's rule.

    Args:
        model: what runs.
        gpu: on what.
        tp: tensor-parallel ranks.
        ep: expert-parallel ranks.
        block_tokens: vLLM's ``--block-size``.
        gpu_memory_utilization: default 0.92 (0.9 before vLLM 0.20).
        max_num_seqs: None = vLLM's default for this GPU.
        max_num_batched_tokens: None = vLLM's default for this GPU.
        kv_cache_memory_bytes: per GPU; skips the estimate as vLLM's flag does.
        weight_bytes: per GPU, as vLLM logs it ("Model loading took"); None = computed.
        cuda_graph_bytes: what vLLM charges for CUDA graphs (logged; since 0.21), unknown before it ran.
        version: for the defaults.
        layout: groups and pages; None = `kv_layout` of the model.

    Raises:
        UserError: nothing is left for the KV cache.
    """
    layout = layout or kv_layout(model, tp, block_tokens)
    if kv_cache_memory_bytes is not None:
        blocks = layout.num_blocks(kv_cache_memory_bytes)
        if blocks < 2:
            raise UserError(
                f"kv_cache_memory_bytes: {kv_cache_memory_bytes}: a block of {model.name} takes"
                f" {layout.block_bytes} bytes; expected room for at least two"
            )
        given = (f"given: {_gib(kv_cache_memory_bytes)} of KV per GPU", _layout_line(layout, blocks))
        tokens = _pool_tokens(layout, blocks)
        return KVCapacity(blocks, blocks, blocks, kv_cache_memory_bytes, layout, tokens, False, given)
    if not 0 < gpu_memory_utilization <= 1:
        raise UserError(f"gpu_memory_utilization: {gpu_memory_utilization}: expected a number in (0, 1]")
    tokens_default, seqs_default = default_limits(gpu.memory_bytes, gpu.name, version)
    step_tokens = max_num_batched_tokens if max_num_batched_tokens is not None else tokens_default
    seqs = max_num_seqs if max_num_seqs is not None else min(seqs_default, step_tokens)
    weights = model.weight_bytes(tp, ep) if weight_bytes is None else weight_bytes
    forward = forward_peak_bytes(model, step_tokens, tp)
    sampler = sampler_peak_bytes(model, seqs, step_tokens)
    peak = max(forward, sampler)
    budget = ceil(gpu.memory_bytes * gpu_memory_utilization)
    kv_bytes = budget - weights - peak - _NON_TORCH_BYTES - cuda_graph_bytes
    share = f"{gpu_memory_utilization:g} of the {_gib(gpu.memory_bytes)} that CUDA reports on {gpu.name}"
    lines = [
        f"{_gib(budget)} = {share}",
        f"- {_gib(weights)} weights of {model.name}" + (f" on one of {max(tp, ep)} ranks" if max(tp, ep) > 1 else ""),
        f"- {_gib(peak)} peak of the dummy forward ("
        + (f"sampler on {seqs} sequences)" if sampler >= forward else f"{step_tokens} tokens)"),
        f"- {_gib(_NON_TORCH_BYTES)} other" + (f", {_gib(cuda_graph_bytes)} CUDA graphs" if cuda_graph_bytes else ""),
    ]
    least, most = kv_bytes - ceil(_MAX_OVER * budget), kv_bytes + ceil(_MAX_UNDER * budget)
    low, blocks, high = (layout.num_blocks(b) for b in (least, kv_bytes, most))
    if blocks < 2:
        what = "do not fit" if budget < weights else "leave no room for two KV blocks"
        raise UserError(
            f"gpu memory: {_gib(weights)} of weights of {model.name} (tensor_parallel_size {tp}) {what} in"
            f" {_gib(budget)} ({share}) beside {_gib(peak + _NON_TORCH_BYTES)} of activations (a block of"
            f" {layout.block_tokens} tokens takes {_gib(layout.block_bytes)}); raise tensor_parallel_size, lower"
            " max_num_seqs or max_num_batched_tokens, take a larger GPU or quantized weights, or set"
            " num_gpu_blocks_override"
        )
    lines.append(
        f"= {_gib(kv_bytes)} for KV, an estimate: public logs lie between {_gib(max(least, 0))} and {_gib(most)}"
    )
    lines.append(
        _layout_line(layout, blocks) + f"; {low:,} to {high:,} are possible, set num_gpu_blocks_override from the log"
        " of your vLLM to be exact"
    )
    return KVCapacity(blocks, low, high, kv_bytes, layout, _pool_tokens(layout, blocks), True, tuple(lines))


def forward_peak_bytes(model: ModelSpec, step_tokens: int, tp: int = 1) -> int:
    """Activations of the dummy forward: residual stream and the widest MLP of one layer, bf16."""
    width = model.dense_inter / tp
    if model.moe:
        width = max(width, (model.moe.inter * model.moe.top_k + model.moe.shared_inter) / tp)
    return ceil(2 * step_tokens * (4 * model.hidden + 3 * width))


def sampler_peak_bytes(model: ModelSpec, max_num_seqs: int, step_tokens: int) -> int:
    """Sampling with top-k and top-p on as many rows as sequences may run."""
    return _SAMPLER_BYTES_PER_LOGIT * min(max_num_seqs, step_tokens) * model.vocab


def _pool_tokens(layout: KVLayout, blocks: int) -> int:
    return blocks // layout.groups * layout.block_tokens


def _layout_line(layout: KVLayout, blocks: int) -> str:
    layers = f"{layout.layers_per_group} layers"
    shape = f"{layout.groups} groups of {layers}" if layout.groups > 1 else layers
    size = f"{layout.block_bytes:,} bytes per block and GPU"
    return f"{blocks:,} blocks of {layout.block_tokens} tokens ({shape}, {size})"


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"
