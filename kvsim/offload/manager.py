"""OffloadingManager: the transactional ledger of the CPU tier."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence

from kvsim.kv_events import CPU, KVCacheEvent, OffloadEventLog, OffloadEventLog023
from kvsim.offload.context import INSERTED, MISSED, REUSED, SEEN, RequestContext
from kvsim.offload.ledger import PrefixHit, Primary, StorePlan
from kvsim.offload.policies.base import EvictionPolicy
from kvsim.offload.slot import Slot, Slots

# vLLM 0.33.0 v1/kv_offload/cpu/manager.py: keys whose offers are counted for store_threshold.
MAX_TRACKED_KEYS = 64_000

PolicyFactory = Callable[[int, Slots], EvictionPolicy]
EvictionLog = Callable[[int, "list[int] | None"], None]  # (keys wanted, keys evicted or None = refused)


class OffloadingManager(Primary):
    """Slots of CPU memory under an eviction policy.

    Recency is per request: uses are only noted while it lives and committed by `on_request_finished`.
    Rules: vLLM 0.33.0 v1/kv_offload/cpu/manager.py.
    """

    event_log: type[OffloadEventLog] = OffloadEventLog

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
        self._epoch = 0
        self._num_evicted = self._num_refusals = 0
        self._on_evict = on_evict
        self._kv_events: OffloadEventLog | None = None
        self._num_fresh = 0  # slots handed out at least once
        self._free_ids: list[int] = []
        self._num_evictable = 0
        self._doomed: set[int] = set()  # lost while somebody read or wrote them; never iterated
        self._counts: OrderedDict[int, int] = OrderedDict()  # key -> offers, for store_threshold

    # -- looking
    @property
    def epoch(self) -> int:
        return self._epoch

    def lookup_prefix(self, context: RequestContext, first: int, last: int) -> PrefixHit:
        slots, keys, pending = self.slots, context.keys, False
        for position in range(first, last):
            slot = slots.get(keys[position])
            if slot is None:
                return PrefixHit(position - first, pending)
            pending |= slot.ref_count < 0
        return PrefixHit(max(last - first, 0), pending)

    def touch(self, context: RequestContext) -> None:
        """Nothing to do: recency is committed at the request's end."""

    # -- loading
    def prepare_load(self, context: RequestContext, first: int, last: int) -> list[int]:
        return self.prepare_load_of(context, range(first, last))

    def prepare_load_of(self, context: RequestContext, positions: Sequence[int]) -> list[int]:
        keys = context.keys
        ids = self.pin([keys[position] for position in positions])
        self._note(context, positions, reused=positions)
        return ids

    def pin(self, keys: Sequence[int]) -> list[int]:
        ids: list[int] = []
        for key in keys:
            slot = self.slots[key]
            if slot.ref_count < 0:
                raise ValueError("a chunk is read that is still being written")
            self._num_evictable -= slot.ref_count == 0
            slot.ref_count += 1
            ids.append(slot.slot_id)
        self._epoch += 1
        return ids

    def held(self, keys: Sequence[int]) -> list[int]:
        return [key for key in keys if key in self.slots]

    def complete_load(self, keys: Sequence[int]) -> None:
        for key in keys:
            slot = self.slots[key]
            if slot.ref_count <= 0:
                raise ValueError("a load is completed that was never prepared")
            slot.ref_count -= 1
            if slot.ref_count == 0 and key in self._doomed:
                self._doomed.remove(key)
                self._drop(key)
            elif slot.ref_count == 0:
                self._num_evictable += 1
                self.policy.on_evictable(key)
        self._epoch += 1

    # -- storing
    def prepare_store(self, context: RequestContext, first: int, last: int) -> StorePlan | None:
        return self.prepare_store_of(context, range(first, last))

    def prepare_store_of(self, context: RequestContext, positions: Sequence[int]) -> StorePlan | None:
        keys, slots, marks = context.keys, self.slots, context.marks
        if self.store_threshold >= 2:
            self._count_offer([keys[position] for position in positions])
        todo: list[int] = []
        ready: list[int] = []
        used: list[int] = []  # to store or ready, in order; not those being written
        for position in positions:
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
        todo = self.policy.admit(context, todo)
        if not todo:
            return StorePlan([], [])
        if not self._make_room(len(todo), context, positions):
            self._num_refusals += 1
            return None
        return StorePlan(todo, self._insert(context, todo))

    def complete_store(
        self, keys: Sequence[int], context: RequestContext | None = None, *, success: bool = True
    ) -> None:
        ready: list[int] = []
        for key in keys:
            slot = self.slots[key]
            if slot.ref_count >= 0:
                raise ValueError("a store is completed that was never prepared")
            if success and key not in self._doomed:
                slot.ref_count = 0
                self._num_evictable += 1
                self.policy.on_evictable(key)
                ready.append(key)
            else:
                self._doomed.discard(key)
                self._drop(key)
        self._epoch += 1
        if self._kv_events is not None:
            self._kv_events.stored(ready)

    def enable_kv_events(self) -> None:
        self._kv_events = self.event_log(CPU)

    def take_events(self) -> Sequence[KVCacheEvent]:
        return () if self._kv_events is None else self._kv_events.take()

    def on_request_finished(self, context: RequestContext) -> None:
        self.policy.on_request_finished(context)

    def lose_contents(self) -> None:
        """The memory is empty from now on. What somebody reads or writes goes when they are done."""
        for key, slot in list(self.slots.items()):
            if slot.ref_count == 0:
                self._num_evictable -= 1
                self._drop(key)
            else:
                self._doomed.add(key)
        self._epoch += 1

    def _drop(self, key: int) -> None:
        self.policy.remove(key)
        self._free_ids.append(self.slots.pop(key).slot_id)

    # -- counting
    @property
    def capacity_chunks(self) -> int:
        return self.num_slots

    @property
    def num_chunks(self) -> int:
        return len(self.slots)

    @property
    def num_evicted(self) -> int:
        return self._num_evicted

    @property
    def num_refusals(self) -> int:
        return self._num_refusals

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

    def _make_room(self, wanted: int, context: RequestContext, offered: Sequence[int]) -> bool:
        missing = self._missing_slots(wanted)
        if missing <= 0:
            return True
        if missing > self._num_evictable:  # refused without asking the policy
            return False
        # Everything offered is protected, below the threshold or not.
        return self._evict(missing, self.policy.protected_by(context, offered))

    def _evict(self, count: int, protected: Collection[int]) -> bool:
        victims = self.policy.evict(count, protected)
        if self._on_evict is not None:
            self._on_evict(count, victims)
        if victims is None:
            return False
        if self._kv_events is not None:
            self._kv_events.removed(victims)
        self._free_ids += [self.slots.pop(key).slot_id for key in victims]
        self._num_evictable -= count
        self._num_evicted += count
        self._epoch += 1
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
        self._epoch += 1
        return ids

    def check(self, *, at_end: bool) -> None:
        ids = [slot.slot_id for slot in self.slots.values()]
        assert len(set(ids) | set(self._free_ids)) == len(ids) + len(self._free_ids) == self._num_fresh, (
            "CPU slots leak"
        )
        assert self._num_fresh <= self.num_slots, "more CPU slots than exist"
        evictable = [slot.ref_count for slot in self.slots.values()].count(0)
        assert evictable == self._num_evictable, f"{evictable} evictable chunks, {self._num_evictable} counted"
        if at_end:
            assert evictable == len(ids), f"{len(ids) - evictable} CPU chunks are still pinned"


class OffloadingManager023(OffloadingManager):
    """0.23.0: a policy is touched key by key at every lookup and store, and lookups feed ``store_threshold``.

    Rules: vLLM 0.23.0 v1/kv_offload/cpu/manager.py.
    """

    event_log = OffloadEventLog023
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

    def prepare_load(self, context: RequestContext, first: int, last: int) -> list[int]:
        return self.pin(context.keys[first:last])

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
            self._num_refusals += 1
            return None
        return StorePlan(todo, self._insert(context, todo))

    def on_request_finished(self, context: RequestContext) -> None:
        """Nothing is committed late."""
