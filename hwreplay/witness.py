"""Words kept from every copy as soon as it is done, so that a job is verified even if its blocks are overwritten later.

Most stores are never loaded again and their blocks are reused before a replay ends: the state at the end says nothing
about them. So behind each store or load its stream also copies one word of some of its blocks away, to the other side.
That is not part of the job's time; whoever touches the blocks next waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hwreplay import pattern
from hwreplay.backends.base import Batch, Copier
from hwreplay.layout import Addresses, PagedMemory
from hwreplay.machine import Machine, Memory, Stream
from hwreplay.result import WrongByte
from kvsim.results.schedule import Job, Schedule

MOST = 64
"""Blocks of a job that are witnessed: the first, the last, and others between them."""

_WORD = pattern.WORD


@dataclass(frozen=True, slots=True)
class _Kept:
    """Where a job's words go, and which words of which of its blocks they are."""

    offset: int
    places: tuple[int, ...]  # in the job's lists
    pieces: tuple[int, ...]
    words: tuple[int, ...]


class Witnesses:
    """Memory for the words of all jobs of a schedule.

    Args:
        schedule: jobs of files are left out.
        machine: where it is replayed.
        gpu: memory of that side and how its blocks lie.
        host: the same.
    """

    def __init__(
        self, schedule: Schedule, machine: Machine, gpu: tuple[Memory, PagedMemory], host: tuple[Memory, PagedMemory]
    ) -> None:
        self._sides = {"load": gpu, "store": host}  # by who writes there
        self._jobs = {job.job: job for job in _copies(schedule)}
        self._kept: dict[int, _Kept] = {}
        sizes = {"load": 0, "store": 0}
        for job in self._jobs.values():
            kept = _chosen(job, sizes[job.direction], gpu[1].heads(machine.head_bytes))
            self._kept[job.job] = kept
            sizes[job.direction] += len(kept.places) * _WORD
        # Words of loads, read from the GPU, are kept on the host; those of stores on the GPU.
        self._memory: dict[str, Memory] = {
            "load": machine.host_memory(sizes["load"], _WORD),
            "store": machine.device_memory(sizes["store"]),
        }

    def keep(self, job: Job, stream: Stream, copier: Copier) -> None:
        """Queue the copies of a job's words, behind the job."""
        kept = self._kept[job.job]
        memory, paged = self._sides[job.direction]
        offsets = [
            paged.piece_offset(job.destination[place], piece) + word * _WORD
            for place, piece, word in zip(kept.places, kept.pieces, kept.words, strict=True)
        ]
        count = len(offsets)
        sources = np.asarray(offsets, dtype=np.uint64) + np.uint64(memory.address)
        start = self._memory[job.direction].address + kept.offset
        targets: Addresses = np.arange(count, dtype=np.uint64) * np.uint64(_WORD) + np.uint64(start)
        batch = Batch(sources, targets, np.full(count, _WORD, dtype=np.uint64))
        copier.copy(stream, "d2h" if job.direction == "load" else "h2d", batch, ordered=True)

    def first_wrong(self, salt: int) -> tuple[int, WrongByte | None]:
        """(words that are right, the first that is not), in the order of the jobs."""
        right = 0
        for number, job in self._jobs.items():
            kept = self._kept[number]
            memory = self._memory[job.direction]
            found = memory.read(kept.offset, len(kept.places) * _WORD).copy().view(np.uint64)
            paged = self._sides[job.direction][1]
            contents = [job.contents[place] for place in kept.places]
            firsts = pattern.bases(contents, paged.pieces, salt)[list(kept.pieces), range(len(contents))]
            expected = firsts + pattern.ramp(paged.piece_bytes // _WORD)[list(kept.words)]
            wrong = np.nonzero(found != expected)[0]
            if wrong.size:
                return right, self._wrong(job, kept, int(wrong[0]), found, expected)
            right += len(contents)
        return right, None

    def _wrong(self, job: Job, kept: _Kept, which: int, found: Addresses, expected: Addresses) -> WrongByte:
        bytes_found, bytes_expected = (each[which : which + 1].view(np.uint8) for each in (found, expected))
        byte = int(np.nonzero(bytes_found != bytes_expected)[0][0])
        place = kept.places[which]
        paged = self._sides[job.direction][1]
        return WrongByte(
            job=job.job,
            side="gpu" if job.direction == "load" else "host",
            block=job.destination[place],
            content=job.contents[place],
            offset=kept.pieces[which] * paged.piece_bytes + kept.words[which] * _WORD + byte,
            found=int(bytes_found[byte]),
            expected=int(bytes_expected[byte]),
        )


def _copies(schedule: Schedule) -> Iterator[Job]:
    for step in schedule.steps:
        for job in step.jobs:
            if job.direction in ("store", "load"):
                yield job


def _chosen(job: Job, offset: int, paged: PagedMemory) -> _Kept:
    """Blocks at equal distances; of each another piece, and another word of its head."""
    count = len(job.source)
    number = min(count, MOST)
    places = tuple(index * (count - 1) // max(1, number - 1) for index in range(number))
    pieces = tuple((job.job + index) % paged.pieces for index in range(number))
    words = paged.piece_bytes // _WORD
    return _Kept(
        offset, places, pieces, tuple((7919 * (job.job + index) + words - 1) % words for index in range(number))
    )


def possible(paged: PagedMemory) -> bool:
    """Whether pieces are whole words, which they are but for layouts that no model has."""
    return paged.piece_bytes % _WORD == 0
