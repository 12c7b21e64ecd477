"""Eviction policies side by side, and how far each is behind the optimum."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from kvsim.report.format import MISSING, percent
from kvsim.report.point_plots import Bound, cache_bytes
from kvsim.report.points import KNOW_THE_FUTURE, Point, series_name, varied_axes
from kvsim.report.sortable import Entry, Heading, SortableTable, number_entry, text_entry
from kvsim.results.compare import METRIC

MOST_COLUMNS = 6
_TOTAL = METRIC["hit_rate.total"]


def policy_table(points: Sequence[Point], bound: Bound = ()) -> SortableTable | None:
    """A row per policy, a column per setting in which several policies were tried; None where there are not two.

    Args:
        points: what was simulated.
        bound: hit rate of the optimum by cache size, if that is known from elsewhere.
    """
    known = [each for each in points if each.policy and each.summary and _TOTAL.of(each.summary) is not None]
    policies = list(dict.fromkeys(each.policy for each in known))
    if len(policies) < 2:
        return None
    axes = [axis for axis in varied_axes(known) if not axis.endswith("policy")]
    settings: dict[str, dict[str, Point]] = {}
    for each in known:
        settings.setdefault(series_name(each, axes), {})[each.policy] = each
    settings = {name: tried for name, tried in settings.items() if len(tried) > 1}
    if not settings:
        return None
    shown = list(settings)[:MOST_COLUMNS]
    optima = [name for name in policies if name.lower() in KNOW_THE_FUTURE]
    bounds = {name: _bound(tried, optima, bound) for name, tried in settings.items()}
    has_bound = any(found is not None for found in bounds.values())
    headings = [
        Heading("Policy", "text"),
        *(Heading(name.replace("_", "_\N{ZERO WIDTH SPACE}") or "Hit rate") for name in shown),
    ]
    headings += [Heading("Behind the optimum, mean")] if has_bound else []
    headings.append(Heading("TTFT P90, mean"))
    rows = []
    for policy in policies:
        cells = [text_entry(policy)]
        for name in shown:
            point = settings[name].get(policy)
            cells.append(Entry(MISSING) if point is None else number_entry(_rate(point), "share"))
        tried = [(name, found[policy]) for name, found in settings.items() if policy in found]
        gaps = [limit - _rate(point) for name, point in tried if (limit := bounds[name]) is not None]
        if has_bound:
            mean = fmean(gaps) if gaps else None
            cells.append(Entry("") if mean is None else _gap(mean))
        times = [point.ttft_p90_ms for _, point in tried if point.ttft_p90_ms is not None]
        cells.append(number_entry(fmean(times) if times else None, "ms"))
        rows.append(tuple(cells))
    hint = _hint(settings, optima, bound)
    return SortableTable(tuple(headings), tuple(rows), "Token hit rate of each policy.", hint)


def _gap(mean: float) -> Entry:
    points = 100 * mean
    return Entry(f"{points:.1f} points" if points > -0.05 else f"{-points:.1f} points ahead", f"{mean:.9f}")


def _rate(point: Point) -> float:
    assert point.summary is not None
    return float(_TOTAL.of(point.summary) or 0.0)


def _bound(tried: dict[str, Point], optima: Sequence[str], bound: Bound) -> float | None:
    """The optimum of a setting: the best simulated there, or that of a cache as large as all its tiers."""
    if simulated := [_rate(tried[name]) for name in optima if name in tried]:
        return max(simulated)
    if not bound:
        return None
    size = max(cache_bytes(each) for each in tried.values())
    larger = [rate for known, rate in bound if known >= size]
    return larger[0] if larger else max(rate for _, rate in bound)


def _hint(settings: dict[str, dict[str, Point]], optima: Sequence[str], bound: Bound) -> str:
    found = []
    if len(settings) > MOST_COLUMNS:
        found.append(f"The first {MOST_COLUMNS} of {len(settings)} settings; means are over all of them.")
    if optima:
        found.append(
            f"The optimum is policy {' or '.join(optima)}, simulated in the same setting. It knows the trace and nobody"
            " can run it; where answers decide when the next requests come, another policy may be ahead of it."
        )
    elif bound:
        best = percent(max(rate for _, rate in bound))
        found.append(
            "The optimum is that of `kvsim mrc`, for one cache as large as all tiers together (the next size it knows):"
            f" {best} at most, with any size. It caches prompts only: a run, which finds answers too, may be ahead."
        )
    return " ".join(found)
