"""Adaptive replacement (ARC) by the run."""

from __future__ import annotations

from collections.abc import Sequence

from kvsim.extents.chunk_piece import ChunkPiece, RunPolicy
from kvsim.extents.context import RunContext
from kvsim.extents.path import Run
from kvsim.extents.piece_queue import PieceQueue, cut_younger, oldest_end
from kvsim.extents.pieces import PieceMap

T1, T2, B1, B2 = range(4)  # numbers of the queues; the ghosts of a resident queue are two further
RESIDENT = (T1, T2)
GHOSTS = (B1, B2)


class RunArcPolicy(RunPolicy):
    """Adaptive replacement: `kvsim.offload.policies.arc.ArcPolicy` by the run.

    All chunks of a run that a ghost queue remembers move the target by the same amount, for the queues keep their
    lengths meanwhile; the sum is made by adding one after another, as floats have it.
    """

    one_by_one = True

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.target = 0.0  # wanted size of T1; a float, compared as int(target)
        self.queues = [PieceQueue() for _ in range(4)]
        self.ghosts: PieceMap[ChunkPiece] = PieceMap(self._cut)
        self._num_evictable = [0, 0]  # of T1 and T2

    def insert(self, context: RunContext, runs: Sequence[Run]) -> None:
        for run in runs:
            for ghost in self.ghosts.cover(run):
                self.queues[ghost.queue].remove(ghost)
                self.ghosts.remove(ghost)
            self._file(ChunkPiece(*run), T1, self.pieces)

    def evict(self, count: int) -> bool:
        evictable = self._num_evictable
        above_target = max(self.queues[T1].num_chunks - int(self.target) + 1, 0)
        from_t1 = min(count, above_target, evictable[T1])
        from_t2 = min(count - from_t1, evictable[T2])
        left = count - from_t1 - from_t2
        if left:
            if not self._t1_is_last_resort() or left > evictable[T1] - from_t1:
                return False
            from_t1 += left
        self._take(T1, from_t1)
        self._take(T2, from_t2)
        for number in GHOSTS:
            self._trim(number)
        return True

    def remove(self, piece: ChunkPiece) -> None:
        if not piece.ref_count:
            self._num_evictable[piece.queue] -= piece.last - piece.first
        self.queues[piece.queue].remove(piece)
        self.pieces.remove(piece)

    def on_in_use(self, piece: ChunkPiece) -> None:
        self._num_evictable[piece.queue] -= piece.last - piece.first

    def on_evictable(self, piece: ChunkPiece) -> None:
        self._num_evictable[piece.queue] += piece.last - piece.first

    def on_store_miss(self, runs: Sequence[Run]) -> None:
        for run in reversed(runs):
            self._adapt(run)

    def on_request_finished(self, context: RunContext) -> None:
        own = [part for interval in context.inserted for part in context.reused.missing(*interval)]
        marked = [(first, last, True) for first, last in context.reused]
        marked += [(first, last, False) for first, last in own]
        for first, last, reused in sorted(marked, reverse=True):
            for run in reversed(context.path.runs(first, last)):
                for piece in reversed(self.pieces.cover(run)):
                    # No promotion for what nobody but its owner has used.
                    self._move_to_end(piece, T2 if reused else piece.queue)

    def _file(self, piece: ChunkPiece, number: int, pieces: PieceMap[ChunkPiece]) -> None:
        """Append a piece to a queue, as part of the youngest there if it continues that."""
        piece.queue = number
        queue = self.queues[number]
        if queue.continues(piece):
            queue.absorb(piece)
        else:
            queue.append(piece)
            pieces.add(piece)

    def _move_to_end(self, piece: ChunkPiece, number: int) -> None:
        """Move resident chunks to the end of a queue one after another, the last of them first."""
        if piece.queue != number and not piece.ref_count:
            size = piece.last - piece.first
            self._num_evictable[piece.queue] -= size
            self._num_evictable[number] += size
        self.queues[piece.queue].remove(piece)
        self.pieces.remove(piece)
        piece.rising = False
        self._file(piece, number, self.pieces)

    def _take(self, number: int, count: int) -> None:
        """Evict from T1 or T2, oldest first; the ghosts remember it."""
        self._num_evictable[number] -= count
        queue = self.queues[number]
        for piece in queue if count else ():
            if piece.ref_count:
                continue
            size = piece.last - piece.first
            if size > count:
                self.pieces.split(piece, oldest_end(piece, count))  # the piece keeps its older part
                size = count
            queue.remove(piece)
            self.pieces.remove(piece)
            self._file(piece, number + 2, self.ghosts)
            count -= size
            if not count:
                break

    def _trim(self, number: int) -> None:
        """A ghost queue is no longer than the tier."""
        queue = self.queues[number]
        excess = queue.num_chunks - self.capacity
        while excess > 0:
            piece = next(iter(queue))
            size = piece.last - piece.first
            if size > excess:
                queue.drop_oldest(piece, excess)
            else:
                queue.remove(piece)
                self.ghosts.remove(piece)
            excess -= size

    def _t1_is_last_resort(self) -> bool:
        """T2 has no candidate and T1 is below its target: T1 all the same."""
        return True

    def _adapt(self, run: Run) -> None:
        """Chunks have been missed: those that a ghost queue remembers move the target."""
        for ghost in reversed(self.ghosts.cover(run)):
            b1, b2 = self.queues[B1].num_chunks, self.queues[B2].num_chunks
            size = ghost.last - ghost.first
            if ghost.queue == B1:
                self.target = _climb(self.target, max(1, b2 / b1), size, self.capacity)
            else:
                self.target = _sink(self.target, max(1, b1 / b2), size)
            self.queues[ghost.queue].remove(ghost)
            self.ghosts.remove(ghost)
            ghost.rising = False
            self._file(ghost, ghost.queue, self.ghosts)

    def _cut(self, piece: ChunkPiece, position: int) -> ChunkPiece:
        younger = cut_younger(piece, position)
        self.queues[piece.queue].place_after(piece, younger)
        return younger

    def check(self) -> None:
        for numbers, pieces in ((RESIDENT, self.pieces), (GHOSTS, self.ghosts)):
            queued = [piece for number in numbers for piece in self.queues[number]]
            assert sorted(map(id, queued)) == sorted(map(id, pieces)), "ARC: the queues hold others than the map"
        for number, queue in enumerate(self.queues):
            assert all(piece.queue == number for piece in queue), "ARC: a piece in a queue that it does not know of"
            assert queue.num_chunks == sum(map(len, queue)), "ARC: chunks miscounted"
        for number, count in enumerate(self._num_evictable):
            assert count == sum(len(piece) for piece in self.queues[number] if not piece.ref_count), "ARC: evictable"


class RunArcPolicy023(RunArcPolicy):
    """0.23.0: `kvsim.offload.policies.arc.ArcPolicy023` by the run."""

    def touch(self, runs: Sequence[Run]) -> None:
        before = self.target
        for run in reversed(runs):
            for piece in reversed(self.pieces.cover(run)):
                # What is not ready yet stays in T1.
                self._move_to_end(piece, T2 if piece.ref_count >= 0 else piece.queue)
            self._adapt(run)
        self.num_changes += self.target != before

    def on_store_miss(self, runs: Sequence[Run]) -> None:
        """Only touches adapt."""

    def on_request_finished(self, context: RunContext) -> None:
        """Everything has happened already."""

    def _t1_is_last_resort(self) -> bool:
        return False


def _climb(target: float, step: float, times: int, ceiling: int) -> float:
    """Add a step so many times, each time no further than the ceiling."""
    for _ in range(times):
        target += step
        if target >= ceiling:
            return ceiling
    return target


def _sink(target: float, step: float, times: int) -> float:
    """Subtract a step so many times, each time no further than 0."""
    for _ in range(times):
        target -= step
        if target <= 0:
            return 0
    return target
