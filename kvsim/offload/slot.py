"""A chunk's place in a tier."""

from __future__ import annotations

BEING_WRITTEN = -1


class Slot:
    """``ref_count`` -1 = being written, 0 = ready and evictable, > 0 = being read that many times."""

    __slots__ = ("rank", "ref_count", "slot_id")

    def __init__(self, slot_id: int) -> None:
        self.slot_id = slot_id
        self.ref_count = BEING_WRITTEN
        self.rank = 0  # recency, used by LRU


Slots = dict[int, Slot]  # key -> slot
