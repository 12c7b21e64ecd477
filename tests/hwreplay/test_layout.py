"""Literal offsets, block tables and slots."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hwreplay.layout import KVLayout, gpu_memory, host_memory, slot_mapping
from hwreplay.result import LayoutRecord
from kvsim.errors import UserError

# 3 layers, 2 KV heads of 4 elements of 2 bytes: 16 bytes of K per token; 4 tokens per block: 64 bytes of K per layer
PER_LAYER = LayoutRecord("per_layer", 3, 2, 4, "bfloat16", 4, 6, 64)
PER_LAYER_KV = LayoutRecord("per_layer_kv", 3, 2, 4, "bfloat16", 4, 3, 128)
CROSS_LAYER = LayoutRecord("cross_layer", 3, 2, 4, "bfloat16", 4, 1, 384)
MLA = LayoutRecord("mla", 3, 1, 8, "bfloat16", 4, 3, 64)
MLA_WHOLE = LayoutRecord("mla", 3, 1, 8, "bfloat16", 4, 1, 192)


def test_slots() -> None:
    """Token position to block to slot, with a table that is not in order."""
    table = [7, 2, 9]
    assert slot_mapping(table, range(10), 4) == [28, 29, 30, 31, 8, 9, 10, 11, 36, 37]
    assert slot_mapping(table, [11, 0, 4], 4) == [39, 28, 8]
    with pytest.raises(IndexError):
        slot_mapping(table, [12], 4)


def test_piece_offsets_on_a_gpu() -> None:
    """Pieces of one kind lie together, block beside block; a block's pieces are a tensor apart."""
    memory = gpu_memory(PER_LAYER, 10)
    assert [memory.piece_offset(block, piece) for piece in (0, 1, 5) for block in (0, 1, 9)] == [
        0, 64, 576, 640, 704, 1216, 3200, 3264, 3776,
    ]  # fmt: skip
    assert memory.total_bytes == 3840
    assert memory.block_bytes == 384


def test_piece_offsets_on_a_host() -> None:
    """A block is one row, and the rows of the workers alternate."""
    memory = host_memory(PER_LAYER, 10, workers=2, rank=1)
    assert [memory.piece_offset(block, piece) for block in (0, 1) for piece in (0, 1, 5)] == [
        384, 448, 704, 1152, 1216, 1472,
    ]  # fmt: skip
    assert memory.total_bytes == 7680
    assert host_memory(PER_LAYER, 0).total_bytes == 0


def test_descriptors_are_piece_major() -> None:
    """Piece 0 of each block first, the same order on both sides."""
    layout = replace(PER_LAYER_KV, layers=2, pieces=2)
    assert gpu_memory(layout, 10).descriptors(10_000, [3, 0]).tolist() == [10_384, 10_000, 11_664, 11_280]
    assert host_memory(layout, 10).descriptors(10_000, [1, 2]).tolist() == [10_256, 10_512, 10_384, 10_640]
    assert gpu_memory(layout, 10).descriptors(2**63, []).tolist() == []
    assert gpu_memory(layout, 10).descriptors(2**63 + 5, [1]).tolist() == [2**63 + 133, 2**63 + 1413]


def test_heads_and_tails() -> None:
    """Each piece in two: where they begin and how long they are."""
    memory = host_memory(PER_LAYER, 10)
    assert (memory.heads(16).piece_bytes, memory.heads(16).piece_offset(1, 2)) == (16, 512)
    assert (memory.tails(16).piece_bytes, memory.tails(16).piece_offset(1, 2)) == (48, 528)
    assert memory.tails(16).total_bytes == memory.total_bytes
    assert (memory.heads(1000), memory.tails(1000).piece_bytes) == (memory, 0)


def test_canonical_view() -> None:
    """The view shows each piece of each block, on both sides, without copying."""
    buffer = np.arange(3840, dtype=np.uint64).astype(np.uint8)
    for memory in (gpu_memory(PER_LAYER, 10), host_memory(PER_LAYER, 10)):
        view = memory.view(buffer)
        assert view.shape == (6, 10, 64)
        for piece, block in ((0, 0), (5, 9), (2, 7)):
            start = memory.piece_offset(block, piece)
            assert view[piece, block].tolist() == buffer[start : start + 64].tolist()
        assert np.shares_memory(view, buffer)
    with pytest.raises(ValueError, match="expected 3840 contiguous bytes, found 3839"):
        gpu_memory(PER_LAYER, 10).view(buffer[:-1])


@pytest.mark.parametrize(
    ("layout", "shape", "tensors"),
    [
        (PER_LAYER, (2, 10, 4, 2, 4), 3),
        (PER_LAYER_KV, (10, 2, 4, 2, 4), 3),
        (MLA, (10, 4, 8), 3),
        (MLA_WHOLE, (10, 3, 4, 8), 1),
        (CROSS_LAYER, (10, 3, 2, 4, 2, 4), 1),
    ],
)
def test_tensor_shapes(layout: LayoutRecord, shape: tuple[int, ...], tensors: int) -> None:
    """Tensors as vLLM has them; their bytes are the pool's."""
    kv = KVLayout(layout, 10)
    assert (kv.tensor_shape, kv.tensors) == (shape, tensors)
    assert np.prod(shape) * tensors * 2 == kv.memory.total_bytes


@pytest.mark.parametrize("layout", [PER_LAYER, PER_LAYER_KV, MLA, MLA_WHOLE, CROSS_LAYER])
def test_token_offsets_are_those_of_the_tensors(layout: LayoutRecord) -> None:
    """The byte of a token's K or V is where indexing the tensor finds it."""
    kv = KVLayout(layout, 10)
    table = [7, 2]
    for position, slot in zip((0, 5, 7), slot_mapping(table, (0, 5, 7), 4), strict=True):
        block, token = table[position // 4], position % 4
        for layer in range(3):
            index: tuple[int, ...]
            for part in (0,) if layout.kind == "mla" else (0, 1):
                index = {
                    "per_layer": (part, block, token, 0, 0),
                    "per_layer_kv": (block, part, token, 0, 0),
                    "mla": (block, token, 0) if layout.pieces > 1 else (block, layer, token, 0),
                    "cross_layer": (block, layer, part, token, 0, 0),
                }[layout.kind]
                tensor = 0 if layout.pieces == 1 else layer
                element = int(np.ravel_multi_index(index, kv.tensor_shape))
                expected = (tensor * int(np.prod(kv.tensor_shape)) + element) * 2
                assert kv.token_offset(slot, layer, part) == expected
    assert KVLayout(PER_LAYER, 10).token_offset(29, 1, 1) == 2384  # piece 3, block 7, token 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pieces": 3}, "3 layers of kind per_layer have 6 pieces of 64 bytes, found 3 of 64"),
        ({"dtype": "int3"}, "layout.dtype: expected one of bfloat16, "),
        ({"kind": "rows"}, "layout.kind: expected one of cross_layer, "),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, object], message: str) -> None:
    """Pieces that are no tensor's are named."""
    with pytest.raises(UserError, match=message):
        KVLayout(replace(PER_LAYER, **change), 10)  # type: ignore[arg-type]  # one field of each type
