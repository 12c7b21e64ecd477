"""A secondary tier of the user's own, with the books that every tier keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from kvsim.clock import Clock
from kvsim.kv_events import KVCacheEvent
from kvsim.offload.tiering import Answer, SecondaryTier, TellsEvents, TierJob
from kvsim.results.records import TierTotals
from kvsim.tiers.device import IoCost, StorageDevice


@dataclass(frozen=True, slots=True)
class TierSite:
    """What a tier is told of the run that it serves.

    Attributes:
        clock: simulated time, in ns.
        chunk_bytes: of one chunk over all ranks.
        seed: of every random choice.
        wake: to be called whenever there may be something new to poll or to look up; a sleeping engine does not ask.
    """

    clock: Clock
    chunk_bytes: int
    seed: int
    wake: Callable[[], None]

    def device(self, read_bytes_per_s: int, write_bytes_per_s: int, latency_ns: int = 0) -> StorageDevice:
        """A storage device that its reads and writes share; it wakes the engine when one is done."""
        read = IoCost(read_bytes_per_s, read_bytes_per_s, latency_ns)
        write = IoCost(write_bytes_per_s, write_bytes_per_s, latency_ns)
        return StorageDevice(self.clock, {"read": read, "write": write}, self.wake)


class OwnTier:
    """Passes everything on to the user's tier, and counts."""

    def __init__(self, clock: Clock, tier: SecondaryTier, totals: TierTotals, chunk_bytes: int) -> None:
        self.totals, self.chunk_bytes = totals, chunk_bytes
        self._clock, self._tier = clock, tier
        self._queued = {"load": 0, "store": 0}  # chunks submitted and not reported yet
        self._noted_ns = 0
        self._stored: dict[int, None] = {}

    @property
    def epoch(self) -> int:
        """Grows with every change that `lookup` could notice."""
        return self._tier.epoch

    def lookup(self, key: int, request_id: str) -> Answer:
        """Whether the chunk can be loaded from here."""
        self.totals.lookup_keys += 1
        return self._tier.lookup(key, request_id)

    def on_schedule_end(self) -> None:
        """The step's decisions are made."""
        self._tier.on_schedule_end()

    def on_request_finished(self, request_id: str) -> None:
        """The request is over."""
        self._tier.on_request_finished(request_id)

    def submit(self, direction: Literal["load", "store"], keys: Sequence[int]) -> None:
        """Start moving chunks."""
        self._note_time()
        self._queued[direction] += len(keys)
        if direction == "load":
            self.totals.read_jobs += 1
        else:
            self.totals.write_jobs += 1
            self.totals.backlog_peak_bytes = max(self.totals.backlog_peak_bytes, self.write_backlog_bytes())
        self._tier.submit(direction, keys)

    def poll(self) -> list[TierJob]:
        """Jobs that have finished since the last poll."""
        done = list(self._tier.poll())
        self._note_time()
        for direction, keys in done:
            self._queued[direction] -= len(keys)
            if direction == "load":
                self.totals.read_bytes += len(keys) * self.chunk_bytes
            else:
                self.totals.write_bytes += len(keys) * self.chunk_bytes
                self._stored.update(dict.fromkeys(keys))
        self.totals.used_chunks_peak = max(self.totals.used_chunks_peak, len(self._stored))
        return done

    def is_idle(self) -> bool:
        """Nothing in flight or unreported."""
        return self._tier.is_idle()

    def enable_kv_events(self) -> None:
        """Note KV events from now on, if the tier can."""
        if isinstance(self._tier, TellsEvents):
            self._tier.enable_kv_events()

    def take_events(self) -> Sequence[KVCacheEvent]:
        """KV events of the tier since the last call."""
        return self._tier.take_events() if isinstance(self._tier, TellsEvents) else ()

    # -- reporting
    def write_backlog_bytes(self) -> int:
        """What has been handed over for writing and is not reported yet."""
        return self._queued["store"] * self.chunk_bytes

    def read_queue_bytes(self) -> int:
        """What has been asked for and is not reported yet."""
        return self._queued["load"] * self.chunk_bytes

    def busy_ns(self) -> int:
        """Its device is not known."""
        return 0

    def bring_up_to_date(self) -> None:
        """Complete the totals; what the tier has lost again is not known."""
        self._note_time()
        self.totals.used_chunks, self.totals.backlog_bytes = len(self._stored), self.write_backlog_bytes()

    def _note_time(self) -> None:
        elapsed, self._noted_ns = self._clock.now - self._noted_ns, self._clock.now
        self.totals.read_wanted_ns += elapsed if self._queued["load"] else 0
        self.totals.write_wanted_ns += elapsed if self._queued["store"] else 0
