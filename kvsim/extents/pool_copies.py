"""All copies of contents in the GPU pool: those that lookups find, their duplicates, and the queue of the free ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvsim.extents.path import Key, Path, Run
from kvsim.extents.pieces import PieceMap
from kvsim.extents.pool_pieces import NO_SEGMENT, FreeQueue, PoolPiece


class Hits:
    """A local prefix hit: its length, and how many of its blocks nobody holds. True until the pool changes."""

    __slots__ = ("num_blocks", "num_unreferenced")

    def __init__(self, num_blocks: int, num_unreferenced: int) -> None:
        self.num_blocks, self.num_unreferenced = num_blocks, num_unreferenced

    def __len__(self) -> int:
        return self.num_blocks

    def __repr__(self) -> str:
        return f"Hits({self.num_blocks}, {self.num_unreferenced} unreferenced)"


NO_HITS = Hits(0, 0)


class Contents(PieceMap[PoolPiece]):
    """What lookups find: of each content its oldest copy. ``len`` counts contents."""

    __slots__ = ("num_blocks",)

    def __init__(self, cut: Callable[[PoolPiece, int], PoolPiece]) -> None:
        super().__init__(cut)
        self.num_blocks = 0

    def __len__(self) -> int:
        return self.num_blocks

    def __contains__(self, key: object) -> bool:
        # Whoever remembers "no key" as a number asks for that, too.
        return isinstance(key, tuple) and self.at(Key(*key)) is not None

    def longest_prefix(self, path: Path, limit: int) -> Hits:
        """How many of the first blocks of a path are here, up to the first that is not, at most ``limit``."""
        lists, ends = self._lists, path.ends
        position = unreferenced = 0
        for at, segment in enumerate(path.segments):
            pieces = lists.get(segment)
            if pieces is None or position >= limit:
                break
            stop = ends[at]
            if stop > limit:  # noqa: PLR1730 (asked for every waiting request in every step: min() costs twice that)
                stop = limit
            for piece in pieces:
                if piece.first != position:
                    break
                position = piece.last
                if not piece.refs:
                    unreferenced += position - piece.first
                if position >= stop:
                    if not piece.refs:
                        unreferenced -= position - stop
                    position = stop
                    break
            if position < stop:
                break
        return Hits(position, unreferenced) if position else NO_HITS


class Copies:
    """Every block with content, as pieces, and every free block, in order.

    Attributes:
        found: the copies that lookups find.
        queue: free blocks.
    """

    def __init__(self) -> None:
        self.queue = FreeQueue()
        self.found = Contents(self._cut)
        self._duplicates: dict[int, list[PoolPiece]] = {}  # segment -> younger copies, in order of insertion

    def __iter__(self) -> Iterator[PoolPiece]:
        yield from self.found
        for younger in self._duplicates.values():
            yield from younger

    def overlapping(self, run: Run) -> list[PoolPiece]:
        """All copies with contents of the run, uncut."""
        younger = self._duplicates.get(run.segment, ())
        return self.found.overlapping(run) + [p for p in younger if p.first < run.last and run.first < p.last]

    # -- gaining and losing
    def add(self, segment: int, first: int, last: int) -> PoolPiece:
        """New content, held once."""
        piece = PoolPiece(segment, first, last, 1)
        self.found.num_blocks += last - first
        self.found.add(piece)
        return piece

    def extend(self, piece: PoolPiece, last: int) -> bool:
        """New content behind a held piece is part of it, if the same request has both."""
        if piece.refs != 1 or piece.is_duplicate or piece.watch:
            return False
        self.found.num_blocks += last - piece.last
        piece.last, piece.next_held = last, None
        return True

    def add_duplicate(self, segment: int, first: int, last: int) -> PoolPiece:
        """Copies of what can be found already, held once."""
        piece = PoolPiece(segment, first, last, 1)
        piece.is_duplicate = True
        self._duplicates.setdefault(segment, []).append(piece)
        return piece

    def evict(self, piece: PoolPiece, first: int, last: int) -> None:
        """The tail of a free piece loses its content: the piece now ends at ``first``, or is out of the queue."""
        segment, is_gone = piece.segment, piece.first == first
        if piece.is_duplicate:
            if is_gone:
                self._forget_duplicate(piece)
            return
        self.found.num_blocks -= last - first
        if is_gone:
            piece.last = last  # as the map knows it
            self.found.remove(piece)
        if segment in self._duplicates:
            self._promote(segment, first, last)

    def _forget_duplicate(self, piece: PoolPiece) -> None:
        younger = self._duplicates[piece.segment]
        younger.remove(piece)
        if not younger:
            del self._duplicates[piece.segment]

    def _promote(self, segment: int, first: int, last: int) -> None:
        """These contents have lost the copy that was found: the oldest duplicate of each is found now."""
        for piece in tuple(self._duplicates[segment]):
            overlap = Run(segment, max(first, piece.first), min(last, piece.last))
            if overlap.first < overlap.last:
                for _, start, stop in reversed(self.found.gaps(overlap)):
                    if stop < piece.last:
                        self.split(piece, stop)
                    heir = self.split(piece, start) if piece.first < start else piece
                    self._forget_duplicate(heir)
                    heir.is_duplicate = False
                    self.found.add(heir)
                    self.found.num_blocks += stop - start

    # -- cutting and joining
    def join(self, piece: PoolPiece) -> None:
        """One piece for two if a free piece goes on where the one before it in the queue ends."""
        ahead = piece.before
        if (
            ahead.first == piece.last
            and ahead.segment == piece.segment
            and ahead.watch == piece.watch
            and not piece.is_duplicate  # their order is by the piece
            and not ahead.is_duplicate
            and piece.segment != NO_SEGMENT
        ):
            self.queue.remove(piece)
            self.found.remove(piece)
            ahead.first = piece.first

    def _cut(self, piece: PoolPiece, position: int) -> PoolPiece:
        """Cut off what begins at a position. The object stays the head: tables know pieces by where they begin."""
        rest = PoolPiece(piece.segment, position, piece.last, piece.refs)
        rest.is_duplicate, rest.watch = piece.is_duplicate, piece.watch
        piece.last = position
        if piece.refs:
            rest.next_held, piece.next_held = piece.next_held, rest
        else:
            self.queue.insert(rest, piece)
        return rest

    def split(self, piece: PoolPiece, position: int) -> PoolPiece:
        """Cut a piece strictly inside; returns the right part."""
        if not piece.is_duplicate:
            return self.found.split(piece, position)[1]
        rest = self._cut(piece, position)
        younger = self._duplicates[piece.segment]
        younger.insert(younger.index(piece), rest)
        return rest
