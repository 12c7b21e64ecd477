"""The transactional protocol between a connector and whatever keeps KV outside the GPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from kvsim.kv_events import KVCacheEvent

# What a ledger calls keys, chunks or slots: lists of numbers in `kvsim.offload`, `Runs` in `kvsim.extents`.
Keys = Any
# What goes with them: `kvsim.offload.context.RequestContext` or `kvsim.extents.context.RunContext`.
Context = Any


class PrefixHit(NamedTuple):
    """``chunks`` leading chunks are there; ``pending`` = the answer is not final yet: ask again later."""

    chunks: int
    pending: bool


class StorePlan(NamedTuple):
    """Chunks to copy (positions in the request) and the slot of each."""

    positions: Keys
    slot_ids: Keys


class Ledger(ABC):
    """Which chunk lies in which slot, and which may go.

    A store is two calls: `prepare_store` reserves slots (evicting if it must; all or nothing) and `complete_store`
    makes them readable. A load is two calls: `prepare_load` pins, `complete_load` unpins.
    """

    lookups_are_pure = True  # asking again changes nothing

    @property
    @abstractmethod
    def epoch(self) -> int:
        """Grows with every change that a lookup could notice."""

    @abstractmethod
    def lookup_prefix(self, context: Context, first: int, last: int) -> PrefixHit:
        """How far the request's chunks ``first .. last-1`` are here. Chunks being written count, and say so."""

    @abstractmethod
    def touch(self, context: Context) -> None:
        """All of the request's keys were asked for (release 0.23.0 only)."""

    @abstractmethod
    def prepare_load(self, context: Context, first: int, last: int) -> Keys:
        """Pin chunks ``first .. last-1`` for reading and return their slots. They must be ready."""

    @abstractmethod
    def prepare_load_of(self, context: Context, positions: Sequence[int]) -> Keys:
        """As `prepare_load`, of any of the request's chunks."""

    @abstractmethod
    def complete_load(self, keys: Keys) -> None:
        """The copies have been read."""

    @abstractmethod
    def prepare_store(self, context: Context, first: int, last: int) -> StorePlan | None:
        """Offer chunks ``first .. last-1``: the absent ones get slots.

        Returns:
            What to copy (possibly nothing), or None = no room: nothing was evicted, offer them again.
        """

    @abstractmethod
    def prepare_store_of(self, context: Context, positions: Sequence[int]) -> StorePlan | None:
        """As `prepare_store`, of any of the request's chunks, in the order given."""

    @abstractmethod
    def complete_store(self, keys: Keys, context: Context | None = None, *, success: bool = True) -> None:
        """The copies are written: readable, and evictable; without ``success`` they are gone and their slots free.

        ``context``: whose store it was, if a request's.
        """

    @abstractmethod
    def on_request_finished(self, context: Context) -> None:
        """The request is over: commit what was noted while it lived."""

    def sources(self, context: Context, first: int, last: int) -> list[int]:
        """Numbers of the secondary tiers that this request has had its chunks ``first .. last-1`` brought from."""
        return []

    def on_schedule_end(self) -> None:
        """The step's decisions are made."""

    def enable_kv_events(self) -> None:
        """Note KV events from now on."""

    def take_events(self) -> Sequence[KVCacheEvent]:
        """KV events of all tiers since the last call."""
        return ()

    def has_pending_work(self) -> bool:
        """Whether the ledger waits for something that no job of a connector stands for."""
        return False

    @property
    @abstractmethod
    def capacity_chunks(self) -> int:
        """Slots of the tier that the GPU can reach."""

    @property
    @abstractmethod
    def num_chunks(self) -> int:
        """Chunks with a slot in the tier that the GPU can reach."""

    @property
    @abstractmethod
    def num_evicted(self) -> int:
        """Chunks that tier has lost so far."""

    @property
    @abstractmethod
    def num_refusals(self) -> int:
        """Offers so far that found no room (an offer is repeated every step)."""

    @abstractmethod
    def check(self, *, at_end: bool) -> None:
        """Raise AssertionError if the books are wrong (``at_end``: or if anything is still pinned)."""


class Primary(Ledger):
    """A ledger behind which secondary tiers can stand."""

    @abstractmethod
    def pin(self, keys: Keys) -> Keys:
        """Protect ready chunks from eviction while somebody reads them; returns their slots."""

    @abstractmethod
    def held(self, keys: Keys) -> Keys:
        """Those that are here, in the order given."""
