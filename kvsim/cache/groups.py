"""KV cache groups: layers that keep the same kind of state, and what is common to all groups over one pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, lcm
from typing import ClassVar, Literal

from kvsim.cache.block_pool import BlockPool


@dataclass(frozen=True, slots=True)
class FullAttention:
    """Every token's KV is kept. ``block_size`` in tokens, as everywhere here."""

    kind: ClassVar[str] = "full_attention"
    block_size: int


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """The next token attends to itself and the ``window - 1`` tokens before it."""

    kind: ClassVar[str] = "sliding_window"
    block_size: int
    window: int


@dataclass(frozen=True, slots=True)
class ChunkedLocal:
    """The next token attends to its own chunk of ``chunk`` tokens (Llama 4)."""

    kind: ClassVar[str] = "chunked_local_attention"
    block_size: int
    chunk: int


@dataclass(frozen=True, slots=True)
class Mamba:
    """One state per request (Mamba, linear attention): a block holds the state after its last token.

    ``mode``: vLLM's ``mamba_cache_mode``, ``align`` with prefix caching (states at block boundaries can be hit),
    ``none`` without it (``block_size`` is then ``max_model_len``). ``checkpoints``: the kernel can export the state at
    a block boundary from inside a prefill chunk, into a block of its own, so that the chunk need not end there.
    """

    kind: ClassVar[str] = "mamba"
    block_size: int
    mode: Literal["align", "none"] = "align"
    checkpoints: bool = False


GroupSpec = FullAttention | SlidingWindow | ChunkedLocal | Mamba


def hash_block_size(specs: Sequence[GroupSpec]) -> int:
    """Tokens per block hash: the largest that divides the blocks of every group.

    vLLM 0.33.0 v1/core/kv_cache_utils.py, resolve_kv_cache_block_sizes; the common multiple where a state without
    prefix caching makes the sizes incommensurable (hashes are not used then).
    """
    if any(isinstance(spec, Mamba) and spec.mode != "align" for spec in specs):
        return lcm(*(spec.block_size for spec in specs))
    return gcd(*(spec.block_size for spec in specs))


@dataclass(frozen=True, slots=True)
class SharedPool:
    """One pool for all groups. A block's content is numbered ``hash * num_groups + group``.

    Attributes:
        pool: the blocks.
        num_groups: how many groups take blocks from it.
        hash_block_size: tokens per block hash of a request.
        alignment: tokens that the length of a hit is a multiple of: the common multiple of the groups' blocks.
        max_in_flight_tokens: tokens that may be scheduled and not yet settled: the budget of one step.
        max_model_len: the longest request.
        retention_tokens: vLLM's ``prefix_cache_retention_interval``. Windows and states are kept to be hit: 0 = only
            where a prompt ends or other groups hold more; else after every so many tokens, too; None = everywhere.
    """

    pool: BlockPool
    num_groups: int
    hash_block_size: int
    alignment: int
    max_in_flight_tokens: int
    max_model_len: int
    retention_tokens: int | None
