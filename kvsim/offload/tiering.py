"""TieringManager: a CPU ledger in front of secondary tiers that only it can reach."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Literal, Protocol, runtime_checkable

from kvsim.kv_events import KVCacheEvent
from kvsim.offload.ledger import Context, Keys, Ledger, PrefixHit, Primary, StorePlan
from kvsim.offload.manager import OffloadingManager

# What has come of keys in flight. A job that succeeds for some keys only is reported in parts.
TierJob = tuple[Literal["load", "store", "failed load", "failed store"], Keys]


class Answer(Enum):
    """What a tier says about a chunk."""

    HIT = "it can be loaded"
    MISS = "it is not here"
    RETRY = "not known yet"


class SecondaryTier(Protocol):
    """Storage behind the primary: it reads and writes CPU memory, never the GPU's.

    A tier of your own is given as ``tiers: [{kind: "my_module:MyTier", options: {...}}]`` of an offloading connector;
    its constructor gets a `kvsim.tiers.own.TierSite` and its options.
    """

    @property
    def epoch(self) -> int:
        """Grows with every change that `lookup` could notice."""
        ...

    def lookup(self, key: int, request_id: str) -> Answer:
        """Whether the chunk can be loaded from here. A tier that has to find out says so and is asked again."""
        ...

    def on_schedule_end(self) -> None:
        """The step's decisions are made: time to find out."""
        ...

    def on_request_finished(self, request_id: str) -> None:
        """The request is over, and its stores are all here or on their way."""
        ...

    def submit(self, direction: Literal["load", "store"], keys: Keys) -> None:
        """Start moving chunks from the tier (load) or to it (store)."""
        ...

    def poll(self) -> Iterable[TierJob]:
        """Jobs that have finished since the last poll."""
        ...

    def is_idle(self) -> bool:
        """Nothing in flight."""
        ...


@runtime_checkable
class TellsEvents(Protocol):
    """A tier that publishes KV events of its own."""

    def enable_kv_events(self) -> None:
        """Note them from now on."""
        ...

    def take_events(self) -> Sequence[KVCacheEvent]:
        """Since the last call."""
        ...


