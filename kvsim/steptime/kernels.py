"""The components of a forward pass, each a roofline in float seconds on one rank."""

from __future__ import annotations

from kvsim.steptime.gpu import GpuSpec
from kvsim.steptime.spec import BF16_BYTES, AttentionGroup, ModelSpec

_JOIN_POWER = 3.0  # sharpness of the smooth maximum; fixed before the other constants were fitted
_PREFILL_HEAD_MLA = 128  # MLA prefill kernels run at the efficiency of large heads


def smooth_max(compute_s: float, memory_s: float) -> float:
    """Time of a kernel that overlaps computing and reading: between the larger and the sum of both."""
    return float((compute_s**_JOIN_POWER + memory_s**_JOIN_POWER) ** (1.0 / _JOIN_POWER))


class Kernels:
    """Kernel times of one model on one kind of GPU, per rank, without slack and host time.

    Everything that does not depend on the batch is multiplied out once.
    """

    def __init__(self, model: ModelSpec, gpu: GpuSpec, tp: int, ep: int) -> None:
        self._model, self._gpu, self._tp = model, gpu, tp
        e, q, hbm = gpu.eff, model.quantization, gpu.hbm_bytes_per_s
        dense = model.dense_layers / model.layers
        sparse = model.moe_layers / model.layers
        shared = model.moe.shared_inter if model.moe else 0

        # dense projections of one layer, averaged over the layers
        params = model.mean_attention_params(tp) + 3 * model.hidden * (model.dense_inter * dense + shared * sparse) / tp
        self._gemm_per_token = 2.0 * params / (gpu.flops(q.linear_math) * e.gemm_mfu)
        self._gemm_read = params * q.linear_bytes / (hbm * e.weight_eff)
        self._gemm_fixed = (2 + 2 * dense + (2 * sparse if shared else 0)) * e.gemm_us * 1e-6

        # residual + norm twice per layer, activation of a dense MLP (that of experts sits in their kernel)
        width = 2 * 4 * model.hidden + dense * 3 * model.dense_inter / tp
        self._elem_per_token = BF16_BYTES * width / (hbm * e.elem_eff)
        self._elem_fixed = (2 + dense) * e.elem_us * 1e-6

        # two all-reduces per layer
        self._ar_per_token = self._ar_fixed = 0.0
        if tp > 1:
            share = 2.0 * (tp - 1) / tp * model.hidden * BF16_BYTES
            self._ar_per_token = 2 * share / gpu.all_reduce_bytes_per_s(tp)
            self._ar_fixed = 2e-6 * (e.ar_us + e.ar_us_per_rank * (tp - 2))

        # LM head on the sampled rows
        head = model.vocab * model.hidden / tp
        self._head_per_row = 2.0 * head / (gpu.bf16_flops * e.gemm_mfu)
        self._head_read = head * BF16_BYTES / (hbm * e.weight_eff)

        # recurrent state of linear-attention layers, read and written once per request and step
        self._state_per_row = 2.0 * model.state_bytes_per_request(tp) / (hbm * e.kv_eff)

        self._prefill_groups = [self._prefill_group(group) for group in model.groups if group.kind != "linear"]

        self._ranks_per_expert_set = max(tp, ep)
        if model.moe:
            expert = 3 * model.hidden * model.moe.inter / self._ranks_per_expert_set
            factor = e.mxfp4_factor if q.expert_math == "mxfp4" else 1.0
            self._expert_per_token = 2.0 * expert / (gpu.flops(q.expert_math) * e.moe_mfu * factor)
            self._expert_read = expert * q.expert_bytes / (hbm * e.moe_eff)

    # ---- all but attention

    def all_but_attention(self, tokens: int, rows: int, expert_tokens: int | None = None) -> float:
        """All layers without attention over ``tokens`` tokens, and the LM head on ``rows`` of them.

        ``expert_tokens``: tokens that the experts see, of all data-parallel ranks; None = as many from each rank.
        """
        e, m = self._gpu.eff, self._model
        compute = self._gemm_per_token * (tokens + e.gemm_half_tokens)
        layer = smooth_max(compute, self._gemm_read) + self._gemm_fixed
        layer += self._elem_per_token * tokens + self._elem_fixed
        layer += self._ar_per_token * tokens + self._ar_fixed
        total = m.layers * layer + self._state_per_row * rows
        if m.moe:
            total += m.moe.layers * self.experts(tokens, expert_tokens)
        head = smooth_max(self._head_per_row * (rows + e.gemm_half_tokens), self._head_read)
        return total + head + e.gemm_us * 1e-6

    def distinct_experts(self, tokens: int) -> float:
        """Expected number of experts of a layer that ``tokens`` tokens touch."""
        moe = self._model.moe
        assert moe is not None
        skew = self._gpu.eff.moe_skew
        return moe.experts * float(1.0 - (1.0 + tokens * moe.top_k / moe.experts / skew) ** -skew)

    def experts(self, tokens: int, expert_tokens: int | None = None) -> float:
        """Routed experts of one layer; each touched expert pads its tokens to a tile."""
        moe, e = self._model.moe, self._gpu.eff
        assert moe is not None
        together = expert_tokens  # tokens of all data-parallel engines
        if together is None:
            together = tokens * self._ranks_per_expert_set // self._tp
        touched = self.distinct_experts(together)
        compute = self._expert_per_token * (together * moe.top_k + touched * e.moe_half_tokens)
        return smooth_max(compute, self._expert_read * touched) + e.moe_us * 1e-6

    # ---- attention

    def prefill_attention_fixed(self) -> float:
        """Kernel start of prefill attention in a step with at least one chunk, all layers."""
        return self._model.layers * self._gpu.eff.prefill_attn_us * 1e-6

    def decode_attention_fixed(self, rows: int) -> float:
        """Kernel start of decode attention in a step with ``rows`` > 0 decoding requests, all layers."""
        return self._model.layers * self._gpu.eff.decode_attn_us * 1e-6

    def prefill_attention(self, new: int, computed: int) -> float:
        """All layers, one chunk of ``new`` tokens behind ``computed`` ones; without the fixed part."""
        total, tile = 0.0, self._gpu.eff.prefill_tile_tokens
        for layers, flop_per_token, flop_per_s, per_key, window in self._prefill_groups:
            attended, keys = computed + 0.5 * new, computed + new
            if window is not None:
                attended, keys = min(attended, float(window)), window + new
            per_pair = flop_per_token * new / flop_per_s
            total += layers * smooth_max(per_pair * (attended + tile), per_key * keys)
        return total

    def _prefill_group(self, group: AttentionGroup) -> tuple[int, float, float, float, int | None]:
        """(layers, FLOP per new and attended token, FLOP/s, seconds per key, window) of a group's prefill."""
        m, e, gpu = self._model, self._gpu.eff, self._gpu
        if m.mla:
            dims, head = m.mla.rope_dim + m.mla.nope_dim + m.mla.v_dim, _PREFILL_HEAD_MLA
        else:
            dims, head = 2 * group.head_dim, group.head_dim
        mfu = e.prefill_mfu * (e.head64_factor if head <= 64 else 1.0)
        per_key = m.kv_bytes_per_token_layer(group, self._tp) / (gpu.hbm_bytes_per_s * e.kv_eff)
        window = group.window if group.kind == "sliding" else None
        return group.layers, 2.0 * dims * group.heads / self._tp, mfu * gpu.bf16_flops, per_key, window

    def decode_attention_per_token(self, group: AttentionGroup) -> float:
        """One layer, per token attended: reading its KV, or for MLA computing on it if that is slower."""
        m, e, gpu = self._model, self._gpu.eff, self._gpu
        read = m.kv_bytes_per_token_layer(group, self._tp) / (gpu.hbm_bytes_per_s * e.kv_eff)
        if not m.mla:
            return read
        flops = 2.0 * group.heads / self._tp * (m.mla.kv_lora + m.mla.cached_elements)
        return max(read, flops / (gpu.bf16_flops * e.prefill_mfu))
