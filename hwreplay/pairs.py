"""Like times side by side: each job and pass predicted and measured, and what their groups have in common.

An error is predicted over measured, minus 1. With several replays each number is computed for each of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hwreplay.cells import DIRECTION_OF
from hwreplay.errors import errors_of
from hwreplay.result import JobDirection, JobResult
from hwreplay.timeline import Timeline

QUANTILES = (50, 90, 99)
KIND_NAMES: Mapping[JobDirection, str] = {
    "load": "Loads (host to device)",
    "store": "Stores (device to host)",
    "write": "File writes",
    "read": "File reads",
}
MIB = 2**20
SIZE_CLASSES = (
    (MIB // 4, "below 256 KiB"), (MIB, "256 KiB to 1 MiB"), (4 * MIB, "1 to 4 MiB"), (16 * MIB, "4 to 16 MiB"),
    (64 * MIB, "16 to 64 MiB"), (256 * MIB, "64 to 256 MiB"),
)  # fmt: skip
LARGEST = "256 MiB and more"


@dataclass(frozen=True, slots=True)
class Repeated:
    """A number over several replays: the median, and the smallest and largest."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Row:
    """Times of like things.

    Attributes:
        name: what they are.
        n: how many.
        bytes: that they move; 0 for forward passes.
        bias, median, mean, p90, p99: of the errors, as in `hwreplay.errors.Errors`.
        mae_ns: median absolute error in ns.
        predicted_ns: percentiles 50, 90 and 99 of the times.
        measured_ns: the same, each over the replays.
    """

    name: str
    n: int
    bytes: int
    bias: Repeated
    median: Repeated
    mean: Repeated
    p90: Repeated
    p99: Repeated
    mae_ns: Repeated
    predicted_ns: tuple[float, ...]
    measured_ns: tuple[Repeated, ...]


@dataclass(frozen=True, slots=True)
class Rate:
    """Bytes over time of jobs with descriptors of one size, in GB/s (1e9 bytes)."""

    direction: JobDirection
    descriptor_bytes: int
    jobs: int
    predicted: float
    measured: Repeated


@dataclass(frozen=True, slots=True)
class Pair:
    """One job or pass; ``measured_ns`` over the replays."""

    number: int
    direction: JobDirection | None  # None = a forward pass
    descriptors: int
    descriptor_bytes: int
    bytes: int
    predicted_ns: int
    measured_ns: Repeated


def repeated(values: Sequence[float]) -> Repeated:
    """Median and range of at least one number."""
    return Repeated(statistics.median(values), min(values), max(values))


def size_class(num_bytes: int) -> str:
    """Which of the sizes that the tables tell apart a job has."""
    return next((name for below, name in SIZE_CLASSES if num_bytes < below), LARGEST)


def pairs_of(predicted: Timeline, lines: Sequence[Timeline], by_number: Mapping[int, JobResult]) -> list[Pair]:
    """Jobs, then passes, that every timeline has."""
    pairs = []
    for number, job in predicted.jobs.items():
        if all(number in line.jobs for line in lines):
            of = by_number[number]
            times = [line.jobs[number].end_ns - line.jobs[number].start_ns for line in lines]
            pairs.append(
                Pair(number, of.direction, of.descriptors, of.descriptor_bytes, of.bytes, job.end_ns - job.start_ns,
                     repeated(times))
            )  # fmt: skip
    for number, each in predicted.passes.items():
        if all(number in line.passes for line in lines):
            times = [line.passes[number].end_ns - line.passes[number].start_ns for line in lines]
            if min(times) > 0:
                pairs.append(Pair(number, None, 0, 0, 0, each.end_ns - each.start_ns, repeated(times)))
    return pairs


def rows_of(pairs: Sequence[Pair], lines: Sequence[Timeline]) -> Iterator[Row]:
    """All copies on the link, each direction and its sizes, the file tier, and the forward passes."""

    def row(name: str, chosen: Callable[[Pair], bool]) -> Iterable[Row]:
        members = [pair for pair in pairs if chosen(pair)]
        if members:
            yield _row(name, members, lines)

    yield from row("Copies, both directions", lambda pair: pair.direction in DIRECTION_OF)
    for direction, name in KIND_NAMES.items():
        yield from row(name, lambda pair, of=direction: pair.direction == of)  # type: ignore[misc]
        if direction in DIRECTION_OF:
            for _, size in (*SIZE_CLASSES, (0, LARGEST)):
                yield from row(
                    f"  {direction}s {size}",
                    lambda pair, of=direction, size=size: pair.direction == of and size_class(pair.bytes) == size,  # type: ignore[misc]
                )
    yield from row("Forward passes", lambda pair: pair.direction is None)


def _row(name: str, members: Sequence[Pair], lines: Sequence[Timeline]) -> Row:
    expected = [pair.predicted_ns for pair in members]
    errors, quantiles = [], []
    for line in lines:
        times = [_time_in(line, pair) for pair in members]
        found = errors_of(zip(expected, times, strict=True))
        assert found is not None  # there are members
        errors.append(found)
        quantiles.append(np.percentile(times, QUANTILES).tolist())
    over = {
        key: repeated([getattr(found, key) for found in errors])
        for key in ("bias", "median", "mean", "p90", "p99", "mae_ns")
    }
    return Row(
        name,
        len(members),
        sum(pair.bytes for pair in members),
        **over,
        predicted_ns=tuple(np.percentile(expected, QUANTILES).tolist()),
        measured_ns=tuple(repeated(column) for column in zip(*quantiles, strict=True)),
    )


def rates_of(pairs: Sequence[Pair], lines: Sequence[Timeline]) -> Iterator[Rate]:
    """Bandwidth of each direction by size of a descriptor."""
    groups: dict[tuple[JobDirection, int], list[Pair]] = {}
    for pair in pairs:
        if pair.direction is not None:
            groups.setdefault((pair.direction, pair.descriptor_bytes), []).append(pair)
    for (direction, size), members in sorted(groups.items()):
        moved = sum(pair.bytes for pair in members)
        whole = sum(pair.predicted_ns for pair in members)
        rates = [moved / sum(_time_in(line, pair) for pair in members) for line in lines]
        yield Rate(direction, size, len(members), moved / max(1, whole), repeated(rates))


def _time_in(line: Timeline, pair: Pair) -> int:
    of = line.passes[pair.number] if pair.direction is None else line.jobs[pair.number]
    return of.end_ns - of.start_ns
