"""A ledger that stands before another one: whatever it does not answer itself goes on to the one behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvsim.kv_events import KVCacheEvent
from kvsim.offload.ledger import Context, Keys, Ledger, PrefixHit, StorePlan


class LedgerAround(Ledger):
    """Passes everything on."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.lookups_are_pure = ledger.lookups_are_pure

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    @property
    def epoch(self) -> int:
        return self._ledger.epoch

    def lookup_prefix(self, context: Context, first: int, last: int) -> PrefixHit:
        return self._ledger.lookup_prefix(context, first, last)

    def touch(self, context: Context) -> None:
        self._ledger.touch(context)

    def prepare_load(self, context: Context, first: int, last: int) -> Keys:
        return self._ledger.prepare_load(context, first, last)

    def prepare_load_of(self, context: Context, positions: Sequence[int]) -> Keys:
        return self._ledger.prepare_load_of(context, positions)

    def complete_load(self, keys: Keys) -> None:
        self._ledger.complete_load(keys)

    def prepare_store(self, context: Context, first: int, last: int) -> StorePlan | None:
        return self._ledger.prepare_store(context, first, last)

    def prepare_store_of(self, context: Context, positions: Sequence[int]) -> StorePlan | None:
        return self._ledger.prepare_store_of(context, positions)

    def complete_store(self, keys: Keys, context: Context | None = None, *, success: bool = True) -> None:
        self._ledger.complete_store(keys, context, success=success)

    def on_request_finished(self, context: Context) -> None:
        self._ledger.on_request_finished(context)

    def sources(self, context: Context, first: int, last: int) -> list[int]:
        return self._ledger.sources(context, first, last)

    def on_schedule_end(self) -> None:
        self._ledger.on_schedule_end()

    def enable_kv_events(self) -> None:
        self._ledger.enable_kv_events()

    def take_events(self) -> Sequence[KVCacheEvent]:
        return self._ledger.take_events()

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
