"""From a run's tables to the points of a plot: few enough to draw, and true to the data."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from kvsim.results.run import Run

Floats = npt.NDArray[np.float64]

WINDOWS = 60
"""Rates over time are taken over at most so many windows of equal length."""
MOST_POINTS = 400
"""Curves keep at most so many points; beyond it, CDFs keep quantiles and samples keep each stretch's peak."""

_LEAST_MS = 0.001
"""Shorter times are drawn here: a logarithmic axis has no zero."""


def cdf(run: Run, event: str) -> tuple[Floats, Floats] | None:
    """Times in ms from arrival to ``event`` (a column) and the share of finished requests within them.

    None where no request finished. With many requests the points are evenly spaced ranks, both ends included.
    """
    requests = run.requests
    done = ((requests["status"] == "finished") & (requests[event] >= 0)).to_numpy(dtype=bool)
    if not done.any():
        return None
    times = (requests[event] - requests["arrival_ns"]).to_numpy(dtype=np.float64)[done] / 1e6
    times = np.sort(np.maximum(times, _LEAST_MS))
    shares = np.arange(1, len(times) + 1) / len(times)
    if len(times) > MOST_POINTS:
        ranks = np.unique(np.linspace(0, len(times) - 1, MOST_POINTS).round().astype(int))
        times, shares = times[ranks], shares[ranks]
    return times, shares


def column(run: Run, name: str) -> Floats:
    """A column of the series as floats."""
    return run.series[name].to_numpy(dtype=np.float64)


def tier_names(run: Run) -> list[str]:
    """The secondary tiers of a run, in order."""
    return list(dict.fromkeys(run.tiers["tier"].tolist()))


def tier_column(run: Run, tier: str, name: str) -> Floats:
    """A column of a secondary tier's samples, which are taken when those of the series are."""
    return run.tiers.loc[run.tiers["tier"] == tier, name].to_numpy(dtype=np.float64)


def start_ns(run: Run) -> int:
    """Time zero of every plot: the first arrival."""
    return int(run.requests["arrival_ns"].min()) if len(run.requests) else 0


def sample_times(run: Run) -> tuple[Floats, str]:
    """Times of the samples since the first arrival, in a unit that suits the length of the run."""
    time_ns = np.maximum(column(run, "time_ns") - start_ns(run), 0.0)
    scale, unit = _scale(float(time_ns.max()))
    return time_ns / scale, unit


class Growth(Protocol):
    """How a cumulative column grows."""

    def __call__(self, name: str, tier: str = "") -> Floats:
        """Growth in each window, of the series or of a secondary tier's samples."""
        ...


def windows(run: Run) -> tuple[Floats, str, Growth] | None:
    """Edges of equal windows over the run, their unit, and a function: a cumulative column's growth in each.

    Between samples a column is taken to grow evenly. None with fewer than two samples or when no time passed.
    """
    if len(run.series) < 2:
        return None
    time_ns = column(run, "time_ns") - start_ns(run)
    first, last = max(float(time_ns[0]), 0.0), float(time_ns[-1])
    if last <= first:
        return None
    count = max(1, min(WINDOWS, len(time_ns) // 2))
    edges_ns = np.linspace(first, last, count + 1)
    scale, unit = _scale(last)

    def growth(name: str, tier: str = "") -> Floats:
        values = tier_column(run, tier, name) if tier else column(run, name)
        return np.diff(np.interp(edges_ns, time_ns, values))

    return edges_ns / scale, unit, growth


def share(part: Floats, whole: Floats) -> Floats:
    """Quotients, NaN (drawn as a gap) where the whole is zero."""
    quotients: Floats = np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0)
    return quotients


def thin(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """At most :data:`MOST_POINTS` samples and the last one, each the peak of a stretch: no peak is lost."""
    if len(x) <= MOST_POINTS:
        return x, y
    starts = np.unique(np.linspace(0, len(x), MOST_POINTS, endpoint=False).astype(int))
    return np.append(x[starts], x[-1]), np.append(np.maximum.reduceat(y, starts), y[-1])


def _scale(longest_ns: float) -> tuple[float, str]:
    if longest_ns < 300e9:
        return 1e9, "s"
    return (60e9, "min") if longest_ns < 4 * 3600e9 else (3600e9, "h")
