"""OffloadingManager: the transactional ledger of the CPU tier."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kvsim.offload.context import INSERTED, MISSED, REUSED, SEEN, RequestContext
from kvsim.offload.policies.base import EvictionPolicy
from kvsim.offload.slot import Slot, Slots

# vLLM 0.33.0 v1/kv_offload/cpu/manager.py: keys whose offers are counted for store_threshold.
MAX_TRACKED_KEYS = 64_000

PolicyFactory = Callable[[int, Slots], EvictionPolicy]
EvictionLog = Callable[[int, "list[int] | None"], None]  # (keys wanted, keys evicted or None = refused)


class PrefixHit(NamedTuple):
    """``chunks`` leading chunks are in the tier; ``pending`` = one of them is still being written."""

    chunks: int
    pending: bool


class StorePlan(NamedTuple):
    """Chunks to copy (positions in the request) and the CPU slot of each."""

    positions: list[int]
    slot_ids: list[int]


class OffloadingManager:
    """Which chunk lies in which CPU slot, and which may go.

    A store is two calls: `prepare_store` reserves slots (evicting if it must; all or nothing) and `complete_store`
    makes them readable. A load is two calls: `prepare_load` pins, `complete_load` unpins. Recency is per request:
    uses are only noted while it lives and committed by `on_request_finished`.
    Rules: vLLM 0.33.0 v1/kv_offload/cpu/manager.py.
    """

    lookups_are_pure = True  # asking again changes nothing

    def __init__(
        self,
        num_slots: int,
        policy: PolicyFactory,
        store_threshold: int = 0,
        on_evict: EvictionLog | None = None,
    ) -> None:
        self.num_slots, self.store_threshold = num_slots, store_threshold
        self.slots: Slots = {}
        self.policy = policy(num_slots, self.slots)
        self.epoch = 0  # grows with every change that a lookup could notice
        self.evicted_keys = 0
        self.refusals = 0
        self._on_evict = on_evict
        self._num_fresh = 0  # slots handed out at least once
        self._free_ids: list[int] = []
        self._num_evictable = 0
        self._counts: OrderedDict[int, int] = OrderedDict()  # key -> offers, for store_threshold

    # -- looking
    def lookup_prefix(self, context: RequestContext, first: int, last: int) -> PrefixHit:
        """How far the request's chunks from ``first`` on are here. Chunks being written count, and say so."""
        slots, keys, pending = self.slots, context.keys, False
        for position in range(first, last):
            slot = slots.get(keys[position])
            if slot is None:
                return PrefixHit(position - first, pending)
            pending |= slot.ref_count < 0
        return PrefixHit(max(last - first, 0), pending)

    def touch(self, context: RequestContext) -> None:
        """All of the request's keys were asked for. Nothing to do: recency is committed at the request's end."""

    # -- loading
    def prepare_load(self, context: RequestContext, first: int, last: int, *, note: bool = True) -> list[int]:
        """Pin chunks ``first .. last-1`` for reading and return their slots. They must be ready."""
        ids: list[int] = []
        for key in context.keys[first:last]:
            slot = self.slots[key]
            if slot.ref_count < 0:
                raise ValueError(f"{context.request_id} reads a chunk that is still being written")
            self._num_evictable -= slot.ref_count == 0
            slot.ref_count += 1
            ids.append(slot.slot_id)
        if note:
            positions = range(first, last)
            self._note(context, positions, reused=positions)
        self.epoch += 1
        return ids

    def complete_load(self, keys: Sequence[int]) -> None:
        """The copies have been read."""
        for key in keys:
            slot = self.slots[key]
            if slot.ref_count <= 0:
                raise ValueError("a load is completed that was never prepared")
            slot.ref_count -= 1
            self._num_evictable += slot.ref_count == 0
        self.epoch += 1

    # -- storing
    def prepare_store(self, context: RequestContext, first: int, last: int) -> StorePlan | None:
        """Offer chunks ``first .. last-1``: the absent ones get slots.

        Returns:
            What to copy (possibly nothing), or None = no room: nothing was evicted, offer them again.
        """
        keys, slots, marks = context.keys, self.slots, context.marks
        if self.store_threshold >= 2:
            self._count_offer(keys[first:last])
        todo: list[int] = []
        ready: list[int] = []
        used: list[int] = []  # to store or ready, in order; not those being written
        for position in range(first, last):
            slot = slots.get(keys[position])
            if slot is None:
                if self.store_threshold < 2 or self._counts.get(keys[position], 0) >= self.store_threshold:
                    todo.append(position)
                    used.append(position)
            elif slot.ref_count >= 0:
                ready.append(position)
                used.append(position)
        missed = [position for position in todo if not marks[position] & MISSED]
        if missed:
            self.policy.on_store_miss([keys[position] for position in missed])
            for position in missed:
                marks[position] |= MISSED
        self._note(context, used, reused=ready)
        if not todo:
            return StorePlan([], [])
        if not self._make_room(len(todo), context, first, last):
            self.refusals += 1
            return None
        return StorePlan(todo, self._insert(context, todo))

    def complete_store(self, keys: Sequence[int]) -> None:
        """The copies are written: readable, and evictable."""
        for key in keys:
            slot = self.slots.get(key)
            if slot is not None and slot.ref_count < 0:
                slot.ref_count = 0
                self._num_evictable += 1
        self.epoch += 1

    def on_request_finished(self, context: RequestContext) -> None:
        """Commit the request's uses to the policy."""
        self.policy.on_request_finished(context)

    # -- what a tiering manager adds
    def on_schedule_end(self) -> None:
        """The step's decisions are made."""

    def has_pending_work(self) -> bool:
        """Whether the ledger waits for something that no job of a connector stands for."""
        return False

    # -- inside
    def _note(self, context: RequestContext, positions: Sequence[int], reused: Sequence[int]) -> None:
        marks = context.marks
        new = [position for position in positions if not marks[position] & SEEN]
        for position in new:
            marks[position] |= SEEN
        if new:
            self.policy.on_access(context, new)
        for position in reused:
            if not marks[position] & INSERTED:
                marks[position] |= REUSED

    def _count_offer(self, keys: Sequence[int]) -> None:
        """One more offer of each key; keys of this offer never push each other out of the full table."""
        counts = self._counts
        known = 0
        for key in keys:
            if key in counts:
                counts.move_to_end(key)
                counts[key] += 1
                known += 1
        room = len(counts) - known
        for key in keys:
            if key in counts:
                continue
            if len(counts) >= MAX_TRACKED_KEYS:
                if room == 0:
                    continue
                counts.popitem(last=False)
                room -= 1
            counts[key] = 1

    def _missing_slots(self, wanted: int) -> int:
        return wanted - len(self._free_ids) - (self.num_slots - self._num_fresh)

    def _make_room(self, wanted: int, context: RequestContext, first: int, last: int) -> bool:
        missing = self._missing_slots(wanted)
        if missing <= 0:
            return True
        if missing > self._num_evictable:  # refused without asking the policy
            return False
        # Everything offered is protected, below the threshold or not.
        return self._evict(missing, set(context.keys[first:last]))

    def _evict(self, count: int, protected: set[int]) -> bool:
        victims = self.policy.evict(count, protected)
        if self._on_evict is not None:
            self._on_evict(count, victims)
        if victims is None:
            return False
        self._free_ids += [self.slots.pop(key).slot_id for key in victims]
        self._num_evictable -= count
        self.evicted_keys += count
        self.epoch += 1
        return True

    def _insert(self, context: RequestContext, positions: list[int]) -> list[int]:
        ids: list[int] = []
        for position in positions:
            if self._num_fresh < self.num_slots:  # never-used slots first, in order
                slot = Slot(self._num_fresh)
                self._num_fresh += 1
            else:  # then the most recently freed
                slot = Slot(self._free_ids.pop())
            self.slots[context.keys[position]] = slot
            self.policy.insert(context, position)
            context.marks[position] |= INSERTED
            ids.append(slot.slot_id)
        self.epoch += 1
        return ids

    def check(self) -> None:
        """Raise AssertionError unless slots are unique, accounted for, and counted right."""
        ids = [slot.slot_id for slot in self.slots.values()]
        assert len(set(ids) | set(self._free_ids)) == len(ids) + len(self._free_ids) == self._num_fresh, (
            "CPU slots leak"
        )
        assert self._num_fresh <= self.num_slots, "more CPU slots than exist"
        evictable = sum(slot.ref_count == 0 for slot in self.slots.values())
        assert evictable == self._num_evictable, f"{evictable} evictable chunks, {self._num_evictable} counted"


