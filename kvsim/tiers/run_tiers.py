"""Secondary tiers that are asked by the run."""

from __future__ import annotations

from kvsim.extents.changes import Changes
from kvsim.extents.files import RunFiles
from kvsim.extents.lookup import RunLookup
from kvsim.extents.path import Key, Run, Runs, run_of
from kvsim.offload.tiering import Answer
from kvsim.results.records import TierTotals
from kvsim.tiers.example import ExampleTier
from kvsim.tiers.storage_tier import StorageTier


class RunStorageTier(StorageTier):
    """`StorageTier` of `Runs`; its files are `RunFiles`. A lookup is a `peek` and an `ask`."""

    lookup_kind = RunLookup
    files: RunFiles

    def lookup(self, key: Key, request_id: str) -> Answer:
        run = Run(key.segment, key.position, key.position + 1)
        answer, _count = self.peek(run)
        self.ask(run, request_id)
        return answer

    def _take_in_progress_of(self, keys: Runs) -> None:
        """See `StorageTier`; of most others it does not matter how far they have come."""
        if self.files.must_be_told(len(keys)):
            self._take_in_progress()
        elif self._looked_ns != self._env.now:
            segments = {run[0] for run in keys.runs}
            for writing in self._writing.values():
                complete, written = self._device.chunks_done(writing.stream), writing.keys
                self._count(writing, complete)
                if complete > writing.published and any(run[0] in segments for run in written.runs):
                    self._publish(writing, complete)

    @property
    def lookup_version(self) -> int:
        """Grows with every change that `peek` could notice and `lookup_changes` do not tell.

        If answers come from the background, files matter only once some have been evicted that were found before.
        """
        return self.files.epoch if self._lookup is None or self.files.num_evicted else 0

    @property
    def lookup_changes(self) -> tuple[Changes, ...]:
        """Answers from the background."""
        return () if self._lookup is None else (self._lookup.changes,)

    def peek(self, run: Run) -> tuple[Answer, int]:
        """What a lookup of the run's first chunk would answer, and of how many from there on."""
        if self._lookup is None:
            self._take_in_progress()
        else:
            answer, count = self._lookup.peek(run)
            if answer is not Answer.HIT:
                return answer, count
            run = run_of((run.segment, run.first, run.first + count))
        is_here, count = self.files.leading(run)
        return (Answer.HIT if is_here else Answer.MISS), count

    def ask(self, run: Run, request_id: str) -> None:
        """The run's chunks have been looked for, in order."""
        if self._lookup is None:
            self._hold_up(run.last - run.first)
        else:
            self._lookup.ask(run, request_id)


class RunExampleTier(ExampleTier):
    """`ExampleTier` of `Runs`."""

    files: RunFiles

    def __init__(self, totals: TierTotals, chunk_bytes: int) -> None:
        super().__init__(totals, chunk_bytes, RunFiles())

    @property
    def lookup_version(self) -> int:
        """Grows with every change that `peek` could notice."""
        return self.files.epoch

    @property
    def lookup_changes(self) -> tuple[Changes, ...]:
        """Nothing is told by segment."""
        return ()

    def peek(self, run: Run) -> tuple[Answer, int]:
        """What a lookup of the run's first chunk would answer, and of how many from there on."""
        is_here, count = self.files.leading(run)
        return (Answer.HIT if is_here else Answer.MISS), count

    def ask(self, run: Run, request_id: str) -> None:
        """Nothing to note."""
