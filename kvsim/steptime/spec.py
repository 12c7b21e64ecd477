"""What the simulator must know of a model: layers, heads, experts, and the bytes that follow from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from kvsim.errors import UserError

BF16_BYTES = 2
KV_DTYPE_BYTES = {"bf16": 2, "fp8": 1}
_KV_DTYPE_NAMES = {
    "auto": "bf16",
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp16": "bf16",
    "half": "bf16",
    "float16": "bf16",
    "fp8": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "fp8_inc": "fp8",
}


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Layers that keep the same kind of state per request.

    Attributes:
        kind: ``full`` (all tokens), ``sliding`` (last ``window`` tokens), ``linear`` (a constant state: gated
            delta net or Mamba; no KV per token).
        layers: number of layers of the kind.
        heads: query heads (0 for ``linear``).
        kv_heads: key/value heads of the whole model, before tensor parallelism.
        head_dim: size of one head, keys and values alike.
        window: tokens attended by a ``sliding`` layer, else 0.
        state_bytes: recurrent state of one request in one ``linear`` layer, whole model, else 0.
        projection_params: projection weights of one ``linear`` layer, else 0.
        output_gate: the attention output is gated by a projection as wide as the queries (Qwen3-Next and
            later).
        chunked: a ``sliding`` layer attends to its own chunk of ``window`` tokens instead (Llama 4).
        first_layer: number of the first layer of the kind.
        recurrence: what a ``linear`` layer is: ``gdn`` (gated delta net) or ``mamba2``, else empty.
    """

    kind: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    window: int = 0
    state_bytes: int = 0
    projection_params: int = 0
    output_gate: bool = False
    chunked: bool = False
    first_layer: int = 0
    recurrence: str = ""


@dataclass(frozen=True, slots=True)
class Mla:
    """Multi-head latent attention (DeepSeek): one latent vector per token instead of keys and values.

    ``q_lora`` is 0 where queries are not compressed (DeepSeek-V2-Lite).
    """

    q_lora: int
    kv_lora: int
    rope_dim: int
    nope_dim: int
    v_dim: int

    @property
    def cached_elements(self) -> int:
        """Elements cached per token and layer: the latent and the rotary part."""
        return self.kv_lora + self.rope_dim


@dataclass(frozen=True, slots=True)
class Moe:
    """Routed experts.

    Attributes:
        layers: number of MoE layers.
        experts: routed experts per layer.
        top_k: experts a token uses.
        inter: width of one expert.
        shared_inter: summed width of the experts (or the dense MLP) that every token uses in a MoE layer.
    """

    layers: int
    experts: int
    top_k: int
    inter: int
    shared_inter: int = 0


