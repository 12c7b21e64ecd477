"""Adaptive replacement (ARC) by the run."""

from __future__ import annotations

from collections.abc import Sequence

from kvsim.extents.arc_reservation import UNBOUNDED, ArcReservation
from kvsim.extents.chunk_piece import ChunkPiece, RunPolicy
from kvsim.extents.context import RunContext
from kvsim.extents.intervals import Interval
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

    t1_is_last_resort = True  # T2 has no candidate and T1 is below its target: T1 all the same
    adapts_to_stores = True  # an absent chunk that is offered moves the target

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.target = 0.0  # wanted size of T1; a float, compared as int(target)
        self.queues = [PieceQueue() for _ in range(4)]
        self.ghosts: PieceMap[ChunkPiece] = PieceMap(self._cut)
        self.num_evictable = [0, 0]  # of T1 and T2

    def insert(self, context: RunContext, runs: Sequence[Run]) -> None:
        for run in runs:
            for ghost in self.ghosts.cover(run):
                self.queues[ghost.queue].remove(ghost)
                self.ghosts.remove(ghost)
            self._file(ChunkPiece(*run), T1, self.pieces)

    def evict(self, count: int) -> bool:
        evictable = self.num_evictable
        above_target = max(self.queues[T1].num_chunks - int(self.target) + 1, 0)
        from_t1 = min(count, above_target, evictable[T1])
        from_t2 = min(count - from_t1, evictable[T2])
        left = count - from_t1 - from_t2
        if left:
            if not self.t1_is_last_resort or left > evictable[T1] - from_t1:
                return False
            from_t1 += left
        self.take(from_t1, from_t2)
        self.trim(*(max(self.queues[number].num_chunks - self.capacity, 0) for number in GHOSTS))
        return True

    def reserve(
        self, context: RunContext, first: int, last: int, fresh: list[Interval], free: int, evictable: int
    ) -> int:
        return ArcReservation(self, context, free).run(first, last, fresh)

    def remove(self, piece: ChunkPiece) -> None:
        if not piece.ref_count:
            self.num_evictable[piece.queue] -= piece.last - piece.first
        self.queues[piece.queue].remove(piece)
        self.pieces.remove(piece)

    def on_in_use(self, piece: ChunkPiece) -> None:
        self.num_evictable[piece.queue] -= piece.last - piece.first

    def on_evictable(self, piece: ChunkPiece) -> None:
        self.num_evictable[piece.queue] += piece.last - piece.first

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
            self.num_evictable[piece.queue] -= size
            self.num_evictable[number] += size
        self.queues[piece.queue].remove(piece)
        self.pieces.remove(piece)
        piece.rising = False
        self._file(piece, number, self.pieces)

    def take(self, from_t1: int, from_t2: int) -> None:
        """Evict so many chunks from T1 and T2, oldest first; the ghosts remember them."""
        self._take(T1, from_t1)
        self._take(T2, from_t2)

    def _take(self, number: int, count: int) -> None:
        self.num_evictable[number] -= count
        queue = self.queues[number]
        for piece in queue if count else ():
            if piece.ref_count:
                continue
            self.changes.note(piece.segment)
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

    def trim(self, from_b1: int, from_b2: int) -> None:
        """Forget so many ghosts of B1 and B2, oldest first."""
        self._trim(B1, from_b1)
        self._trim(B2, from_b2)

    def _trim(self, number: int, count: int) -> None:
        queue = self.queues[number]
        for piece in queue if count else ():
            size = piece.last - piece.first
            if size > count:
                queue.drop_oldest(piece, count)
                break
            queue.remove(piece)
            self.ghosts.remove(piece)
            count -= size
            if not count:
                break

    def trimmable(self, number: int, limit: int, own: set[int]) -> int:
        """How many ghosts can be forgotten before one of these pieces is reached, if not at least ``limit``."""
        count = 0
        for piece in self.queues[number] if own else ():
            if id(piece) in own:
                return count
            count += piece.last - piece.first
            if count >= limit:
                return count
        return UNBOUNDED

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
        for number, count in enumerate(self.num_evictable):
            assert count == sum(len(piece) for piece in self.queues[number] if not piece.ref_count), "ARC: evictable"


class RunArcPolicy023(RunArcPolicy):
    """0.23.0: `kvsim.offload.policies.arc.ArcPolicy023` by the run."""

    t1_is_last_resort = False
    adapts_to_stores = False

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


def _climb(target: float, step: float, times: int, ceiling: int) -> float:
    """Add a step so many times, each time no further than the ceiling."""
    if target == int(target) and step == int(step):  # sums of whole numbers are exact
        return min(target + times * step, ceiling)
    for _ in range(times):
        target += step
        if target >= ceiling:
            return ceiling
    return target


def _sink(target: float, step: float, times: int) -> float:
    """Subtract a step so many times, each time no further than 0."""
    if target == int(target) and step == int(step):
        return max(target - times * step, 0)
    for _ in range(times):
        target -= step
        if target <= 0:
            return 0
    return target
