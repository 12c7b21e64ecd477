"""The points of a plan as a table: a sweep's, with what each costs and whether it meets the SLO."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from kvsim.plan.outcome import Outcome
from kvsim.plan.planner import Planned
from kvsim.plan.rated import Rated
from kvsim.plan.recommend import Advice
from kvsim.plan.search import Point
from kvsim.plan.slo import FINISHED, GOODPUT
from kvsim.plan.sweep_results import results_frame
from kvsim.plan.words import limit_name
from kvsim.report.plan_plots import BEST, LABEL, MEETS, PARETO, USD, Against

GIB, TIB = 2**30, 2**40


def points_frame(planned: Planned, advice: Advice) -> pd.DataFrame:
    """One row per simulated point, in the order of simulation.

    Columns: those of a sweep (index, axes, status, reason, key, digest, figures by their dotted keys), then the plan's:
    point, meets_slo, strain, recommended, pareto, usd_*, instances, gpus, dram_gib, nvme_tib, and
    every limit of the SLO as ``slo.<limit>`` (ns or a share).
    """
    return _frame(planned, advice, planned.rated)


def thinned_frame(planned: Planned, advice: Advice) -> pd.DataFrame:
    """The same of points that were simulated with a share of the sessions only, in column ``sessions_share``."""
    table = _frame(planned, advice, planned.thinned)
    return table.assign(sessions_share=[rated.share for rated in planned.thinned.values()])


def _frame(planned: Planned, advice: Advice, points: Mapping[Point, Rated]) -> pd.DataFrame:
    rows = list(points.items())
    axes = [axis.name for axis in planned.space.axes]
    table = results_frame(
        axes,
        [None] * len(rows),
        [planned.space.labels(point) for point, _ in rows],
        [_outcome(rated) for _, rated in rows],
    )
    own = pd.DataFrame([_own(planned, advice, point, rated) for point, rated in rows])
    return pd.concat([table, own], axis=1)


def against(planned: Planned) -> Against:
    """The first limit of the SLO, as the Pareto plot draws it."""
    limit = planned.task.slo.limits[0]
    if limit.key == GOODPUT:
        return Against(f"slo.{GOODPUT}", "Goodput (share of requests)", limit.limit, more_is_better=True)
    seconds = limit.limit / 1e9
    unit, scale = ("ms", 1e3) if seconds < 1 else ("s", 1.0)
    return Against(f"slo.{limit.key}_{unit}", f"{limit_name(limit.key)} ({unit})", seconds * scale)


def with_plot_column(table: pd.DataFrame, drawn: Against) -> pd.DataFrame:
    """The table with the limit's figure in the unit of the plot."""
    if drawn.column in table.columns:
        return table
    key, _, unit = drawn.column.rpartition("_")
    return table.assign(**{drawn.column: table[key] / (1e6 if unit == "ms" else 1e9)})


def _outcome(rated: Rated) -> Outcome:
    status = "failed" if rated.failed else "stuck" if rated.summary["requests"]["stuck"] else "ok"
    summary = dict(rated.summary) or None
    return Outcome(rated.key, status, rated.reason, "", summary)  # type: ignore[arg-type]  # one of the three


def _own(planned: Planned, advice: Advice, point: Point, rated: Rated) -> dict[str, Any]:
    prices, takes = planned.task.prices, rated.resources
    is_whole = rated.share == 1
    measured = {check.key: check.measured for check in rated.checks}
    per_token = None if rated.failed or not rated.output_tokens else 1e6 / rated.output_tokens
    return {
        LABEL: planned.space.name(point),
        MEETS: rated.is_met,
        "strain": None if math.isinf(rated.strain) else rated.strain,
        BEST: is_whole and point == advice.best,
        PARETO: is_whole and point in advice.pareto,
        USD: None if math.isinf(rated.usd_per_1m_tokens) else rated.usd_per_1m_tokens,
        **{
            f"usd_{part}_per_1m": None if per_token is None else rated.cost[part] * per_token
            for part in ("gpu", "dram", "nvme", "network")
        },
        "usd_per_hour": rated.usd_per_hour(prices),
        "instances": takes.instances,
        "gpus": sum(takes.gpus.values()),
        "dram_gib": takes.dram_bytes / GIB,
        "nvme_tib": takes.nvme_bytes / TIB,
        **{f"slo.{limit.key}": measured.get(limit.key) for limit in planned.task.slo.limits},
        f"slo.{FINISHED}": measured.get(FINISHED, None if rated.failed else 1.0),
    }
