"""Patterns: literal words, every byte told from every other, and torch agreeing with numpy."""

from __future__ import annotations

import numpy as np
import pytest

from hwreplay.pattern import RAMP, Wrong, bases, block_bytes, check, check_block, fill, fill_tensor, tail_salt

FIRST = [[16294208416658607535, 6700445376230912211], [13830413928045401970, 3207027209776756347]]


def test_literal_words() -> None:
    """The format of a pattern is fixed: the same words for ever."""
    assert bases([0, 1], 2, 0).tolist() == FIRST
    words = block_bytes(1, 2, 16).view("<u8").tolist()
    assert words == [[base, (base + RAMP) % 2**64] for base in (FIRST[0][1], FIRST[1][1])]


def test_pieces_and_contents_differ() -> None:
    """No two pieces of 1,000 contents begin alike, nor does the next replay's."""
    made = np.concatenate([bases(range(1000), 16, salt).ravel() for salt in (0, 1)])
    assert len(set(made.tolist())) == made.size


@pytest.mark.parametrize("piece_bytes", [8, 64, 65, 7, 1])
def test_fill_and_check(piece_bytes: int) -> None:
    """What was filled is right, as another content, replay or a shifted piece it is wrong; tails are filled too."""
    memory = np.zeros((3, 2 * piece_bytes), dtype=np.uint8)
    view = memory[:, :piece_bytes]
    fill(view, 5, 9)
    assert check(view, 5, 9) is None
    assert not memory[:, piece_bytes:].any()
    assert check(view, 6, 9) is not None
    assert check(view, 5, 8) is not None
    assert check(view[::-1], 5, 9) is not None


def test_the_first_wrong_byte_is_named() -> None:
    """Offset counts through the pieces."""
    view = np.zeros((3, 16), dtype=np.uint8)
    fill(view, 5)
    right = int(view[1, 3])
    view[1, 3] ^= 1
    view[2, 0] ^= 1
    assert check(view, 5) == Wrong(19, right ^ 1, right)


def test_heads_and_tails() -> None:
    """Each is checked for what it should be; the first wrong byte of a block is in the order of its bytes."""
    view = np.zeros((3, 24), dtype=np.uint8)
    fill(view[:, :8], 5, 9)
    fill(view[:, 8:], 77, tail_salt(9))
    assert check_block(view, 8, 5, 77, 9) is None
    assert check_block(view, 8, 6, 77, 9) is not None
    right = int(view[1, 10])
    view[2, 0] ^= 1
    view[1, 10] ^= 1
    assert check_block(view, 8, 5, 77, 9) == Wrong(24 + 10, right ^ 1, right)
    whole = block_bytes(5, 3, 24, 9)
    assert check_block(whole, 100, 5, 77, 9) is None


def test_torch_writes_the_same() -> None:
    """Bit for bit, whatever device writes it."""
    torch = pytest.importorskip("torch")
    view = torch.zeros((3, 10, 4), dtype=torch.int64)
    fill_tensor(view, torch.tensor([7, 2]), [2**40 + 3, 11], 6)
    for block, content in ((7, 2**40 + 3), (2, 11)):
        assert check(view[:, block].contiguous().numpy().view(np.uint8), content, 6) is None
    assert not view[:, 3].any()