class TieringManager(Ledger):
    """Cascade and promotion.

    Every confirmed store is written on to all tiers (pinned in the primary until they have it). A lookup that misses
    the primary but finds a tier reserves a slot at once, which may evict, and answers "later"; the loads themselves
    go out as one job per tier and request at the end of the step. Promoted chunks are not protected before they are
    loaded: requests whose prefixes together exceed the primary can evict each other's for ever, as in the real one.
    Rules: vLLM 0.33.0 v1/kv_offload/tiering/manager.py.
    """

    lookups_are_pure = False

    def __init__(self, primary: Primary, tiers: Sequence[SecondaryTier]) -> None:
        self.primary, self.tiers = primary, tiers
        self.on_promoted: Callable[[int, int], None] | None = None  # told of each chunk and its slot
        self._polled = False  # in this step
        self.num_news = 0  # jobs of tiers that have been taken note of
        self._promotions: dict[tuple[int, str], Keys] = {}  # (tier, request) -> keys, in order of first promotion
        self._sources: dict[str, dict[int, int]] = {}  # request -> {key that it has promoted: tier}
        self._open_stores: dict[str, int] = {}  # request -> stores that have still to be cascaded
        self._finished: set[str] = set()  # ended, but with open stores; never iterated

    @property
    def epoch(self) -> int:
        """Changes of the primary and of the tiers."""
        return self.primary.epoch + sum(tier.epoch for tier in self.tiers)

    @property
    def capacity_chunks(self) -> int:
        return self.primary.capacity_chunks

    @property
    def num_chunks(self) -> int:
        return self.primary.num_chunks

    @property
    def num_evicted(self) -> int:
        return self.primary.num_evicted

    @property
    def num_refusals(self) -> int:
        return self.primary.num_refusals

    def lookup_prefix(self, context: Context, first: int, last: int) -> PrefixHit:
        self._poll_once()
        chunks, pending, position = 0, False, first
        while position < last:
            hit = self.primary.lookup_prefix(context, position, last)
            chunks, position, pending = chunks + hit.chunks, position + hit.chunks, pending or hit.pending
            if position == last:
                break
            answer = self._promote(context, position)
            if answer is Answer.MISS:
                break
            pending = True
            chunks += answer is Answer.HIT  # RETRY: go on, so that the tiers find out about the rest as well
            position += 1
        return PrefixHit(chunks, pending)

    def _promote(self, context: Context, position: int) -> Answer:
        """Find the chunk in a tier and reserve its slot. MISS: nobody has it, or the primary is full of pins."""
        key, unknown = context.keys[position], False
        for number, tier in enumerate(self.tiers):
            answer = tier.lookup(key, context.request_id)
            if answer is Answer.HIT:
                if self.primary.prepare_store(context, position, position + 1) is None:
                    return Answer.MISS
                self._promotions.setdefault((number, context.request_id), []).append(key)
                self._sources.setdefault(context.request_id, {})[key] = number
                return Answer.HIT
            unknown |= answer is Answer.RETRY
        return Answer.RETRY if unknown else Answer.MISS

    def touch(self, context: Context) -> None:
        self.primary.touch(context)

    def prepare_load(self, context: Context, first: int, last: int) -> Keys:
        return self.primary.prepare_load(context, first, last)

    def prepare_load_of(self, context: Context, positions: Sequence[int]) -> Keys:
        return self.primary.prepare_load_of(context, positions)

    def sources(self, context: Context, first: int, last: int) -> list[int]:
        """Tiers from which this request has had the chunks brought; those that it found in the primary don't count."""
        promoted = self._sources.get(context.request_id, {})
        return [promoted[key] for key in context.keys[first:last] if key in promoted]

    def complete_load(self, keys: Keys) -> None:
        self.primary.complete_load(keys)

    def prepare_store(self, context: Context, first: int, last: int) -> StorePlan | None:
        return self.prepare_store_of(context, range(first, last))

    def prepare_store_of(self, context: Context, positions: Sequence[int]) -> StorePlan | None:
        self._poll()
        return self._count(context, self.primary.prepare_store_of(context, positions))

    def _count(self, context: Context, plan: StorePlan | None) -> StorePlan | None:
        if plan is not None and plan.positions:
            self._open_stores[context.request_id] = self._open_stores.get(context.request_id, 0) + 1
        return plan

    def complete_store(self, keys: Keys, context: Context | None = None, *, success: bool = True) -> None:
        self.primary.complete_store(keys, success=success)
        held = self.primary.held(keys) if success else ()  # all, unless its contents were lost meanwhile
        for tier in self.tiers if held else ():  # all of them, also those that the tier has
            self.primary.pin(held)
            tier.submit("store", held)
        if context is not None:
            self._close_store(context.request_id)

    def _close_store(self, request_id: str) -> None:
        left = self._open_stores.pop(request_id) - 1
        if left:
            self._open_stores[request_id] = left
        self._tell_tiers_if_over(request_id)

    def on_request_finished(self, context: Context) -> None:
        self.primary.on_request_finished(context)
        self._sources.pop(context.request_id, None)
        self._finished.add(context.request_id)
        self._tell_tiers_if_over(context.request_id)

    def _tell_tiers_if_over(self, request_id: str) -> None:
        """A request is over for the tiers when it has ended and no store of it can reach them any more."""
        if request_id in self._finished and request_id not in self._open_stores:
            self._finished.remove(request_id)
            for tier in self.tiers:
                tier.on_request_finished(request_id)

    def on_schedule_end(self) -> None:
        """The step's last call: submit the promotions; the next step polls afresh."""
        self._poll_once()
        self._polled = False
        for (number, _request), keys in self._promotions.items():
            self.tiers[number].submit("load", keys)
        self._promotions = {}
        for tier in self.tiers:
            tier.on_schedule_end()

    def enable_kv_events(self) -> None:
        self.primary.enable_kv_events()
        for tier in self.tiers:
            if isinstance(tier, TellsEvents):
                tier.enable_kv_events()

    def take_events(self) -> Sequence[KVCacheEvent]:
        """The primary's, then those of tiers that keep some (vLLM: ``enable_kv_events`` of a tier)."""
        tiers = (tier.take_events() for tier in self.tiers if isinstance(tier, TellsEvents))
        return [*self.primary.take_events(), *(event for events in tiers for event in events)]

    def has_pending_work(self) -> bool:
        return not all(tier.is_idle() for tier in self.tiers)

    def check(self, *, at_end: bool) -> None:
        self.primary.check(at_end=at_end)

    def _poll_once(self) -> None:
        if not self._polled:
            self._poll()

    def _poll(self) -> None:
        self._polled = True
        for tier in self.tiers:
            for outcome, keys in tier.poll():
                self.num_news += 1
                if outcome in {"load", "failed load"}:  # the primary's copy is written, or will never be
                    self.primary.complete_store(keys, success=outcome == "load")
                    if outcome == "load" and self.on_promoted is not None:
                        self._tell_promoted(keys, self.on_promoted)
                else:  # and has been read; nobody writes again what a tier has lost
                    self.primary.complete_load(keys)

    def _tell_promoted(self, keys: Keys, tell: Callable[[int, int], None]) -> None:
        assert isinstance(self.primary, OffloadingManager), "only it knows one slot from another"
        for key in self.primary.held(keys):
            tell(key, self.primary.slots[key].slot_id)


class TieringManager023(TieringManager):
    """0.23.0: one gate for all polls, cleared only at the end of a step's decisions.

    Stores are planned after that end, so a step that offers chunks leaves the gate set: the next step's lookups don't
    poll, and completions become visible a step late.
    """

    def prepare_load(self, context: Context, first: int, last: int) -> Keys:
        self._poll_once()
        return self.primary.prepare_load(context, first, last)

    def prepare_store(self, context: Context, first: int, last: int) -> StorePlan | None:
        self._poll_once()
        return self._count(context, self.primary.prepare_store(context, first, last))
