"""The tables of a comparison and of a fit: cells as text, for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from rich import box
from rich.table import Table

from hwreplay.compare import Comparison, Whole
from hwreplay.grid import LeftOut
from hwreplay.holdout import Check
from hwreplay.pairs import KIND_NAMES, QUANTILES, Repeated
from hwreplay.sources import listed
from hwreplay.text import MISSING, digits, moved, percent, signed, size_text, time_text

Cells = tuple[list[str], list[list[str]]]
"""Heads and lines. A range over replays stands in the same cell behind a line break."""

MOST_COUNTS = 8
"""Columns of a table of cells; more counts go into further tables."""


def facts(compared: Comparison) -> dict[str, str]:
    """What was compared, and the numbers of the whole run."""
    return {
        "Measured on": f"{compared.device.label}, {compared.device.date}",
        "Schedule": f"{compared.schedule} (run {compared.run}, {compared.model})",
        "Predicted by": compared.predicted_by,
        "Copied by": f"backend {compared.backend}, {_count(len(compared.files), 'replay')}: {listed(compared.files)}",
        "Makespan": f"{_whole(compared.makespan_ns, time_text)}; error {over(compared.makespan_error, signed)}",
        "Passes without copies beside them": f"{over(compared.undisturbed, digits)} times the time asked for"
        if compared.undisturbed
        else MISSING,
        "Copy time hidden behind compute": _whole(compared.hidden_share, percent),
    }


def error_cells(compared: Comparison) -> Cells:
    """Errors of each group."""
    heads = ["", "n", "Bytes", "Bias %", "Median %", "MAPE %", "P90 %", "P99 %", "MAE"]
    lines = [
        [
            _indented(row.name),
            f"{row.n:,}",
            moved(row.bytes) if row.bytes else "",
            _ranged(row.bias, "{:+.1f}".format, 100),
            *(_ranged(value, "{:.1f}".format, 100) for value in (row.median, row.mean)),
            *(f"{100 * value.median:.1f}" for value in (row.p90, row.p99)),  # their ranges are in the JSON
            _ranged(row.mae_ns, time_text),
        ]
        for row in compared.rows
    ]
    return heads, lines


def time_cells(compared: Comparison) -> Cells:
    """Percentiles of times, predicted and measured."""
    heads = ["", *(head for part in QUANTILES for head in (f"P{part} pred.", "meas."))]
    lines = [
        [
            _indented(row.name),
            *(
                text
                for expected, real in zip(row.predicted_ns, row.measured_ns, strict=True)
                for text in (time_text(expected), _ranged(real, time_text))
            ),
        ]
        for row in compared.rows
    ]
    return heads, lines


def rate_cells(compared: Comparison) -> Cells:
    """Bandwidth by size of a descriptor."""
    heads = ["", "Descriptor", "Jobs", "Predicted GB/s", "Measured GB/s", "Error"]
    lines = [
        [
            KIND_NAMES[rate.direction],
            size_text(rate.descriptor_bytes),
            f"{rate.jobs:,}",
            digits(rate.predicted),
            _ranged(rate.measured, digits),
            signed(rate.predicted / rate.measured.median - 1),
        ]
        for rate in compared.rates
    ]
    return heads, lines


def table_of(cells: Cells, title: str, ranged: Collection[str] = ()) -> Table:
    """For the terminal: ranges only of the columns ``ranged``."""
    heads, lines = cells
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1))
    for place, head in enumerate(heads):
        table.add_column(head, justify="right" if place else "left", no_wrap=True)
    for line in lines:
        table.add_row(*(_cell(text, with_range=head in ranged) for head, text in zip(heads, line, strict=True)))
    return table


def left_out_tables(direction: str, cells: Sequence[LeftOut]) -> list[Table]:
    """Leave-one-out errors of a grid: sizes by counts; a cell at an edge in brackets, because it is extrapolated."""
    counts = sorted({cell.cell.count for cell in cells})
    sizes = sorted({cell.cell.descriptor_bytes for cell in cells})
    at = {(cell.cell.descriptor_bytes, cell.cell.count): cell for cell in cells}
    tables = []
    for first in range(0, len(counts), MOST_COUNTS):
        columns = counts[first : first + MOST_COUNTS]
        lines = [
            [size_text(size), *(_left_out_text(at.get((size, count))) for count in columns)]
            for size in sizes
            if any((size, count) in at for count in columns)
        ]
        title = f"{direction}: error of each cell, guessed from the other counts of its size"
        tables.append(table_of((["Descriptor", *(f"x {count:,}" for count in columns)], lines), title))
    return tables


def check_cells(checks: Sequence[Check]) -> Cells:
    """Jobs of replays against the fitted profile."""
    heads = ["Replay", "", "Jobs", "Used for the fit", "Bias", "Median", "MAPE", "P90"]
    lines = [
        [
            check.file,
            check.direction,
            f"{check.errors.n:,}",
            "no" if check.held_out else "yes",
            signed(check.errors.bias),
            percent(check.errors.median),
            percent(check.errors.mean),
            percent(check.errors.p90),
        ]
        for check in checks
    ]
    return heads, lines


def _ranged(value: Repeated, text: Callable[[float], str], times: int = 1) -> str:
    middle, _, reach = over(value, lambda number: text(times * number)).partition(" (")
    return f"{middle}\n{reach.removesuffix(')')}" if reach else middle


def _cell(text: str, *, with_range: bool) -> str:
    middle, _, reach = text.partition("\n")
    return f"{middle} ({reach.replace(' to ', '-')})" if reach and with_range else middle


def over(value: Repeated, text: Callable[[float], str]) -> str:
    """The median, and the range where there is one."""
    middle = text(value.median)
    low, high = text(value.low), text(value.high)
    return middle if low == high else f"{middle} ({low.removesuffix(' %')} to {high})"


def _whole(value: Whole, text: Callable[[float], str]) -> str:
    expected = MISSING if value.predicted is None else text(value.predicted)
    real = MISSING if value.measured is None else over(value.measured, text)
    return f"{expected} predicted, {real} measured"


def _left_out_text(cell: LeftOut | None) -> str:
    if cell is None or cell.by_count is None:
        return "" if cell is None else "alone"
    text = f"{100 * cell.by_count:+.1f}%"
    return text if cell.inside else f"({text})"


def _indented(name: str) -> str:
    return name.replace("  ", "\N{NO-BREAK SPACE}\N{NO-BREAK SPACE}")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
