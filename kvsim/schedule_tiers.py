"""Writes down what the file systems behind CPU memory write and read, for the schedule of a run."""

from __future__ import annotations

from typing import Literal

from kvsim.offload.ledger import Keys
from kvsim.offload.slot import Slots
from kvsim.schedule_recorder import Copy, ScheduleRecorder


class TierFiles:
    """Numbers of the files of all tiers, and what they hold; a file has as many numbers as a chunk has GPU blocks."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, int], int] = {}  # (tier, key) -> its first number
        self.contents: dict[int, int] = {}

    def numbers(self, tier: int, key: int, count: int) -> list[int]:
        """The numbers of a chunk's blocks in a tier."""
        first = self._first.setdefault((tier, key), len(self._first) * count)
        return list(range(first, first + count))


class TierRecorder:
    """Listens to one tier.

    Chunks that a tier has already are not written again, and those that find no room are not written at all: a job
    holds what is really moved. One that moves nothing does not appear.

    Args:
        tier: number of the tier.
        files: of all tiers.
        slots: of CPU memory, by key.
    """

    def __init__(self, recorder: ScheduleRecorder, tier: int, files: TierFiles, slots: Slots) -> None:
        self._recorder, self._tier, self._files, self._slots = recorder, tier, files, slots
        self._open: dict[object, Copy] = {}

    def submitted(self, job: object, direction: Literal["load", "store"], keys: Keys) -> None:
        """Promotions are submitted while a step is decided, cascades when stores are found to be over, behind it."""
        recorder = self._recorder
        copy = self._open[job] = Copy("read" if direction == "load" else "write", None, None, recorder.clock.now)
        if direction == "store":
            recorder.add_after_step(copy)
            return
        for key in keys:
            copy.source += self._numbers(key)
            copy.destination += self._host_blocks(key)
        copy.contents = [self._files.contents[number] for number in copy.source]
        recorder.host.update(zip(copy.destination, copy.contents, strict=True))
        recorder.add_in_decision(copy)

    def begun(self, job: object, written: Keys) -> None:
        """A thread has taken a part of it."""
        copy = self._open[job]
        if copy.launched_ns is None:
            copy.launched_ns = self._recorder.clock.now
        for key in written:
            numbers, blocks = self._numbers(key), self._host_blocks(key)
            contents = [self._recorder.host[block] for block in blocks]
            copy.source += blocks
            copy.destination += numbers
            copy.contents += contents
            self._files.contents.update(zip(numbers, contents, strict=True))

    def ended(self, job: object) -> None:
        """Its last chunk has been moved."""
        self._open.pop(job).finished_ns = self._recorder.clock.now

    def _numbers(self, key: int) -> list[int]:
        return self._files.numbers(self._tier, key, self._recorder.blocks_per_slot)

    def _host_blocks(self, key: int) -> list[int]:
        return self._recorder.host_blocks([self._slots[key].slot_id])
