"""The points of a plan as a table: a sweep's, with what each costs and whether it meets the SLO."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from kvsim.plan.outcome import Outcome
from kvsim.plan.planner import Planned
from kvsim.plan.prices import resources_of
from kvsim.plan.rated import Rated
from kvsim.plan.recommend import Advice
from kvsim.plan.search import Point
from kvsim.plan.slo import FINISHED
from kvsim.plan.sweep_results import results_frame
from kvsim.report.plan_plots import BEST, MEETS, PARETO, USD

GIB, TIB = 2**30, 2**40


def points_frame(planned: Planned, advice: Advice) -> pd.DataFrame:
    """One row per simulated point, in the order of simulation.

    Columns: those of a sweep (index, name, axes, status, reason, key, digest, figures by their dotted keys), then the
    plan's: meets_slo, strain, recommended, pareto, usd_*, instances, gpus, dram_gib, nvme_tib, and every limit of the
    SLO as ``slo.<limit>`` (ns or a share).
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
        [planned.space.name(point) for point, _ in rows],
        [planned.space.labels(point) for point, _ in rows],
        [_outcome(rated) for _, rated in rows],
    )
    none = Rated(planned.task.base, resources_of(planned.task.base), "not simulated")
    columns = list(_own(planned, advice, (), none))  # also where there is no point
    own = pd.DataFrame([_own(planned, advice, point, rated) for point, rated in rows], columns=columns)
    return pd.concat([table, own], axis=1)


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