class OffloadingManager023(OffloadingManager):
    """0.23.0: a policy is touched key by key at every lookup and store, and lookups feed ``store_threshold``.

    Rules: vLLM 0.23.0 v1/kv_offload/cpu/manager.py.
    """

    lookups_are_pure = False

    def lookup_prefix(self, context: RequestContext, first: int, last: int) -> PrefixHit:
        hit = super().lookup_prefix(context, first, last)
        if self.store_threshold >= 2:
            counts = self._counts
            for key in context.keys[first : min(first + hit.chunks + 1, last)]:  # the first miss was asked for, too
                if key not in counts and len(counts) >= MAX_TRACKED_KEYS:
                    counts.popitem(last=False)
                counts[key] = counts.get(key, 0) + 1
                counts.move_to_end(key)
        return hit

    def touch(self, context: RequestContext) -> None:
        self.policy.touch(context.keys)

    def prepare_load(self, context: RequestContext, first: int, last: int, *, note: bool = True) -> list[int]:
        return super().prepare_load(context, first, last, note=False)

    def prepare_store(self, context: RequestContext, first: int, last: int) -> StorePlan | None:
        keys = context.keys
        offered: Sequence[int] = range(first, last)
        if self.store_threshold >= 2:
            offered = [i for i in offered if self._counts.get(keys[i], 0) >= self.store_threshold]
        todo = [position for position in offered if keys[position] not in self.slots]
        if not todo:
            return StorePlan([], [])
        missing = self._missing_slots(len(todo))
        if missing > 0 and not self._evict(missing, {keys[position] for position in offered}):
            self.refusals += 1
            return None
        return StorePlan(todo, self._insert(context, todo))

    def on_request_finished(self, context: RequestContext) -> None:
        """Nothing is committed late."""
