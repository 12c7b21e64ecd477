"""Least recently used, as vLLM's CPU tier does it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence

from kvsim.offload.context import SEEN, RequestContext
from kvsim.offload.policies.base import EvictionPolicy
from kvsim.offload.slot import Slots


class LruPolicy(EvictionPolicy):
    """Least recently used, recency per request (0.33.0).

    Every key belongs to a *group*, and groups are ordered by rank, a growing number. While a request lives, all it
    inserts or is seen to use sits in the group of its first access; when it ends, its resident keys move to a new
    group, the most recent of all. Within a group the tail of the prefix goes first. Keys that an eviction found in use
    are parked outside their group until they are free, so that the next one need not look at them again.
    Rule: vLLM 0.33.0 v1/kv_offload/cpu/policies/lru.py (rank = (request's rank, -position); fresh ranks at the end).
    """

    def __init__(self, capacity: int, slots: Slots) -> None:
        super().__init__(capacity, slots)
        self._groups: dict[int, dict[int, int]] = {}  # rank -> {key: position}, positions mostly ascending
        self._unsorted: set[int] = set()  # ranks whose group has to be sorted before it is read
        self._parked: dict[int, int] = {}  # in use: key -> position; its slot knows the rank
        self._last_rank = 0

    def insert(self, context: RequestContext, position: int) -> None:
        rank = self._request_rank(context)
        key = context.keys[position]
        self.slots[key].rank = rank
        group = self._group(rank)
        place = position if context.live_order is None else context.live_order[position]
        self._note_order(rank, group, place)
        group[key] = place

    def evict(self, count: int, protected: Collection[int]) -> list[int] | None:
        chosen: list[int] = []
        in_use: list[int] = []
        slots = self.slots
        for rank, group in self._groups.items():
            if rank in self._unsorted:
                self._unsorted.remove(rank)
                ordered = sorted(group.items(), key=lambda item: item[1])
                group.clear()
                group.update(ordered)
            for key in reversed(group):
                if slots[key].ref_count:
                    in_use.append(key)
                elif key not in protected:
                    chosen.append(key)
                    if len(chosen) == count:
                        break
            if len(chosen) == count:
                break
        for key in in_use:
            self._parked[key] = self._leave(key)
        if len(chosen) < count:
            return None
        for key in chosen:
            self._leave(key)
        return chosen

    def remove(self, key: int) -> None:
        if self._parked.pop(key, None) is None:
            self._leave(key)

    def on_evictable(self, key: int) -> None:
        place = self._parked.pop(key, None)
        if place is not None:
            rank = self.slots[key].rank
            group = self._group(rank)
            self._note_order(rank, group, place)
            group[key] = place

    def _leave(self, key: int) -> int:
        """Take a key out of its group; returns its position."""
        rank = self.slots[key].rank
        group = self._groups[rank]
        place = group.pop(key)
        if not group:
            del self._groups[rank]
            self._unsorted.discard(rank)
        return place

    def on_access(self, context: RequestContext, positions: Sequence[int]) -> None:
        self._raise(context, positions, self._request_rank(context), context.live_order)

    def on_request_finished(self, context: RequestContext) -> None:
        seen = [i for i, mark in enumerate(context.marks) if mark & SEEN]
        self._raise(context, seen, self._next_rank(), context.final_order())

    def _next_rank(self) -> int:
        self._last_rank += 1
        return self._last_rank

    def _request_rank(self, context: RequestContext) -> int:
        """Taken at the request's first access."""
        if context.rank < 0:
            context.rank = self._next_rank()
        return context.rank

    def _raise(self, context: RequestContext, positions: Sequence[int], rank: int, order: Sequence[int] | None) -> None:
        """Move the resident ones of these chunks to the group of ``rank``; a rank is raised, never lowered."""
        keys, slots = context.keys, self.slots
        moved: dict[int, int] = {}
        for position in positions:
            key = keys[position]
            slot = slots.get(key)
            if slot is not None and slot.rank < rank:
                place = position if order is None else order[position]
                if key in self._parked:
                    self._parked[key] = place
                else:
                    self._leave(key)
                    moved[key] = place
                slot.rank = rank
        if moved:
            group = self._group(rank)
            self._note_order(rank, group, next(iter(moved.values())))
            group.update(moved)
            if order is not None:  # chunks of several groups alternate
                self._unsorted.add(rank)

    def _group(self, rank: int) -> dict[int, int]:
        group = self._groups.get(rank)
        if group is None:
            group = self._groups[rank] = {}
            if rank != self._last_rank:  # older than the youngest group: back to its place
                self._groups = dict(sorted(self._groups.items()))
        return group

    def _note_order(self, rank: int, group: dict[int, int], first: int) -> None:
        """Positions from ``first`` on, ascending, are about to join the group."""
        if group and group[next(reversed(group))] > first:
            self._unsorted.add(rank)


class LruPolicy023(EvictionPolicy):
    """One list, touched key by key (0.23.0): after every lookup and store, the head of the prefix last."""

    def __init__(self, capacity: int, slots: Slots) -> None:
        super().__init__(capacity, slots)
        self._order: OrderedDict[int, None] = OrderedDict()  # oldest first

    def insert(self, context: RequestContext, position: int) -> None:
        self._order[context.keys[position]] = None

    def evict(self, count: int, protected: Collection[int]) -> list[int] | None:
        chosen: list[int] = []
        for key in self._order:
            if self.is_evictable(key, protected):
                chosen.append(key)
                if len(chosen) == count:
                    break
        else:
            return None
        for key in chosen:
            self.remove(key)
        return chosen

    def remove(self, key: int) -> None:
        del self._order[key]

    def touch(self, keys: list[int]) -> None:
        order = self._order
        for key in reversed(keys):
            if key in order:
                order.move_to_end(key)
