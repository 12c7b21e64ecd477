"""Plots over many points: what memory buys, and which choices no other one beats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from kvsim.report.curves import Floats
from kvsim.report.format import shorten
from kvsim.report.points import (
    Point,
    other_axes,
    series_name,
    short_name,
    size_axis,
    size_text,
    varied_axes,
    worth_choosing,
)
from kvsim.report.style import DASHES, GRID, INK, ORANGE, PALETTE, PAPER, figure, line_style, styled
from kvsim.results.compare import METRIC

Bound = Sequence[tuple[int, float]]
"""(cache size in bytes, hit rate of the optimum)."""

MOST_PANELS, MOST_LINES, MOST_BARS = 4, 12, 10
_NAME_WIDTH = 28
_LOCAL, _TOTAL = METRIC["hit_rate.local"], METRIC["hit_rate.total"]


def hit_rate_by_size(points: Sequence[Point]) -> Figure | None:
    """Hit rate by tier against the size of the memory that differs; None where none does, or nothing was measured.

    Few series: a panel each, with the tiers stacked. More: a line each.
    """
    known = [each for each in points if each.summary is not None and _TOTAL.of(each.summary) is not None]
    found = size_axis(known) if len(known) > 1 else None
    if found is None:
        return None
    what, sizes = found
    axes = other_axes(known, sizes)
    series: dict[str, list[tuple[int, Point]]] = {}
    for point, size in zip(known, sizes, strict=True):
        series.setdefault(series_name(point, axes), []).append((size, point))
    series = {name: sorted(each, key=lambda item: item[0]) for name, each in series.items()}
    if len(known) <= MOST_BARS and all(len(each) == 1 for each in series.values()):  # nothing grows but from one to one
        together = sorted((item for each in series.values() for item in each), key=lambda item: item[0])
        return _stacked("", {"": together})
    if len(series) <= MOST_PANELS and max(map(len, series.values())) <= MOST_BARS:
        return _stacked(what, series)
    return _lines(what, series)


@styled
def _stacked(what: str, series: Mapping[str, Sequence[tuple[int, Point]]]) -> Figure:
    """``what`` grows; "" = nothing does, so that each bar has the name of its point."""
    rows, columns = -(-len(series) // 2), min(len(series), 2)
    drawn = figure(1.2 + 3.2 * rows)
    panels = drawn.subplots(rows, columns, sharey=True, squeeze=False).flatten()
    parts = [part for each in series.values() for _, point in each for part in _tiers(point)]
    names = dict.fromkeys(name for name, rate in parts if rate)
    colors = dict(zip(names, cycle(PALETTE), strict=False))
    for axes, (title, points) in zip(panels, series.items(), strict=False):
        axes.set_title(shorten(title or "Hit rate by tier", 64 // columns), fontsize=12 if columns == 1 else 10)
        bottom = np.zeros(len(points))
        for name in names:
            heights = np.array([dict(_tiers(point)).get(name, 0.0) for _, point in points])
            if heights.any():
                axes.bar(range(len(points)), heights, bottom=bottom, color=colors[name], width=0.7, label=name)
            bottom += heights
        for place, top in enumerate(bottom):
            axes.text(place, top + 0.01, f"{100 * top:.3g}", ha="center", va="bottom", fontsize=9)
        texts = [size_text(size) if what else f"{short_name(point, 18)}\n{size_text(size)}" for size, point in points]
        axes.set_xticks(range(len(points)), texts, rotation=30 if len(points) > 5 else 0)
        axes.set_ylim(0, 1.08)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.grid(visible=False, axis="x")
        axes.set_xlabel(what or "Run, and its memory")
    handles = {text: handle for axes in panels for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    drawn.legend(list(handles.values()), list(handles), loc="outside upper right", ncols=len(handles), frameon=False)
    for axes in panels[:: max(columns, 1)]:
        axes.set_ylabel("Share of prompt tokens")
    for axes in panels[len(series) :]:
        axes.set_axis_off()
    return drawn


@styled
def _lines(what: str, series: Mapping[str, Sequence[tuple[int, Point]]]) -> Figure:
    drawn = figure(5.4)
    axes = drawn.subplots()
    many = len(series) > MOST_LINES
    axes.set_title(f"Token hit rate by {what}" + (f", the first {MOST_LINES} of {len(series)} series" if many else ""))
    labels = _told_apart(list(series)[:MOST_LINES])
    for index, (label, points) in enumerate(zip(labels, series.values(), strict=False)):
        rates = [_total(point) for _, point in points]
        sizes = [size / 2**30 for size, _ in points]
        marker = "o^sDvP"[(index + index // len(PALETTE)) % 6]  # a series of one point has no line to tell it by
        axes.plot(sizes, rates, marker=marker, markersize=4, label=label or "all", **line_style(index))
    smallest = min((size / 2**30 for each in series.values() for size, _ in each if size), default=1.0)
    axes.set_xscale("symlog", linthresh=smallest)
    drawn_sizes = sorted({size / 2**30 for each in series.values() for size, _ in each})
    if len(drawn_sizes) <= MOST_BARS:  # a few sizes within a decade would have no tick at all
        axes.set_xticks(drawn_sizes, minor=False)
        axes.minorticks_off()
    axes.xaxis.set_major_formatter(FuncFormatter(lambda gib, _: f"{gib:.3g}"))
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_xlabel(f"{what} (GiB = 2**30 bytes)")
    axes.set_ylabel("Share of prompt tokens")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8, frameon=False)
    return drawn


def _told_apart(names: Sequence[str]) -> list[str]:
    """Names short enough for a legend, no two alike: where need be without what most of them have, or numbered."""
    found = [shorten(name, _NAME_WIDTH) for name in names]
    if len(set(found)) < len(names):
        times = Counter(part for name in names for part in set(name.split(", ")))
        rare = (", ".join(part for part in name.split(", ") if 2 * times[part] <= len(names)) for name in names)
        found = [shorten(part or name, _NAME_WIDTH) for part, name in zip(rare, names, strict=True)]
    if len(set(found)) < len(names):
        found = [shorten(f"{number}: {name}", _NAME_WIDTH) for number, name in enumerate(found, start=1)]
    return found


def _total(point: Point) -> float:
    return float((point.summary and _TOTAL.of(point.summary)) or 0.0)


def _tiers(point: Point) -> list[tuple[str, float]]:
    """The part of each tier: GPU, CPU, then those behind it."""
    summary = point.summary or {}
    local, total = _LOCAL.of(summary) or 0.0, _TOTAL.of(summary) or 0.0
    behind = {name: float(each.get("hit_rate") or 0.0) for name, each in summary.get("secondary_tiers", {}).items()}
    cpu = max(total - local - sum(behind.values()), 0.0)
    return [("GPU cache", local), ("CPU" if behind or point.dram_bytes else "Other caches", cpu), *behind.items()]


# -- Pareto
def pareto(points: Sequence[Point], best: Point | None = None) -> Figure | None:
    """TTFT and throughput against what it costs: CPU memory, or GPUs where only their number differs.

    Choices that none beats which has neither more GPUs nor more memory are filled, and joined with those that have as
    many GPUs. None where the cost of all is the same.
    """
    known = [each for each in points if each.ttft_p90_ms is not None and each.output_tokens_per_s is not None]
    cost = _cost(known)
    return None if cost is None else _draw_pareto(known, *cost, best)


def front(costs: Sequence[float], values: Sequence[float], *, lower_is_better: bool) -> list[int]:
    """Places of those that nobody beats, by rising cost: whoever is better costs more."""
    sign = 1.0 if lower_is_better else -1.0
    order = sorted(range(len(costs)), key=lambda at: (costs[at], sign * values[at]))
    found: list[int] = []
    for at in order:
        if not found or sign * values[at] < sign * values[found[-1]]:
            found.append(at)
    return found


def unbeaten(points: Sequence[Point], values: Sequence[float], *, lower_is_better: bool) -> list[int]:
    """Places of those worth choosing that no other of them beats with no more GPUs, CPU memory or storage."""
    sign = 1.0 if lower_is_better else -1.0
    chosen = [at for at, is_choice in enumerate(worth_choosing(points)) if is_choice]
    all_of = [
        (each.gpus, each.dram_bytes, each.storage_bytes, sign * value)
        for each, value in ((points[at], values[at]) for at in chosen)
    ]
    rows = np.array(all_of, dtype=np.float64).reshape(-1, 4)
    beaten = [bool(((rows <= own).all(axis=1) & (rows < own).any(axis=1)).any()) for own in rows]
    return [at for at, is_beaten in zip(chosen, beaten, strict=True) if not is_beaten]


def _cost(points: Sequence[Point]) -> tuple[str, list[float]] | None:
    dram, gpus = [each.dram_bytes / 2**30 for each in points], [float(each.gpus) for each in points]
    storage = [each.storage_bytes / 2**30 for each in points]
    for name, found in (("CPU memory (GiB)", dram), ("GPUs", gpus), ("Storage (GiB)", storage)):
        if len(set(found)) > 1:
            return name, found
    return None


@styled
def _draw_pareto(known: Sequence[Point], what: str, costs: list[float], best: Point | None) -> Figure:
    drawn = figure(7.6)
    panels = drawn.subplots(2, 1, sharex=True)
    groups, name_of_group = _groups(known, costs)
    names = list(dict.fromkeys(groups))
    labels = dict(zip(names, _told_apart(names), strict=True))
    for axes, title, values, lower in (
        (panels[0], "P90 time to first token", [float(each.ttft_p90_ms or 0.0) for each in known], True),
        (panels[1], "Output tokens/s", [float(each.output_tokens_per_s or 0.0) for each in known], False),
    ):
        on_front = unbeaten(known, values, lower_is_better=lower)
        counts = [0] if what == "GPUs" else sorted({known[at].gpus for at in on_front})
        for count, dashes in zip(counts, cycle(DASHES)):
            of_count = [at for at in on_front if what == "GPUs" or known[at].gpus == count]
            x, y = [costs[at] for at in of_count], [values[at] for at in of_count]
            best_at = front(x, y, lower_is_better=lower)
            label = "Best for its cost" + (f", {count} GPU{'s' * (count != 1)}" if len(counts) > 1 else "")
            axes.step([x[at] for at in best_at], [y[at] for at in best_at], where="post", color=INK, linewidth=1.0,
                      linestyle=dashes, label=label)  # fmt: skip
        for index, group in enumerate(names):
            for filled in (False, True):
                chosen = [at for at in range(len(known)) if groups[at] == group and (at in on_front) is filled]
                color = PALETTE[index % len(PALETTE)]
                axes.plot(
                    [costs[at] for at in chosen], [values[at] for at in chosen], "o^sDvP"[index % 6], color=color,
                    markerfacecolor=color if filled else PAPER, markersize=6, linestyle="none",
                    label=labels[group] if filled and name_of_group else None,
                )  # fmt: skip
        missed = [at for at in range(len(known)) if known[at].meets_slo is False]
        if missed:
            axes.plot([costs[at] for at in missed], [values[at] for at in missed], "x", color=ORANGE, markersize=9,
                      label="Misses the SLO", linestyle="none")  # fmt: skip
        if best in known:
            at = known.index(best)
            axes.plot([costs[at]], [values[at]], "o", markersize=14, markerfacecolor="none", color=INK, label="Best")
        axes.set_title(title)
        axes.set_ylim(0, 1.12 * (max(values) or 1.0))
        _log_if_wide(axes, values)
    panels[0].yaxis.set_major_formatter(FuncFormatter(lambda ms, _: f"{ms / 1e3:,g} s" if ms >= 1000 else f"{ms:g} ms"))
    panels[0].set_ylabel("Time")
    panels[1].yaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:,g}"))
    panels[1].set_ylabel("Output tokens per second")
    panels[1].set_xlabel(what)
    if what == "GPUs":
        panels[1].xaxis.set_major_locator(MaxNLocator(integer=True))
    handles, texts = panels[0].get_legend_handles_labels()
    unique = dict(zip(texts, handles, strict=True))
    drawn.legend(list(unique.values()), list(unique), loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return drawn


def _groups(known: Sequence[Point], costs: Sequence[float]) -> tuple[list[str], bool]:
    """Which colour each point has: by its other axes, while there are no more of them than colours."""
    axes = other_axes(known, costs) if varied_axes(known) else []
    while axes:
        groups = [series_name(each, axes) for each in known]
        if len(set(groups)) <= len(PALETTE):
            return groups, True
        axes = axes[:-1]
    return [""] * len(known), False


def _log_if_wide(axes: Axes, values: Sequence[float]) -> None:
    """A logarithmic axis where the largest value is a hundred times the smallest."""
    positive = [each for each in values if each > 0]
    if positive and max(positive) > 100 * min(positive):
        axes.set_yscale("log")
        axes.set_ylim(0.7 * min(positive), 1.5 * max(positive))


# -- the optimum
def against_optimum(points: Sequence[Point], bound: Bound) -> Figure | None:
    """Hit rates of the points below what the best possible policy would reach with one cache as large as all tiers."""
    known = [each for each in points if each.summary is not None and _TOTAL.of(each.summary) is not None]
    return _draw_against(known, bound) if known and bound else None


@styled
def _draw_against(known: Sequence[Point], bound: Bound) -> Figure:
    drawn = figure()
    axes = drawn.subplots()
    axes.set_title("Token hit rate against the optimum")
    sizes, rates = (np.asarray(each, dtype=np.float64) for each in zip(*bound, strict=True))
    axes.plot(sizes / 2**30, rates, color=INK, linestyle="--", label="Optimum (Belady) of `kvsim mrc`")
    axes.fill_between(sizes / 2**30, rates, 1.0, color=GRID, alpha=0.4, linewidth=0)
    groups: dict[str, list[Point]] = {}
    for each in known:
        groups.setdefault(each.policy or "none", []).append(each)
    for index, (policy, chosen) in enumerate(groups.items()):
        x: Floats = np.array([cache_bytes(each) / 2**30 for each in chosen])
        y: Floats = np.array([_total(each) for each in chosen])
        marker = "o^sDvP"[index % 6]
        axes.plot(x, y, marker, color=PALETTE[index % len(PALETTE)], linestyle="none", label=shorten(policy, 20))
    axes.set_xscale("log")
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda gib, _: f"{gib:g}"))
    axes.set_xlabel("Memory for KV in all tiers (GiB = 2**30 bytes)")
    axes.set_ylabel("Share of prompt tokens")
    axes.legend(loc="lower right", fontsize=9)
    return drawn


def cache_bytes(point: Point) -> int:
    """Of all tiers together: as if none of them held what another one holds."""
    gpu = METRIC["tiers.gpu.capacity_bytes"]
    return int((point.summary and gpu.of(point.summary)) or 0) + point.dram_bytes + point.storage_bytes
