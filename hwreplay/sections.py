"""The parts of a link profile that have few numbers: each fitted so that the mean error over all cells is least.

Absolute errors of the logarithm, none counted as more than a factor of 4, are used instead of least squares: a cell on
which the machine did something else hardly moves the fit. Each search goes through values that the cells suggest.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hwreplay.cells import DIRECTIONS, Cell, Direction

NS = 10**9
MOST_ERROR = math.log(4)
MOST_SLOWDOWN = 100.0
PROGRAMS = 12
"""Thread blocks of vLLM's kernel (0.33.0, v1/kv_offload/cpu/swap_blocks_triton.py, NUM_SMS); ours has as many."""
IN_FLIGHT_BYTES = tuple(2**power for power in range(9, 18))
"""What a program may have asked for at a time: 512 B to 128 KiB."""


@dataclass(frozen=True, slots=True)
class PerCall:
    """A loop of calls: each takes so long at least; ``error`` = mean absolute error of the logarithm."""

    ns: int
    error: float


@dataclass(frozen=True, slots=True)
class Kernel:
    """Copies by a kernel of `PROGRAMS` programs; ``error`` as in `PerCall`."""

    launch_ns: int
    round_trip_ns: int
    in_flight_bytes: int
    peaks: dict[Direction, int]  # bytes per second by direction
    error: float


def submit_from_modes(cells: Sequence[Cell]) -> int | None:
    """What a call takes before its first byte moves: its whole time minus that behind a gate, of the smallest batches.

    None where no cell was measured both ways. Never more than 99 % of a cell's whole time.
    """
    timed = [(cell, cell.link_ns) for cell in cells if cell.link_ns is not None]
    if not timed:
        return None
    fewest = min(cell.count for cell, _ in timed)
    apart = statistics.median(cell.ns - link_ns for cell, link_ns in timed if cell.count == fewest)
    return max(0, min(round(apart), *(99 * cell.ns // 100 for cell in cells)))


def submit_from_jobs(cells: Sequence[Cell]) -> int | None:
    """The same from jobs: where the line through time over count begins, as the median over all pairs (Theil-Sen).

    None with fewer than three counts. Never more than half of a cell's time.
    """
    begins = []
    rows: dict[int, list[Cell]] = {}
    for cell in cells:
        rows.setdefault(cell.descriptor_bytes, []).append(cell)
    for row in rows.values():
        if len(row) >= 3:
            slope = statistics.median(
                (right.ns - left.ns) / (right.count - left.count)
                for index, left in enumerate(row)
                for right in row[index + 1 :]
            )
            begins.append(statistics.median(cell.ns - slope * cell.count for cell in row))
    if not begins:
        return None
    return max(0, min(round(statistics.median(begins)), *(cell.ns // 2 for cell in cells)))


def fastest(cells: Sequence[Cell], submit_ns: int = 0, *, gated: bool = True) -> int:
    """The highest rate of any cell in bytes per second, rounded up to four digits.

    Of whole times without submit; ``gated``: and of times behind a gate. Only of batches that are half as fast as the
    fastest as a whole: what is left of the time of a small one is little more than noise.
    """
    whole = max(cell.bytes / cell.ns for cell in cells)
    large = [cell for cell in cells if 2 * cell.bytes >= whole * cell.ns]
    times = [(cell.bytes, cell.ns - submit_ns) for cell in large]
    if gated:
        times += [(cell.bytes, cell.link_ns) for cell in large if cell.link_ns]
    rate = max(1.0, *(NS * moved / ns for moved, ns in times))
    step = int(10 ** max(0, math.floor(math.log10(rate)) - 3))
    return math.ceil(rate / step) * step


def per_call(cells: Sequence[Cell], peaks: dict[Direction, int]) -> PerCall:
    """Time of one call of a loop: ``count x max(per_call, size / peak)`` fits the cells best.

    Args:
        cells: of both directions.
        peaks: bytes per second by direction.
    """

    def error(ns: int) -> float:
        return _error(
            cells, lambda cell: cell.count * max(ns, cell.descriptor_bytes * NS / peaks[cell.group.direction])
        )

    # the smallest of equally good times: it says no more than the cells do
    candidates = sorted({max(1, round(cell.ns / cell.count)) for cell in cells})
    best = min(candidates, key=error)
    return PerCall(best, error(best))


def kernel(cells: Sequence[Cell]) -> Kernel:
    """A launch, a round trip and bytes in flight that fit best; the model is that of the profile's section kernel."""
    peaks: dict[Direction, int] = {}
    for direction in DIRECTIONS:
        peaks[direction] = fastest([cell for cell in cells if cell.group.direction == direction] or cells)
    launch = submit_from_modes(cells) or submit_from_jobs(cells) or 0

    def moving(cell: Cell, in_flight: int) -> float:
        """Round trips that its programs wait for, one after another."""
        return cell.bytes / (min(PROGRAMS, cell.count) * min(in_flight, cell.descriptor_bytes))

    def error(in_flight: int, round_trip: int) -> float:
        def predicted(cell: Cell) -> float:
            at_peak = cell.bytes * NS / peaks[cell.group.direction]
            return launch + max(at_peak, moving(cell, in_flight) * round_trip)

        return _error(cells, predicted)

    choices = (
        (error(in_flight, round_trip), in_flight, round_trip)
        for in_flight in IN_FLIGHT_BYTES
        for round_trip in {max(1, round((cell.ns - launch) / moving(cell, in_flight))) for cell in cells}
    )
    # of equally good ones the least in flight: a program never has more than a descriptor of what was measured
    least, in_flight, round_trip = min(choices)
    return Kernel(launch, round_trip, in_flight, peaks, least)


def share_of_both(alone_ns: int, both_ns: int) -> float:
    """Speed of a direction while the other is busy from before it starts until after it ends: part of that alone."""
    return min(1.0, max(0.01, alone_ns / both_ns))


def slowdown_of(ratio: float, covered: float) -> float:
    """Factor on compute while copies run, if it took ``ratio`` times as long and they ran for a part of that time.

    Args:
        ratio: time of the pass over its time undisturbed.
        covered: part of the disturbed time during which copies ran, above 0.
    """
    undisturbed = 1 / ratio - (1 - covered)  # work done while copies ran, in parts of the whole time
    return min(MOST_SLOWDOWN, max(1.0, covered / undisturbed)) if undisturbed > 0 else MOST_SLOWDOWN


def _error(cells: Sequence[Cell], predicted: Callable[[Cell], float]) -> float:
    return statistics.fmean(min(MOST_ERROR, abs(math.log(predicted(cell) / cell.ns))) for cell in cells)
