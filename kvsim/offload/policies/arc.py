"""Adaptive replacement (ARC), as vLLM's CPU tier does it: not quite the textbook's."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator

from kvsim.offload.context import INSERTED, REUSED, RequestContext
from kvsim.offload.policies.base import EvictionPolicy
from kvsim.offload.slot import Slots

Order = OrderedDict[int, None]


class ArcPolicy(EvictionPolicy):
    """Adaptive replacement: balances what was seen once against what was reused.

    Two resident lists, T1 (seen once) and T2 (reused), two ghost lists B1 and B2, and a target size for T1. A miss
    that a ghost remembers moves the target: B1 says "T1 was too small", B2 the opposite. Under 0.33.0 that happens
    when an absent key is offered for storing, and keys move to T2 when the request that reused them ends.
    Rule: vLLM 0.33.0 v1/kv_offload/cpu/policies/arc.py.
    """

    def __init__(self, capacity: int, slots: Slots) -> None:
        super().__init__(capacity, slots)
        self.target = 0.0  # wanted size of T1; a float, compared as int(target)
        self.t1: Order = OrderedDict()
        self.t2: Order = OrderedDict()
        self.b1: Order = OrderedDict()
        self.b2: Order = OrderedDict()

    def insert(self, context: RequestContext, position: int) -> None:
        key = context.keys[position]
        self.t1[key] = None
        self.b1.pop(key, None)
        self.b2.pop(key, None)

    def evict(self, count: int, protected: Collection[int]) -> list[int] | None:
        from_t1 = self._candidates(self.t1, protected)
        from_t2 = self._candidates(self.t2, protected)
        chosen: dict[int, bool] = {}  # key -> it comes from T1
        t1_size = len(self.t1)
        for _ in range(count):
            key = next(from_t1, None) if t1_size >= int(self.target) else None
            in_t1 = key is not None
            if key is None:
                key = next(from_t2, None)
            if key is None and self._t1_is_last_resort():
                key = next(from_t1, None)
                in_t1 = True
            if key is None:
                return None
            chosen[key] = in_t1
            t1_size -= in_t1
        for key, in_t1 in chosen.items():
            resident, ghost = (self.t1, self.b1) if in_t1 else (self.t2, self.b2)
            del resident[key]
            ghost[key] = None
        for ghost in (self.b1, self.b2):
            while len(ghost) > self.capacity:
                ghost.popitem(last=False)
        return list(chosen)

    def remove(self, key: int) -> None:
        del (self.t1 if key in self.t1 else self.t2)[key]

    def on_store_miss(self, keys: list[int]) -> None:
        for key in reversed(keys):
            self._adapt(key)

    def on_request_finished(self, context: RequestContext) -> None:
        t1, t2 = self.t1, self.t2
        for position in context.from_the_tail():
            mark, key = context.marks[position], context.keys[position]
            if mark & REUSED:
                if key in t1:
                    del t1[key]
                    t2[key] = None
                elif key in t2:
                    t2.move_to_end(key)
            elif mark & INSERTED:  # no promotion for what nobody but its owner has used
                if key in t1:
                    t1.move_to_end(key)
                elif key in t2:
                    t2.move_to_end(key)

    def _candidates(self, resident: Order, protected: Collection[int]) -> Iterator[int]:
        return (key for key in resident if self.is_evictable(key, protected))

    def _t1_is_last_resort(self) -> bool:
        """T2 has no candidate and T1 is below its target: T1 all the same."""
        return True

    def _adapt(self, key: int) -> None:
        b1, b2 = self.b1, self.b2
        if key in b1:
            self.target = min(self.target + max(1, len(b2) / len(b1)), self.capacity)
            b1.move_to_end(key)
        elif key in b2:
            self.target = max(self.target - max(1, len(b1) / len(b2)), 0)
            b2.move_to_end(key)


class ArcPolicy023(ArcPolicy):
    """0.23.0: every touch moves and adapts at once, and an exhausted T2 refuses even if T1 has candidates."""

    def touch(self, keys: list[int]) -> None:
        t1, t2 = self.t1, self.t2
        for key in reversed(keys):
            if key in t1:
                if self.slots[key].ref_count >= 0:
                    del t1[key]
                    t2[key] = None
                else:  # not ready yet: stays in T1
                    t1.move_to_end(key)
            elif key in t2:
                t2.move_to_end(key)
            else:
                self._adapt(key)

    def on_store_miss(self, keys: list[int]) -> None:
        """Only touches adapt."""

    def on_request_finished(self, context: RequestContext) -> None:
        """Everything has happened already."""

    def _t1_is_last_resort(self) -> bool:
        return False
