"""ARC: room for chunks that a lookup reserves one after another, worked out for stretches of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from kvsim.extents.chunk_piece import ChunkPiece
from kvsim.extents.context import RunContext
from kvsim.extents.intervals import Interval

if TYPE_CHECKING:
    from kvsim.extents.arc import RunArcPolicy

UNBOUNDED = 1 << 62


class Stretch(NamedTuple):
    """Absent chunks that are all remembered by the same ghost queue (0 or 1; None = by none)."""

    first: int
    last: int
    ghost: int | None
    adapts: bool  # each moves the target


class Balance:
    """The sizes that ARC decides by, while it decides about a stretch; lists are for T1 and T2, or B1 and B2."""

    def __init__(self, policy: RunArcPolicy, free: int, trimmable: list[int]) -> None:
        self.capacity = policy.capacity
        self.last_resort = policy.t1_is_last_resort
        self.target = policy.target
        self.free = free
        self.t1_size = policy.queues[0].num_chunks
        self.evictable = list(policy.num_evictable)
        self.ghosts = [policy.queues[2].num_chunks, policy.queues[3].num_chunks]
        self.trimmable = trimmable  # ghosts that may be forgotten before one of our own chunks is
        self.evicted, self.trimmed = [0, 0], [0, 0]

    def source(self) -> int | None:
        """Whether the next victim comes from T1 (0) or T2 (1); None = there is none."""
        evictable = self.evictable
        if evictable[0] and self.t1_size >= int(self.target):
            return 0
        if evictable[1]:
            return 1
        return 0 if evictable[0] and self.last_resort else None

    def reserve_alike(self, wanted: int, ghost: int | None) -> int:
        """Reserve up to so many chunks that don't move the target; returns how many it can tell the outcome of."""
        done = 0
        while done < wanted:
            count = wanted - done
            if self.free:
                count = min(count, self.free)
                self.free -= count
                self.t1_size += count
            else:
                source = self.source()
                if source is None:
                    break
                count = self._evict_alike(source, min(count, self.evictable[source]), ghost)
                if not count:
                    break
            if ghost is not None:
                self.ghosts[ghost] -= count
            done += count
        return done

    def _evict_alike(self, source: int, count: int, ghost: int | None) -> int:
        if source == 1:
            if self.evictable[0]:  # T1 grows by one chunk each time; at the target it is its turn
                count = min(count, int(self.target) - self.t1_size)
            self.t1_size += count
        room = self.capacity - self.ghosts[source] + self.trimmable[source] - self.trimmed[source]
        if ghost != source:
            count = min(count, room)
            trimmed = max(self.ghosts[source] + count - self.capacity, 0)
        elif room < 1:
            count = trimmed = 0
        else:  # for each victim that joins the ghosts, one of our own leaves them: only the first may be too many
            trimmed = max(self.ghosts[source] + 1 - self.capacity, 0)
        self.ghosts[source] += count - trimmed
        self.trimmed[source] += trimmed
        self.evicted[source] += count
        self.evictable[source] -= count
        return count

    def reserve_adapting(self, wanted: int, ghost: int) -> int:
        """The same for chunks that each move the target first."""
        ghosts = self.ghosts
        for done in range(wanted):
            before = self.target
            step = max(1, ghosts[1 - ghost] / ghosts[ghost])
            self.target = max(before - step, 0) if ghost else min(before + step, self.capacity)
            if self.free:
                self.free -= 1
                self.t1_size += 1
            else:
                source = self.source()
                if source is None or not self._evict_one(source):
                    self.target = before
                    return done
            ghosts[ghost] -= 1
        return wanted

    def _evict_one(self, source: int) -> bool:
        if self.ghosts[source] < self.capacity:
            self.ghosts[source] += 1
        elif self.trimmed[source] < self.trimmable[source]:
            self.trimmed[source] += 1
        else:
            return False
        self.evicted[source] += 1
        self.evictable[source] -= 1
        self.t1_size += source  # one in, and one out if it came from T1
        return True


class ArcReservation:
    """Chunks of a request go into T1 one after another; for each that finds nothing free, one is evicted."""

    def __init__(self, policy: RunArcPolicy, context: RunContext, free: int) -> None:
        self.policy, self.context, self.free = policy, context, free

    def run(self, first: int, last: int, fresh: list[Interval]) -> int:
        """Reserve absent chunks until one is refused; ``fresh`` = those not reported missing before."""
        position = first
        while position < last:
            own = {
                id(ghost) for run in self.context.path.runs(position, last) for ghost in self.policy.ghosts.cover(run)
            }
            for stretch in list(self._stretches(position, last, fresh)):
                position = self._reserve(stretch, own)
                if position < stretch.last:
                    break
            # Refused, or one of our own ghosts is about to be forgotten: see what comes of this one.
            if position < last:
                if not self._reserve_one(position, fresh):
                    break
                position += 1
        return position - first

    def _stretches(self, first: int, last: int, fresh: list[Interval]) -> Iterator[Stretch]:
        for run in self.context.path.runs(first, last):
            position = run.first
            for ghost in self.policy.ghosts.overlapping(run):
                if position < ghost.first:
                    yield Stretch(position, ghost.first, None, adapts=False)
                yield from self._of_ghost(ghost, fresh)
                position = ghost.last
            if position < run.last:
                yield Stretch(position, run.last, None, adapts=False)

    def _of_ghost(self, ghost: ChunkPiece, fresh: list[Interval]) -> Iterator[Stretch]:
        number, position = ghost.queue - 2, ghost.first
        adapting = ((max(first, ghost.first), min(last, ghost.last)) for first, last in fresh)
        for first, last in adapting if self.policy.adapts_to_stores else ():
            if first < last:
                if position < first:
                    yield Stretch(position, first, number, adapts=False)
                yield Stretch(first, last, number, adapts=True)
                position = last
        if position < ghost.last:
            yield Stretch(position, ghost.last, number, adapts=False)

    def _reserve(self, stretch: Stretch, own: set[int]) -> int:
        """Reserve as much of a stretch as can be told at once; returns where it ends."""
        policy = self.policy
        wanted = stretch.last - stretch.first
        balance = Balance(policy, self.free, [policy.trimmable(number, wanted, own) for number in (2, 3)])
        if stretch.adapts and stretch.ghost is not None:
            done = balance.reserve_adapting(wanted, stretch.ghost)
        else:
            done = balance.reserve_alike(wanted, stretch.ghost)
        end = stretch.first + done
        if done:
            self.free, policy.target = balance.free, balance.target
            policy.take(*balance.evicted)
            policy.insert(self.context, self.context.path.runs(stretch.first, end))
            policy.trim(*balance.trimmed)
        return end

    def _reserve_one(self, position: int, fresh: list[Interval]) -> bool:
        policy, runs = self.policy, self.context.path.runs(position, position + 1)
        if any(start <= position < end for start, end in fresh):
            policy.on_store_miss(runs)
        if self.free:
            self.free -= 1
        elif not sum(policy.num_evictable) or not policy.evict(1):
            return False
        policy.insert(self.context, runs)
        return True
