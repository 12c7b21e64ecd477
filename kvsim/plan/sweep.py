"""A sweep, from its file to its folder: points made, run, and put into one table.

The folder holds ``points/KEY.json`` (each finished point, at once), ``sweep.yaml`` (what was run, every default
included; it can be run again) and, when all points have an outcome, ``results.parquet`` and ``results.csv``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from kvsim.config import RunConfig, make_config
from kvsim.errors import UserError
from kvsim.overrides import parse_override
from kvsim.plan.outcome import Outcome
from kvsim.plan.point_key import Digests, key_of
from kvsim.plan.pool import evaluate
from kvsim.plan.sweep_file import PointSpec, Sweep
from kvsim.plan.sweep_results import RESULTS, results_frame, write_results
from kvsim.plan.workers import Backend
from kvsim.yamlfile import Document, dump_yaml

SWEEP, POINTS = "sweep.yaml", "points"
_OWN_NAMES = frozenset((SWEEP, POINTS, *RESULTS))
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Point:
    """A point with its config."""

    spec: PointSpec
    config: RunConfig


@dataclass(frozen=True)
class SweepResult:
    """What a sweep has left behind.

    Attributes:
        table: a row per point, as in ``results.parquet``.
        axes: the columns that tell points apart.
        reused: how many points had been there before.
    """

    name: str
    folder: Path
    axes: tuple[str, ...]
    table: pd.DataFrame
    outcomes: tuple[Outcome, ...]
    reused: int

    @property
    def failed(self) -> int:
        """Points without figures that may be believed."""
        return sum(not outcome.ok for outcome in self.outcomes)


def points_of(sweep: Sweep, overrides: Sequence[str] = ()) -> list[Point]:
    """The configs of all points.

    Args:
        sweep: what its file says.
        overrides: ``key=value``, for all points; they win over ``set``, and axes win over them.

    Raises:
        UserError: one line about the first problem, with the axis and the value, or the point, that it comes from.
    """
    common = (*sweep.common, *map(parse_override, overrides))
    digests, points = Digests(), []
    for number, spec in enumerate(sweep.points):
        base = Document(sweep.base.source, copy.deepcopy(sweep.base.data), dict(sweep.base.lines))
        name = spec.name or f"{sweep.name}-{number}"
        try:
            config = make_config(base, sweep.folder, (*common, *spec.changes), name=name)
            key_of(config, digests)  # the files that it names are there
        except UserError as error:
            if str(error).startswith(tuple(change.source for change in (*common, *spec.changes))):
                raise
            raise UserError(f"{spec.place}: point {number} ({spec.text}): {error}") from None
        points.append(Point(spec, config))
    return points


def run_sweep(
    sweep: Sweep,
    folder: Path,
    *,
    overrides: Sequence[str] = (),
    jobs: int | None = None,
    backend: Backend = "loky",
    address: str | None = None,
    retry_failed: bool = False,
    progress: Progress | None = None,
) -> SweepResult:
    """Run a sweep, or the rest of it: what its folder has already is not run again (see `kvsim.plan.pool.evaluate`).

    Raises:
        UserError: one line about the first problem; nothing has been run then, unless the disk is full.
    """
    points = points_of(sweep, overrides)
    _claim(folder)
    found: dict[int, Outcome] = {}
    for place, outcome in evaluate(
        [point.config for point in points],
        folder=folder / POINTS,
        jobs=jobs,
        backend=backend,
        address=address,
        retry_failed=retry_failed,
        progress=progress,
    ):
        if not found:  # it works: now the folder is ours
            _begin(folder, resolved(sweep, points))
        found[place] = outcome
    outcomes = [found[place] for place in range(len(points))]
    names = [point.spec.name for point in points]
    table = results_frame(sweep.axes, names, [point.spec.labels for point in points], outcomes)
    write_results(table, folder)
    reused = sum(outcome.is_reused for outcome in outcomes)
    return SweepResult(sweep.name, folder, sweep.axes, table, tuple(outcomes), reused)


def resolved(sweep: Sweep, points: Sequence[Point]) -> str:
    """The sweep as YAML with every default: the first point in full, and how each one differs from it."""
    dumps = [point.config.model_dump(mode="json", exclude={"name"}) for point in points]
    first = dumps[0]
    entries = []
    for point, dump in zip(points, dumps, strict=True):
        named = {} if point.spec.name is None else {"name": point.spec.name}
        entries.append(named | {"labels": point.spec.labels} | _difference(first, dump, ""))
    return dump_yaml({"name": sweep.name, "run": first, "list": entries})


def _difference(first: Mapping[str, Any], other: Mapping[str, Any], at: str) -> dict[str, Any]:
    """Dotted keys that make one of the other; a section with other keys is replaced as a whole."""
    found: dict[str, Any] = {}
    for key, value in other.items():
        before, name = first.get(key), f"{at}{key}"
        if isinstance(value, dict) and isinstance(before, dict) and value.keys() == before.keys():
            same_kind = value.get("kind") == before.get("kind")
            found |= _difference(before, value, f"{name}.") if same_kind else {name: value}
        elif value != before:
            found[name] = value
    return found


def _claim(folder: Path) -> None:
    """Raise UserError if a folder is something else than a sweep's."""
    if not folder.exists() and not folder.is_symlink():
        return
    if folder.is_dir():
        names = {path.name for path in folder.iterdir() if not _is_partial(path)}
        if not names or (POINTS in names and names <= _OWN_NAMES):
            return
    raise UserError(f"{folder}: exists and is not a sweep's folder (or holds other files too); expected a new name")


def _is_partial(path: Path) -> bool:
    """Whether it is a table that is being written, see `kvsim.plan.sweep_results.write_results`."""
    return any(path.name.startswith(f".{name}.partial-") for name in RESULTS)


def _begin(folder: Path, text: str) -> None:
    """Say what is being swept; a table that is there is of another sweep, or of a part of this one."""
    try:
        (folder / SWEEP).write_text(text, encoding="utf-8", newline="\n")
        for name in RESULTS:
            (folder / name).unlink(missing_ok=True)
        for path in filter(_is_partial, list(folder.iterdir())):
            if not Path("/proc", path.name.rpartition("-")[2]).exists():  # of a sweep that was killed
                path.unlink()
    except OSError as error:
        raise UserError(f"{folder}: cannot write the sweep: {error.strerror or error}") from error
