"""What a timeline shows of copies between GPU and host, and of storage tiers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from kvsim.clock import Clock
from kvsim.connectors.base import CopyJob
from kvsim.hardware import LinkDirection, Transfer
from kvsim.offload.ledger import Keys
from kvsim.request import Request
from kvsim.results.timeline import Process, Slice, Timeline
from kvsim.tiers.storage_tier import TierListener

STREAMS: dict[LinkDirection, str] = {"d2h": "store", "h2d": "load"}


class LinkTracks:
    """A link's two streams. A copy begins when it is submitted, or when the one before it has been moved."""

    def __init__(self, clock: Clock, timeline: Timeline, process: Process, name: str) -> None:
        self._clock, self._timeline = clock, timeline
        self._tracks = {way: process.track(f"{stream} {name}") for way, stream in STREAMS.items()}
        self._free_ns: dict[LinkDirection, int] = {"h2d": 0, "d2h": 0}

    def __call__(self, direction: LinkDirection, transfer: Transfer) -> None:
        """It has been moved; or it never will be, because its engine is dead."""
        start_ns = max(transfer.submitted_ns, self._free_ns[direction])
        end_ns = transfer.finished_ns if transfer.is_done else self._clock.now
        self._free_ns[direction] = end_ns
        track = self._tracks[direction]
        if not self._timeline.shows(start_ns, end_ns) or not track.take_next():
            return
        args: dict[str, object] = {"bytes": transfer.num_bytes, "queued_ms": (start_ns - transfer.submitted_ns) / 1e6}
        if isinstance(transfer.job, CopyJob):
            args |= {"blocks": len(transfer.job.gpu_blocks), **_requests_of(transfer.job)}
        if not transfer.is_done:
            args["engine_died"] = True
        track.add(Slice(start_ns, end_ns, STREAMS[direction], args))


def _requests_of(job: CopyJob) -> dict[str, object]:
    request: Request | None = getattr(job, "request", None)
    requests: Sequence[Request] = getattr(job, "requests", ()) if request is None else [request]
    if not requests:
        return {}
    return {"request": ", ".join(each.request_id for each in requests[:8]) + (", ..." if len(requests) > 8 else "")}


class WatchedTier(Protocol):
    """A tier whose jobs can be followed."""

    listener: TierListener | None
    chunk_bytes: int

    def write_backlog_bytes(self) -> int:
        """Handed over for writing, not written yet."""
        ...

    def read_queue_bytes(self) -> int:
        """Asked for, not read yet."""
        ...


@dataclass(slots=True)
class _TierJob:
    way: Literal["read", "write"]
    submitted_ns: int
    num_bytes: int
    begun_ns: int = -1
    lane: int = -1


class TierTrack:
    """A storage tier's jobs, from the moment when a thread takes the first part of one until all of it is moved.

    Several are moved at a time: each takes the first lane that is free.
    """

    def __init__(self, clock: Clock, timeline: Timeline, process: Process, name: str, tier: WatchedTier) -> None:
        self.name = name
        self._clock, self._timeline, self._process, self._tier = clock, timeline, process, tier
        self._jobs: dict[object, _TierJob] = {}
        self._lanes: dict[str, list[bool]] = {"read": [], "write": []}  # whether they are taken

    def queue(self) -> dict[str, float]:
        """What waits for the tier or is on its way, in GB."""
        return {"read": self._tier.read_queue_bytes() / 1e9, "write": self._tier.write_backlog_bytes() / 1e9}

    def submitted(self, job: object, direction: Literal["load", "store"], keys: Keys) -> None:
        """See `kvsim.tiers.storage_tier.TierListener`."""
        num_bytes = len(keys) * self._tier.chunk_bytes if direction == "load" else 0
        self._jobs[job] = _TierJob("read" if direction == "load" else "write", self._clock.now, num_bytes)

    def begun(self, job: object, written: Keys) -> None:
        """A part of it."""
        each = self._jobs[job]
        each.num_bytes += len(written) * self._tier.chunk_bytes
        if each.begun_ns < 0:
            each.begun_ns, lanes = self._clock.now, self._lanes[each.way]
            if all(lanes):
                lanes.append(False)
            each.lane = lanes.index(False)
            lanes[each.lane] = True

    def ended(self, job: object) -> None:
        """All of it; if nothing of it had to be moved, it is not shown."""
        each, now = self._jobs.pop(job), self._clock.now
        if each.begun_ns < 0:
            return
        self._lanes[each.way][each.lane] = False
        track = self._process.track(f"{self.name} {each.way}", each.lane + 1)
        if self._timeline.shows(each.begun_ns, now) and track.take_next():
            args = {"bytes": each.num_bytes, "queued_ms": (each.begun_ns - each.submitted_ns) / 1e6}
            track.add(Slice(each.begun_ns, now, each.way, args))


@dataclass(frozen=True, slots=True)
class BothListeners:
    """Two listeners, told one after the other."""

    first: TierListener
    second: TierListener

    def submitted(self, job: object, direction: Literal["load", "store"], keys: Keys) -> None:
        """See `TierListener`."""
        self.first.submitted(job, direction, keys)
        self.second.submitted(job, direction, keys)

    def begun(self, job: object, written: Keys) -> None:
        """See `TierListener`."""
        self.first.begun(job, written)
        self.second.begun(job, written)

    def ended(self, job: object) -> None:
        """See `TierListener`."""
        self.first.ended(job)
        self.second.ended(job)
