"""Chunks in the order in which they were last moved to the end, by the run."""

from __future__ import annotations

from collections.abc import Iterator

from kvsim.extents.chunk_piece import ChunkPiece


class PieceQueue:
    """A linked list of pieces, the oldest first; a piece stands for its chunks one after another.

    In a rising piece the first chunk is the oldest, else the last one. A piece of one chunk is both.
    """

    __slots__ = ("_end", "num_chunks")

    def __init__(self) -> None:
        end = self._end = ChunkPiece(-1, 0, 0)
        end.before = end.after = end
        self.num_chunks = 0

    def __iter__(self) -> Iterator[ChunkPiece]:
        """Oldest first. The piece last yielded may be removed, and pieces may be appended (and will be met)."""
        piece, end = self._end.after, self._end
        while piece is not end:
            following = piece.after
            yield piece
            piece = following

    def append(self, piece: ChunkPiece) -> None:
        """Put at the end, as the youngest."""
        end = self._end
        youngest = end.before
        piece.before, piece.after = youngest, end
        youngest.after = end.before = piece
        self.num_chunks += piece.last - piece.first

    def remove(self, piece: ChunkPiece) -> None:
        """Take out."""
        piece.before.after, piece.after.before = piece.after, piece.before
        self.num_chunks -= piece.last - piece.first

    def place_after(self, piece: ChunkPiece, younger: ChunkPiece) -> None:
        """Put in what has been cut off a piece that is here."""
        following = piece.after
        younger.before, younger.after = piece, following
        piece.after = following.before = younger

    def continues(self, piece: ChunkPiece) -> bool:
        """Whether a piece's chunks go on where the youngest piece ends, in the same state: one piece is enough.

        A falling piece never makes the youngest rise: who moves the chunks of a path, the last first, would move the
        same ones again.
        """
        youngest = self._end.before
        if (
            youngest.segment != piece.segment
            or youngest.ref_count != piece.ref_count
            or youngest.doomed is not piece.doomed
        ):
            return False
        if youngest.first == piece.last:
            return _may_fall(youngest) and _may_fall(piece)
        return youngest.last == piece.first and piece.rising and (youngest.rising or len(youngest) == 1)

    def absorb(self, piece: ChunkPiece) -> None:
        """Append a piece's chunks to the youngest piece, which they continue. The piece itself is no more."""
        youngest = self._end.before
        if youngest.first == piece.last:
            youngest.first, youngest.rising = piece.first, False
        else:
            youngest.last, youngest.rising = piece.last, True
        self.num_chunks += piece.last - piece.first

    def drop_oldest(self, piece: ChunkPiece, count: int) -> None:
        """Shorten a piece by its oldest chunks, fewer than it has."""
        if piece.rising:
            piece.first += count
        else:
            piece.last -= count
        self.num_chunks -= count


def cut_younger(piece: ChunkPiece, position: int) -> ChunkPiece:
    """Shorten a piece to its older part and return the younger one."""
    if piece.rising:
        younger = piece.cut_off(position, piece.last)
        piece.last = position
    else:
        younger = piece.cut_off(piece.first, position)
        piece.first = position
    return younger


def oldest_end(piece: ChunkPiece, count: int) -> int:
    """Where to cut so that the oldest ``count`` chunks are one part."""
    return piece.first + count if piece.rising else piece.last - count


def _may_fall(piece: ChunkPiece) -> bool:
    return not piece.rising or piece.last - piece.first == 1
