"""Summaries as terminal tables, at most 100 columns wide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from kvsim.report.format import MISSING, SAME, change, is_better, shorten, value
from kvsim.results.compare import METRIC, METRICS, Metric, compare, is_shown, labels, mismatches
from kvsim.results.runfolder import Run

WIDTH = 100
MOST_COLUMNS = 4
"""With more runs than this the table is turned: a row per run, a few metrics as columns."""

_TURNED = (
    ("Hit rate", "hit_rate.total"),
    ("GPU", "hit_rate.local"),
    ("Offload", "hit_rate.external"),
    ("TTFT P50", "latency.ttft_ms.p50"),
    ("TTFT P90", "latency.ttft_ms.p90"),
    ("TPOT P50", "latency.tpot_ms.p50"),
    ("Output tok/s", "throughput.output_tokens_per_s"),
)
_ONCE = ("mean", "p50", "p90", "p99")


def summary_table(summary: Mapping[str, Any], title: str = "Summary") -> Table:
    """The key numbers of one run: a row per number, latencies with their percentiles in one row.

    Args:
        summary: What :func:`kvsim.results.summary.summarize` made, or a run's ``summary``.
        title: Above the table.
    """
    table = Table(title=shorten(title, WIDTH - 4), title_justify="left", title_style="bold")
    table.add_column("Metric", no_wrap=True, max_width=24)
    for name in ("Value", "P50", "P90", "P99"):
        table.add_column(name, justify="right", no_wrap=True, max_width=14)
    group = ""
    for metric in METRICS:
        if not is_shown(metric, [summary]):
            continue
        spread = metric.path[-1] in _ONCE
        if spread and metric.path[-1] != "mean" and _sibling(metric, "mean") in METRIC:
            continue  # shown in the row of its mean
        if metric.group != group:
            group = metric.group
            table.add_section()
            table.add_row(Text(group, style="bold"))
        if not spread:
            table.add_row(f"  {metric.label}", value(metric.of(summary), metric.unit))
            continue
        cells = []
        for what in _ONCE:
            known = METRIC.get(_sibling(metric, what))
            cells.append(value(known.of(summary), known.unit) if known else "")
        label = metric.label.removesuffix(" mean").removesuffix(" P50").removesuffix(" P90")
        if cells[0]:
            cells[0] = cells[0] if cells[0] == MISSING else f"mean {cells[0]}"
        elif metric.path[-1] != "p50":
            continue
        table.add_row(f"  {label}", *cells)
    return table


def comparison_table(runs: Sequence[Run]) -> Table:
    """Runs side by side, each value with its change against the first run.

    Up to four runs are columns; more runs become rows with the seven numbers that matter most. Where the runs
    did not serve the same requests, the caption says so.
    """
    names = labels(runs)
    table = _columns(runs, names) if len(runs) <= MOST_COLUMNS else _rows(runs, names)
    lines = [f"Changes are against {names[0]}."] if len(runs) > 1 and len(runs) <= MOST_COLUMNS else []
    lines += [f"warning: {line}" for line in mismatches(runs)]
    table.caption = Text("\n".join(lines)) if lines else None
    table.caption_justify = "left"
    return table


def _sibling(metric: Metric, what: str) -> str:
    return ".".join((*metric.path[:-1], what))


def _columns(runs: Sequence[Run], names: Sequence[str]) -> Table:
    table = Table(title="Comparison", title_justify="left", title_style="bold")
    table.add_column("Metric", no_wrap=True, max_width=22)
    # 22 for the metric; the rest is shared out, less three characters of frame and padding for each column.
    width = (WIDTH - 22 - 4) // max(1, len(runs)) - 3
    for name in names:
        table.add_column(
            shorten(name, min(width, 24)), justify="right", max_width=min(width, 24), overflow="fold"
        )
    group = ""
    for row in compare(runs):
        if not is_shown(row.metric, [run.summary for run in runs]):
            continue
        if row.metric.group != group:
            group = row.metric.group
            table.add_section()
            table.add_row(Text(group, style="bold"))
        cells = [Text(value(row.values[0], row.metric.unit))]
        for found, difference, ratio in list(zip(row.values, row.differences, row.ratios, strict=True))[1:]:
            cell = Text(value(found, row.metric.unit))
            shift = change(difference, ratio, row.metric.unit)
            if shift and shift != SAME:
                good = is_better(difference, row.metric.better)
                style = "dim" if good is None else "green" if good else "red"
                cell.append(
                    f" ({shift})" if len(shift) + len(cell) + 3 <= width else f"\n({shift})", style=style
                )
            cells.append(cell)
        table.add_row(f"  {row.metric.label}", *cells)
    return table


def _rows(runs: Sequence[Run], names: Sequence[str]) -> Table:
    table = Table(title="Comparison", title_justify="left", title_style="bold")
    table.add_column("Run", no_wrap=True, max_width=24)
    for label, _ in _TURNED:
        table.add_column(label, justify="right", max_width=8, overflow="fold")
    for name, run in zip(names, runs, strict=True):
        cells = [value(METRIC[key].of(run.summary), METRIC[key].unit) for _, key in _TURNED]
        table.add_row(shorten(name, 24), *cells)
    return table
