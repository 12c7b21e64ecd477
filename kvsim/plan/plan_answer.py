"""A plan's folder read back: what was recommended, and how far every point is from the SLO."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from kvsim.errors import UserError
from kvsim.plan.slo import FINISHED, Check, Slo, parse_slo
from kvsim.report.plan_plots import Against, against, pareto, with_plot_column
from kvsim.report.plan_section import plan_section
from kvsim.report.sections import Section
from kvsim.results.sweep import RESULTS, Sweep

ANSWER = "plan.json"
KIND, SCHEMA = "kvsim-plan", 1


@dataclass(frozen=True)
class PlanAnswer:
    """What a plan's folder says.

    Attributes:
        content: of ``plan.json``.
        table: of its points.
        best: row of the point that is recommended, or is closest; None if nothing ran.
        checks: of every row.
    """

    content: Mapping[str, Any]
    table: pd.DataFrame
    best: int | None
    checks: tuple[tuple[Check, ...], ...]

    def section(self) -> Section:
        """The part of a page that it is."""
        drawn: Against = against(parse_slo(self.content["slo"]).limits[0].key, _first_limit(self.content))
        return plan_section(self.content, pareto(with_plot_column(self.table, drawn), drawn))


def read_plan(folder: Path, sweep: Sweep) -> PlanAnswer | None:
    """The answer in a folder; None if it is a sweep's that answers nothing.

    Raises:
        UserError: it is damaged.
    """
    path = folder / ANSWER
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if (content["kind"], content["schema"]) != (KIND, SCHEMA):
            raise ValueError(f"schema {content['schema']}")
        slo = parse_slo(content["slo"])
        table = pq.read_table(folder / RESULTS).to_pandas()
        checks = tuple(_checks(slo, row) for row in table.to_dict("records"))
        best = table.index[table["recommended"].astype(bool)].tolist()
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, UserError) as error:
        raise UserError(f"{path}: damaged, or not the answer of a plan with the points beside it: {error}") from None
    if len(table) != len(sweep.points):
        raise UserError(f"{path}: expected the {len(sweep.points)} points of {RESULTS}, found {len(table)}")
    return PlanAnswer(content, table, best[0] if best else None, checks)


def _first_limit(content: Mapping[str, Any]) -> float:
    return parse_slo(content["slo"]).limits[0].limit


def _checks(slo: Slo, row: Mapping[str, Any]) -> tuple[Check, ...]:
    """No figures, no checks: the point failed."""
    if row["status"] == "failed":
        return ()
    return slo.check({key: _figure(row[f"slo.{key}"]) for key in (*(limit.key for limit in slo.limits), FINISHED)})


def _figure(value: Any) -> float | None:
    return None if value is None or (isinstance(value, float) and math.isnan(value)) else float(value)
