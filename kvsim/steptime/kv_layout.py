"""How vLLM shares one pool of KV blocks among the layers of a model: groups, pages and block sizes."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, lcm

from kvsim.errors import UserError
from kvsim.steptime.spec import AttentionGroup, ModelSpec


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers that share a block table.

    Attributes:
        kind: ``full``, ``sliding``, ``chunked`` or ``mamba`` (any recurrent state).
        layers: how many; the last group of a kind may have fewer than the others.
        block_tokens: tokens per block; 0 where a block is a request's whole state (``mamba`` without prefix caching).
        window: of ``sliding`` and ``chunked``, else 0.
        states: blocks that one request holds of a ``mamba`` group, else 0.
        checkpoints: the kernel exports states from inside a prefill chunk (``mamba``).
    """

    kind: str
    layers: int
    block_tokens: int
    window: int = 0
    states: int = 0
    checkpoints: bool = False

    def blocks_per_request(self, tokens: int, max_num_batched_tokens: int) -> int:
        """Blocks that a request of so many tokens may hold at once.

        vLLM 0.33.0 v1/kv_cache_interface.py: a window keeps itself less one and the tokens of a step, and a block more
        because it need not begin at a boundary; a chunk keeps itself and the tokens of a step.
        """
        if self.kind == "mamba":
            return self.states
        if self.kind == "sliding":
            return ceil(min(self.window - 1 + max_num_batched_tokens, tokens) / self.block_tokens) + 1
        if self.kind == "chunked":
            return ceil(min(self.window + max_num_batched_tokens, tokens) / self.block_tokens)
        return ceil(tokens / self.block_tokens)


