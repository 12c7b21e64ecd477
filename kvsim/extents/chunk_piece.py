"""Chunks of a tier by the run, and what the run-level ledger asks of an eviction policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from kvsim.extents.changes import Changes
from kvsim.extents.context import RunContext
from kvsim.extents.intervals import Interval
from kvsim.extents.path import Run
from kvsim.extents.pieces import Piece, PieceMap
from kvsim.offload.slot import BEING_WRITTEN


class ChunkPiece(Piece):
    """Chunks of one segment in the same state: those of `kvsim.offload.slot.Slot`, and their place in a policy's order.

    Attributes:
        ref_count: -1 = being written, 0 = ready and evictable, > 0 = being read that many times.
        doomed: lost while somebody read or wrote them: they go when they are done.
        rank: recency (LRU of 0.33.0).
        rising: the first chunk is the oldest in a queue, not the last one.
        queue: number of the queue that they are in (ARC).
        before, after: neighbours in that queue.
    """

    __slots__ = ("after", "before", "doomed", "queue", "rank", "ref_count", "rising")

    before: ChunkPiece
    after: ChunkPiece

    def __init__(self, segment: int, first: int, last: int, rank: int = 0) -> None:
        self.segment, self.first, self.last = segment, first, last
        self.ref_count = BEING_WRITTEN
        self.doomed = False
        self.rank = rank
        self.rising = True
        self.queue = 0

    def cut_off(self, first: int, last: int) -> ChunkPiece:
        """A piece of these chunks in the same state, in no queue yet."""
        part = ChunkPiece(self.segment, first, last, self.rank)
        part.ref_count, part.doomed, part.rising, part.queue = self.ref_count, self.doomed, self.rising, self.queue
        return part


class RunPolicy(ABC):
    """Orders the chunks of one tier, as `kvsim.offload.policies.base.EvictionPolicy` does key by key.

    The ledger owns reference counts, a policy the order and the map of what is resident. Chunks that an eviction must
    spare are in use (`on_in_use`) for as long as it takes.

    Attributes:
        pieces: what is resident.
        num_changes: grows when a touch did something that it would do again if it were repeated.
        changes: of what a lookup would find; the policy notes what it evicts, the ledger everything else.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.hears_misses = type(self).on_store_miss is not RunPolicy.on_store_miss
        self.num_changes = 0
        self.changes = Changes()
        self.pieces: PieceMap[ChunkPiece] = PieceMap(self._cut)

    @abstractmethod
    def _cut(self, piece: ChunkPiece, position: int) -> ChunkPiece:
        """Shorten a piece to one side of a position and return the rest, in its right place in the order."""

    @abstractmethod
    def insert(self, context: RunContext, runs: Sequence[Run]) -> None:
        """The request has put absent chunks into the tier, ascending. They are being written."""

    @abstractmethod
    def evict(self, count: int) -> bool:
        """Forget exactly ``count`` evictable chunks (there are as many); False and no change if it does not want to."""

    def reserve(
        self, context: RunContext, first: int, last: int, fresh: list[Interval], free: int, evictable: int
    ) -> int:
        """Insert absent chunks one after another, evicting one whenever nothing is free, until none can be evicted.

        Chunks being written are never victims: unless the choice depends on how many there are, it makes no difference
        to evict all at once.

        Args:
            context: the request.
            first: position of its first chunk to insert.
            last: position behind the last one.
            fresh: those that the request had not reported missing before.
            free: slots that are empty.
            evictable: chunks that may be evicted.

        Returns:
            How many were inserted.
        """
        count = min(last - first, free + evictable)
        if count > free:
            self.evict(count - free)
        self.insert(context, context.path.runs(first, first + count))
        return count

    @abstractmethod
    def remove(self, piece: ChunkPiece) -> None:
        """Forget chunks whose content is lost or never arrived."""

    def on_in_use(self, piece: ChunkPiece) -> None:
        """Somebody is about to use chunks that were evictable; their count is still 0."""

    def on_evictable(self, piece: ChunkPiece) -> None:
        """Nobody uses the chunks any more; their count is 0. The piece may have become part of another afterwards."""

    def touch(self, runs: Sequence[Run]) -> None:
        """A lookup or a store has used these chunks, present or not; ascending (release 0.23.0 only)."""

    def on_access(self, context: RunContext, positions: Sequence[Interval]) -> None:
        """The living request is seen to use these chunks, in ascending order, for the first time."""

    def on_store_miss(self, runs: Sequence[Run]) -> None:
        """A request offers these chunks for storing, ascending, and they are absent (once per request and chunk)."""

    def on_request_finished(self, context: RunContext) -> None:
        """The request is over: its marks are final, recency may be committed."""

    def check(self) -> None:
        """Raise AssertionError if the order and the map disagree."""
