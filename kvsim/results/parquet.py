"""Tables on disk: the same data give the same bytes, and what is read back is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from kvsim.errors import UserError

_ARROW = {"str": pa.string(), "int64": pa.int64()}
ROWS_PER_GROUP = 16_384
"""Rows that are written, and can be read, at a time."""


def write_parquet(frame: pd.DataFrame, columns: Mapping[str, str], path: Path) -> None:
    """Write a table so that the same data give the same bytes: fixed column order, types and compression.

    No pandas metadata goes in (it holds library versions). Columns beyond the fixed ones follow in their
    order.

    Raises:
        ValueError: A column is missing, or holds what does not fit its type (pyarrow's error, a ValueError
            too).
    """
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise ValueError(f"{path.name}: the table lacks the columns {', '.join(missing)}")
    names = [*columns, *(extra for extra in frame.columns if extra not in columns)]
    groups = [frame.iloc[start : start + ROWS_PER_GROUP] for start in range(0, max(len(frame), 1), ROWS_PER_GROUP)]
    first = _table(groups[0], names, columns, path)
    with pq.ParquetWriter(path, first.schema, compression="zstd", version="2.6", store_schema=False) as writer:
        writer.write_table(first)
        for group in groups[1:]:
            writer.write_table(_table(group, names, columns, path))


def _table(frame: pd.DataFrame, names: Sequence[str], columns: Mapping[str, str], path: Path) -> pa.Table:
    fields, arrays = [], []
    for name in names:
        kind = _ARROW[columns[name]] if name in columns else None
        array = pa.array(frame[name].tolist(), type=kind, from_pandas=True)  # NaN counts as empty
        if array.null_count:
            raise ValueError(f"{path.name}: the column {name} has empty cells")
        fields.append(pa.field(str(name), array.type, nullable=False))
        arrays.append(array)
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def read_parquet(file: Path, columns: Mapping[str, str]) -> pd.DataFrame:
    """A table that has these columns, of these types, without empty cells.

    Raises:
        UserError: The file is missing, damaged, or not such a table.
    """
    if not file.is_file():
        raise UserError(f"{file.parent}: incomplete run folder: {file.name} is missing")
    try:
        with pq.ParquetFile(file) as parquet:
            table = parquet.read()
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UserError(f"{file}: damaged or not a parquet file: {reason}") from error
    for name, kind in columns.items():
        if name not in table.column_names:
            raise UserError(f"{file}: the column {name} is missing")
        found = table.schema.field(name).type
        if found != _ARROW[kind]:
            raise UserError(f"{file}: the column {name} holds {found}, expected {_ARROW[kind]}")
        if table.column(name).null_count:
            raise UserError(f"{file}: the column {name} has empty cells")
    frame: pd.DataFrame = table.to_pandas()
    return frame
