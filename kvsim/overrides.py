"""Changes to what a YAML file says, before it is checked: ``--set key=value``, or a point of a sweep."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from kvsim.checked import component_at, components, is_selected
from kvsim.errors import UserError
from kvsim.yamlfile import Keys, parse_yaml


@dataclass(frozen=True, slots=True)
class Change:
    """A key of a config with another value.

    Attributes:
        keys: where it is; entries of lists have numbers.
        value: plain data, as YAML gives it.
        source: names its place, for messages.
        folder: what a path in it is relative to; None = the current folder.
    """

    keys: Keys
    value: Any
    source: str
    folder: Path | None = None

    @property
    def name(self) -> str:
        """The dotted key."""
        return ".".join(map(str, self.keys))


def dotted_keys(dotted: str, source: str) -> Keys:
    """The keys that a dotted one such as ``engine.block_size`` or ``connector.tiers.0.capacity`` names.

    Raises:
        UserError: a part is empty.
    """
    parts = dotted.strip().split(".")
    if not all(parts):
        raise UserError(f"{source}: expected a key such as engine.block_size, found {dotted!r:.60}")
    return tuple(int(part) if part.isdecimal() else part for part in parts)


def parse_override(override: str, source: str | None = None) -> Change:
    """A dotted key and a YAML value, such as ``engine.block_size=32``.

    Args:
        override: ``key=value``.
        source: what the user wrote, for messages; None = ``--set`` and this.

    Raises:
        UserError: it is not ``key=value``, or its value is not YAML.
    """
    source = source or f"--set {override}"
    dotted, equals, text = override.partition("=")
    if not equals or not all(dotted.strip().split(".")):
        raise UserError(f"{source}: expected key=value, such as engine.block_size=32")
    return Change(dotted_keys(dotted, source), parse_yaml(text, source).data, source)


def apply_change(change: Change, model: type[BaseModel], data: dict[str, Any], sources: dict[Keys, str]) -> None:
    """Put a change into the data of a file, in place.

    Setting a component's `kind` drops the keys that only the kind before it has.

    Args:
        change: what to change.
        model: the class of the whole document.
        data: what the file says, and changes before this one.
        sources: gets the source as the place of its keys, for messages.

    Raises:
        UserError: a key on the way has no keys below it.
    """
    keys, value, source = change.keys, change.value, change.source
    parts = [str(key) for key in keys]
    section: Any = data
    for depth, key in enumerate(keys[:-1]):
        if isinstance(section, list):
            section = _entry(section, key, ".".join(parts[: depth + 1]), source)
            continue
        inner = section.get(key)
        if not isinstance(inner, dict | list) or (isinstance(inner, list) and not isinstance(keys[depth + 1], int)):
            if inner is not None or component_at(model, keys[:depth], data) is None:
                raise UserError(f"{source}: {'.'.join(parts[: depth + 1])} has no keys below it")
            inner = _default_section(model, str(key)) if depth == 0 else {}
            section[key] = inner
            sources[keys[: depth + 1]] = source
        section = inner
    if isinstance(section, list):
        raise UserError(f"{source}: expected a key of entry {parts[-1]}, or the whole list {'.'.join(parts[:-1])}")
    if keys[-1] == "kind" and len(keys) > 1 and (parent := component_at(model, keys[:-2], data)) is not None:
        _drop_foreign(parent, section, str(keys[-2]), value)
    section[parts[-1]] = value
    for known in [known for known in sources if known[: len(keys)] == keys]:
        del sources[known]
    sources[keys] = source


def _entry(section: list[Any], index: str | int, name: str, source: str) -> dict[str, Any]:
    """An entry of a list by its number from 0; the number after the last one adds an entry."""
    assert isinstance(index, int)
    if index == len(section):
        section.append({})
    if index > len(section) or not isinstance(section[index], dict):
        raise UserError(f"{source}: {name}: expected an entry from 0 to {len(section)}")
    entry: dict[str, Any] = section[index]
    return entry


def _default_section(model: type[BaseModel], key: str) -> dict[str, Any]:
    """A section that the file leaves out, so that ``connector.x=...`` means the default kind's x."""
    field = model.model_fields.get(key)
    if field is None or field.is_required():
        return {}
    kind = getattr(field.get_default(call_default_factory=True), "kind", None)
    return {} if kind is None else {"kind": kind}


def _drop_foreign(model: type[BaseModel], section: dict[str, Any], key: str, kind: object) -> None:
    """Forget the keys that only the kind chosen before has."""
    field = model.model_fields.get(key)
    options = components(field.annotation) if field is not None else []

    def names(chosen: object) -> set[str]:
        return {name for option in options if is_selected(option, chosen) for name in option.model_fields}

    for name in names(section.get("kind")) - names(kind) if names(kind) else set():
        section.pop(name, None)
