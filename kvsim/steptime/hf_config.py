"""Read a Hugging Face ``config.json`` into a :class:`ModelSpec`, whatever its family calls the fields.

Families differ in where the text model sits (``text_config``), what they leave out (``head_dim``,
``num_key_value_heads``), how they name experts, and how they say which layers slide. Each ``_read`` function
here answers one of those questions for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvsim.errors import UserError
from kvsim.steptime.hf_quantization import read_quantization
from kvsim.steptime.spec import AttentionGroup, Mla, ModelSpec, Moe

Config = Mapping[str, Any]

# rotary scalings that already are in max_position_embeddings; any other factor multiplies it (vLLM 0.23.0,
# config/model.py, derivation of max_model_len)
_SCALING_IN_MAX_POSITION = {"su", "longrope", "llama3", "mrope", "default", "proportional"}


def spec_from_config(config: Config, name: str, source: str = "", notes: Iterable[str] = ()) -> ModelSpec:
    """A ModelSpec from the content of a ``config.json``.

    Args:
        config: the parsed file; multimodal models may nest the language model under ``text_config``.
        name: used in messages and stored.
        source: stored; where the config comes from.
        notes: stored, in front of the notes that reading adds.

    Raises:
        UserError: a needed field is missing or not a positive integer; the family is not supported.
    """
    text = _text_config(config)
    read = _Reader(text, name)
    layers = read.integer("num_hidden_layers", "n_layer", "num_layers")
    hidden = read.integer("hidden_size", "n_embd", "d_model")
    found = [*notes]
    moe, dense_inter = _read_moe(read, layers)
    mla = _read_mla(read)
    groups = _read_groups(read, layers, mla, found)
    mlps = str(text.get("hybrid_override_pattern", "")).count("-") or None
    if mlps:  # two matrices, squared ReLU: as wide as two thirds of a gated MLP's three
        dense_inter = dense_inter * 2 // 3
    quantization = text.get("quantization_config") or config.get("quantization_config")
    return ModelSpec(
        name=name,
        layers=layers,
        hidden=hidden,
        groups=groups,
        dense_inter=dense_inter,
        mlp_layers=mlps,
        vocab=read.integer("vocab_size"),
        tied=bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", True))),
        max_position=_max_position(read),
        moe=moe,
        mla=mla,
        quantization=read_quantization(quantization, name, found),
        source=source,
        notes=tuple(found),
    )


class _Reader:
    """Typed access to a config, with messages that name the model and the field."""

    def __init__(self, config: Config, name: str) -> None:
        self.config, self.name = config, name

    def integer(self, *keys: str) -> int:
        """The first of ``keys`` that is there, as a positive integer."""
        for key in keys:
            if self.config.get(key) is not None:
                return self._check(key, self.config[key], 1)
        raise UserError(f"model {self.name}: config has no {keys[0]}; expected a Hugging Face config.json of a decoder")

    def optional(self, *keys: str, default: int = 0) -> int:
        """As :meth:`integer`, 0 allowed, ``default`` if none of ``keys`` is there."""
        for key in keys:
            if self.config.get(key) is not None:
                return self._check(key, self.config[key], 0)
        return default

    def _check(self, key: str, value: object, least: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UserError(f"model {self.name}: config: {key}: {value!r}: expected an integer >= {least}")
        return value


def _text_config(config: Config) -> Config:
    for key in ("text_config", "llm_config", "language_config"):
        nested = config.get(key)
        if isinstance(nested, Mapping) and nested.get("num_hidden_layers") is not None:
            return nested
    return config


def _max_position(read: _Reader) -> int:
    text = read.config
    limit = read.integer("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    scaling = text.get("rope_scaling") or text.get("rope_parameters") or {}
    if not isinstance(scaling, Mapping):
        raise UserError(f"model {read.name}: config: rope_scaling: {scaling!r}: expected keys and values")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    factor = scaling.get("factor", 1)
    if kind in _SCALING_IN_MAX_POSITION or not isinstance(factor, (int, float)) or _family(read).startswith("gemma3"):
        return limit
    if kind == "yarn":
        limit = int(scaling.get("original_max_position_embeddings", limit))
    return int(limit * factor)


def _family(read: _Reader) -> str:
    return str(read.config.get("model_type", ""))


# ---------------------------------------------------------------- experts


def _read_moe(read: _Reader, layers: int) -> tuple[Moe | None, int]:
    """Experts and the width of the dense MLP of the layers that have none."""
    text = read.config
    experts = read.optional("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
    if not experts:
        return None, read.integer("intermediate_size", "ffn_hidden_size", "n_inner")
    top_k = read.integer("num_experts_per_tok", "top_k_experts", "experts_per_token", "moe_topk", "moe_top_k")
    # Mixtral, gpt-oss and MiniMax call the width of an expert intermediate_size
    inter = read.integer("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")
    moe_layers = _count_moe_layers(read, layers)
    dense = read.optional("intermediate_size_mlp", "intermediate_size") if moe_layers < layers else 0
    if "shared_expert_intermediate_size" in text or "shared_intermediate_size" in text:
        shared = read.optional("shared_expert_intermediate_size", "shared_intermediate_size")
    elif _family(read).startswith("llama4"):
        shared = inter  # one shared expert as wide as a routed one
    elif text.get("enable_moe_block"):
        shared = read.integer("intermediate_size")  # Gemma 4: a dense MLP beside the experts in every layer
    else:
        shared = read.optional("n_shared_experts", "num_shared_experts") * inter
    return Moe(layers=moe_layers, experts=experts, top_k=top_k, inter=inter, shared_inter=shared), dense


def _count_moe_layers(read: _Reader, layers: int) -> int:
    text = read.config
    kinds = text.get("mlp_layer_types")
    if isinstance(kinds, Sequence) and not isinstance(kinds, str):
        return sum(kind == "sparse" for kind in kinds[:layers])
    if isinstance(text.get("moe_layers"), Sequence):
        return len(text["moe_layers"])
    first_dense = read.optional("first_k_dense_replace")
    dense_only = set(text.get("mlp_only_layers") or ())
    every = read.optional("decoder_sparse_step", "interleave_moe_layer_step", default=1) or 1
    if not isinstance(text.get("moe_layer_freq"), Sequence):
        every = max(every, read.optional("moe_layer_freq", default=1))
    return sum((i + 1) % every == 0 for i in range(first_dense, layers) if i not in dense_only)


# ---------------------------------------------------------------- attention


def _read_mla(read: _Reader) -> Mla | None:
    if not read.optional("kv_lora_rank"):
        return None
    return Mla(
        q_lora=read.optional("q_lora_rank"),
        kv_lora=read.integer("kv_lora_rank"),
        rope_dim=read.integer("qk_rope_head_dim"),
        nope_dim=read.integer("qk_nope_head_dim"),
        v_dim=read.integer("v_head_dim"),
    )


def _read_groups(read: _Reader, layers: int, mla: Mla | None, notes: list[str]) -> tuple[AttentionGroup, ...]:
    text = read.config
    heads = read.integer("num_attention_heads", "n_head")
    kv_heads = read.optional("num_key_value_heads", "num_kv_heads", default=heads) or heads
    hidden = read.integer("hidden_size", "n_embd", "d_model")
    head_dim = read.optional("head_dim", "attention_head_dim", default=hidden // heads) or hidden // heads
    if mla:
        notes.append("MLA: low fidelity, the step time was never fitted on it")
        if read.optional("index_topk"):
            notes.append("sparse attention indexer: not modelled; neither its cache nor the attention it saves")
        return (AttentionGroup("full", layers, heads, 1, mla.nope_dim + mla.rope_dim),)

    kinds = _layer_kinds(read, layers)
    counts = {kind: kinds.count(kind) for kind in dict.fromkeys(kinds) if kind != "mlp"}
    groups: list[AttentionGroup] = []
    gate = bool(text.get("attn_output_gate", _family(read) == "qwen3_next"))
    for kind, count in sorted(counts.items()):
        first = kinds.index(kind)
        if kind == "full":
            wide = read.optional("global_head_dim") or head_dim  # Gemma 4: its own heads in global layers
            few = read.optional("num_global_key_value_heads") or kv_heads
            groups.append(AttentionGroup("full", count, heads, few, wide, output_gate=gate, first_layer=first))
        elif kind == "sliding":
            window = read.integer("sliding_window", "attention_chunk_size")
            chunked = bool(text.get("attention_chunk_size"))
            groups.append(
                AttentionGroup(
                    "sliding", count, heads, kv_heads, head_dim, window=window, chunked=chunked, first_layer=first
                )
            )
        else:
            groups.append(_linear_group(read, count, hidden, first))
            notes.append("linear attention: projections and state traffic only, its kernels were never fitted")
    if text.get("attention_chunk_size") and "sliding" in counts:
        notes.append("chunked local attention: modelled as a sliding window of the chunk size")
    return tuple(groups)


def _layer_kinds(read: _Reader, layers: int) -> list[str]:
    """``full``, ``sliding`` or ``linear`` for every layer; ``mlp`` for one that is nothing but an MLP."""
    text = read.config
    if text.get("hybrid_override_pattern"):
        return _pattern_kinds(str(text["hybrid_override_pattern"]), layers, read)
    types = text.get("layer_types")
    if isinstance(types, Sequence) and not isinstance(types, str):
        if len(types) != layers:
            raise UserError(
                f"model {read.name}: config: layer_types has {len(types)} entries, num_hidden_layers is {layers}"
            )
        return [_kind(str(t), read) for t in types]
    if read.optional("full_attention_interval"):
        interval = read.integer("full_attention_interval")
        return ["full" if (i + 1) % interval == 0 else "linear" for i in range(layers)]
    if read.optional("attention_chunk_size"):  # Llama 4: every fourth layer (no rotary embedding) is global
        interval = read.optional("no_rope_layer_interval", default=4) or 4
        return ["full" if (i + 1) % interval == 0 else "sliding" for i in range(layers)]
    if not text.get("sliding_window") or text.get("use_sliding_window") is False:
        return ["full"] * layers
    pattern = read.optional("sliding_window_pattern", "_sliding_window_pattern")
    if pattern:  # Gemma 3, Cohere 2: every pattern-th layer is global
        return ["full" if (i + 1) % pattern == 0 else "sliding" for i in range(layers)]
    if text.get("use_sliding_window"):  # Qwen2: the first max_window_layers layers are global
        first = read.optional("max_window_layers", default=layers)
        return ["full"] * min(first, layers) + ["sliding"] * max(layers - first, 0)
    return ["sliding"] * layers


def _pattern_kinds(pattern: str, layers: int, read: _Reader) -> list[str]:
    """Nemotron-H: a letter per layer."""
    letters = {"M": "linear", "*": "full", "-": "mlp"}
    unknown = [letter for letter in pattern if letter not in letters]
    if unknown or len(pattern) != layers:
        raise UserError(
            f"model {read.name}: config: hybrid_override_pattern: {pattern!r}: expected {layers} letters M, * or -"
        )
    return [letters[letter] for letter in pattern]


def _kind(layer_type: str, read: _Reader) -> str:
    known = {
        "full_attention": "full",
        "attention": "full",
        "global": "full",
        "sliding_attention": "sliding",
        "chunked_attention": "sliding",
        "local": "sliding",
        "linear_attention": "linear",
    }
    if layer_type not in known:
        raise UserError(
            f"model {read.name}: config: layer_types: {layer_type!r}: expected one of {', '.join(sorted(known))}"
        )
    return known[layer_type]


def _linear_group(read: _Reader, layers: int, hidden: int, first_layer: int) -> AttentionGroup:
    """Mamba 2 layers (Nemotron-H), or gated delta nets (Qwen3-Next, Qwen3.5): a matrix per head and a convolution."""
    if read.config.get("mamba_num_heads"):
        return _mamba2_group(read, layers, hidden, first_layer)
    key_heads, value_heads = read.integer("linear_num_key_heads"), read.integer("linear_num_value_heads")
    key_dim, value_dim = read.integer("linear_key_head_dim"), read.integer("linear_value_head_dim")
    kernel = read.integer("linear_conv_kernel_dim")
    keys, values = key_heads * key_dim, value_heads * value_dim
    mixed = 2 * keys + values  # queries, keys and values pass the convolution together
    element = 2  # bf16, as the model; the recurrent matrix may be kept in fp32 (vLLM: mamba_ssm_cache_dtype)
    matrix_element = 4 if read.config.get("mamba_ssm_dtype") == "float32" else element
    return AttentionGroup(
        "linear",
        layers,
        heads=0,
        kv_heads=0,
        head_dim=0,
        state_bytes=value_heads * key_dim * value_dim * matrix_element + mixed * (kernel - 1) * element,
        projection_params=hidden * (mixed + values + 2 * value_heads) + values * hidden + mixed * kernel,
        first_layer=first_layer,
        recurrence="gdn",
    )


def _mamba2_group(read: _Reader, layers: int, hidden: int, first_layer: int) -> AttentionGroup:
    """Mamba 2: a matrix per head, kept in fp32 (vLLM 0.33.0 model_executor/models/config.py), and a convolution."""
    heads, head_dim, state = (read.integer(key) for key in ("mamba_num_heads", "mamba_head_dim", "ssm_state_size"))
    kernel = read.integer("conv_kernel", "mamba_d_conv")
    inner = heads * head_dim
    mixed = inner + 2 * read.integer("n_groups", "mamba_n_groups") * state  # pass the convolution together
    return AttentionGroup(
        "linear",
        layers,
        heads=0,
        kv_heads=0,
        head_dim=0,
        state_bytes=inner * state * 4 + mixed * (kernel - 1) * 2,
        projection_params=hidden * (inner + mixed + heads) + inner * hidden + mixed * kernel,
        first_layer=first_layer,
        recurrence="mamba2",
    )
