"""The YAML file of a sweep: a run, and what changes in it from point to point."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import Field

from kvsim.checked import Component, check, show
from kvsim.config.fields import Count, Name, Text
from kvsim.errors import UserError
from kvsim.overrides import Change, dotted_keys
from kvsim.plan.draw import Draws
from kvsim.yamlfile import Document, Keys, read_yaml

MOST_POINTS = 100_000
Mapping_ = dict[str, Any]
Entries = list[Any]


class RandomPoints(Component):
    """Points drawn at random, each key by itself."""

    points: Count = Field(description="how many are drawn")
    seed: int = Field(0, ge=0, description="seed of the draws")
    over: Mapping_ = Field(
        min_length=1, description="keys, each with a list of values or with a range {from:, to:, scale: linear or log}"
    )


class SweepFile(Component):
    """What a sweep's file may hold."""

    name: Name | None = Field(None, description="name of the sweep; null = the file's name")
    base: Text | None = Field(None, description="path of a run's YAML file, relative to this file's folder")
    run: Mapping_ | None = Field(None, description="the sections of a run, instead of base")
    set: Mapping_ = Field(default_factory=dict, description="keys of all points, such as {trace.max_sessions: 20}")
    grid: Mapping_ | None = Field(
        None,
        description="axes: keys with a list of values, or names with a mapping of named variants; all combinations",
    )
    list: Entries | None = Field(None, description="points one by one, each a mapping of keys")
    random: RandomPoints | None = Field(None, description="points drawn at random")


@dataclass(frozen=True, slots=True)
class Choice:
    """A value of an axis: what it is called in results, and what it changes."""

    label: Any
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class PointSpec:
    """A point before its config is made.

    Attributes:
        place: ``file:line``, for messages.
        labels: its axes with what stands for them in results, in order.
        changes: to the base.
    """

    place: str
    labels: dict[str, Any]
    changes: tuple[Change, ...]
    name: str | None = None

    @property
    def text(self) -> str:
        """The point in a message."""
        return ", ".join(f"{axis}={show(value).strip(chr(39))}" for axis, value in self.labels.items()) or "the point"


@dataclass(frozen=True)
class Sweep:
    """A sweep that was read.

    Attributes:
        base: the run's document.
        folder: what its paths are relative to.
        common: changes to all points.
        axes: names of the columns that tell points apart.
        points: in the order of the file.
    """

    name: str
    source: str
    base: Document = field(repr=False)
    folder: Path
    common: tuple[Change, ...]
    axes: tuple[str, ...]
    points: tuple[PointSpec, ...]


def read_sweep(path: Path) -> Sweep:
    """Read a sweep's file and list its points; their configs are made later.

    Raises:
        UserError: one line about the first problem.
    """
    document = read_yaml(path)
    settings = check(SweepFile, document)
    if (settings.base is None) == (settings.run is None):
        found = "none" if settings.base is None else "both"
        raise UserError(f"{document.where(('run',))}: expected base (the path of a run's file) or run, found {found}")
    kinds = [kind for kind in ("grid", "list", "random") if getattr(settings, kind) is not None]
    if len(kinds) != 1:
        found = " and ".join(kinds) or "none"
        raise UserError(
            f"{document.where((kinds[-1],) if kinds else ())}: expected one of grid, list, random, found {found}"
        )
    maker = _Maker(document, path.parent)
    common = maker.changes(("set",), settings.set, "set")
    if settings.grid is not None:
        axes, points = maker.of_grid(settings.grid)
    elif settings.list is not None:
        axes, points = maker.of_list(settings.list)
    else:
        assert settings.random is not None
        axes, points = maker.of_random(settings.random)
    if settings.base is not None:
        base_path = path.parent / Path(settings.base).expanduser()
        base, folder = read_yaml(base_path), base_path.parent
    else:
        lines = {keys[1:]: line for keys, line in document.lines.items() if keys[:1] == ("run",)}
        base, folder = Document(document.source, settings.run, lines), path.parent
    return Sweep(settings.name or path.stem.lstrip(".") or "unnamed", str(path), base, folder, common, axes, points)


