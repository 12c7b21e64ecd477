"""Stretches of time that are covered: how long copies ran beside each other and beside compute."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from hwreplay.result import JobResult

Floats = npt.NDArray[np.float64]

ALONE = 0.01
"""A job is alone on the link if the other direction was busy for no more than this part of its time."""


class Covered:
    """The union of stretches of time.

    Args:
        stretches: (start, end) in ns, in any order; they may overlap.
    """

    def __init__(self, stretches: Iterable[tuple[int, int]]) -> None:
        edges: list[list[int]] = []
        for start, end in sorted((start, end) for start, end in stretches if end > start):
            if edges and start <= edges[-1][1]:
                edges[-1][1] = max(edges[-1][1], end)
            else:
                edges.append([start, end])
        self._times = np.array([time for edge in edges for time in edge], dtype=np.float64)
        lengths = [end - start for start, end in edges]
        steps = np.array([part for length in lengths for part in (0, length)], dtype=np.float64)
        self._until = np.cumsum(steps)

    def within(self, start_ns: int, end_ns: int) -> float:
        """Covered nanoseconds between two times."""
        if not len(self._times):
            return 0.0
        low, high = np.interp([start_ns, end_ns], self._times, self._until)
        return float(high - low)

    def share(self, start_ns: int, end_ns: int) -> float:
        """The covered part of a stretch; 0 of an empty one."""
        return self.within(start_ns, end_ns) / (end_ns - start_ns) if end_ns > start_ns else 0.0


def beside(jobs: Sequence[JobResult]) -> list[float]:
    """Of each job on the link, the part of its time during which the other direction was busy too."""
    busy = {
        direction: Covered((job.started_ns, job.finished_ns) for job in jobs if job.direction == direction)
        for direction in ("load", "store")
    }
    other = {"load": busy["store"], "store": busy["load"]}
    return [
        other[job.direction].share(job.started_ns, job.finished_ns) if job.direction in other else 0.0 for job in jobs
    ]


def jobs_alone(jobs: Sequence[JobResult]) -> list[bool]:
    """Which jobs had the link to themselves: nothing the other way, and no other job of their direction."""
    alone = [part <= ALONE for part in beside(jobs)]
    for direction in ("load", "store"):
        order = sorted(
            (index for index, job in enumerate(jobs) if job.direction == direction),
            key=lambda index: jobs[index].started_ns,
        )
        latest = -1  # the job that ends last of those that started before
        for index in order:
            if latest >= 0 and jobs[latest].finished_ns > jobs[index].started_ns:
                alone[latest] = alone[index] = False
            if latest < 0 or jobs[index].finished_ns > jobs[latest].finished_ns:
                latest = index
    return alone
