"""Which stored chunks have ever been loaded, by the run."""

from __future__ import annotations

from kvsim.extents.path import Runs
from kvsim.extents.run_set import RunSet
from kvsim.offload.store_use import StoreUse


class RunStoreUse(StoreUse):
    """`StoreUse` of `Runs`."""

    def __init__(self) -> None:
        super().__init__()
        self._unread_runs = RunSet()

    def stored(self, keys: Runs) -> None:
        self.num_stored += len(keys)
        self._unread_runs.add(keys.runs)

    def loaded(self, keys: Runs) -> None:
        self._num_used += self._unread_runs.discard(keys.runs)
