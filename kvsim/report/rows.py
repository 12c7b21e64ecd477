"""The rows of every table, for the terminal and for HTML alike: labels and finished texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from kvsim.report.format import MISSING, SAME, change, is_better, value
from kvsim.results.compare import METRIC, Metric, compare, metrics_of
from kvsim.results.run import Run

SPREAD = ("mean", "p50", "p90", "p99")


@dataclass(frozen=True, slots=True)
class Cell:
    """A value, its change against the first run ("" if none), and whether that is better (None: neither)."""

    text: str
    change: str = ""
    better: bool | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A row: its label and its cells."""

    label: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that belong together."""

    title: str
    lines: tuple[Line, ...]


def summary_groups(summary: Mapping[str, Any]) -> list[Group]:
    """One run: a row per number with one cell, or four cells (mean, P50, P90, P99) for a distribution."""
    shown = metrics_of([summary])
    groups = []
    for title, metrics in groupby(shown, key=lambda metric: metric.group):
        lines = []
        for _, members in groupby(metrics, key=lambda metric: _distribution(metric) or metric.key):
            first, *_ = members
            path = _distribution(first)
            if path is None:
                lines.append(Line(first.label, (Cell(value(first.of(summary), first.unit)),)))
            else:
                lines.append(Line(first.label.rsplit(" ", 1)[0], tuple(_spread(path, summary))))
        groups.append(Group(title, tuple(lines)))
    return groups


def comparison_groups(runs: Sequence[Run]) -> list[Group]:
    """Several runs: a row per number, a cell per run, each with its change against the first."""
    groups = []
    for title, rows in groupby(compare(runs), key=lambda row: row.metric.group):
        lines = []
        for row in rows:
            cells: list[Cell] = []
            for found, difference, ratio in zip(row.values, row.differences, row.ratios, strict=True):
                shift = change(difference, ratio, row.metric.unit) if cells else ""
                shift = "" if shift == SAME else shift
                better = is_better(difference, row.metric.better) if shift else None
                cells.append(Cell(value(found, row.metric.unit), shift, better))
            lines.append(Line(row.metric.label, tuple(cells)))
        groups.append(Group(title, tuple(lines)))
    return groups


def _distribution(metric: Metric) -> str | None:
    return ".".join(metric.path[:-1]) if metric.path[-1] in SPREAD else None


def _spread(path: str, summary: Mapping[str, Any]) -> list[Cell]:
    unit = next(METRIC[f"{path}.{what}"].unit for what in SPREAD if f"{path}.{what}" in METRIC)
    spread: Any = summary
    for step in path.split("."):
        spread = spread.get(step) if isinstance(spread, Mapping) else None
    if not isinstance(spread, Mapping):
        return [Cell(MISSING)] * len(SPREAD)
    return [Cell(value(spread.get(what), unit)) for what in SPREAD]
