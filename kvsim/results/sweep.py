"""A sweep read back: a row per point with its axes, what became of it, and its figures."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
from pyarrow import ArrowException

from kvsim.errors import UserError

RESULTS, POINTS = "results.parquet", "points"
_REQUIRED = ("index", "status", "reason", "key", "digest")
_OWN = (*_REQUIRED, "name")


@dataclass(frozen=True)
class SweepPoint:
    """One point.

    Attributes:
        labels: the value of each axis; None = this point has none.
        summary: its figures as in ``summary.json``: all of them where the point's own file is there, else those of the
            table. None if it failed.
        config_text: the resolved config, YAML; "" where the point's own file is gone.
    """

    index: int
    name: str
    labels: Mapping[str, str | float | None]
    status: str
    reason: str
    summary: Mapping[str, Any] | None
    config_text: str


@dataclass(frozen=True)
class Sweep:
    """A sweep folder: its axes and its points, in the order of the sweep's file."""

    path: Path
    name: str
    axes: tuple[str, ...]
    points: tuple[SweepPoint, ...]


def is_sweep(folder: Path) -> bool:
    """Whether this looks like what `kvsim sweep` leaves."""
    return (folder / RESULTS).is_file()


def load_sweep(folder: Path) -> Sweep:
    """Read a sweep folder.

    Raises:
        UserError: its table is missing, damaged, or is not that of a sweep.
    """
    path = folder / RESULTS
    try:
        table = pq.read_table(path).to_pandas()
    except (OSError, ArrowException) as error:
        raise UserError(f"{path}: cannot be read as the table of a sweep: {error}") from error
    columns = list(table.columns)
    missing = [name for name in _REQUIRED if name not in columns]
    if missing:
        raise UserError(f"{path}: not the table of a sweep: expected a column {missing[0]}")
    axes = tuple(name for name in columns[: columns.index("status")] if name not in _OWN)
    figures = [name for name in columns[columns.index("status") :] if name not in _OWN]
    points = tuple(_point(folder, row, axes, figures) for row in table.to_dict(orient="records"))
    if not points:
        raise UserError(f"{path}: expected a row for each point, found none")
    return Sweep(folder, folder.absolute().name, axes, points)


def _point(folder: Path, row: Mapping[str, Any], axes: tuple[str, ...], figures: list[str]) -> SweepPoint:
    labels = {axis: _plain(row[axis]) for axis in axes}
    status, key = str(row["status"]), str(row["key"])
    own = _own_file(folder / POINTS / f"{key}.json")
    summary = own.get("summary") if own else None
    if summary is None and status != "failed":
        summary = _nested({name: _plain(row[name]) for name in figures})
    index = int(row["index"])
    return SweepPoint(
        index,
        str(_plain(row.get("name")) or f"point {index}"),
        labels,
        status,
        str(_plain(row["reason"]) or ""),
        None if status == "failed" else summary,
        str(own.get("config", "")) if own else "",
    )


def _own_file(path: Path) -> dict[str, Any]:
    """What the point's own file says; nothing where there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as a point of a sweep: {error}") from error
    if not isinstance(found, dict) or not isinstance(found.get("summary"), dict | None):
        raise UserError(f"{path}: not a point of a sweep: expected an object with a summary")
    return found


def _nested(figures: Mapping[str, Any]) -> dict[str, Any]:
    """``a.b.c`` as a summary has it."""
    found: dict[str, Any] = {}
    for key, value in figures.items():
        *path, last = key.split(".")
        at = found
        for step in path:
            at = at.setdefault(step, {})
        at[last] = value
    return found


def _plain(value: Any) -> Any:
    """Numbers and texts as Python has them; None for what is missing."""
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return None
    return value.item() if hasattr(value, "item") else value
