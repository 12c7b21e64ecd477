"""vLLM's example tier: a dictionary in host memory in which every move is complete at once."""

from __future__ import annotations

from typing import Any, Literal

from kvsim.extents.files import RunFiles
from kvsim.offload.ledger import Keys
from kvsim.offload.tiering import Answer, TierJob
from kvsim.results.records import TierTotals
from kvsim.tiers.files import Files


class ExampleTier:
    """Unbounded, and outside time: the upper bound of what a secondary tier can give.

    ``files``: of the kind that the keys need.

    Rule: vLLM 0.33.0 v1/kv_offload/tiering/example/manager.py.
    """

    def __init__(self, totals: TierTotals, chunk_bytes: int, files: Files | RunFiles | None = None) -> None:
        self.totals, self.chunk_bytes = totals, chunk_bytes
        self.files: Files | RunFiles = Files() if files is None else files
        self.num_changes = 0  # nothing is started, changed or costs anything
        self._done: list[TierJob] = []

    @property
    def epoch(self) -> int:
        """Grows with every change that `lookup` could notice."""
        return self.files.epoch

    def lookup(self, key: Any, request_id: str) -> Answer:
        """Whether the chunk is here."""
        return Answer.HIT if key in self.files else Answer.MISS

    def on_schedule_end(self) -> None:
        """Nothing to find out."""

    def on_request_finished(self, request_id: str) -> None:
        """Nothing to forget."""

    def submit(self, direction: Literal["load", "store"], keys: Keys) -> None:
        """Done as soon as somebody asks."""
        size = len(keys) * self.chunk_bytes
        if direction == "store":
            known = len(keys) - len(self.files.missing(keys))
            self.files.reserve(len(keys))
            self.files.publish(keys)
            self.totals.deduplicated_chunks += known
            self.totals.write_jobs += 1
            self.totals.write_bytes += size - known * self.chunk_bytes
            self.totals.used_chunks_peak = len(self.files)
        else:
            self.totals.read_jobs += 1
            self.totals.read_bytes += size
        self._done.append((direction, keys))

    def poll(self) -> list[TierJob]:
        """Everything submitted since the last poll."""
        done, self._done = self._done, []
        return done

    def is_idle(self) -> bool:
        """Nothing unreported."""
        return not self._done

    def write_backlog_bytes(self) -> int:
        """Never any."""
        return 0

    def read_queue_bytes(self) -> int:
        """Never any."""
        return 0

    def busy_ns(self) -> int:
        """It has no device."""
        return 0

    def bring_up_to_date(self) -> None:
        """Complete the totals."""
        self.totals.used_chunks = len(self.files)
