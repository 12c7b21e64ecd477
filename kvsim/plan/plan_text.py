"""The points around a plan's answer, as rows that people read."""

from __future__ import annotations

from kvsim.plan.planner import Planned
from kvsim.plan.rated import Rated
from kvsim.plan.recommend import Advice
from kvsim.plan.search import Point
from kvsim.plan.words import amount, money, more_or_less
from kvsim.report.format import MISSING
from kvsim.report.plan_tables import PlanRow


def neighbour_rows(planned: Planned, advice: Advice) -> list[PlanRow]:
    """The best point, then each of its neighbours by what is different about it."""
    if advice.best is None:
        return []
    rows = [_row(planned, advice, advice.best, planned.space.name(advice.best))]
    for each in advice.neighbours:
        name = f"{each.axis} {planned.space.labels(each.point)[each.axis]}"
        rows.append(_row(planned, advice, each.point, f"  {name}"))
    return rows


def pareto_rows(planned: Planned, advice: Advice) -> list[PlanRow]:
    """The points that no other beats in both cost and the SLO's first limit, by what sets them apart."""
    labels = [planned.space.labels(point) for point in advice.pareto]
    varied = [name for name in labels[0] if len({each[name] for each in labels}) > 1] if labels else []
    return [
        _row(planned, advice, point, ", ".join(f"{name} {each[name]}" for name in varied))
        for point, each in zip(advice.pareto, labels, strict=True)
    ]


def _row(planned: Planned, advice: Advice, point: Point, name: str) -> PlanRow:
    limits = planned.task.slo.limits
    rated = planned.rated.get(point)
    if rated is None or rated.failed:
        why = "not simulated" if rated is None else "cannot be run"
        return PlanRow(f"{name} ({why})", [MISSING] * len(limits), (MISSING, MISSING))
    measured = {check.key: check.measured for check in rated.checks}
    best = None if advice.best is None else planned.rated[advice.best]
    if best is not None and rated.rejected[0] != best.rejected[0]:
        name += f" ({rated.rejected[0]:,} of {rated.rejected[1]:,} requests rejected)"
    return PlanRow(
        name,
        [amount(limit.key, measured.get(limit.key)) for limit in limits],
        (_plain(rated.usd_per_1m_tokens), _plain(rated.usd_per_hour(planned.task.prices))),
        _change(planned.rated.get(advice.best) if advice.best is not None else None, rated),
        rated.is_met,
        point == advice.best,
    )


def _plain(usd: float) -> str:
    return money(usd).removesuffix(" USD")


def _change(best: Rated | None, rated: Rated) -> str:
    if best is None or best is rated or best.failed:
        return ""
    return more_or_less(best.usd_per_1m_tokens, rated.usd_per_1m_tokens)
