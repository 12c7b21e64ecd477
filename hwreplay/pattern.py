"""What a block holds, so that every byte can be told from every other.

Word i (64 bits, little endian) of piece p of a block with content c is ``base(c, p, salt) + i * RAMP`` modulo 2**64:
the base is a hash, so that no two pieces look alike, and the ramp tells the words of a piece apart. Only additions and
multiplications of integers are used, which every device does bit for bit alike. `salt` is the number of the replay, so
that what an earlier one left in memory is never mistaken for what this one should have written.

A forward pass on a machine with slow memory writes only the head of each piece (`Machine.head_bytes`). The tail then
still holds what it held before, and copies take it along: it tells where the block's bytes have come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from hwreplay.layout import Bytes

RAMP = 0x9E3779B97F4A7C15  # odd: the first 2**64 words of a piece differ
WORD = 8

ORIGINS: dict[str, int] = {"gpu": 1 << 40, "host": 2 << 40, "files": 3 << 40}
"""What the tail of a block holds at first, plus its id: a number where heads have contents."""

_TAIL_SALT = 1 << 32

Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Wrong:
    """The first byte of a block that is not what it should be; offset counts through its pieces."""

    offset: int
    found: int
    expected: int


def bases(contents: Sequence[int] | npt.NDArray[np.int64], pieces: int, salt: int = 0) -> Words:
    """First words of the pieces of some contents: shape ``[pieces, contents]``."""
    ids = np.asarray(contents, dtype=np.uint64)
    keys = ids[None, :] * np.uint64(0xD1342543DE82EF95) + np.arange(pieces, dtype=np.uint64)[:, None]
    return _mixed(_mixed(keys) + np.uint64((salt + 1) * RAMP % 2**64))


def _mixed(x: Words) -> Words:
    """The finaliser of splitmix64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@lru_cache(maxsize=8)
def ramp(words: int) -> Words:
    """What is added to the base, for each word of a piece."""
    made = np.arange(words, dtype=np.uint64) * np.uint64(RAMP)
    made.flags.writeable = False
    return made


@lru_cache(maxsize=4)
def _scratch(pieces: int, words: int) -> Words:
    """Memory for one block, for `check`."""
    return np.empty((pieces, words), dtype=np.uint64)


def block_bytes(content: int, pieces: int, piece_bytes: int, salt: int = 0) -> Bytes:
    """The bytes of a block: shape ``[pieces, piece_bytes]``."""
    words = -(-piece_bytes // WORD)
    made = bases([content], pieces, salt) + ramp(words)[None, :]
    return np.ascontiguousarray(made.astype("<u8", copy=False).view(np.uint8)[:, :piece_bytes])


def fill(view: Bytes, content: int, salt: int = 0) -> None:
    """Write a block; ``view`` is ``[pieces, piece_bytes]``, each piece contiguous. Releases the GIL while it writes."""
    pieces, piece_bytes = view.shape
    if piece_bytes % WORD or view.strides[0] % WORD or view.ctypes.data % WORD:
        view[:] = block_bytes(content, pieces, piece_bytes, salt)
        return
    words = view.view(np.uint64)
    np.add(bases([content], pieces, salt), ramp(piece_bytes // WORD)[None, :], out=words)


def tail_salt(salt: int) -> int:
    """The salt of tails, with which none looks like a head."""
    return salt + _TAIL_SALT


def check_block(view: Bytes, head: int, content: int, origin: int, salt: int = 0) -> Wrong | None:
    """The first wrong byte of a block whose pieces have ``head`` bytes of a content and a tail of an origin."""
    piece_bytes = view.shape[1]
    head = min(head, piece_bytes)
    found = [(check(view[:, :head], content, salt), head, 0)]
    if head < piece_bytes:
        found.append((check(view[:, head:], origin, tail_salt(salt)), piece_bytes - head, head))
    wrongs = []
    for wrong, width, start in found:
        if wrong is not None:
            piece, byte = divmod(wrong.offset, width)
            wrongs.append(replace(wrong, offset=piece * piece_bytes + start + byte))
    return min(wrongs, key=lambda wrong: wrong.offset, default=None)


def check(view: Bytes, content: int, salt: int = 0) -> Wrong | None:
    """The first wrong byte of a block, None if all are right; ``view`` is ``[pieces, piece_bytes]``."""
    pieces, piece_bytes = view.shape
    if piece_bytes % WORD == 0 and view.strides == (view.strides[0] // WORD * WORD, 1) and view.ctypes.data % WORD == 0:
        scratch = _scratch(pieces, piece_bytes // WORD)
        np.add(bases([content], pieces, salt), ramp(piece_bytes // WORD)[None, :], out=scratch)
        if np.array_equal(view.view(np.uint64), scratch):
            return None
    expected = block_bytes(content, pieces, piece_bytes, salt)
    if np.array_equal(view, expected):
        return None
    piece, byte = (int(places[0]) for places in np.nonzero(view != expected))
    return Wrong(piece * view.shape[1] + byte, int(view[piece, byte]), int(expected[piece, byte]))


def fill_tensor(view: Any, blocks: Any, contents: Sequence[int], salt: int = 0) -> None:
    """Write blocks of a torch tensor, on its device and on the current stream.

    Args:
        view: int64, ``[pieces, num_blocks, words]``; the canonical view, by words.
        blocks: block ids, an int64 tensor on the same device.
        contents: one for each.
        salt: number of the replay.
    """
    import torch

    pieces, _, words = view.shape
    # Signed words wrap around as unsigned ones do.
    host = torch.from_numpy(bases(contents, pieces, salt).view(np.int64))
    if view.is_cuda:
        host = host.pin_memory()  # else the copy would wait for the stream
    first = host.to(view.device, non_blocking=True)
    steps = torch.arange(words, dtype=torch.int64, device=view.device) * (RAMP - 2**64)
    view.index_copy_(1, blocks, first[:, :, None] + steps)
