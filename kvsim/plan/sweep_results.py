"""The table of a sweep: a row per point with its axes, what became of it, and its figures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from kvsim.errors import UserError
from kvsim.plan.outcome import Outcome
from kvsim.results.compare import metrics_of
from kvsim.results.whole_folder import whole_file

PARQUET, CSV = "results.parquet", "results.csv"
RESULTS = (PARQUET, CSV)


def results_frame(
    axes: Sequence[str],
    names: Sequence[str | None],
    labels: Sequence[Mapping[str, Any]],
    outcomes: Sequence[Outcome],
) -> pd.DataFrame:
    """One row per point, in order: index, name (if points have any), axes, status, reason, key, digest, figures.

    Figures have the dotted keys of ``summary.json`` (``latency.ttft_ms.p90``) and are empty where a point failed. An
    axis is a column of numbers or booleans if all of its values are, else of texts.
    """
    columns: dict[str, pd.Series[Any]] = {"index": pd.Series(range(len(outcomes)), dtype="int64")}
    if any(name is not None for name in names):
        columns["name"] = _column(names)
    for axis in axes:
        column = axis if axis not in _FIXED else f"axis {axis}"
        columns[column] = _column([label.get(axis) for label in labels])
    for name in ("status", "reason", "key", "digest"):
        columns[name] = _column([getattr(outcome, name) for outcome in outcomes])
    summaries = [outcome.summary for outcome in outcomes]
    for metric in metrics_of([summary for summary in summaries if summary is not None]):
        if metric.key not in columns:
            columns[metric.key] = _column([None if summary is None else metric.of(summary) for summary in summaries])
    return pd.DataFrame(columns)


_FIXED = frozenset(("index", "name", "status", "reason", "key", "digest"))


def write_results(table: pd.DataFrame, folder: Path) -> None:
    """Write both files; each appears whole. The same table gives the same bytes.

    Raises:
        UserError: the folder cannot be written.
    """
    try:
        arrow = pa.Table.from_pandas(table, preserve_index=False).replace_schema_metadata(None)
        with whole_file(folder / PARQUET) as partial:
            pq.write_table(arrow, partial, compression="zstd", version="2.6", store_schema=False)
        with whole_file(folder / CSV) as partial:
            table.to_csv(partial, index=False, lineterminator="\n")
    except OSError as error:
        raise UserError(f"{folder}: cannot write the results: {error.strerror or error}") from error


def _column(values: Sequence[Any]) -> pd.Series[Any]:
    """Values as a column of the narrowest type that holds them all; what is missing is empty."""
    there = [value for value in values if value is not None]
    if there and all(isinstance(value, bool) for value in there):
        return pd.Series(list(values), dtype="boolean")
    if there and all(isinstance(value, int) and not isinstance(value, bool) for value in there):
        return pd.Series(list(values), dtype="Int64" if len(there) < len(values) else "int64")
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in there):
        return pd.Series([None if value is None else float(value) for value in values], dtype="float64")
    return pd.Series([_text(value) for value in values], dtype="str")


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)
