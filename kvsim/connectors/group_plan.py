"""What of each KV cache group is worth offloading, and how much of it a load needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvsim.cache.groups import ChunkedLocal, FullAttention, GroupSpec, Mamba, SlidingWindow


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One group as the offloading connector sees it.

    Attributes:
        group: its number.
        spec: what it is.
        chunk_blocks: GPU blocks in a chunk.
        hash_tokens: tokens per block hash.
        alignment_tokens: tokens that the ends of loads are multiples of; None = several full-attention chunk sizes.
        retention_tokens: vLLM's ``prefix_cache_retention_interval`` (see `kvsim.cache.groups.SharedPool`).
    """

    group: int
    spec: GroupSpec
    chunk_blocks: int
    hash_tokens: int
    alignment_tokens: int | None
    retention_tokens: int | None

    @property
    def block_tokens(self) -> int:
        """Tokens per GPU block."""
        return self.spec.block_size

    @property
    def chunk_tokens(self) -> int:
        """Tokens per chunk."""
        return self.spec.block_size * self.chunk_blocks

    @property
    def hashes_per_chunk(self) -> int:
        """Block hashes per chunk; the last one names it."""
        return self.chunk_tokens // self.hash_tokens

    @property
    def keeps_states(self) -> bool:
        """Its blocks are recurrent states: stored when they are hashed, not by their place in a table."""
        return isinstance(self.spec, Mamba)

    @property
    def window_chunks(self) -> int | None:
        """Chunks at its end that a hit needs; None = all (vLLM 0.33.0 offloading/config.py)."""
        match self.spec:
            case SlidingWindow(window=window) | ChunkedLocal(chunk=window):
                return -(-window // self.chunk_tokens)
            case Mamba():
                return 1
            case FullAttention():
                return None

    def load_window_chunks(self, num_tokens: int) -> int | None:
        """The same for a hit of so many tokens, which may end inside a chunk."""
        window = self.window_chunks
        if window is None or not isinstance(self.spec, SlidingWindow):
            return window
        padding = -num_tokens % self.chunk_tokens
        return max(window, -(-(self.spec.window - 1 + padding) // self.chunk_tokens))

    @property
    def tail_blocks(self) -> int | None:
        """Blocks between the places where loads can end, if this is a window in blocks that fit between them."""
        alignment = self.alignment_tokens
        if alignment is None or not isinstance(self.spec, SlidingWindow) or alignment % self.block_tokens:
            return None
        return alignment // self.block_tokens

    def reachable_blocks(
        self, first: int, last: int, end: int | None, boundaries: Sequence[int]
    ) -> Sequence[bool] | None:
        """Which of the blocks ``first .. last-1`` a load could need; None = all.

        A window is loaded with a prefix that ends aligned, or with the whole request (``end``: its last block). With
        sparse retention only those that end after an interval, or at ``boundaries`` (tokens), are of interest.
        Rule: vLLM 0.33.0 v1/core/single_type_kv_cache_manager.py, SlidingWindowManager.reachable_block_mask.
        """
        tail, alignment, retained = self.tail_blocks, self.alignment_tokens, self.retention_tokens
        if tail is None or alignment is None or not isinstance(self.spec, SlidingWindow):
            return None
        stretch = tail if retained is None else retained // self.block_tokens  # 0 = no stretches
        needed = -(-(self.spec.window - 1) // self.block_tokens)
        if stretch and needed >= stretch:
            return None
        mask = [bool(stretch) and block % stretch >= stretch - needed for block in range(first, last)]
        ends = [] if retained is None else [tokens // alignment * tail for tokens in boundaries]
        tails = [range(max(first, place - needed), min(last, place)) for place in ends]
        if end is not None and stretch and end % stretch:
            tails.append(range(max(first, end - end % stretch, end - needed), min(last, end)))
        for places in tails:
            for block in places:
                mask[block - first] = True
        return mask


def group_plans(
    specs: Sequence[GroupSpec], chunk_blocks: int, hash_tokens: int, retention_tokens: int | None
) -> list[GroupPlan]:
    """The groups under the alignment that they have in common (vLLM 0.33.0 offloading/scheduler.py, from_spec)."""
    full = {spec.block_size * chunk_blocks for spec in specs if isinstance(spec, FullAttention)}
    alignment = next(iter(full)) if len(full) == 1 else None
    if not full:
        alignment = max(spec.block_size for spec in specs) * chunk_blocks
    return [
        GroupPlan(group, spec, chunk_blocks, hash_tokens, alignment, retention_tokens)
        for group, spec in enumerate(specs)
    ]
