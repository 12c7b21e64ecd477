"""What the GPU pool by the run consists of: pieces of copies, the queue of the free ones, the table of a request."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from operator import attrgetter

from kvsim.extents.pieces import Piece

NO_SEGMENT = -1  # of a piece of blocks without content
NOBODY: tuple[int, ...] = ()
_first = attrgetter("first")


class PoolPiece(Piece):
    """GPU blocks with consecutive contents: held by the same requests, or neighbours in the free queue.

    The queue hands out the last block of a free piece first. Blocks without content have no position, just a number.

    Attributes:
        refs: requests that hold it; 0 = in the free queue.
        is_duplicate: an older copy answers lookups.
        watch: store jobs that still read it, of requests that have ended.
        next_held: what was cut off behind it while somebody held it; such a holder holds that too (see `Table`).
        before, after: neighbours in the free queue; meaningless while held.
    """

    __slots__ = ("after", "before", "is_duplicate", "next_held", "refs", "watch")

    def __init__(self, segment: int, first: int, last: int, refs: int = 0) -> None:
        self.segment, self.first, self.last, self.refs = segment, first, last, refs
        self.is_duplicate, self.watch = False, NOBODY
        self.next_held: PoolPiece | None = None
        self.before = self.after = self

    def chain(self, end: int) -> Iterator[PoolPiece]:
        """What a request holds that held all of this up to a position once; it may be cut on the way."""
        piece: PoolPiece | None = self
        while piece is not None:
            yield piece
            piece = piece.next_held if piece.last < end else None


class FreeQueue:
    """Free pieces, next to be handed out first. ``end`` stands between the tail and the head."""

    __slots__ = ("end",)

    def __init__(self) -> None:
        self.end = PoolPiece(NO_SEGMENT, 0, 0)

    def __iter__(self) -> Iterator[PoolPiece]:
        piece = self.end.after
        while piece is not self.end:
            yield piece
            piece = piece.after

    @staticmethod
    def insert(piece: PoolPiece, before: PoolPiece) -> None:
        """Put a piece directly before another."""
        ahead = before.before
        ahead.after = before.before = piece
        piece.before, piece.after = ahead, before

    @staticmethod
    def remove(piece: PoolPiece) -> None:
        """Take a piece out."""
        ahead, behind = piece.before, piece.after
        ahead.after, behind.before = behind, ahead

    def put_plain_first(self, count: int) -> None:
        """Blocks without content, to be used next."""
        head = self.end.after
        if head.segment == NO_SEGMENT and head is not self.end:
            head.last += count
        else:
            self.insert(PoolPiece(NO_SEGMENT, 0, count), head)

    def put_plain_last(self, count: int) -> None:
        """Blocks without content, to be used when their turn comes."""
        tail = self.end.before
        if tail.segment == NO_SEGMENT and tail is not self.end:
            tail.last += count
        else:
            self.insert(PoolPiece(NO_SEGMENT, 0, count), self.end)


class Table:
    """The GPU blocks of one request: first those with a hash, then those without. ``len`` counts blocks.

    Attributes:
        pieces: copies that it holds, ascending and without gaps from position 0 to ``num_hashed``. Where one of them
            ends before the next begins it has been cut: the rest follows along `PoolPiece.next_held`.
        num_hashed: blocks with a hash.
        num_plain: blocks without.
    """

    __slots__ = ("num_hashed", "num_plain", "pieces")

    def __init__(self) -> None:
        self.pieces: list[PoolPiece] = []
        self.num_hashed = self.num_plain = 0

    def __len__(self) -> int:
        return self.num_hashed + self.num_plain

    def gain(self, count: int) -> None:
        """Blocks without content that the pool has handed out (see `ExtentPool.take`) are this request's."""
        self.num_plain += count

    def held(self, first: int = 0, last: int | None = None) -> Iterator[PoolPiece]:
        """The copies of blocks ``first .. last - 1`` (default: of all that have a hash), ascending, uncut.

        A piece may be cut while it is at hand; the part that is cut off comes next.
        """
        last = self.num_hashed if last is None else last
        at = bisect_right(self.pieces, first, key=_first) - 1
        while first < last:
            head = self.pieces[at]
            at += 1
            end = self.pieces[at].first if at < len(self.pieces) else self.num_hashed
            for piece in head.chain(end):
                if piece.last > first:
                    yield piece
                    first = piece.last
                    if first >= last:
                        break
