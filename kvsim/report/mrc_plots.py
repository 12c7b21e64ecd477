"""Hit rate against cache size, and KV in use over time: the plots of `kvsim mrc`. They take plain numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter

from kvsim.report.axes import legend
from kvsim.report.curves import MOST_POINTS, Floats
from kvsim.report.format import percent, shorten, traffic
from kvsim.report.style import BLUE, DASHES, GREEN, INK, ORANGE, PALETTE, VERMILLION, figure, say, styled

Points = Sequence[tuple[int, float]]
"""(cache size in bytes, hit rate)."""

MOST_TENANTS = len(PALETTE)
_NAME_WIDTH = 24
_NO_HITS = "No block is used twice: no cache of any size has a hit."


@styled
def miss_ratio_plot(
    title: str,
    *,
    lru: Points,
    optimum: Points = (),
    bypass: Points = (),
    knees: Points = (),
    max_hit_rate: float,
    working_set: Mapping[int, tuple[Sequence[int], Sequence[int]]],
) -> Figure:
    """Hit rates by cache size, knees marked; below it the KV touched per window, if the order has times.

    Args:
        title: of the upper panel.
        lru: its curve, by size.
        optimum: at some sizes.
        bypass: the optimum of a tier that may decline blocks, at some sizes.
        knees: points of the LRU curve.
        max_hit_rate: of a cache without limit.
        working_set: length of the windows in s -> (their starts in s, bytes touched in each).
    """
    if not max_hit_rate:
        return say(title, _NO_HITS)
    drawn = figure(7.4 if working_set else 4.4)
    panels = drawn.subplots(2 if working_set else 1, 1, squeeze=False, height_ratios=[3, 2] if working_set else None)
    axes = panels[0][0]
    axes.set_title(shorten(title, 60))
    axes.axhline(max_hit_rate, color=INK, linewidth=0.8, linestyle=":")
    at = f"most: {percent(max_hit_rate)}"
    axes.annotate(at, (0.01, max_hit_rate), xycoords=("axes fraction", "data"), va="bottom", fontsize=9)
    if bypass:
        _line(axes, bypass, GREEN, DASHES[2], "Optimum that may decline", marker="^")
    if optimum:
        _line(axes, optimum, ORANGE, DASHES[1], "Optimum (Belady)", marker="s")
    _line(axes, lru, BLUE, DASHES[0], "LRU")
    for place, (size, rate) in enumerate(knees):
        axes.plot([size], [rate], "o", color=VERMILLION, markersize=7, label="Knee of LRU" if not place else None)
        axes.annotate(
            f"{traffic(size)}\n{percent(rate)}", (size, rate), xytext=(7, -6), textcoords="offset points",
            va="top", fontsize=9,
        )  # fmt: skip
    _size_axis(axes, lru)
    axes.legend(loc="best", fontsize=9)
    if working_set:
        _windows(panels[1][0], working_set)
    return drawn


@styled
def tenants_plot(title: str, tenants: Sequence[tuple[str, Points, Points]]) -> Figure:
    """Hit rate of each tenant in the shared cache and in one of its own, by size, of the first six tenants.

    Args:
        title: of the plot.
        tenants: (name, in the shared cache, alone).
    """
    drawn = figure(4.6)
    axes = drawn.subplots()
    axes.set_title(shorten(title, 60))
    for color, (name, shared, alone) in zip(PALETTE, tenants, strict=False):
        _line(axes, shared, color, DASHES[0], shorten(name, _NAME_WIDTH))
        _line(axes, alone, color, DASHES[2], None)
    axes.plot([], [], color=INK, linestyle=DASHES[2], label="the same, alone")
    _size_axis(axes, tenants[0][1])
    axes.legend(loc="best", fontsize=9)
    if len(tenants) > MOST_TENANTS:
        text = f"the first {MOST_TENANTS} of {len(tenants)} tenants"
        axes.annotate(text, (1, 1.01), xycoords="axes fraction", ha="right", va="bottom", fontsize=9)
    return drawn


def _line(axes: Axes, points: Points, color: str, dashes: str, label: str | None, marker: str = "") -> None:
    sizes, rates = zip(*points, strict=True)
    axes.plot(sizes, rates, color=color, linestyle=dashes, label=label, marker=marker, markersize=3.5)


def _size_axis(axes: Axes, points: Points) -> None:
    axes.set_xscale("log")
    first = next((size for size, rate in points if rate > 0), points[-1][0])
    axes.set_xlim(first / 1.2, max(points[-1][0], 2 * first) * 1.2)
    few = points[-1][0] < 1000 * first
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: _tick(size)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_xlabel("Cache size (logarithmic; GB = 1e9 bytes, TB = 1e12 bytes)")
    axes.set_ylabel("Share of block uses that hit")


def _windows(axes: Axes, working_set: Mapping[int, tuple[Sequence[int], Sequence[int]]]) -> None:
    axes.set_title("KV touched per window")
    colors = (PALETTE[5], PALETTE[4], PALETTE[0])  # the longest window, drawn last, stands out
    ends = [starts[-1] + length for length, (starts, _) in working_set.items()]
    scale, unit = (60, "min") if max(ends) < 4 * 3600 else (3600, "h")
    most = max(max(touched) for _, touched in working_set.values())
    size, name = next(
        (each for each in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")) if most >= 2 * each[0]), (1.0, "bytes")
    )
    for color, (length, (starts, touched)) in zip(colors, working_set.items(), strict=False):
        edges, values = _stairs(length, starts, touched)
        axes.stairs(values / size, edges / scale, color=color, label=f"{length} s", linewidth=1.6, baseline=None)
    axes.set_xlim(0, max(ends) / scale)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"Time since the first prompt ({unit})")
    axes.set_ylabel(f"Distinct KV ({name})")
    legend(axes)


def _stairs(length_s: int, starts: Sequence[int], touched: Sequence[int]) -> tuple[Floats, Floats]:
    """Edges of all windows and what was touched in each, nothing in those without a prompt; few enough to draw.

    Where there are too many windows to draw, neighbours are drawn as one, which shows the largest of them.
    """
    numbers = np.asarray(starts) // length_s
    together = -(-(int(numbers[-1]) + 1) // MOST_POINTS)
    values = np.zeros(int(numbers[-1]) // together + 1)
    np.maximum.at(values, numbers // together, np.asarray(touched, dtype=np.float64))
    edges = np.arange(len(values) + 1, dtype=np.float64) * length_s * together
    edges[-1] = (numbers[-1] + 1) * length_s
    return edges, values


def _tick(size: float) -> str:
    for limit, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= 0.999 * limit:
            return f"{size / limit:g} {unit}"
    return f"{size:g} B"
