"""Where the bytes of a block lie: KV tensors of a GPU, rows of a host region, and from tokens to slots.

A block of one rank is `pieces` contiguous pieces of `piece_bytes`. Which pieces there are depends on how vLLM lays its
tensors out:

==============  ==========================================================  =======================
kind            one tensor                                                  pieces of a block
==============  ==========================================================  =======================
per_layer       ``[2, num_blocks, block_tokens, kv_heads, head_size]``      K and V of each layer
per_layer_kv    ``[num_blocks, 2, block_tokens, kv_heads, head_size]``      each layer
mla             ``[num_blocks, block_tokens, head_size]``                   each layer (or one: the whole block)
cross_layer     ``[num_blocks, layers, 2, block_tokens, kv_heads, ...]``    one: the whole block
==============  ==========================================================  =======================

The canonical byte view of all of them is ``[pieces, num_blocks, piece_bytes]``: piece p of block b begins at byte
``(p * num_blocks + b) * piece_bytes``. In a host region a block is one row: its pieces follow each other, and the
rows of the workers (TP ranks) are interleaved, as vLLM's shared region has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import get_args

import numpy as np
import numpy.typing as npt

from hwreplay.result import LayoutRecord
from kvsim.errors import UserError
from kvsim.results.schedule import DTYPE_BYTES, Layout, LayoutKind, layout_bytes

Addresses = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class PagedMemory:
    """Blocks at regular distances in one stretch of memory.

    ``start``: offset of piece 0 of block 0; ``piece_stride`` and ``block_stride``: bytes from one to the next.
    """

    num_blocks: int
    pieces: int
    piece_bytes: int
    piece_stride: int
    block_stride: int
    start: int = 0

    @property
    def block_bytes(self) -> int:
        """Bytes of a block on this rank."""
        return self.pieces * self.piece_bytes

    @property
    def total_bytes(self) -> int:
        """Bytes from 0 to the end of the last piece."""
        if not self.num_blocks:
            return 0
        last = (self.pieces - 1) * self.piece_stride + (self.num_blocks - 1) * self.block_stride
        return self.start + last + self.piece_bytes

    def piece_offset(self, block: int, piece: int) -> int:
        """Where a piece begins."""
        return self.start + piece * self.piece_stride + block * self.block_stride

    def descriptors(self, base: int, blocks: Sequence[int] | npt.NDArray[np.int64]) -> Addresses:
        """Addresses of all pieces of some blocks: piece 0 of each block, then piece 1 of each, and so on.

        Args:
            base: address of byte 0.
            blocks: block ids.
        """
        ids = np.asarray(blocks, dtype=np.uint64)
        pieces = np.arange(self.pieces, dtype=np.uint64) * np.uint64(self.piece_stride)
        rows = np.uint64(base + self.start) + ids * np.uint64(self.block_stride)
        return (pieces[:, None] + rows[None, :]).ravel()

    def heads(self, size: int) -> PagedMemory:
        """The first bytes of each piece."""
        return replace(self, piece_bytes=min(size, self.piece_bytes))

    def tails(self, size: int) -> PagedMemory:
        """What is left of each piece behind its first bytes; maybe nothing."""
        size = min(size, self.piece_bytes)
        return replace(self, piece_bytes=self.piece_bytes - size, start=self.start + size)

    def view(self, buffer: Bytes) -> Bytes:
        """The canonical view ``[pieces, num_blocks, piece_bytes]`` of a stretch of memory, without copying."""
        if buffer.size < self.total_bytes or not buffer.flags.c_contiguous:
            raise ValueError(f"expected {self.total_bytes} contiguous bytes, found {buffer.size}")
        shape = (self.pieces, self.num_blocks, self.piece_bytes)
        strides = (self.piece_stride, self.block_stride, 1)
        return np.lib.stride_tricks.as_strided(buffer[self.start :], shape, strides)


def layout_record(layout: Layout) -> LayoutRecord:
    """A schedule's layout, as results keep it."""
    return LayoutRecord(**asdict(layout))


def schedule_layout(layout: LayoutRecord) -> Layout:
    """The other way round."""
    return Layout(**asdict(layout))


