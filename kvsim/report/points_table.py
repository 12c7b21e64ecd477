"""The points of a sweep as a terminal table, at most 100 columns wide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
from rich.table import Table
from rich.text import Text

from kvsim.report.format import shorten, value
from kvsim.results.compare import METRIC

WIDTH = 100
MOST_ROWS = 40
MOST_AXES, MOST_LINES = 3, 3
"""With more axes than this they share one column; with longer labels than this the middle is left out."""
_FIGURES: Mapping[str, str] = {
    "Hit rate": "hit_rate.total",
    "TTFT P50": "latency.ttft_ms.p50",
    "TTFT P90": "latency.ttft_ms.p90",
    "TPOT P50": "latency.tpot_ms.p50",
    "Output tok/s": "throughput.output_tokens_per_s",
}
_REJECTED = "requests.rejected"
_FIGURE_WIDTH = 8


def points_table(table: pd.DataFrame, axes: Sequence[str], title: str) -> Table:
    """A row per point: its axes and the figures that matter most, or its status. After 40 rows it ends, and says so.

    Args:
        table: as in a sweep's ``results.parquet``.
        axes: its columns that tell points apart.
        title: above the table.
    """
    shown = Table(title=Text(shorten(title, WIDTH - 4), style="bold"), title_justify="left")
    shown.add_column("#", justify="right", no_wrap=True)
    names = table["name"].tolist() if "name" in table.columns else []
    if names:  # names that all points have stand for their axes
        axes = ["name", *(axes if any(pd.isna(name) for name in names) else [])]
    joined = len(axes) > MOST_AXES
    shown_figures = dict(_FIGURES)
    if _REJECTED in table.columns and table[_REJECTED].fillna(0).gt(0).any():
        shown_figures["Rejected"] = _REJECTED  # the other figures are over the rest
    room = WIDTH - 4 - len(str(len(table))) - len(shown_figures) * (_FIGURE_WIDTH + 3)
    width = room - 3 if joined else room // max(len(axes), 1) - 3
    headers = _headers(axes)
    for axis, header in [("", "point")] if joined else zip(axes, headers, strict=True):
        is_number = axis in table.columns and pd.api.types.is_numeric_dtype(table[axis])
        shown.add_column(Text(header), justify="right" if is_number else "left", max_width=width, overflow="fold")
    for name in shown_figures:
        shown.add_column(name, justify="right", min_width=_FIGURE_WIDTH, max_width=_FIGURE_WIDTH)
    for row in table.head(MOST_ROWS).to_dict("records"):
        labels = ["" if pd.isna(row[axis]) else str(row[axis]) for axis in axes]
        if joined:
            labels = [", ".join(f"{header}={label}" for header, label in zip(headers, labels, strict=True) if label)]
        figures = [value(_number(row.get(key)), METRIC[key].unit) for key in shown_figures.values()]
        if row["status"] != "ok":
            figures[0] = str(row["status"])
        cells = [Text(shorten(label, MOST_LINES * width)) for label in labels]
        shown.add_row(str(row["index"]), *cells, *figures, style=None if row["status"] == "ok" else "yellow")
    if len(table) > MOST_ROWS:
        shown.caption = f"The first {MOST_ROWS} of {len(table):,} points; results.csv has all of them."
        shown.caption_justify = "left"
    return shown


def _number(figure: object) -> float | int | None:
    return None if not isinstance(figure, int | float) or pd.isna(figure) else figure


def _headers(axes: Sequence[str]) -> list[str]:
    """The last part of each dotted key, unless two axes end alike."""
    ends = [axis.rpartition(".")[2] for axis in axes]
    return [end if ends.count(end) == 1 else axis for axis, end in zip(axes, ends, strict=True)]
