"""Times of batches of equal descriptors: what a probe measured on purpose, and what the jobs of replays give.

A cell is one batch size in one direction by one backend, alone on the link. Times are those that a scheduler sees,
from the submit call to the end; where a probe also measured the copies behind a gate, that is kept beside it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from hwreplay.intervals import jobs_alone
from hwreplay.result import CopyCell, ProbeResult, RunResult, Way

Direction = Literal["h2d", "d2h"]
DIRECTIONS: tuple[Direction, ...] = ("h2d", "d2h")

DIRECTION_OF: dict[str, Direction] = {"load": "h2d", "store": "d2h"}
"""Of the jobs that use the link; those of the file tier do not."""

BIN_RATIO = 1.3
"""Jobs whose numbers of descriptors differ by no more than this are one cell, if there are enough of them."""
BIN_SAMPLES = 5
"""With fewer jobs a cell reaches further."""
MOST_BIN_RATIO = 1.6
"""But not further than this: the medians of number and of time would not belong together."""


class Group(NamedTuple):
    """What is fitted together."""

    backend: str
    way: Way
    direction: Direction


@dataclass(frozen=True, slots=True)
class Cell:
    """One batch size. Times are in ns: median, and what 10 % and 90 % of the samples stayed below."""

    group: Group
    descriptor_bytes: int
    count: int
    ns: int
    low_ns: int
    high_ns: int
    samples: int
    link_ns: int | None  # of the copies alone, behind a gate; None if only jobs were timed
    scattered: bool

    @property
    def bytes(self) -> int:
        """What one batch moves."""
        return self.descriptor_bytes * self.count

    @property
    def spread(self) -> float:
        """Width between the 10th and the 90th percentile, as a part of the median."""
        return (self.high_ns - self.low_ns) / self.ns


def probe_cells(probes: Iterable[ProbeResult]) -> list[Cell]:
    """Cells of probes; a cell that several of them measured is their median.

    A backend that was measured with scattered descriptors is represented by those alone: blocks of a KV cache do not
    lie side by side. Copies of memory that is not pinned are of the way ``pageable``, whatever made them.
    """
    found: dict[tuple[Group, bool, int, int], list[CopyCell]] = {}
    for probe in probes:
        for cell in probe.copies:
            group = Group(cell.backend, cell.way if cell.pinned else "pageable", cell.direction)
            found.setdefault((group, cell.scattered, cell.descriptor_bytes, cell.count), []).append(cell)
    apart = {group for group, scattered, _, _ in found if scattered}
    return [
        Cell(
            group,
            size,
            count,
            ns=_median(cell.job_ns.median for cell in cells),
            low_ns=min(cell.job_ns.p10 for cell in cells),
            high_ns=max(cell.job_ns.p90 for cell in cells),
            samples=sum(cell.job_ns.n for cell in cells),
            link_ns=_median(cell.link_ns.median for cell in cells),
            scattered=scattered,
        )
        for (group, scattered, size, count), cells in sorted(found.items())
        if scattered or group not in apart
    ]


def run_cells(runs: Sequence[RunResult]) -> list[Cell]:
    """Cells of the jobs of replays, by size of descriptor and number of descriptors.

    Only jobs that had the link to themselves count; where a group has none, all of its jobs do, so that a busy link
    is not mistaken for one that was never used (`alone_share` tells).
    """
    alone: dict[tuple[Group, int], list[tuple[int, int]]] = {}
    every: dict[tuple[Group, int], list[tuple[int, int]]] = {}
    for run in runs:
        jobs = [job for job in run.jobs if job.direction in DIRECTION_OF and job.descriptors and job.bytes]
        for job, is_alone in zip(jobs, jobs_alone(jobs), strict=True):
            key = Group(run.backend, run.way, DIRECTION_OF[job.direction]), job.descriptor_bytes
            sample = job.descriptors, max(1, job.finished_ns - job.started_ns)
            every.setdefault(key, []).append(sample)
            if is_alone:
                alone.setdefault(key, []).append(sample)
    return [
        _binned_cell(group, size, members)
        for (group, size), samples in sorted(every.items())
        for members in bins(alone.get((group, size), samples))
    ]


def bins(samples: Iterable[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Samples (number of descriptors, ns) in stretches of similar numbers; equal numbers stay together."""
    current: list[tuple[int, int]] = []
    for sample in sorted(samples):
        if current and sample[0] != current[-1][0]:
            reach = BIN_RATIO if len(current) >= BIN_SAMPLES else MOST_BIN_RATIO
            if sample[0] > reach * current[0][0]:
                yield current
                current = []
        current.append(sample)
    if current:
        yield current


def _binned_cell(group: Group, size: int, members: Sequence[tuple[int, int]]) -> Cell:
    """Medians of number and time; the spread is that of the time per descriptor, as the numbers differ."""
    count = max(1, round(statistics.median(number for number, _ in members)))
    ns = _median(time for _, time in members)
    each = sorted(time / number for number, time in members)
    middle = statistics.median(each)
    low, high = (each[round(part * (len(each) - 1))] / middle for part in (0.1, 0.9))
    return Cell(group, size, count, ns, round(ns * low), round(ns * high), len(members), None, scattered=True)


def _median(values: Iterable[int]) -> int:
    return max(1, round(statistics.median(values)))
