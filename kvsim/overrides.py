"""``--set key=value`` on the command line: changes to what a YAML file says, before it is checked."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from kvsim.checked import component_at, components, is_selected
from kvsim.errors import UserError
from kvsim.yamlfile import Keys, parse_yaml


def apply_override(override: str, model: type[BaseModel], data: dict[str, Any], sources: dict[Keys, str]) -> Keys:
    """Put one ``key=value`` into the data of a file, in place.

    Setting a component's `kind` drops the keys that only the kind before it has.

    Args:
        override: a dotted key and a YAML value, such as ``engine.block_size=32``; entries of lists have numbers.
        model: the class of the whole document.
        data: what the file says, and overrides before this one.
        sources: gets the override as the place of its keys, for messages.

    Returns:
        The keys that were set.

    Raises:
        UserError: it is not ``key=value``, its value is not YAML, or a key on the way has no keys below it.
    """
    source = f"--set {override}"
    dotted, equals, text = override.partition("=")
    parts = dotted.strip().split(".")
    if not equals or not all(parts):
        raise UserError(f"{source}: expected key=value, such as engine.block_size=32")
    keys: Keys = tuple(int(part) if part.isdecimal() else part for part in parts)
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
    value = parse_yaml(text, source).data
    if isinstance(section, list):
        raise UserError(f"{source}: expected a key of entry {parts[-1]}, or the whole list {'.'.join(parts[:-1])}")
    if keys[-1] == "kind" and len(keys) > 1 and (parent := component_at(model, keys[:-2], data)) is not None:
        _drop_foreign(parent, section, str(keys[-2]), value)
    section[parts[-1]] = value
    for known in [known for known in sources if known[: len(keys)] == keys]:
        del sources[known]
    sources[keys] = source
    return keys


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
