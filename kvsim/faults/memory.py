"""A CPU tier that goes away and comes back."""

from __future__ import annotations

from collections.abc import Sequence

from kvsim.offload.around import LedgerAround
from kvsim.offload.ledger import Context, Ledger, PrefixHit, StorePlan


class BreakableLedger(LedgerAround):
    """Stands before the ledger of the CPU tier. While the tier is away, lookups miss and stores find no room.

    Copies that are in flight when it goes are `FaultyCopier`'s to fail.
    """

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.is_away = False
        self._changes = 0

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

    def refresh(self) -> None:
        """See `RunOffloadingManager`; while it is away, lookups do not get that far."""
        if not self.is_away:
            self._ledger.refresh()  # type: ignore[attr-defined]

    def lookup_prefix(self, context: Context, first: int, last: int) -> PrefixHit:
        return PrefixHit(0, False) if self.is_away else self._ledger.lookup_prefix(context, first, last)

    def prepare_store(self, context: Context, first: int, last: int) -> StorePlan | None:
        return None if self.is_away else self._ledger.prepare_store(context, first, last)

    def prepare_store_of(self, context: Context, positions: Sequence[int]) -> StorePlan | None:
        return None if self.is_away else self._ledger.prepare_store_of(context, positions)