@dataclass(frozen=True, slots=True)
class Quantization:
    """Bytes per weight and the arithmetic of the matrix multiplications.

    Attributes:
        name: as the checkpoint calls it, e.g. ``fp8``, ``mxfp4``, ``none``.
        linear_bytes: bytes per weight of attention projections and dense MLPs, scales included.
        linear_math: ``bf16`` or ``fp8``: peak that those multiplications are measured against.
        expert_bytes: bytes per weight of routed experts, scales included.
        expert_math: ``bf16``, ``fp8`` or ``mxfp4`` (4-bit weights, bf16 arithmetic with its own efficiency).
    """

    name: str = "none"
    linear_bytes: float = 2.0
    linear_math: str = "bf16"
    expert_bytes: float = 2.0
    expert_math: str = "bf16"


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Dimensions of a decoder-only model, from its Hugging Face ``config.json``.

    Attributes:
        name: how the user or the preset calls it.
        layers: decoder layers (multi-token-prediction layers are not counted).
        hidden: width of the residual stream.
        groups: attention layers by kind; their layers sum to ``layers``, unless MLPs are layers of their own.
        dense_inter: width of the dense MLP of the layers that are not MoE (0 if there is none).
        vocab: vocabulary size.
        tied: input embedding and LM head share their weights.
        max_position: default of ``max_model_len``.
        moe, mla: None where the model has none.
        quantization: of the weights.
        kv_cache_dtype: ``bf16`` or ``fp8``.
        mlp_layers: MLPs that are layers of their own (Nemotron-H); None = one in every layer.
        source: where the dimensions come from.
        notes: what is a guess, or not modelled.
    """

    name: str
    layers: int
    hidden: int
    groups: tuple[AttentionGroup, ...]
    dense_inter: int
    vocab: int
    tied: bool
    max_position: int
    moe: Moe | None = None
    mla: Mla | None = None
    quantization: Quantization = Quantization()
    kv_cache_dtype: str = "bf16"
    mlp_layers: int | None = None
    source: str = ""
    notes: tuple[str, ...] = ()

    # ---- layers

    @property
    def moe_layers(self) -> int:
        """Layers with routed experts."""
        return self.moe.layers if self.moe else 0

    @property
    def dense_layers(self) -> int:
        """Layers with a plain MLP."""
        return self.layers - self.moe_layers if self.mlp_layers is None else self.mlp_layers

    @property
    def attention_layers(self) -> int:
        """Layers that keep KV per token (full and sliding)."""
        return sum(g.layers for g in self.groups if g.kind != "linear")

    @property
    def heads(self) -> int:
        """Query heads of the attention layers."""
        return max(g.heads for g in self.groups)

    def check_tp(self, tp: int) -> None:
        """Raise if vLLM could not shard the heads over ``tp`` ranks."""
        if tp < 1:
            raise UserError(f"tensor_parallel_size: {tp}: expected an integer >= 1")
        for g in self.groups:
            if g.kind == "linear":
                continue
            if g.heads % tp:
                raise UserError(
                    f"tensor_parallel_size: {tp}: the {g.heads} attention heads of {self.name} are not divisible by it"
                )
            if not self.mla and g.kv_heads % tp and tp % g.kv_heads:
                raise UserError(
                    f"tensor_parallel_size: {tp}: neither a divisor nor a multiple of the"
                    f" {g.kv_heads} key/value heads of {self.name}"
                )

    # ---- KV cache

    def kv_heads_per_rank(self, group: AttentionGroup, tp: int) -> int:
        """Key/value heads on one rank; vLLM replicates them when there are fewer heads than ranks."""
        return max(1, group.kv_heads // tp)

    def kv_bytes_per_token_layer(self, group: AttentionGroup, tp: int = 1) -> int:
        """KV bytes of one token in one layer of ``group`` on one rank; the MLA latent is on every rank."""
        if group.kind == "linear":
            return 0
        element = KV_DTYPE_BYTES[self.kv_cache_dtype]
        if self.mla:
            return self.mla.cached_elements * element
        return 2 * self.kv_heads_per_rank(group, tp) * group.head_dim * element

    def kv_bytes_per_token(self, tp: int = 1) -> int:
        """KV bytes of one token on one rank, summed over all layers (sliding ones as if nothing slid out)."""
        return sum(g.layers * self.kv_bytes_per_token_layer(g, tp) for g in self.groups)

    def state_bytes_per_request(self, tp: int = 1) -> int:
        """Recurrent state of one request on one rank (linear-attention layers)."""
        return sum(g.layers * g.state_bytes // tp for g in self.groups)

    # ---- weights

    def attention_params(self, group: AttentionGroup, tp: int = 1) -> float:
        """Projection weights of one layer of ``group`` on one rank (elements)."""
        h = self.hidden
        if group.kind == "linear":
            return group.projection_params / tp
        if self.mla:
            m = self.mla
            qk = m.nope_dim + m.rope_dim
            replicated = h * (m.q_lora + m.cached_elements)
            query = (m.q_lora or h) * group.heads * qk
            return (
                replicated + (query + m.kv_lora * group.heads * (m.nope_dim + m.v_dim) + group.heads * m.v_dim * h) / tp
            )
        kv = max(group.kv_heads / tp, 1.0)
        wide = 3 if group.output_gate else 2
        return h * (group.heads / tp * wide + 2 * kv) * group.head_dim

    def mean_attention_params(self, tp: int = 1) -> float:
        """Projection weights per layer and rank, averaged over all layers."""
        return sum(g.layers * self.attention_params(g, tp) for g in self.groups) / self.layers

    def weight_bytes(self, tp: int = 1, ep: int = 1) -> int:
        """Weights resident on one rank, embedding and LM head (vocabulary-parallel) included.

        ``ep`` > 1 spreads whole experts over the ranks: the same bytes as slicing them, unless ``ep`` >
        ``tp`` (data-parallel attention), where the experts are spread over all ``ep`` ranks.
        """
        q = self.quantization
        total = self.layers * self.mean_attention_params(tp) * q.linear_bytes
        total += self.dense_layers * 3 * self.hidden * self.dense_inter / tp * q.linear_bytes
        if self.moe:
            m = self.moe
            experts = m.experts * 3 * self.hidden * m.inter / max(tp, ep) * q.expert_bytes
            shared = 3 * self.hidden * m.shared_inter / tp * q.linear_bytes
            router = self.hidden * m.experts * BF16_BYTES
            total += m.layers * (experts + shared + router)
        total += self.vocab * self.hidden * BF16_BYTES / tp * (1 if self.tied else 2)
        return ceil(total)

    @property
    def num_params(self) -> int:
        """Parameters of the whole model (norms and biases left out: well below 0.1 %)."""
        plain = replace(self, quantization=Quantization(linear_bytes=2.0, expert_bytes=2.0))
        return plain.weight_bytes() // BF16_BYTES

    # ---- variants

    def with_kv_cache_dtype(self, dtype: str) -> ModelSpec:
        """The same model with another type of cached elements (vLLM's ``--kv-cache-dtype``)."""
        name = _KV_DTYPE_NAMES.get(dtype.lower())
        if name is None:
            raise UserError(f"kv_cache_dtype: {dtype!r}: expected one of {', '.join(sorted(_KV_DTYPE_NAMES))}")
        return self if dtype.lower() == "auto" else replace(self, kv_cache_dtype=name)

    def with_quantization(self, quantization: Quantization) -> ModelSpec:
        """The same model with other weight types."""
        return replace(self, quantization=quantization)
