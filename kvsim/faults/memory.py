"""A CPU tier that goes away and comes back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvsim.offload.ledger import Context, Keys, Ledger, PrefixHit, StorePlan


class BreakableLedger(Ledger):
    """Stands before the ledger of the CPU tier. While the tier is away, lookups miss and stores find no room.

    Copies that are in flight when it goes are `FaultyCopier`'s to fail.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.lookups_are_pure = ledger.lookups_are_pure
        self.is_away = False
        self._changes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def go_away(self) -> None:
        """From now on."""
        self.is_away = True
        self._changes += 1

    def come_back(self) -> None:
        """From now on."""
        self.is_away = False
        self._changes += 1

    @property
    def epoch(self) -> int:
        return self._ledger.epoch + self._changes

    @property
    def lookup_version(self) -> int:
        """See `RunOffloadingManager`."""
        version: int = self._ledger.lookup_version  # type: ignore[attr-defined]
        return version + self._changes

    def lookup_prefix(self, context: Context, first: int, last: int) -> PrefixHit:
        return PrefixHit(0, False) if self.is_away else self._ledger.lookup_prefix(context, first, last)

    def touch(self, context: Context) -> None:
        self._ledger.touch(context)

    def prepare_load(self, context: Context, first: int, last: int) -> Keys:
        return self._ledger.prepare_load(context, first, last)

    def complete_load(self, keys: Keys) -> None:
        self._ledger.complete_load(keys)

    def prepare_store(self, context: Context, first: int, last: int) -> StorePlan | None:
        return None if self.is_away else self._ledger.prepare_store(context, first, last)

    def prepare_load_of(self, context: Context, positions: Sequence[int]) -> Keys:
        return self._ledger.prepare_load_of(context, positions)

    def prepare_store_of(self, context: Context, positions: Sequence[int]) -> StorePlan | None:
        return None if self.is_away else self._ledger.prepare_store_of(context, positions)

    def complete_store(self, keys: Keys, context: Context | None = None, *, success: bool = True) -> None:
        self._ledger.complete_store(keys, context, success=success)

    def on_request_finished(self, context: Context) -> None:
        self._ledger.on_request_finished(context)

    def on_schedule_end(self) -> None:
        self._ledger.on_schedule_end()

    def has_pending_work(self) -> bool:
        return self._ledger.has_pending_work()

    @property
    def capacity_chunks(self) -> int:
        return self._ledger.capacity_chunks

    @property
    def num_chunks(self) -> int:
        return self._ledger.num_chunks

    @property
    def num_evicted(self) -> int:
        return self._ledger.num_evicted

    @property
    def num_refusals(self) -> int:
        return self._ledger.num_refusals

    def check(self, *, at_end: bool) -> None:
        self._ledger.check(at_end=at_end)
