"""S3-FIFO: a small queue on probation, a main queue, and a ghost queue of what the small one has thrown out."""

from __future__ import annotations

from collections import OrderedDict

from kvsim.offload.context import RequestContext
from kvsim.offload.policies.leaves import Chunk, LeafHeap, LeafPolicy, Score
from kvsim.offload.slot import Slots

SMALL, MAIN = 0, 1
MOST_USES = 3  # that count in the main queue: two bits


class S3FifoPolicy(LeafPolicy):
    """S3-FIFO: three FIFO queues, small (10 % of the tier), main (90 %), and ghosts (keys only, 90 %).

    A new chunk goes into the small queue, one that a ghost remembers into the main queue. Until the first eviction, the
    main queue also gets what no longer fits into the small one (warm-up, as libCacheSim does). The main queue loses a
    leaf if it is over its share or the small one is empty, else the small one does. The small queue's oldest leaf goes
    to the main queue if it was reused at least ``threshold`` times, else it is evicted and becomes a ghost. The main
    queue's oldest leaf goes to its end if it was reused since (counting down from at most 3), else it is evicted.
    Chunks with resident successors keep their place; if a queue has no leaf that may go, the other gives one.
    Definition: Yang et al., "FIFO queues are all you need for cache eviction", SOSP'23, as in libCacheSim S3FIFO.c.

    Args:
        small_share: of the tier, for the small queue.
        ghost_share: of the tier's number of chunks, for the ghosts.
        threshold: reuses that take a chunk from the small to the main queue.
    """

    renews_at_end = False

    def __init__(
        self, capacity: int, slots: Slots, *, small_share: float = 0.1, ghost_share: float = 0.9, threshold: int = 2
    ) -> None:
        super().__init__(capacity, slots)
        self._small_size, self._ghost_size = int(capacity * small_share), int(capacity * ghost_share)
        self._main_size, self._threshold = capacity - self._small_size, threshold
        self._main = LeafHeap()  # leaves of the main queue; those of the small one are in `leaves`
        self._ghosts: OrderedDict[int, None] = OrderedDict()
        self._remembered: set[int] = set()  # keys that were ghosts when they were missed; never iterated
        self._is_warm = False

    def score(self, chunk: Chunk) -> Score:
        return chunk.place

    def put(self, chunk: Chunk) -> None:
        (self._main if chunk.queue == MAIN else self.leaves).push(chunk.place, chunk)

    def next_victim(self) -> Chunk | None:
        main_first = self.sizes[MAIN] > self._main_size or not self.sizes[SMALL]
        both = (self._from_main, self._from_small) if main_first else (self._from_small, self._from_main)
        for take in (*both, self._from_main):  # the small queue may have given the main one leaves
            chunk = take()
            if chunk is not None:
                return chunk
        return None

    def on_inserted(self, chunk: Chunk, context: RequestContext, position: int) -> None:
        chunk.uses = 0  # here: reuses
        remembered = chunk.key in self._remembered
        self._remembered.discard(chunk.key)
        fills_up = not self._is_warm and self.sizes[SMALL] > self._small_size  # this chunk counted
        if remembered or fills_up:
            self.set_queue(chunk, MAIN)

    def on_evicted(self, chunk: Chunk) -> None:
        self._is_warm = True
        if chunk.queue == SMALL and self._ghost_size:
            while len(self._ghosts) >= self._ghost_size:
                self._ghosts.popitem(last=False)
            self._ghosts[chunk.key] = None

    def on_store_miss(self, keys: list[int]) -> None:
        for key in keys:
            if key in self._ghosts:
                del self._ghosts[key]
                self._remembered.add(key)

    def on_request_finished(self, context: RequestContext) -> None:
        self._remembered.difference_update(context.keys)  # missed, and never stored

    def _from_small(self) -> Chunk | None:
        while (chunk := self.pop_free(self.leaves)) is not None:
            if chunk.uses < self._threshold:
                return chunk
            self.requeue(chunk, uses=0, queue=MAIN)
        return None

    def _from_main(self) -> Chunk | None:
        while (chunk := self.pop_free(self._main)) is not None:
            if not chunk.uses:
                return chunk
            self.requeue(chunk, uses=min(chunk.uses, MOST_USES) - 1, queue=MAIN)
        return None
