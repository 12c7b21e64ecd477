"""The plots of a run, and several runs over one another. Each function takes runs and gives a figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter

from kvsim.errors import UserError
from kvsim.report.axes import legend, time_axis
from kvsim.report.curves import MOST_POINTS, Floats, cdf, column, sample_times, share, thin, tier_names, windows
from kvsim.report.format import number, shorten, value
from kvsim.report.style import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PAPER,
    VERMILLION,
    as_png,
    as_svg,
    figure,
    line_style,
    say,
    styled,
)
from kvsim.report.tier_plots import TIER_COLORS, TIER_PLOTS
from kvsim.results.compare import METRIC, labels
from kvsim.results.run import Run

_NAME_WIDTH = 24
_NAMES_ABOVE = 2
"""With more lines than this their names do not fit beside the title."""
_NO_SAMPLES = "The run recorded too few samples."


@styled
def ttft_cdf(*runs: Run) -> Figure:
    """Which share of the finished requests had their first token within a time (logarithmic)."""
    return _one_cdf(runs, "first_token_ns", "Time to first token (TTFT)")


@styled
def e2e_cdf(*runs: Run) -> Figure:
    """Which share of the finished requests were complete within a time (logarithmic)."""
    return _one_cdf(runs, "finish_ns", "End-to-end latency (E2E)")


@styled
def hit_rate(run: Run) -> Figure:
    """Share of prompt tokens found in the GPU cache and in the offload tiers, over windows of time."""
    title = "Token hit rate over time"
    found = windows(run)
    if found is None:
        return say(title, _NO_SAMPLES)
    edges, unit, growth = found
    drawn = figure()
    axes = drawn.subplots()
    axes.set_title(title)
    prompt = growth("prompt_tokens")
    below = share(growth("local_hit_tokens"), prompt)
    axes.stairs(below, edges, fill=True, color=BLUE, label="GPU cache")
    names = tier_names(run)
    behind = {name: growth("hit_tokens", name) for name in names}
    from_cpu = growth("external_hit_tokens") - sum(behind.values(), np.zeros(len(prompt)))
    has_cpu = not names or bool(run.summary["tiers"]["cpu"]["capacity_blocks"])  # a shared store stands without one
    layers = ({"CPU" if names else "Offload tiers": from_cpu} if has_cpu else {}) | behind
    for color, (name, tokens) in zip(cycle((ORANGE, *TIER_COLORS)[not has_cpu :]), layers.items(), strict=False):
        top = below + share(tokens, prompt)
        axes.stairs(top, edges, baseline=below, fill=True, color=color, label=shorten(name, _NAME_WIDTH))
        below = top
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_ylabel("Share of prompt tokens")
    time_axis(axes, edges, unit)
    legend(axes)
    return drawn


@styled
def kv_usage(run: Run) -> Figure:
    """KV memory of each tier over time, in GiB and in percent of the tier."""
    totals = run.summary["totals"]
    tiers = [tier for tier in ("gpu", "cpu") if totals.get(f"num_{tier}_blocks") and totals.get(f"{tier}_block_bytes")]
    if len(run.series) < 2 or not tiers:
        return say("KV memory over time", _NO_SAMPLES if tiers else "The run does not say how large its tiers are.")
    drawn = figure(1.0 + 2.9 * len(tiers))
    panels = np.atleast_1d(drawn.subplots(len(tiers), 1, sharex=True))
    time, unit = sample_times(run)
    for tier, axes in zip(tiers, panels, strict=True):
        to_gib = totals[f"{tier}_block_bytes"] / 2**30
        top = totals[f"num_{tier}_blocks"] * to_gib
        axes.set_title(f"KV memory on the {tier.upper()}")
        x, used = thin(time, column(run, f"{tier}_used_blocks") * to_gib)
        axes.fill_between(x, used, step="post", color=BLUE, alpha=0.35, linewidth=0)
        axes.step(x, used, where="post", color=BLUE, label="Held" if tier == "gpu" else "Used")
        if tier == "gpu":
            x, cached = thin(time, column(run, "gpu_cached_blocks") * to_gib)
            axes.step(x, cached, where="post", color=VERMILLION, linestyle="--", label="Cached")
        axes.axhline(top, color=GREEN, linestyle=":", label=f"Capacity, {number(top)} GiB")
        axes.set_ylim(0, 1.08 * top)
        axes.set_ylabel("GiB (2**30 bytes)")
        right = axes.secondary_yaxis("right", functions=(_times(100 / top), _times(top / 100)))
        right.set_ylabel("% of capacity")
        time_axis(axes, time, unit, label=axes is panels[-1])
        legend(axes)
    return drawn


@styled
def queues(run: Run) -> Figure:
    """Requests running, waiting, and parked while their KV is loaded, over time."""
    title = "Requests in the engine"
    if len(run.series) < 2:
        return say(title, _NO_SAMPLES)
    drawn = figure()
    axes = drawn.subplots()
    time, unit = sample_times(run)
    for name, color, dashes in (
        ("running", BLUE, "-"),
        ("waiting", VERMILLION, "--"),
        ("loading", GREEN, "-."),
    ):
        x, y = thin(time, column(run, name))
        axes.step(x, y, where="post", color=color, linestyle=dashes, label=name.capitalize())
    axes.set_title(f"{title} (peaks)" if len(time) > MOST_POINTS else title)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("Requests")
    time_axis(axes, time, unit)
    legend(axes)
    return drawn


@styled
def transfers(run: Run) -> Figure:
    """How busy each direction of the link was, and what it moved, over windows of time."""
    title = "KV moved between GPU and host"
    found = windows(run)
    if found is None:
        return say(title, _NO_SAMPLES)
    if not any(column(run, f"{way}_bytes")[-1] for way in ("h2d", "d2h")):
        return say(title, "No KV was moved.")
    edges, unit, growth = found
    drawn = figure(5.8)
    busy, rate = drawn.subplots(2, 1, sharex=True)
    busy.set_title("Link busy")
    rate.set_title("KV moved")
    span_ns = growth("time_ns")
    for way, name, color, dashes in (
        ("h2d", "Host to device (loads)", BLUE, "-"),
        ("d2h", "Device to host (stores)", ORANGE, "--"),
    ):
        look: dict[str, Any] = {"color": color, "linestyle": dashes, "label": name, "linewidth": 1.8}
        busy.stairs(share(growth(f"{way}_busy_ns"), span_ns), edges, **look)
        rate.stairs(share(growth(f"{way}_bytes"), span_ns), edges, **look)  # bytes per ns = GB per s
    busy.set_ylim(bottom=0)
    busy.yaxis.set_major_formatter(PercentFormatter(1.0))
    busy.set_ylabel("Share of time")
    rate.set_ylim(bottom=0)
    rate.set_ylabel("GB/s (1e9 bytes/s)")
    time_axis(busy, edges, unit, label=False)
    time_axis(rate, edges, unit)
    legend(busy)
    return drawn


@styled
def overlay(runs: Sequence[Run]) -> Figure:
    """Several runs on one figure: TTFT, hit rates, throughput and P90 TTFT, each run in its colour."""
    bars_in = 1.2 + 0.36 * len(runs)
    drawn = figure(3.8 + bars_in)
    grid = drawn.add_gridspec(2, 3, height_ratios=(3.8, bars_in))
    _cdf(drawn.add_subplot(grid[0, :]), runs, "first_token_ns", "Time to first token (TTFT)")
    hits = drawn.add_subplot(grid[1, 0])
    _hit_bars(hits, runs)
    for place, key, title in (
        (1, "throughput.output_tokens_per_s", "Output tokens/s"),
        (2, "latency.ttft_ms.p90", "P90 TTFT"),
    ):
        _bars(drawn.add_subplot(grid[1, place], sharey=hits), runs, key, title)
    return drawn


PLOTS: Mapping[str, tuple[Callable[[Run], Figure], str]] = {
    "ttft_cdf": (ttft_cdf, "Which share of the requests had their first token within a time."),
    "e2e_cdf": (e2e_cdf, "Which share of the requests were complete within a time."),
    "hit_rate": (hit_rate, "Prompt tokens that came from the GPU cache and from the offload tiers."),
    "kv_usage": (kv_usage, "KV memory in use on each tier, against what the tier holds."),
    "queues": (queues, "Requests that run, wait, or are parked while their KV is loaded."),
    "transfers": (transfers, "How busy each direction of the link was, and how much it moved."),
}
"""Every plot of a single run: its file name, the function, and a sentence that says what it shows."""


def plots_of(run: Run) -> Mapping[str, tuple[Callable[[Run], Figure], str]]:
    """The plots that say something about this run."""
    return {**PLOTS, **TIER_PLOTS} if len(run.tiers) else PLOTS


def save_plots(run: Run, folder: Path) -> list[Path]:
    """Draw all plots of a run into a folder, as PNG and as SVG.

    Raises:
        UserError: The folder cannot be written.
    """
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, (draw, _) in plots_of(run).items():
            drawn = draw(run)
            png, svg = folder / f"{name}.png", folder / f"{name}.svg"
            svg.write_text(as_svg(drawn), encoding="utf-8", newline="\n")
            drawn.set_layout_engine("none")  # everything is in its place: finding it again is half the work
            png.write_bytes(as_png(drawn))
            written += [png, svg]
    except OSError as error:
        raise UserError(f"{folder}: cannot write the plots: {error.strerror or error}") from error
    return written


def _one_cdf(runs: Sequence[Run], event: str, title: str) -> Figure:
    if all(cdf(run, event) is None for run in runs):
        return say(title, "No request finished.")
    drawn = figure()
    _cdf(drawn.subplots(), runs, event, title)
    return drawn


def _cdf(axes: Axes, runs: Sequence[Run], event: str, title: str) -> None:
    axes.set_title(title)
    for index, (name, run) in enumerate(zip(labels(runs), runs, strict=True)):
        points = cdf(run, event)
        if points is None:
            continue
        times, shares = points
        # From zero up at the fastest request, so that the curve also shows where it starts.
        axes.step(
            np.insert(times, 0, times[0]),
            np.insert(shares, 0, 0.0),
            where="post",
            label=shorten(name, _NAME_WIDTH),
            **line_style(index),
        )
    if not axes.lines:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "No request finished.", transform=axes.transAxes, ha="center", style="italic")
        return
    axes.set_xscale("log")
    low, high = axes.dataLim.x0, axes.dataLim.x1
    margin = 1.15 if high / low > 6 else 2.5  # wide enough for two labelled ticks
    axes.set_xlim(low / margin, high * margin)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < 2000 else (1.0,)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda ms, _: _tick(ms)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_xlabel("Time since arrival (logarithmic)")
    axes.set_ylabel("Share of finished requests")
    if 1 < len(axes.lines) <= _NAMES_ABOVE:
        legend(axes)
    elif len(axes.lines) > 1:
        axes.legend(loc="best", fontsize=8)


def _hit_bars(axes: Axes, runs: Sequence[Run]) -> None:
    axes.set_title("Token hit rate")
    names = [shorten(name, 18) for name in labels(runs)]
    for place, run in enumerate(runs):  # the colour tells the run, as in the other panels; the hatching the tier
        local, external = (METRIC[f"hit_rate.{what}"].of(run.summary) or 0.0 for what in ("local", "external"))
        color = line_style(place)["color"]
        axes.barh(place, local, color=color, height=0.6)
        if external:
            axes.barh(place, external, left=local, facecolor=PAPER, edgecolor=color, hatch="////", height=0.6)
    axes.set_yticks(range(len(runs)), names)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    keys = [
        Patch(facecolor=INK, label="GPU"),
        Patch(facecolor=PAPER, edgecolor=INK, hatch="////", label="Offload"),
    ]
    below = -0.42 / (0.4 + 0.36 * len(runs))  # inches over the height of the panel, about: under the tick labels
    axes.legend(handles=keys, loc="upper center", bbox_to_anchor=(0.5, below), ncols=2, frameon=False)


def _bars(axes: Axes, runs: Sequence[Run], key: str, title: str) -> None:
    axes.set_title(title)
    metric = METRIC[key]
    amounts = [metric.of(run.summary) for run in runs]
    most = max((amount for amount in amounts if amount is not None), default=0) or 1
    for place, amount in enumerate(amounts):
        axes.barh(place, amount or 0, color=line_style(place)["color"], height=0.6)
        axes.text((amount or 0) + 0.03 * most, place, value(amount, metric.unit), va="center", ha="left")
    axes.set_xlim(0, 1.45 * most)  # room for the number behind the longest bar
    axes.set_xticks([])
    axes.tick_params(axis="y", labelleft=False, length=0)
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)


def _tick(ms: float) -> str:
    for limit, unit_ms, unit in ((1e3, 1.0, "ms"), (60e3, 1e3, "s")):
        if ms < 0.999 * limit:
            return f"{ms / unit_ms:g} {unit}"
    return f"{ms / 1e3:,.0f} s"


def _times(factor: float) -> Callable[[Floats], Floats]:
    return lambda values: np.asarray(values) * factor