class _Maker:
    """Makes points of what a file says."""

    def __init__(self, document: Document, folder: Path) -> None:
        self._document, self._folder = document, folder

    def of_grid(self, axes: dict[str, Any]) -> tuple[tuple[str, ...], tuple[PointSpec, ...]]:
        """All combinations; the last axis changes fastest."""
        if not axes:
            raise self._error(("grid",), "grid: expected at least one axis, found none")
        choices = [self._choices(("grid", axis), axis, values) for axis, values in axes.items()]
        number = 1
        for each in choices:
            number *= len(each)
        self._check_number(("grid",), number)
        return tuple(axes), tuple(
            self._combined(("grid",), dict(zip(axes, chosen, strict=True))) for chosen in product(*choices)
        )

    def of_list(self, entries: list[Any]) -> tuple[tuple[str, ...], tuple[PointSpec, ...]]:
        """One by one. ``name`` is the point's, ``labels`` stand for its changes in results."""
        if not entries:
            raise self._error(("list",), "list: expected at least one point, found none")
        self._check_number(("list",), len(entries))
        points = []
        for number, entry in enumerate(entries):
            at = ("list", number)
            if not isinstance(entry, dict):
                raise self._error(
                    at,
                    f"list.{number}: expected a mapping of keys, such as {{connector.kind: none}}, found {show(entry)}",
                )
            name, labels = entry.get("name"), entry.get("labels")
            if name is not None and not isinstance(name, str):
                raise self._error((*at, "name"), f"list.{number}.name: expected text, found {show(name)}")
            if labels is not None and not isinstance(labels, dict):
                raise self._error((*at, "labels"), f"list.{number}.labels: expected a mapping, found {show(labels)}")
            wanted = {key: value for key, value in entry.items() if key not in ("name", "labels")}
            changes = self.changes(at, wanted, f"list.{number}")
            points.append(PointSpec(self._document.where(at), wanted if labels is None else labels, changes, name))
        return tuple(dict.fromkeys(axis for point in points for axis in point.labels)), tuple(points)

    def of_random(self, wanted: RandomPoints) -> tuple[tuple[str, ...], tuple[PointSpec, ...]]:
        """Drawn; a key's values do not depend on the other keys."""
        self._check_number(("random", "points"), wanted.points)
        columns: dict[str, list[Choice]] = {}
        for axis, values in wanted.over.items():
            at = ("random", "over", axis)
            draws = Draws(wanted.seed, axis)
            if isinstance(values, dict) and values.keys() & {"from", "to", "scale"}:
                try:
                    drawn = draws.between(values, wanted.points)
                except ValueError as error:
                    raise self._error(at, f"random.over.{axis}: {error}") from None
                columns[axis] = [self._choice(at, axis, value) for value in drawn]
            else:
                columns[axis] = draws.among(self._choices(at, axis, values), wanted.points)
        rows = zip(*columns.values(), strict=True)
        return tuple(columns), tuple(
            self._combined(("random",), dict(zip(columns, chosen, strict=True))) for chosen in rows
        )

    def changes(self, at: Keys, wanted: dict[str, Any], what: str) -> tuple[Change, ...]:
        """What a mapping of dotted keys changes."""
        return tuple(self._change((*at, key), key, value, f"{what}: ") for key, value in wanted.items())

    def _choices(self, at: Keys, axis: str, values: Any) -> list[Choice]:
        what = ".".join(map(str, at[:-1]))
        if isinstance(values, list) and values:
            return [self._choice((*at, number), axis, value) for number, value in enumerate(values)]
        if isinstance(values, dict) and values:
            found = []
            for name, variant in values.items():
                if not isinstance(variant, dict):
                    expected = f"expected a mapping of keys, such as {{connector.kind: none}}, found {show(variant)}"
                    raise self._error((*at, name), f"{what}.{axis}.{name}: {expected}")
                found.append(Choice(name, self.changes((*at, name), variant, f"axis {axis}, variant {name}")))
            return found
        expected = "expected a list of values, or a mapping of named variants"
        shown = show(values) if values or not isinstance(values, list | dict) else "an empty one"
        raise self._error(at, f"{what}.{axis}: {expected}, found {shown}")

    def _choice(self, at: Keys, axis: str, value: Any) -> Choice:
        return Choice(value, (self._change(at, axis, value, f"axis {axis}, value {show(value)}: "),))

    def _change(self, at: Keys, key: str, value: Any, what: str) -> Change:
        source = f"{self._document.where(at)}: {what}".removesuffix(": ")
        return Change(dotted_keys(key, self._document.where(at)), value, source, self._folder)

    def _combined(self, at: Keys, chosen: dict[str, Choice]) -> PointSpec:
        changes = tuple(change for choice in chosen.values() for change in choice.changes)
        return PointSpec(self._document.where(at), {axis: choice.label for axis, choice in chosen.items()}, changes)

    def _check_number(self, at: Keys, number: int) -> None:
        if number > MOST_POINTS:
            raise self._error(at, f"{'.'.join(map(str, at))}: {number:,} points, expected at most {MOST_POINTS:,}")

    def _error(self, at: Keys, text: str) -> UserError:
        return UserError(f"{self._document.where(at)}: {text}")