@dataclass(frozen=True, slots=True)
class KVLayout:
    """How the layers of a model share the blocks of one pool, on one rank.

    Attributes:
        block_tokens: tokens per block of the full-attention layers.
        kinds: the groups, in vLLM's order: by the first layer of their kind.
        layers_per_group: layers whose pages make up one block of a group.
        page_bytes: bytes of one layer's part of a block.
        block_bytes: bytes of one block: the pages of one group's layers.
    """

    block_tokens: int
    kinds: tuple[KVGroup, ...]
    layers_per_group: int
    page_bytes: int
    block_bytes: int

    @property
    def groups(self) -> int:
        """Number of KV cache groups (1 if all layers are alike)."""
        return len(self.kinds)

    def num_blocks(self, kv_bytes: int) -> int:
        """Blocks that fit."""
        return max(kv_bytes // self.block_bytes, 0)

    def blocks_per_request(self, tokens: int, max_num_batched_tokens: int) -> int:
        """Blocks that one request of ``tokens`` tokens may hold at once, over all groups."""
        return sum(group.blocks_per_request(tokens, max_num_batched_tokens) for group in self.kinds)


def kv_layout(
    model: ModelSpec,
    tp: int = 1,
    block_tokens: int = 16,
    *,
    hybrid: bool = True,
    prefix_caching: bool = True,
    state_alignment: int = 0,
) -> KVLayout:
    """Groups and page size by vLLM (0.33.0 v1/core/kv_cache_planning.py, platforms/interface.py; 0.23.0 alike).

    All layers alike: one group of all layers. Otherwise the group size is the smallest layer count of a kind, or the
    largest one if that is less than 1.5 times the smallest; each kind is cut into groups of that size, all as large as
    the largest (the last one is padded). Pages are made equal: attention layers with fewer bytes per token get larger
    blocks (or padding), and beside recurrent states all blocks grow until a page holds a state, which is padded to it.

    Args:
        model: what runs.
        tp: tensor-parallel ranks.
        block_tokens: vLLM's ``--block-size``.
        hybrid: False = ``--disable-hybrid-kv-cache-manager``: windows are kept as if they were full attention.
        prefix_caching: recurrent states are kept at block boundaries.
        state_alignment: tokens that the places where a kernel can export a state are multiples of; 0 = it cannot.

    Raises:
        UserError: recurrent states without the hybrid manager.
    """
    model.check_tp(tp)
    attention = [group for group in model.groups if group.kind != "linear"]
    linear = [group for group in model.groups if group.kind == "linear"]
    per_token = {group: model.kv_bytes_per_token_layer(group, tp) for group in attention}
    if not hybrid or not (linear or len(attention) > 1):
        return _one_group(model, block_tokens, per_token, hybrid=hybrid)
    if linear:
        state = max(group.state_bytes // tp for group in linear)
        block_tokens = _block_for_a_state(state, max(per_token.values()), block_tokens, state_alignment)
    page = block_tokens * max(per_token.values())
    checkpoints = prefix_caching and state_alignment > 0
    kinds: list[tuple[int, KVGroup]] = []
    for group in sorted(model.groups, key=lambda group: group.first_layer):
        if group.kind == "linear":
            states = 2 + checkpoints if prefix_caching else 1
            tokens = block_tokens if prefix_caching else 0
            kinds.append((group.layers, KVGroup("mamba", 0, tokens, states=states, checkpoints=checkpoints)))
        else:
            size = block_tokens * per_token[group]
            tokens = block_tokens * (page // size) if page % size == 0 else block_tokens
            kinds.append((group.layers, KVGroup(_kind(group), 0, tokens, group.window)))
    few, many = min(layers for layers, _ in kinds), max(layers for layers, _ in kinds)
    size = many if many < 1.5 * few else few
    cut: list[KVGroup] = []
    for layers, kind in kinds:
        parts = ceil(layers / size)
        cut += [_with_layers(kind, len(range(part, layers, parts))) for part in range(parts)]
    return KVLayout(block_tokens, tuple(cut), size, page, page * size)


def _one_group(model: ModelSpec, block_tokens: int, per_token: dict[AttentionGroup, int], *, hybrid: bool) -> KVLayout:
    """All layers keep every token; or there is only one kind of them."""
    if any(group.kind == "linear" for group in model.groups):
        raise UserError(
            f"model {model.name}: recurrent states need vLLM's hybrid KV cache manager, which is off: its own engine"
            " would fail at startup"
        )
    layers = sum(group.layers for group in per_token)
    only = next(iter(per_token))
    kind = KVGroup(_kind(only), layers, block_tokens, only.window) if hybrid else KVGroup("full", layers, block_tokens)
    block_bytes = block_tokens * sum(group.layers * size for group, size in per_token.items())
    return KVLayout(block_tokens, (kind,), layers, block_tokens * max(per_token.values()), block_bytes)


def _block_for_a_state(state: int, per_token: int, block_tokens: int, state_alignment: int) -> int:
    """Tokens per block so that a page of one attention layer holds a state.

    vLLM 0.33.0 platforms/interface.py, _align_hybrid_block_size; kernels take multiples of 16 tokens.
    """
    unit = lcm(max(16, block_tokens), state_alignment or 1)
    return unit * ceil(state / (unit * per_token))


def _kind(group: AttentionGroup) -> str:
    return "chunked" if group.chunked else group.kind


def _with_layers(kind: KVGroup, layers: int) -> KVGroup:
    return KVGroup(kind.kind, layers, kind.block_tokens, kind.window, kind.states, kind.checkpoints)


def blocks_per_request(
    model: ModelSpec, tokens: int, tp: int = 1, block_tokens: int = 16, max_num_batched_tokens: int = 8192
) -> int:
    """Blocks that one request of ``tokens`` tokens may hold at once, over all groups.

    The quotient of all blocks and this is vLLM's "Maximum concurrency".
    """
    return kv_layout(model, tp, block_tokens).blocks_per_request(tokens, max_num_batched_tokens)


def kv_cache_tokens(
    model: ModelSpec,
    num_blocks: int,
    max_model_len: int,
    tp: int = 1,
    block_tokens: int = 16,
    max_num_batched_tokens: int = 8192,
) -> int:
    """The "GPU KV cache size" that vLLM logs: maximum concurrency times ``max_model_len``."""
    per_request = blocks_per_request(model, max_model_len, tp, block_tokens, max_num_batched_tokens)
    return num_blocks * max_model_len // per_request
