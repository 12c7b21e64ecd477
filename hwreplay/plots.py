"""The plots of a comparison. Every title names the device; one without a GPU says so."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from hwreplay.compare import Comparison
from hwreplay.intervals import Covered
from hwreplay.pairs import Pair
from hwreplay.result import JobDirection
from hwreplay.text import digits, size_text, time_text
from hwreplay.timeline import Timeline
from kvsim.errors import UserError
from kvsim.report.style import BLUE, GREEN, INK, ORANGE, PALETTE, PAPER, as_png, as_svg, figure, say, styled

LOOK: Mapping[JobDirection | None, tuple[str, str, str]] = {
    "load": ("Loads", BLUE, "o"),
    "store": ("Stores", ORANGE, "^"),
    "read": ("File reads", PALETTE[4], "s"),
    "write": ("File writes", PALETTE[5], "D"),
    None: ("Forward passes", GREEN, "v"),
}
"""Name, colour and marker; None = forward passes."""

MOST_POINTS = 3000
FEW = 100
"""Up to so many points are drawn large."""
WINDOW_PASSES = 12
"""A timeline shows so many forward passes."""


@styled
def scatter(compared: Comparison) -> Figure:
    """Each job and each forward pass: predicted time over measured time, both logarithmic."""
    drawn = figure(4.5)
    copies, passes = drawn.subplots(1, 2)
    drawn.suptitle(_title(compared, "Predicted and measured times"), x=0.01, ha="left", fontsize=12, fontweight="bold")
    _cloud(copies, "Copies", [pair for pair in compared.pairs if pair.direction is not None])
    _cloud(passes, "Forward passes", [pair for pair in compared.pairs if pair.direction is None])
    return drawn


@styled
def timelines(compared: Comparison) -> Figure:
    """The same steps as predicted and as measured, where the most is copied."""
    title = _title(compared, "The same steps, predicted and measured")
    first = window(compared.predicted)
    if first is None:
        return say(title, "There is no forward pass.")
    steps = [step for step in list(compared.predicted.passes) if step >= first][: WINDOW_PASSES + 1]
    middle = compared.makespan_ns.measured.median if compared.makespan_ns.measured else 0
    replay = min(compared.measured, key=lambda line: abs(line.makespan_ns - middle))
    steps = [step for step in steps if step in replay.passes]
    if not steps:
        return say(title, "The replay has none of these forward passes.")
    kinds: list[JobDirection | None] = [
        kind for kind in (None, "load", "store", "read", "write") if kind is None or _any(compared.predicted, kind)
    ]
    drawn = figure(1.8 + 2 * (0.5 + 0.42 * len(kinds)))
    above, below = drawn.subplots(2, 1, sharex=True)
    drawn.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    above.set_title("Predicted", fontsize=11)
    below.set_title("Measured", fontsize=11)
    widest = max(_bars(axes, line, steps, kinds) for axes, line in ((above, compared.predicted), (below, replay)))
    below.set_xlim(0, widest)
    below.set_xlabel(f"Time since the start of step {steps[0]:,} (ms)")
    return drawn


@styled
def bandwidth(compared: Comparison) -> Figure:
    """Rate of the copies by size of a descriptor and by bytes of a job."""
    drawn = figure(4.6)
    sizes, jobs = drawn.subplots(1, 2, sharey=True)
    drawn.suptitle(_title(compared, "Bandwidth by size"), x=0.01, ha="left", fontsize=12, fontweight="bold")
    _by_descriptor(sizes, compared)
    _by_job(jobs, compared)
    sizes.set_ylabel("GB/s (1e9 bytes/s)")
    sizes.set_ylim(bottom=0)
    handles, names = jobs.get_legend_handles_labels()
    if handles:
        drawn.legend(handles, names, loc="outside lower center", ncols=4, frameon=False)
    return drawn


PLOTS: Mapping[str, tuple[Callable[[Comparison], Figure], str]] = {
    "scatter": (
        scatter,
        (
            "A point on the line is predicted exactly, above it too long; the grey band is 10 % either way. Measured "
            "times are medians of the replays."
        ),
    ),
    "timelines": (
        timelines,
        f"Up to {WINDOW_PASSES} forward passes and what was copied beside them, where the most is copied.",
    ),
    "bandwidth": (
        bandwidth,
        (
            "Left: all bytes over all time of the jobs with descriptors of one size; bars span the replays. Right: the "
            "median job of each size; the band spans the middle 80 % of the measured jobs."
        ),
    ),
}
"""Every plot: its file name, the function, and a sentence that says what it shows."""


def save_plots(compared: Comparison, folder: Path) -> dict[str, str]:
    """Draw all plots into a folder, as PNG and as SVG; the SVG texts by name.

    Raises:
        UserError: the folder cannot be written.
    """
    texts = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, (draw, _) in PLOTS.items():
            drawn = draw(compared)
            texts[name] = as_svg(drawn)
            (folder / f"{name}.svg").write_text(texts[name], encoding="utf-8", newline="\n")
            drawn.set_layout_engine("none")  # everything is in its place
            (folder / f"{name}.png").write_bytes(as_png(drawn))
    except OSError as error:
        raise UserError(f"{folder}: cannot write the plots: {error.strerror or error}") from None
    return texts


def window(line: Timeline) -> int | None:
    """The step from which on the next `WINDOW_PASSES` passes have the most copying beside them; None without passes."""
    passes = list(line.passes.values())
    if not passes:
        return None
    copying = [
        Covered((job.start_ns, job.end_ns) for job in line.jobs.values() if job.direction == direction)
        for direction in ("load", "store")
    ]

    def busy(index: int) -> float:
        end = passes[min(index + WINDOW_PASSES, len(passes)) - 1].end_ns
        # parts of the window's time, so that long waits are not preferred; roots, so that both directions are
        return sum(math.sqrt(part.share(passes[index].start_ns, end)) for part in copying)

    most = max(range(max(1, len(passes) - WINDOW_PASSES + 1)), key=busy)
    return passes[most].step


def _title(compared: Comparison, what: str) -> str:
    return f"{what}\n{compared.device.label}, backend {compared.backend}"


def _any(line: Timeline, kind: JobDirection) -> bool:
    return any(job.direction == kind for job in line.jobs.values())


def _cloud(axes: Axes, title: str, pairs: Sequence[Pair]) -> None:
    axes.set_title(f"{title} ({len(pairs):,})", fontsize=11)
    if not pairs:
        axes.set_axis_off()
        axes.text(0.0, 0.9, "There are none.", transform=axes.transAxes, style="italic")
        return
    x = np.array([pair.measured_ns.median for pair in pairs]) / 1e6
    y = np.maximum(np.array([pair.predicted_ns for pair in pairs]), 1) / 1e6
    low, high = min(x.min(), y.min()) / 1.3, max(x.max(), y.max()) * 1.3
    line = np.array([low, high])
    axes.fill_between(line, line / 1.1, line * 1.1, color=INK, alpha=0.12, linewidth=0)
    axes.plot(line, line, color=INK, linewidth=1, label="_identity")
    stride = -(-len(pairs) // MOST_POINTS)
    for kind, (name, color, marker) in LOOK.items():
        chosen = [index for index, pair in enumerate(pairs) if pair.direction == kind][::stride]
        if chosen:
            axes.scatter(
                x[chosen],
                y[chosen],
                s=16 if len(pairs) > FEW else 40,
                color=color,
                marker=marker,
                alpha=0.6,
                linewidths=0,
                label=name,
            )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_aspect("equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 3.0) if high / low < 300 else (1.0,), numticks=8))
        axis.set_major_formatter(FuncFormatter(lambda ms, _: _tick(ms)))
        axis.set_minor_formatter(NullFormatter())
        axis.set_minor_locator(NullLocator())
    axes.set_xlabel("Measured")
    axes.set_ylabel("Predicted")
    axes.legend(loc="upper left", fontsize=9)


def _bars(axes: Axes, line: Timeline, steps: Sequence[int], kinds: Sequence[JobDirection | None]) -> float:
    """One row for each kind; the end of the window in ms since its start."""
    start, end = line.passes[steps[0]].start_ns, line.passes[steps[-1]].end_ns
    for row, kind in enumerate(kinds):
        _, color, _ = LOOK[kind]
        stretches = (
            [(each.start_ns, each.end_ns) for each in line.passes.values()]
            if kind is None
            else [(job.start_ns, job.end_ns) for job in line.jobs.values() if job.direction == kind]
        )
        bars = [
            ((max(left, start) - start) / 1e6, (min(right, end) - max(left, start)) / 1e6)
            for left, right in stretches
            if right > start and left < end
        ]
        axes.broken_barh(bars, (row - 0.36, 0.72), facecolors=color, edgecolors=PAPER, linewidth=0.6)
    axes.set_yticks(range(len(kinds)), [LOOK[kind][0] for kind in kinds])
    axes.set_ylim(len(kinds) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    return (end - start) / 1e6


def _by_descriptor(axes: Axes, compared: Comparison) -> None:
    axes.set_title("Size of a descriptor", fontsize=11)
    sizes = sorted({rate.descriptor_bytes for rate in compared.rates if rate.direction in ("load", "store")})
    asides: tuple[tuple[JobDirection, float], ...] = (("load", 0.94), ("store", 1.06))
    for direction, aside in asides:  # so that bars do not hide each other
        name, color, marker = LOOK[direction]
        rates = [rate for rate in compared.rates if rate.direction == direction]
        if not rates:
            continue
        x = [rate.descriptor_bytes * aside for rate in rates]
        middle = np.array([rate.measured.median for rate in rates])
        reach = [
            middle - [rate.measured.low for rate in rates],
            np.array([rate.measured.high for rate in rates]) - middle,
        ]
        axes.errorbar(x, middle, yerr=np.abs(reach), color=color, marker=marker, capsize=4, label=f"{name}, measured")
        axes.plot(
            x, [rate.predicted for rate in rates], color=color, marker=marker, linestyle="--", markersize=9,
            markerfacecolor="none", label=f"{name}, predicted",
        )  # fmt: skip
    if sizes:
        _size_axis(axes, sizes[0] / 1.5, sizes[-1] * 1.5)


def _by_job(axes: Axes, compared: Comparison) -> None:
    axes.set_title("Bytes of a job", fontsize=11)
    everything = [pair for pair in compared.pairs if pair.direction in ("load", "store") and pair.predicted_ns]
    if not everything:
        return
    low, high = (pick(pair.bytes for pair in everything) for pick in (min, max))
    edges = np.geomspace(low, high * 1.001, min(13, max(2, int(2 * np.log2(high / low)) + 2)))
    for direction in ("load", "store"):
        name, color, marker = LOOK[direction]
        pairs = [pair for pair in everything if pair.direction == direction]
        points = []
        for left, right in pairwise(edges):
            inside = [pair for pair in pairs if left <= pair.bytes < right]
            if inside:
                real = [pair.bytes / pair.measured_ns.median for pair in inside]
                guess = np.median([pair.bytes / pair.predicted_ns for pair in inside])
                middle = np.median([pair.bytes for pair in inside])
                points.append((middle, np.median(real), *np.percentile(real, (10, 90)), guess))
        if points:
            x, real_rates, below, above, guesses = np.array(points).T
            axes.fill_between(x, below, above, color=color, alpha=0.18, linewidth=0)
            axes.plot(x, real_rates, color=color, marker=marker, markersize=4, label=f"{name}, measured")
            axes.plot(
                x, guesses, color=color, marker=marker, markersize=7, markerfacecolor="none", linestyle="--",
                label=f"{name}, predicted",
            )  # fmt: skip
    _size_axis(axes, low / 1.3, high * 1.3)


def _size_axis(axes: Axes, low: float, high: float) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xlim(low, high)
    first, last = int(np.ceil(np.log2(low))), int(np.floor(np.log2(high)))
    step = max(1, -(-(last - first) // 5))
    ticks = [2**power for power in range(first, last + 1, step)]
    axes.set_xticks(ticks, [_spaced(size_text(tick)) for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(axis="y", labelleft=True)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: digits(rate).removesuffix(".00").removesuffix(".0")))


def _spaced(size: str) -> str:
    """``28KiB`` as ``28 KiB``."""
    number = size.rstrip("BiKMGT")
    return f"{number} {size[len(number) :]}"


def _tick(ms: float) -> str:
    """A time without digits behind the point that are 0."""
    number, unit = time_text(ms * 1e6).split(" ")
    return f"{float(number.replace(',', '')):g} {unit}"
