"""The frame of the policies that keep prefixes whole: only a chunk without resident successors may go.

What a tier holds of the prompts' prefix tree is then always closed towards the root: no chunk is kept whose beginning
is gone, which nobody could use. vLLM's own `lru` and `arc` have no such rule; they evict the tail of a request first,
which mostly comes to the same.

A policy gives every chunk a score. The lowest score among the leaves goes first; ties: deeper first, then older.
"""

from __future__ import annotations

import heapq
from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Any

from kvsim.offload.context import SEEN, RequestContext
from kvsim.offload.policies.base import EvictionPolicy
from kvsim.offload.slot import Slots

Score = Any  # whatever can be compared with the policy's other scores
_Entry = tuple[Score, int, int, "Chunk"]


class Chunk:
    """A chunk of the tier, or the absent predecessor of one.

    Attributes:
        depth: how far from the start of its prompts.
        number: of its insertion, ascending.
        uses: requests that have used it, the one that put it there included; a policy may count otherwise.
        used: rank of the last one: ranks ascend with the first use by each request, and at its end.
        queue: which of the policy's queues it is in, 0 or 1.
        place: its place in that queue, if that is not ``number``.
        note: what the policy keeps of it.
    """

    __slots__ = (
        "children", "depth", "entry", "is_resident", "key", "note", "number", "parent", "place", "queue", "used", "uses"
    )  # fmt: skip

    def __init__(self, key: int, depth: int) -> None:
        self.key, self.depth = key, depth
        self.parent: Chunk | None = None
        self.children = 0  # resident chunks that go on from here
        self.is_resident = False
        self.number = self.uses = self.used = self.queue = self.place = 0
        self.note: Any = None
        self.entry: _Entry | None = None  # its valid entry in a heap


class LeafHeap:
    """Leaves by score. Entries of chunks that are no leaves any more, or score otherwise, stay until they surface."""

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._limit = 1024  # entries at which the void ones are dropped

    def push(self, score: Score, chunk: Chunk) -> None:
        """Put a leaf in, or let it score otherwise."""
        chunk.entry = entry = (score, -chunk.depth, chunk.number, chunk)
        heapq.heappush(self._heap, entry)
        if len(self._heap) > self._limit:
            self._heap = [each for each in self._heap if each[3].entry is each]
            heapq.heapify(self._heap)
            self._limit = 1024 + 2 * len(self._heap)

    def pop(self) -> Chunk | None:
        """Take the leaf with the lowest score out."""
        while self._heap:
            entry = heapq.heappop(self._heap)
            chunk = entry[3]
            if chunk.entry is entry:
                chunk.entry = None
                return chunk
        return None

    def is_empty(self) -> bool:
        """Whether no leaf is in it."""
        while self._heap and self._heap[0][3].entry is not self._heap[0]:
            heapq.heappop(self._heap)
        return not self._heap

    def take_all(self) -> list[Chunk]:
        """Take all leaves out."""
        chunks = [entry[3] for entry in self._heap if entry[3].entry is entry]
        self._heap = []
        return chunks


