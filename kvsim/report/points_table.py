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
REJECTED = "Rejected"
_FIGURES: Mapping[str, str] = {
    "Hit rate": "hit_rate.total",
    REJECTED: "requests.rejected",
    "TTFT P50": "latency.ttft_ms.p50",
    "TTFT P90": "latency.ttft_ms.p90",
    "TPOT P50": "latency.tpot_ms.p50",
    "Output tok/s": "throughput.output_tokens_per_s",
}
_LEFT_OUT_FIRST = ("TPOT P50", "TTFT P50", "Output tok/s", "TTFT P90")
_FIGURE_WIDTH = 8
_AXIS_WIDTH, _POINT_WIDTH = 6, 28
"""What an axis needs for a column of its own, and what all axes get at least: figures are left out for it."""


def points_table(table: pd.DataFrame, axes: Sequence[str], title: str, width: int = WIDTH) -> Table:
    """A row per point: its axes and the figures that matter most, or its status. After 40 rows it ends, and says so.

    Where points reject requests, there is a column for it. Figures for which there is no room are left out, and named.

    Args:
        table: as in a sweep's ``results.parquet``.
        axes: its columns that tell points apart.
        title: above the table.
        width: of the terminal; no more than 100 is used.
    """
    most = min(width, WIDTH)
    shown = Table(title=Text(shorten(title, most - 4), style="bold"), title_justify="left")
    shown.add_column("#", justify="right", no_wrap=True)
    names = table["name"].tolist() if "name" in table.columns else []
    if names:  # names that all points have stand for their axes
        axes = ["name", *(axes if any(pd.isna(name) for name in names) else [])]
    headers = _headers(axes)
    besides = most - 4 - len(str(len(table)))
    figures, left_out = _figures(table, besides - min(_POINT_WIDTH, _natural_width(table, axes, headers)))
    room = besides - len(figures) * (_FIGURE_WIDTH + 3)
    joined = len(axes) > MOST_AXES or room // max(len(axes), 1) - 3 < _AXIS_WIDTH
    width = max(room - 3 if joined else room // max(len(axes), 1) - 3, _AXIS_WIDTH)
    for axis, header in [("", "point")] if joined else zip(axes, headers, strict=True):
        is_number = axis in table.columns and pd.api.types.is_numeric_dtype(table[axis])
        shown.add_column(Text(header), justify="right" if is_number else "left", max_width=width, overflow="fold")
    for name in figures:
        shown.add_column(name, justify="right", min_width=_FIGURE_WIDTH, max_width=_FIGURE_WIDTH)
    for row in table.head(MOST_ROWS).to_dict("records"):
        labels = ["" if pd.isna(row[axis]) else str(row[axis]) for axis in axes]
        if joined:
            labels = [", ".join(f"{header}={label}" for header, label in zip(headers, labels, strict=True) if label)]
        texts = [value(_number(row.get(key)), METRIC[key].unit) for key in figures.values()]
        if row["status"] != "ok":
            texts[0] = str(row["status"])
        cells = [Text(shorten(label, MOST_LINES * width)) for label in labels]
        shown.add_row(str(row["index"]), *cells, *texts, style=None if row["status"] == "ok" else "yellow")
    captions = [f"The first {MOST_ROWS} of {len(table):,} points; results.csv has all of them."]
    captions = captions if len(table) > MOST_ROWS else []
    if left_out:
        captions.append(f"No room for {', '.join(left_out)}; results.csv has all figures.")
    if captions:
        shown.caption, shown.caption_justify = " ".join(captions), "left"
    return shown


def _natural_width(table: pd.DataFrame, axes: Sequence[str], headers: Sequence[str]) -> int:
    """Of columns for all axes, their borders included, if nothing is folded."""
    columns = zip(headers, (table[axis].head(MOST_ROWS).astype(str) for axis in axes), strict=True)
    return sum(max(len(header), *labels.str.len()) + 3 for header, labels in columns)


def _figures(table: pd.DataFrame, room: int) -> tuple[dict[str, str], list[str]]:
    """The figures that have room, and the names of the others."""
    rejected = table.get(_FIGURES[REJECTED])
    figures = dict(_FIGURES)
    if rejected is None or not (rejected > 0).any():
        del figures[REJECTED]
    left_out: list[str] = []
    for name in _LEFT_OUT_FIRST:
        if len(figures) * (_FIGURE_WIDTH + 3) > room:
            left_out.append(name)
            del figures[name]
    return figures, left_out


def _number(figure: object) -> float | int | None:
    return None if not isinstance(figure, int | float) or pd.isna(figure) else figure


def _headers(axes: Sequence[str]) -> list[str]:
    """The last part of each dotted key, unless two axes end alike."""
    ends = [axis.rpartition(".")[2] for axis in axes]
    return [end if ends.count(end) == 1 else axis for axis, end in zip(axes, ends, strict=True)]
