"""Plots of secondary tiers: what they hold, what they move, what waits for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import cycle

from matplotlib.figure import Figure

from kvsim.report.axes import legend, time_axis
from kvsim.report.curves import sample_times, share, thin, tier_column, tier_names, windows
from kvsim.report.format import shorten
from kvsim.report.style import DASHES, PALETTE, figure, say, styled
from kvsim.results.run import Run

TIER_COLORS = PALETTE[2:]
"""One for each secondary tier; the first two are the GPU's and the CPU's."""

_GIB, _NAME_WIDTH = 2**30, 24
_NO_SAMPLES = "The run recorded too few samples."


@styled
def tier_usage(run: Run) -> Figure:
    """What each secondary tier holds over time."""
    title = "KV in secondary tiers"
    if len(run.series) < 2:
        return say(title, _NO_SAMPLES)
    drawn = figure()
    axes = drawn.subplots()
    axes.set_title(title)
    time, unit = sample_times(run)
    for name, color, dashes in _tiers(run):
        x, used = thin(time, tier_column(run, name, "used_bytes") / _GIB)
        axes.step(x, used, where="post", color=color, linestyle=dashes, label=shorten(name, _NAME_WIDTH))
    axes.set_ylim(bottom=0)
    axes.set_ylabel("GiB (2**30 bytes)")
    time_axis(axes, time, unit)
    legend(axes)
    return drawn


@styled
def tier_traffic(run: Run) -> Figure:
    """What is read from and written to each secondary tier, and what waits for it, over time."""
    title = "Traffic of secondary tiers"
    found = windows(run)
    if found is None:
        return say(title, _NO_SAMPLES)
    edges, unit, growth = found
    time, _ = sample_times(run)
    drawn = figure(9.6)
    panels = drawn.subplots(4, 1, sharex=True)
    read, written, reads, backlog = panels
    for axes, heading, label in (
        (read, "Read (promotions)", "GB/s (1e9 bytes/s)"),
        (written, "Written (cascade)", "GB/s (1e9 bytes/s)"),
        (reads, "Waiting to be read", "GiB (2**30 bytes)"),
        (backlog, "Waiting to be written: pinned in CPU memory", "GiB (2**30 bytes)"),
    ):
        axes.set_title(heading)
        axes.set_ylabel(label)
    span_ns = growth("time_ns")
    for name, color, dashes in _tiers(run):
        label = shorten(name, _NAME_WIDTH)
        for axes, column in ((read, "read_bytes"), (written, "write_bytes")):
            rate = share(growth(column, name), span_ns)  # bytes per ns = GB per s
            axes.stairs(rate, edges, color=color, linestyle=dashes, label=label, linewidth=1.8)
        for axes, column in ((reads, "read_queue_bytes"), (backlog, "write_backlog_bytes")):
            x, waiting = thin(time, tier_column(run, name, column) / _GIB)
            axes.step(x, waiting, where="post", color=color, linestyle=dashes, label=label)
    for axes in panels:
        axes.set_ylim(bottom=0)
        time_axis(axes, edges, unit, label=axes is backlog)
    legend(read)
    return drawn


TIER_PLOTS: Mapping[str, tuple[Callable[[Run], Figure], str]] = {
    "tier_usage": (tier_usage, "What each secondary tier holds."),
    "tier_traffic": (tier_traffic, "What secondary tiers read and write, and what waits for them."),
}
"""Drawn where a run has secondary tiers: file name, function, and a sentence that says what it shows."""


def _tiers(run: Run) -> list[tuple[str, str, str]]:
    return list(zip(tier_names(run), cycle(TIER_COLORS), cycle(DASHES), strict=False))
