"""Least recently used by the run, as in 0.23.0."""

from __future__ import annotations

from collections.abc import Sequence

from kvsim.extents.chunk_piece import ChunkPiece, RunPolicy
from kvsim.extents.context import RunContext
from kvsim.extents.path import Run
from kvsim.extents.piece_queue import PieceQueue, cut_younger


class RunLruPolicy023(RunPolicy):
    """One list, touched after every lookup and store: `kvsim.offload.policies.lru.LruPolicy023` by the run."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.queue = PieceQueue()

    def insert(self, context: RunContext, runs: Sequence[Run]) -> None:
        for segment, first, last in runs:
            piece = ChunkPiece(segment, first, last)
            self.pieces.add(piece)
            self.queue.append(piece)

    def evict(self, count: int) -> bool:
        queue, pieces = self.queue, self.pieces
        for piece in queue:
            if piece.ref_count:
                continue
            size = piece.last - piece.first
            if size > count:
                queue.drop_oldest(piece, count)
                break
            queue.remove(piece)
            pieces.remove(piece)
            count -= size
            if not count:
                break
        return True

    def remove(self, piece: ChunkPiece) -> None:
        self.queue.remove(piece)
        self.pieces.remove(piece)

    def touch(self, runs: Sequence[Run]) -> None:
        queue, pieces = self.queue, self.pieces
        for run in reversed(runs):
            for piece in reversed(pieces.cover(run)):
                queue.remove(piece)
                piece.rising = False
                if queue.continues(piece):
                    pieces.remove(piece)
                    queue.absorb(piece)
                else:
                    queue.append(piece)

    def _cut(self, piece: ChunkPiece, position: int) -> ChunkPiece:
        younger = cut_younger(piece, position)
        self.queue.place_after(piece, younger)
        return younger

    def check(self) -> None:
        queued = list(map(id, self.queue))
        assert sorted(queued) == sorted(map(id, self.pieces)), "LRU: the queue holds others than the resident pieces"
        assert self.queue.num_chunks == sum(map(len, self.pieces)), "LRU: chunks miscounted"
