"""From measured cells to a link profile's grid: every size at every count, never falling when the count rises.

Rows are completed as the grid itself is read: on logarithms between two counts, and by the same time per descriptor
beyond the first and the last. What was measured stays as it is, except where noise made more descriptors take less
time: there the least-squares rising curve through the logarithms is taken (pool adjacent violators).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hwreplay.cells import Cell

MOST_COLUMNS = 32
DIGITS = 5
"""Significant digits of a rate in a profile: its error is below that of any clock here."""


@dataclass(frozen=True, slots=True)
class Rates:
    """A grid in the making.

    Attributes:
        counts: descriptors of a call, rising.
        gb_per_s: size of a descriptor: rate at each count.
        pooled: how many cells were changed so that time does not fall.
        largest_change: the most that one was changed, as a part of its time.
    """

    counts: tuple[int, ...]
    gb_per_s: dict[int, tuple[float, ...]]
    pooled: int
    largest_change: float

    @property
    def fastest_bytes_per_s(self) -> int:
        """The highest rate, as the profile computes it."""
        return round(max(rate for rates in self.gb_per_s.values() for rate in rates) * 10**9)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What a cell's time would have been taken for without it.

    Attributes:
        cell: what was measured.
        fitted: time in the finished grid over the measured one, minus 1.
        by_count: the same from the other counts of its size; None if there is none.
        by_size: the same from the neighbouring sizes at its count; None if there is none.
        inside: whether it lies between two other counts; else the time per descriptor of its neighbour was taken.
    """

    cell: Cell
    fitted: float
    by_count: float | None
    by_size: float | None
    inside: bool


def rates_of(cells: Sequence[Cell], submit_ns: int, peak: int) -> Rates:
    """The grid of one direction.

    Args:
        cells: of one group, each size and count once.
        submit_ns: the part of each time that passes before the first byte moves.
        peak: bytes per second that no copy exceeds: noise of the submit cost makes small batches no faster.
    """
    rows = _rows(cells, submit_ns, peak)
    smooth = {
        size: dict(zip(row, rising(list(row.values()), _weights(cells, size)), strict=True))
        for size, row in rows.items()
    }
    changes = [abs(smooth[size][count] / ns - 1) for size, row in rows.items() for count, ns in row.items()]
    counts = _columns(cells)
    table = {size: _rounded(size, counts, [row_ns(row, count) for count in counts]) for size, row in smooth.items()}
    return Rates(counts, table, sum(change > 1e-9 for change in changes), max(changes))


def left_out(cells: Sequence[Cell], submit_ns: int, peak: int, rates: Rates) -> list[LeftOut]:
    """Leave each cell out once, and see how far the others' guess is off."""
    rows = _rows(cells, submit_ns, peak)
    found = []
    for cell in cells:
        size, count = cell.descriptor_bytes, cell.count
        others = {other: ns for other, ns in rows[size].items() if other != count}
        by_count = row_ns(others, count) if others else None
        by_size = _size_ns({other: row for other, row in rows.items() if other != size}, size, count)
        grid_ns = row_ns(
            {column: size * column / rate for column, rate in zip(rates.counts, rates.gb_per_s[size], strict=True)},
            count,
        )
        found.append(
            LeftOut(
                cell,
                (submit_ns + grid_ns) / cell.ns - 1,
                None if by_count is None else (submit_ns + by_count) / cell.ns - 1,
                None if by_size is None else (submit_ns + by_size) / cell.ns - 1,
                bool(others) and min(others) < count < max(others),
            )
        )
    return found


def rising(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The rising sequence nearest to positive values, by weighted squares of the logarithms.

    Neighbours that fall are pooled into their weighted geometric mean until none does.
    """
    pools: list[tuple[float, float, int]] = []  # logarithm, weight, members
    for value, weight in zip(values, weights, strict=True):
        pools.append((math.log(value), weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (left, left_weight, left_size), (right, right_weight, right_size) = pools[-2:]
            both = left_weight + right_weight
            pools[-2:] = [((left * left_weight + right * right_weight) / both, both, left_size + right_size)]
    out: list[float] = []
    position = 0
    for level, _, size in pools:
        # a pool of one is the measured value itself, not exp(log(value))
        out += [math.exp(level)] * size if size > 1 else [values[position]]
        position += size
    return out


def row_ns(row: Mapping[int, float], count: int) -> float:
    """Time of ``count`` descriptors from times at other counts (rising keys), read as a profile's grid is read."""
    counts = list(row)
    high = bisect_left(counts, count)
    if high < len(counts) and counts[high] == count:
        return row[count]
    if high in (0, len(counts)):
        edge = counts[min(high, len(counts) - 1)]
        return row[edge] * count / edge
    below, above = counts[high - 1], counts[high]
    part = math.log(count / below) / math.log(above / below)
    return math.exp((1 - part) * math.log(row[below]) + part * math.log(row[above]))


def _size_ns(rows: Mapping[int, Mapping[int, float]], size: int, count: int) -> float | None:
    """Time of ``count`` descriptors from the neighbouring sizes' times."""
    sizes = list(rows)
    high = bisect_left(sizes, size)
    if not sizes:
        return None
    if high in (0, len(sizes)):
        return row_ns(rows[sizes[min(high, len(sizes) - 1)]], count)
    below, above = sizes[high - 1], sizes[high]
    part = math.log(size / below) / math.log(above / below)
    low_ns, high_ns = row_ns(rows[below], count), row_ns(rows[above], count)
    return math.exp((1 - part) * math.log(low_ns) + part * math.log(high_ns))


def _rows(cells: Sequence[Cell], submit_ns: int, peak: int) -> dict[int, dict[int, float]]:
    """Time on the link by size and count, both rising."""
    rows: dict[int, dict[int, float]] = {}
    for cell in sorted(cells, key=lambda cell: (cell.descriptor_bytes, cell.count)):
        rows.setdefault(cell.descriptor_bytes, {})[cell.count] = max(cell.bytes * 10**9 / peak, cell.ns - submit_ns)
    return rows


def _weights(cells: Sequence[Cell], size: int) -> list[int]:
    of_size = sorted((cell for cell in cells if cell.descriptor_bytes == size), key=lambda cell: cell.count)
    return [max(1, cell.samples) for cell in of_size]


def _columns(cells: Sequence[Cell]) -> tuple[int, ...]:
    """Every count that was measured; if there are too many, those nearest to even steps of the logarithm."""
    counts = sorted({cell.count for cell in cells})
    if len(counts) <= MOST_COLUMNS:
        return tuple(counts)
    first, last = math.log(counts[0]), math.log(counts[-1])
    wanted = (math.exp(first + (last - first) * step / (MOST_COLUMNS - 1)) for step in range(MOST_COLUMNS))
    return tuple(sorted({min(counts, key=lambda count: abs(math.log(count / at))) for at in wanted}))


def _rounded(size: int, counts: Sequence[int], times: Sequence[float]) -> tuple[float, ...]:
    """Rates with few digits, whose times rise exactly as the profile checks it: count over rate."""
    rates: list[float] = []
    for index, (count, ns) in enumerate(zip(counts, times, strict=True)):
        rate = float(f"{size * count / ns:.{DIGITS}g}")
        if index:
            least = counts[index - 1] / rates[-1]
            while count / rate < least:  # by rounding alone: one step of the last digit mends it
                rate = float(f"{rate * (1 - 10.0**-DIGITS):.{DIGITS + 1}g}")
        rates.append(rate)
    return tuple(rates)
