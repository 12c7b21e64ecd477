"""Summaries as terminal tables, at most 100 columns wide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from kvsim.report.format import MISSING, shorten, value
from kvsim.report.instances import HEADER, instance_rows
from kvsim.report.rows import comparison_groups, summary_groups
from kvsim.report.tenants import tenant_header, tenant_rows
from kvsim.results.compare import METRIC, labels, mismatches
from kvsim.results.run import Run

WIDTH = 100
MOST_COLUMNS = 4
"""With more runs than this the table is turned: a row per run, a few metrics as columns."""

_LABEL_WIDTH = 22
_RUN_WIDTH = 22
_TURNED = (
    ("Hit rate", "hit_rate.total"),
    ("GPU", "hit_rate.local"),
    ("Offload", "hit_rate.external"),
    ("TTFT P50", "latency.ttft_ms.p50"),
    ("TTFT P90", "latency.ttft_ms.p90"),
    ("TPOT P50", "latency.tpot_ms.p50"),
    ("Output tok/s", "throughput.output_tokens_per_s"),
)


def summary_table(summary: Mapping[str, Any], title: str = "Summary") -> Table:
    """The key numbers of one run: a row per number, latencies with their percentiles in one row.

    Args:
        summary: What :func:`kvsim.results.summary.summarize` made, or a run's ``summary``.
        title: Above the table.
    """
    table = _table(title)
    table.add_column("Metric", no_wrap=True, max_width=_LABEL_WIDTH)
    for name in ("Value", "P50", "P90", "P99"):
        table.add_column(name, justify="right", no_wrap=True, max_width=14)
    for group in summary_groups(summary):
        table.add_section()
        table.add_row(Text(group.title, style="bold"))
        for line in group.lines:
            first, *others = (cell.text for cell in line.cells)
            if others and first != MISSING:
                first = f"mean {first}"
            table.add_row(f"  {line.label}", first, *others)
    return table


def instances_table(summary: Mapping[str, Any]) -> Table | None:
    """The instances of a cluster, a row each; None if there is none."""
    rows = instance_rows(summary)
    if not rows:
        return None
    table = _table(f"{len(rows)} instances behind router {summary['cluster']['router']}")
    for name in HEADER:
        table.add_column(name, justify="left" if name in {"Instance", "GPUs", "State"} else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def tenants_table(summary: Mapping[str, Any]) -> Table | None:
    """The tenants, a row each; None if there are not several."""
    rows = tenant_rows(summary)
    if not rows:
        return None
    table = _table(f"{len(rows)} tenants")
    table.padding = (0, 1, 0, 0)  # ten columns have to fit
    for name in tenant_header(summary):
        broken = name.replace("-", "- ")  # where a line may end
        table.add_column(broken, justify="left" if name == "Tenant" else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def comparison_table(runs: Sequence[Run]) -> Table:
    """Runs side by side, each value with its change against the first run.

    Up to four runs are columns; more runs become rows with the seven numbers that matter most. Where the runs
    did not serve the same requests, the caption says so.
    """
    names = labels(runs)
    turned = len(runs) > MOST_COLUMNS
    table = _rows(runs, names) if turned else _columns(runs, names)
    lines = [f"Changes are against {names[0]}."] if len(runs) > 1 and not turned else []
    lines += [f"warning: {line}" for line in mismatches(runs)]
    table.caption = Text("\n".join(lines)) if lines else None
    table.caption_justify = "left"
    return table


def _table(title: str) -> Table:
    return Table(title=Text(shorten(title, WIDTH - 4), style="bold"), title_justify="left")


def _columns(runs: Sequence[Run], names: Sequence[str]) -> Table:
    table = _table("Comparison")
    table.add_column("Metric", no_wrap=True, max_width=_LABEL_WIDTH)
    # What the labels leave is shared out, less three characters of frame and padding for each column.
    width = min((WIDTH - _LABEL_WIDTH - 4) // max(1, len(runs)) - 3, _RUN_WIDTH)
    for name in names:
        header = Text(shorten(name, width))
        table.add_column(header, justify="right", max_width=width, overflow="fold")
    for group in comparison_groups(runs):
        table.add_section()
        table.add_row(Text(group.title, style="bold"))
        for line in group.lines:
            cells = []
            for cell in line.cells:
                text = Text(cell.text)
                if cell.change:
                    style = "dim" if cell.better is None else "green" if cell.better else "red"
                    apart = " " if len(cell.text) + len(cell.change) + 3 <= width else "\n"
                    text.append(f"{apart}({cell.change})", style=style)
                cells.append(text)
            table.add_row(f"  {line.label}", *cells)
    return table


def _rows(runs: Sequence[Run], names: Sequence[str]) -> Table:
    table = _table("Comparison")
    table.add_column("Run", no_wrap=True, max_width=_RUN_WIDTH)
    for label, _ in _TURNED:
        table.add_column(label, justify="right", max_width=8, overflow="fold")
    for name, run in zip(names, runs, strict=True):
        cells = [value(METRIC[key].of(run.summary), METRIC[key].unit) for _, key in _TURNED]
        table.add_row(Text(shorten(name, _RUN_WIDTH)), *cells)
    return table
