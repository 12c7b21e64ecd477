"""Named connectors: what a connector of vLLM that is not simulated as such means in keys that are."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field

from kvsim.checked import Component, check, closest
from kvsim.config.fields import Text
from kvsim.errors import UserError
from kvsim.yamlfile import read_yaml

FOLDER, SUFFIX = Path(__file__).parents[1] / "presets" / "connectors", ".connector.yaml"
ASSUMED = "assumed, not measured: "  # as in kvsim.copy_plan, which stands above


class ConnectorPreset(Component):
    """A medium and a path to it, as keys of a config, each with its source."""

    name: Text = Field(description="name of the preset")
    vllm: Text = Field(description="what vLLM calls the connector")
    about: Text = Field(description="what it is, in a line")
    date: Text = Field(description="when it was collected")
    connector: dict[str, Any] = Field(description="keys of connector")
    cluster: dict[str, dict[str, Any]] = Field(default_factory=dict, description="keys of cluster.store and .network")
    transfer: dict[str, Any] = Field(default_factory=dict, description="the section transfer")
    sources: list[Text] = Field(min_length=1, description="where rules and numbers come from")
    assumed: list[Text] = Field(default_factory=list, description="numbers without a source")
    approximate: list[Text] = Field(min_length=1, description="what the real one does differently")

    def notes(self) -> list[str]:
        """What a reader of the results has to know."""
        found = [f"preset {self.name}: stands for vLLM's {self.vllm}"]
        found += [f"preset {self.name}, approximate: {line}" for line in self.approximate]
        return found + [f"{ASSUMED}preset {self.name}: {line}" for line in self.assumed]


def preset_names() -> tuple[str, ...]:
    """Of the shipped ones, sorted."""
    return tuple(sorted(path.name.removesuffix(SUFFIX) for path in FOLDER.glob(f"*{SUFFIX}")))


@cache
def load_preset(name: str) -> ConnectorPreset:
    """A preset by its name.

    Raises:
        UserError: there is none.
    """
    if name not in preset_names():
        guess = closest(name, preset_names())
        hint = f", did you mean {guess}?" if guess else ""
        raise UserError(f"expected one of {', '.join(preset_names())}, found {name!r:.60}{hint}")
    return check(ConnectorPreset, read_yaml(FOLDER / f"{name}{SUFFIX}"))


def expand_presets(data: dict[str, Any]) -> None:
    """Put a preset's keys in the place of ``connector.preset``; keys that are given beside it win.

    What it says of ``cluster`` fills in what a cluster leaves open, its ``transfer`` a section that is not there.

    Raises:
        UserError: there is no such preset, or nothing that it could work on.
    """
    section = data.get("connector")
    parts = section.get("connectors") if isinstance(section, dict) else None
    for place, each in (("connector", section), *_numbered(parts)):
        if isinstance(each, dict) and "preset" in each:
            _expand(data, each, place)


def _numbered(parts: object) -> list[tuple[str, object]]:
    return [(f"connector.connectors.{n}", part) for n, part in enumerate(parts)] if isinstance(parts, list) else []


def _expand(data: dict[str, Any], section: dict[str, Any], place: str) -> None:
    name = section.pop("preset")
    try:
        if not isinstance(name, str):
            raise UserError(f"expected one of {', '.join(preset_names())}, found {name!r:.60}")
        preset = load_preset(name)
    except UserError as error:
        raise UserError(f"{place}.preset: {error}") from None
    if "kind" in section:
        raise UserError(f"{place}.preset: {name}: expected no kind beside it, found {section['kind']!r:.60}")
    cluster = data.get("cluster")
    if preset.cluster and not isinstance(cluster, dict):
        raise UserError(
            f"{place}.preset: {name}: expected a cluster (cluster.instances, one at least): it sets"
            f" {' and '.join(f'cluster.{key}' for key in preset.cluster)}"
        )
    given = dict(section)
    section.clear()
    section.update(deepcopy(preset.connector) | given)
    if isinstance(cluster, dict):
        for key, values in preset.cluster.items():
            own = cluster.get(key)
            if own is None or isinstance(own, dict):  # else it is wrong, and will be told
                cluster[key] = deepcopy(values) | (own or {})
    if preset.transfer and not data.get("transfer"):
        data["transfer"] = deepcopy(preset.transfer)
    notes = data.get("notes")
    data["notes"] = [*(notes if isinstance(notes, list | tuple) else []), *preset.notes()]
