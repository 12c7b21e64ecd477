"""A plan, written down: what it starts from, what it has to reach, what it may change and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from kvsim.checked import Component, Misfit, check
from kvsim.config import RunConfig, load_config, make_config
from kvsim.config.fields import SECOND_NS, Name, Text
from kvsim.errors import UserError
from kvsim.overrides import Change, dotted_keys, parse_override
from kvsim.plan.axes import KNOWN, SESSIONS, parse_axes
from kvsim.plan.objective import Kind
from kvsim.plan.prices import Prices, PricesConfig, prices_of
from kvsim.plan.slo import Slo, parse_slo
from kvsim.plan.space import Space
from kvsim.resolve import read_trace_of
from kvsim.units import Duration
from kvsim.yamlfile import Document, read_yaml

DEFAULT_SPACE: Mapping[str, Any] = {
    "replicas": [1, 2, 3, 4, 5, 6, 7, 8],
    "cpu": {"from": "0GiB", "to": "2TiB"},  # what 8-GPU servers have
}
"""What a plan without a space may change: our choice of what is asked first."""


class BudgetConfig(Component):
    """How much may be simulated."""

    points: Annotated[int, Field(ge=1)] = Field(60, description="points simulated at most")
    time: Annotated[Duration, Field(gt=0)] = Field(
        180 * SECOND_NS, description="no new point is begun after so long, by the wall clock"
    )
    search: Literal["auto", "exhaustive"] = Field(
        "auto", description="auto = few points, see `kvsim.plan.search`; exhaustive = all of them, within points"
    )


class PlanConfig(Component):
    """The file of a plan."""

    name: Name | None = Field(None, description="name of the plan; null = the file's name")
    base: Text | None = Field(None, description="a run's YAML file, relative to this one; or its sections under run")
    run: dict[str, Any] | None = Field(None, description="the sections of a run, instead of base")
    set: dict[str, Any] = Field(default_factory=dict, description="keys of the run that differ, at all points")
    slo: dict[str, Any] = Field(description="limits, such as {ttft_p90: 2s}")
    space: dict[str, Any] = Field(
        default_factory=lambda: dict(DEFAULT_SPACE), description="what may change, and between which values"
    )
    prices: PricesConfig = Field(default_factory=PricesConfig, description="where they differ from the list prices")
    objective: Kind = Field("cost_per_1m_output_tokens", description="what is to be small, or with sessions large")
    budget: BudgetConfig = Field(default_factory=BudgetConfig, description="how much may be simulated")

    @model_validator(mode="after")
    def _fits(self) -> PlanConfig:
        if (self.base is None) == (self.run is None):
            found = "neither" if self.base is None else "both"
            raise Misfit("base", f"expected base (a run's file) or run (its sections), found {found}")
        return self


@dataclass(frozen=True)
class PlanTask:
    """A plan that was read and checked: everything it names exists and fits.

    Attributes:
        name: for titles.
        config: as written.
        space: around the base.
        slo: what every good point meets.
        prices: of everything.
    """

    name: str
    config: PlanConfig
    space: Space
    slo: Slo
    prices: Prices

    @property
    def base(self) -> RunConfig:
        """What all points have in common."""
        return self.space.base


def load_plan(path: str | Path, overrides: Sequence[str] = (), base: RunConfig | None = None) -> PlanTask:
    """Read and check a plan's YAML file.

    Args:
        path: the file.
        overrides: ``objective=least_dram``, ``run.engine.max_model_len=65536``, ...; later ones win.
        base: instead of the file's.

    Raises:
        UserError: one line about the first problem.
    """
    return make_plan(read_yaml(path), Path(path).parent, Path(path).stem, overrides, base)


def make_plan(
    document: Document, folder: Path, name: str, overrides: Sequence[str] = (), base: RunConfig | None = None
) -> PlanTask:
    """Check a plan's document.

    Args:
        document: what a YAML file says, or would say.
        folder: what its paths are relative to.
        name: of the plan, if the document gives none.
        overrides: as in `load_plan`.
        base: instead of what the document has under base or run.

    Raises:
        UserError: one line about the first problem.
    """
    sources: dict[Any, str] = {}
    if isinstance(document.data, dict):
        for override in overrides:
            _override(document.data, parse_override(override), sources)
        if base is not None:
            document.data["run"] = {}
            document.data.pop("base", None)

    def where(keys: Any) -> str:
        for end in range(len(keys), 0, -1):
            if keys[:end] in sources:
                return sources[keys[:end]]
        return document.where(keys)

    config = check(PlanConfig, document, where)
    base = _base(config, document, folder, base, where)

    def at(key: str, error: UserError) -> UserError:
        """The file and the line of the key that a message about a section begins with."""
        keys = tuple(str(error).partition(":")[0].split("."))
        while keys and keys not in document.lines and keys not in sources:
            keys = keys[:-1]
        return UserError(f"{where(keys or (key,))}: {error}")

    try:
        slo = parse_slo(config.slo)
    except UserError as error:
        raise at("slo", error) from None
    space_data = dict(config.space)
    if config.objective == "max_sessions" and SESSIONS not in space_data:
        space_data[SESSIONS] = {"from": 1}
    if config.objective != "max_sessions" and SESSIONS in space_data:
        raise UserError(
            f"{where(('space', SESSIONS))}: space.{SESSIONS}: expected only with objective max_sessions: fewer sessions"
            " at a time are another load, not a cheaper server"
        )
    try:
        axes = parse_axes(space_data, _num_sessions(base) if SESSIONS in space_data else None)
    except UserError as error:
        raise at("space", error) from None
    try:
        prices = prices_of(config.prices)
    except UserError as error:
        raise at("prices", error) from None
    space = Space(base, axes, document.source, folder)
    space.check()
    return PlanTask(config.name or name, config, space, slo, prices)


def _override(data: dict[str, Any], change: Change, sources: dict[Any, str]) -> None:
    """Put a change into a plan's data; under ``set``, and ``space``, keys of the config are keys with dots in them."""
    keys = tuple(map(str, change.keys))
    if keys[0] == "set" or (keys[0] == "space" and len(keys) > 1 and keys[1] not in KNOWN):
        keys = (keys[0], *([".".join(keys[1:])] if len(keys) > 1 else []))
    section: Any = data
    for depth, key in enumerate(keys[:-1]):
        section = section.setdefault(key, {})
        if not isinstance(section, dict):
            raise UserError(f"{change.source}: {'.'.join(keys[: depth + 1])} has no keys below it")
    section[keys[-1]] = change.value
    for known in [known for known in sources if known[: len(keys)] == keys]:
        del sources[known]
    sources[keys] = change.source


def base_path(document: Document, folder: Path) -> Path | None:
    """The file that a plan's base is in, if it is in one."""
    base = document.data.get("base") if isinstance(document.data, dict) else None
    return folder / Path(base).expanduser() if isinstance(base, str) and base else None


def _base(
    config: PlanConfig, document: Document, folder: Path, given: RunConfig | None, where: Callable[[Any], str]
) -> RunConfig:
    changes = [
        Change(dotted_keys(key, f"{where(('set', key))}: set"), value, where(("set", key)), folder)
        for key, value in config.set.items()
    ]
    if given is not None:
        if not changes:
            return given
        return make_config(Document(document.source, given.model_dump(mode="json")), folder, changes)
    if config.base is not None:
        path = folder / Path(config.base).expanduser()
        base = load_config(path)
        if not changes:
            return base
        return make_config(Document(str(path), base.model_dump(mode="json")), folder, changes, base.name or "base")
    assert config.run is not None
    lines = {keys[1:]: line for keys, line in document.lines.items() if keys[:1] == ("run",) and keys[1:]}
    return make_config(Document(document.source, config.run, lines), folder, changes, "base")


def _num_sessions(base: RunConfig) -> int:
    """That the base plays."""
    return len(read_trace_of(base).sessions)
