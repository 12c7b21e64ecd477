"""Least recently used by the run, as in 0.33.0."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from itertools import pairwise

from kvsim.extents.chunk_piece import ChunkPiece, RunPolicy
from kvsim.extents.context import RunContext
from kvsim.extents.intervals import Interval
from kvsim.extents.path import Run
from kvsim.extents.pieces import find


class RunLruPolicy(RunPolicy):
    """Least recently used, recency per request: `kvsim.offload.policies.lru.LruPolicy` by the run.

    All chunks of one rank lie on one request's path, so that a position tells them apart. Only evictable ones are in
    their rank's group: an eviction never meets one in use.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._groups: dict[int, list[ChunkPiece]] = {}  # rank -> evictable pieces, ascending; never empty
        self._ranks: list[int] = []  # of the groups, ascending
        self._last_rank = 0

    def insert(self, context: RunContext, runs: Sequence[Run]) -> None:
        rank = self._request_rank(context)
        for segment, first, last in runs:
            self.pieces.add(ChunkPiece(segment, first, last, rank))

    def evict(self, count: int) -> bool:
        groups, ranks, pieces = self._groups, self._ranks, self.pieces
        emptied = 0
        while count:
            group = groups[ranks[emptied]]
            while group and count:
                piece = group[-1]
                self.changes.note(piece.segment)
                size = piece.last - piece.first
                if size > count:
                    piece.last -= count
                    count = 0
                else:
                    count -= size
                    group.pop()
                    pieces.remove(piece)
            if not group:
                del groups[ranks[emptied]]
                emptied += 1
        del ranks[:emptied]
        return True

    def remove(self, piece: ChunkPiece) -> None:
        if not piece.ref_count:
            self._leave(piece)
        self.pieces.remove(piece)

    def on_in_use(self, piece: ChunkPiece) -> None:
        self._leave(piece)

    def on_evictable(self, piece: ChunkPiece) -> None:
        self._join(piece)

    def on_access(self, context: RunContext, positions: Sequence[Interval]) -> None:
        self._raise(context, positions, self._request_rank(context))

    def on_request_finished(self, context: RunContext) -> None:
        self._raise(context, context.seen, self._next_rank())

    def _next_rank(self) -> int:
        self._last_rank += 1
        return self._last_rank

    def _request_rank(self, context: RunContext) -> int:
        """Taken at the request's first access."""
        if context.rank < 0:
            context.rank = self._next_rank()
        return context.rank

    def _raise(self, context: RunContext, positions: Iterable[Interval], rank: int) -> None:
        """Move the resident ones of these chunks to the group of ``rank``; a rank is raised, never lowered."""
        path, pieces = context.path, self.pieces
        for first, last in positions:
            for run in path.runs(first, last):
                for piece in pieces.cover(run):
                    if piece.rank >= rank:
                        continue
                    if piece.ref_count:
                        piece.rank = rank
                    else:
                        self._leave(piece)
                        piece.rank = rank
                        self._join(piece)

    def _leave(self, piece: ChunkPiece) -> None:
        """Take an evictable piece out of its group."""
        rank = piece.rank
        group = self._groups[rank]
        if len(group) > 1:
            del group[find(group, piece.first)]
        else:
            del self._groups[rank]
            del self._ranks[bisect_left(self._ranks, rank)]

    def _join(self, piece: ChunkPiece) -> None:
        """Put an evictable piece into its rank's group, as part of a neighbour if it continues one."""
        group = self._groups.get(piece.rank)
        if group is None:
            self._groups[piece.rank] = [piece]
            insort(self._ranks, piece.rank)
            return
        at = find(group, piece.first)
        left = group[at - 1] if at else None
        right = group[at] if at < len(group) else None
        if left is not None and left.last == piece.first and left.segment == piece.segment:
            self.pieces.remove(piece)
            left.last = piece.last
            piece = left
        else:
            group.insert(at, piece)
            at += 1
        if right is not None and right.first == piece.last and right.segment == piece.segment:
            del group[at]
            self.pieces.remove(right)
            piece.last = right.last

    def _cut(self, piece: ChunkPiece, position: int) -> ChunkPiece:
        right = piece.cut_off(position, piece.last)
        if not piece.ref_count:
            group = self._groups[piece.rank]
            group.insert(find(group, piece.first) + 1, right)
        piece.last = position
        return right

    def check(self) -> None:
        filed = [piece for group in self._groups.values() for piece in group]
        assert sorted(self._groups) == self._ranks, "LRU: groups without a place in the order"
        assert len(set(map(id, filed))) == len(filed), "LRU: a piece is in two groups"
        ready = {id(piece) for piece in self.pieces if not piece.ref_count}
        assert ready == {id(piece) for piece in filed}, "LRU: the groups hold others than the evictable pieces"
        for rank, group in self._groups.items():
            assert all(piece.rank == rank for piece in group), "LRU: a piece in another rank's group"
            assert all(a.last <= b.first for a, b in pairwise(group)), "LRU: a group is unsorted"