class LeafPolicy(EvictionPolicy):
    """Lowest score first, leaves only.

    A subclass says what a chunk scores (`score`) and, if it likes, what happens to one that is put in, used or evicted.
    Policies with queues of their own override `put` and `next_victim` instead.
    """

    scores_age = False  # scores change without a use: all leaves are scored again before each eviction
    renews_at_end = True  # the end of a request is a use too (it counts as none), as in vLLM 0.33.0's LRU

    def __init__(self, capacity: int, slots: Slots) -> None:
        super().__init__(capacity, slots)
        self.leaves = LeafHeap()
        self.sizes = [0, 0]  # resident chunks of each queue
        self._chunks: dict[int, Chunk] = {}
        self._moved: list[Chunk] = []  # put in or used since the last eviction
        self._aside: list[Chunk] = []  # leaves that an eviction has met in use
        self._aged: list[tuple[Chunk, int, int, int]] = []  # before this eviction: uses, queue, place
        self._protected: Collection[int] = ()
        self._last_rank = self._last_number = 0

    # -- what a policy decides
    @abstractmethod
    def score(self, chunk: Chunk) -> Score:
        """Of a leaf; the lowest goes first."""

    def put(self, chunk: Chunk) -> None:
        """A leaf takes its place among the leaves."""
        self.leaves.push(self.score(chunk), chunk)

    def next_victim(self) -> Chunk | None:
        """Take the next leaf to go out of the leaves; None if there is none."""
        return self.pop_free(self.leaves)

    def on_request_begins(self, context: RequestContext) -> None:
        """A request uses something, or puts something in, for the first time."""

    def on_inserted(self, chunk: Chunk, context: RequestContext, position: int) -> None:
        """A request has put it there; ``uses`` is 1."""

    def on_used(self, chunk: Chunk, context: RequestContext, position: int) -> None:
        """Another request has found it there; ``uses`` is counted already."""

    def on_evicted(self, chunk: Chunk) -> None:
        """It is gone for good."""

    # -- what the manager asks
    def insert(self, context: RequestContext, position: int) -> None:
        key = context.keys[position]
        chunk = self._chunks.get(key)
        depth = context.depth(position)
        if chunk is None:
            chunk = self._chunks[key] = Chunk(key, depth)
        self._last_number += 1
        chunk.depth = depth
        chunk.number = chunk.place = self._last_number
        chunk.uses, chunk.used, chunk.queue = 1, self._rank(context), 0
        chunk.is_resident = True
        parent_key = context.parent(position)
        if parent_key is not None:
            parent = self._chunks.get(parent_key)
            if parent is None:
                parent = self._chunks[parent_key] = Chunk(parent_key, depth - 1)
            chunk.parent = parent
            parent.children += 1
            parent.entry = None  # no leaf any more
        self.sizes[0] += 1
        self.on_inserted(chunk, context, position)
        self._moved.append(chunk)

    def evict(self, count: int, protected: Collection[int]) -> list[int] | None:
        self._protected = protected
        self._settle()
        chosen: list[Chunk] = []
        while len(chosen) < count:
            chunk = self.next_victim()
            if chunk is None:
                break
            chosen.append(chunk)
            self._detach(chunk)
        self._moved += self._aside
        self._aside = []
        if len(chosen) < count:
            self._take_back(chosen)
            return None
        for chunk in chosen:
            self._forget_if_childless(chunk)
            self.on_evicted(chunk)
        self._aged = []
        return [chunk.key for chunk in chosen]

    def remove(self, key: int) -> None:
        chunk = self._chunks[key]
        self._detach(chunk)
        self._forget_if_childless(chunk)

    def on_access(self, context: RequestContext, positions: Sequence[int]) -> None:
        rank, keys, chunks = self._rank(context), context.keys, self._chunks
        for position in positions:
            chunk = chunks.get(keys[position])
            if chunk is not None and chunk.is_resident:
                chunk.uses += 1
                chunk.used = rank
                self.on_used(chunk, context, position)
                if not chunk.children:
                    self._moved.append(chunk)

    def on_request_finished(self, context: RequestContext) -> None:
        if not self.renews_at_end:
            return
        self._last_rank += 1
        marks, keys, chunks = context.marks, context.keys, self._chunks
        for position in range(len(keys)):
            chunk = chunks.get(keys[position])
            if chunk is not None and chunk.is_resident and marks[position] & SEEN:
                chunk.used = self._last_rank
                self.on_renewed(chunk, context, position)
                if not chunk.children:
                    self._moved.append(chunk)

    def on_renewed(self, chunk: Chunk, context: RequestContext, position: int) -> None:
        """A request that has used or inserted it has ended; ``used`` is its rank at the end."""

    def protected_by(self, context: RequestContext, positions: Sequence[int]) -> Collection[int]:
        """What is offered and all before it: none of that may go while something behind it comes."""
        return set(context.path_to(positions))

    # -- for policies with queues of their own
    def pop_free(self, heap: LeafHeap) -> Chunk | None:
        """The heap's lowest leaf that nobody uses; those in use are out of the way until the eviction is over."""
        while (chunk := heap.pop()) is not None:
            if self.is_evictable(chunk.key, self._protected):
                return chunk
            self._aside.append(chunk)
        return None

    def age(self, chunk: Chunk, uses: int) -> None:
        """Instead of going, a leaf counts so many uses from now on; undone if nothing is evicted after all."""
        self._aged.append((chunk, chunk.uses, chunk.queue, chunk.place))
        chunk.uses = uses

    def requeue(self, chunk: Chunk, *, uses: int, queue: int) -> None:
        """As `age`, and it goes to the end of a queue."""
        self.age(chunk, uses)
        self.set_queue(chunk, queue)
        self._last_number += 1
        chunk.place = self._last_number
        self.put(chunk)

    def set_queue(self, chunk: Chunk, queue: int) -> None:
        """A resident chunk is in that queue from now on."""
        self.sizes[chunk.queue] -= 1
        self.sizes[queue] += 1
        chunk.queue = queue

    # -- inside
    def _rank(self, context: RequestContext) -> int:
        """Taken at the request's first use of anything."""
        if context.rank < 0:
            self._last_rank += 1
            context.rank = self._last_rank
            self.on_request_begins(context)
        return context.rank

    def _settle(self) -> None:
        """Every leaf takes its place."""
        if self.scores_age:
            self._moved += self.leaves.take_all()
        for chunk in self._moved:
            if chunk.is_resident and not chunk.children:
                self.put(chunk)
        self._moved = []

    def _detach(self, chunk: Chunk) -> None:
        chunk.is_resident, chunk.entry = False, None
        self.sizes[chunk.queue] -= 1
        parent = chunk.parent
        if parent is not None:
            parent.children -= 1
            if not parent.children and parent.is_resident:
                self.put(parent)

    def _take_back(self, chosen: Sequence[Chunk]) -> None:
        """Nothing is evicted: as if nobody had asked."""
        for chunk in reversed(chosen):
            chunk.is_resident = True
            self.sizes[chunk.queue] += 1
            self._moved.append(chunk)
            if chunk.parent is not None:
                chunk.parent.children += 1
                chunk.parent.entry = None
        for chunk, uses, queue, place in reversed(self._aged):
            self.set_queue(chunk, queue)
            chunk.uses, chunk.place = uses, place
            self._moved.append(chunk)
        self._aged = []

    def _forget_if_childless(self, chunk: Chunk) -> None:
        """An absent chunk is remembered only as the predecessor of others."""
        last: Chunk | None = chunk
        while last is not None and not last.is_resident and not last.children:
            if self._chunks.pop(last.key, None) is None:
                break
            last = last.parent
