"""Plots of a plan: what its points cost against what they give."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from kvsim.report.format import number, shorten
from kvsim.report.style import BLUE, GREEN, INK, ORANGE, VERMILLION, figure, say, styled

USD, MEETS, PARETO, BEST, LABEL = "usd_per_1m_output_tokens", "meets_slo", "pareto", "recommended", "name"
_LABEL_WIDTH = 40
_CHARACTER_PT = 4.8  # width of a bold one of a name, about
_LABEL_PX = (150.0, 16.0)
"""Characters of a name; names nearer to each other than this, across and down, would cover one another."""


@dataclass(frozen=True, slots=True)
class Against:
    """What is drawn upwards.

    Attributes:
        column: of the table.
        title: of the axis, with its unit.
        limit: of the SLO, in that unit.
        more_is_better: whether the limit is a least one.
        unit: of the limit, as a legend has it.
    """

    column: str
    title: str
    limit: float
    more_is_better: bool = False
    unit: str = ""


def against(key: str, limit: float) -> Against:
    """A limit of an SLO, such as ``ttft_p90`` in ns or ``goodput``, as it is drawn."""
    if key == "goodput":
        return Against("slo.goodput", "Goodput (share of requests)", limit, more_is_better=True)
    unit, scale = ("ms", 1e-6) if limit < 1e9 else ("s", 1e-9)
    name, _, end = key.partition("_")
    return Against(f"slo.{key}_{unit}", f"{name.upper()} {end.upper()} ({unit})", limit * scale, unit=unit)


def with_plot_column(table: pd.DataFrame, drawn: Against) -> pd.DataFrame:
    """The table of a plan's points with the limit's figure in the unit of the plot."""
    if drawn.column in table.columns:
        return table
    key, _, unit = drawn.column.rpartition("_")
    return table.assign(**{drawn.column: table[key] / (1e6 if unit == "ms" else 1e9)})


@styled
def pareto(table: pd.DataFrame, against: Against) -> Figure:
    """Every simulated point: its cost, and its figure for the SLO's first limit.

    Args:
        table: a row per point, with the columns `USD`, `MEETS`, `PARETO`, `BEST`, `LABEL` and the one of `against`.
        against: the limit.
    """
    title = "Cost against service: every simulated point"
    rows = table[table[USD].notna() & table[against.column].notna()]
    if rows.empty:
        return say(title, "No point has figures.")
    drawn = figure(4.6)
    axes = drawn.subplots()
    axes.set_title(title, pad=24)
    meets = rows[MEETS].astype(bool)
    for which, color, marker, label in (
        (meets, BLUE, "o", "meets the SLO"),
        (~meets, ORANGE, "x", "misses it"),
    ):
        axes.scatter(rows[USD][which], rows[against.column][which], c=color, marker=marker, s=36, label=label, zorder=3)
    front = rows[rows[PARETO].astype(bool)].sort_values(USD)
    axes.plot(
        front[USD], front[against.column], color=GREEN, linewidth=1.2, label="nothing is better in both", zorder=2
    )
    limit = f"limit {number(against.limit)} {against.unit}".strip()
    axes.axhline(against.limit, color=INK, linestyle="--", linewidth=1, label=limit)
    best = rows[rows[BEST].astype(bool)]
    axes.scatter(
        best[USD], best[against.column], s=170, facecolors="none", edgecolors=VERMILLION, linewidths=2, zorder=4,
        label="recommended" if best[MEETS].astype(bool).all() else "closest",
    )  # fmt: skip
    axes.set_xlabel("USD per 1M output tokens")
    axes.set_ylabel(against.title)
    if not against.more_is_better and (rows[against.column] > 0).all():
        axes.set_yscale("log", subs=())
        values = [*rows[against.column], against.limit]
        is_short = max(values) < 10 * min(values)  # under a decade there may be none of 1, 2 and 5
        axes.yaxis.set_major_locator(
            MaxNLocator(6, steps=[1, 2, 5, 10]) if is_short else LogLocator(subs=(1.0, 2.0, 5.0))
        )
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(float(value))))
    axes.margins(x=0.16, y=0.12)
    _names(axes, front, best, against.column)
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=5, frameon=False, fontsize=8, handletextpad=0.3)
    return drawn


def _names(axes: Axes, front: pd.DataFrame, best: pd.DataFrame, column: str) -> None:
    """Beside the recommended point, and those of the front where there is room, without what all of them have."""
    others = front.drop(best.index, errors="ignore")
    rows = [*best.to_dict("records"), *others.to_dict("records")]
    parts = [str(row[LABEL]).split(", ") for row in rows]
    common = set(parts[0]).intersection(*parts) if len(parts) > 1 else set()
    dpi = axes.figure.dpi
    placed: list[tuple[float, float]] = []
    for row, own in zip(rows, parts, strict=True):
        x, y = axes.transData.transform((row[USD], row[column]))
        if any(abs(x - at) < _LABEL_PX[0] and abs(y - height) < _LABEL_PX[1] for at, height in placed):
            continue
        placed.append((float(x), float(y)))
        text = shorten(", ".join(part for part in own if part not in common) or str(row[LABEL]), _LABEL_WIDTH)
        is_right = x + (9 + _CHARACTER_PT * len(text)) * dpi / 72 > axes.bbox.x1  # the name would leave the plot
        name = axes.annotate(
            text,
            (row[USD], row[column]),
            xytext=(-9 if is_right else 9, 9),
            ha="right" if is_right else "left",
            textcoords="offset points",
            fontsize=7.5,
            fontweight="bold" if row[BEST] else "normal",
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
            annotation_clip=False,
            zorder=5,
        )
        name.set_in_layout(False)  # the plot keeps its size