def gpu_memory(layout: LayoutRecord, num_blocks: int) -> PagedMemory:
    """The KV tensors of a GPU, one after another."""
    return PagedMemory(
        num_blocks, layout.pieces, layout.piece_bytes, num_blocks * layout.piece_bytes, layout.piece_bytes
    )


def host_memory(layout: LayoutRecord, num_blocks: int, workers: int = 1, rank: int = 0) -> PagedMemory:
    """One worker's share of a host region in which the blocks of all workers are interleaved."""
    block_bytes = layout.pieces * layout.piece_bytes
    return PagedMemory(
        num_blocks, layout.pieces, layout.piece_bytes, layout.piece_bytes, workers * block_bytes, rank * block_bytes
    )


class KVLayout:
    """The KV tensors that a layout stands for, where its numbers say what each byte is.

    Raises:
        UserError: the pieces are not those of this kind of layout (a schedule that was scaled down has other pieces).
    """

    def __init__(self, layout: LayoutRecord, num_blocks: int) -> None:
        if layout.dtype not in DTYPE_BYTES:
            raise UserError(f"layout.dtype: expected one of {', '.join(DTYPE_BYTES)}, found {layout.dtype!r}")
        if layout.kind not in get_args(LayoutKind):
            raise UserError(f"layout.kind: expected one of {', '.join(get_args(LayoutKind))}, found {layout.kind!r}")
        self.layout = layout
        self.num_blocks = num_blocks
        self.memory = gpu_memory(layout, num_blocks)
        self._row_bytes = layout.kv_heads * layout.head_size * DTYPE_BYTES[layout.dtype]  # K or V of a token
        pieces, piece_bytes = layout_bytes(schedule_layout(layout))
        if (layout.pieces, layout.piece_bytes) != (pieces, piece_bytes):
            raise UserError(
                f"layout: {layout.layers} layers of kind {layout.kind} have {pieces} pieces of {piece_bytes} bytes,"
                f" found {layout.pieces} of {layout.piece_bytes}"
            )

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """Shape of one tensor, in elements."""
        layout = self.layout
        tail = (layout.block_tokens, layout.kv_heads, layout.head_size)
        if layout.kind == "per_layer":
            return (2, self.num_blocks, *tail)
        if layout.kind == "per_layer_kv":
            return (self.num_blocks, 2, *tail)
        if layout.kind == "mla":
            latent = (layout.block_tokens, layout.kv_heads * layout.head_size)
            return (self.num_blocks, *latent) if layout.pieces > 1 else (self.num_blocks, layout.layers, *latent)
        return (self.num_blocks, layout.layers, 2, *tail)

    @property
    def tensors(self) -> int:
        """How many tensors there are: one per layer, or one in all."""
        return 1 if self.layout.pieces == 1 else self.layout.layers

    def token_offset(self, slot: int, layer: int, part: int = 0) -> int:
        """First byte of what a layer keeps of one token.

        Args:
            slot: as `slot_mapping` gives it.
            layer: from 0.
            part: 0 = K (or MLA's latent), 1 = V.
        """
        layout = self.layout
        block, token = divmod(slot, layout.block_tokens)
        half = layout.block_tokens * self._row_bytes
        row = token * self._row_bytes
        if layout.kind == "per_layer":
            return self.memory.piece_offset(block, 2 * layer + part) + row
        if layout.kind == "cross_layer":
            return self.memory.piece_offset(block, 0) + (2 * layer + part) * half + row
        if layout.pieces == 1:
            return self.memory.piece_offset(block, 0) + (layer if layout.kind == "mla" else part) * half + row
        return self.memory.piece_offset(block, layer) + part * half + row


def slot_mapping(block_table: Sequence[int], positions: Sequence[int], block_tokens: int) -> list[int]:
    """Slots of a request's tokens: block id x block_tokens + place in the block, as vLLM numbers them.

    Args:
        block_table: the request's blocks in order.
        positions: of tokens in the request, from 0.
        block_tokens: tokens per block.
    """
    return [block_table[position // block_tokens] * block_tokens + position % block_tokens for position in positions]
