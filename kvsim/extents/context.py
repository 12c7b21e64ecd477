"""What the run-level ledgers remember about a request: its path, and what it has done with stretches of it."""

from __future__ import annotations

from collections.abc import Iterable

from kvsim.extents.intervals import Interval, Intervals
from kvsim.extents.path import Path, PathKeys, Run


class RunContext:
    """One request, as run-level ledgers see it: `kvsim.offload.context.RequestContext` by the run.

    Attributes:
        path: the request's chunks, known or not.
        keys: the known ones.
        rank: recency of the request's first access; -1 = none yet (LRU).
        seen: positions stored, loaded, or found present when offered.
        inserted: positions that this request put into the tier.
        reused: positions that were there already, thanks to somebody else.
        missed: positions that this request reported missing.
    """

    __slots__ = ("inserted", "keys", "missed", "path", "rank", "request_id", "reused", "seen")

    def __init__(self, request_id: str, path: Path, num_keys: int = 0) -> None:
        self.request_id, self.path = request_id, path
        self.keys = PathKeys(path, num_keys)
        self.rank = -1
        self.seen, self.inserted, self.reused, self.missed = Intervals(), Intervals(), Intervals(), Intervals()

    @property
    def num_keys(self) -> int:
        """Chunks known now."""
        return self.keys.num_keys

    def extend_to(self, num_keys: int) -> None:
        """The request has that many chunks by now."""
        self.keys.num_keys = max(self.keys.num_keys, num_keys)

    def runs_of(self, intervals: Iterable[Interval]) -> list[Run]:
        """The chunks at these positions, in the order given."""
        path = self.path
        return [run for first, last in intervals for run in path.runs(first, last)]
