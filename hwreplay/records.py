"""Frozen dataclasses to JSON and back: no unknown keys, no missing ones, no silent conversions."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import types
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from kvsim.checked import closest, show
from kvsim.errors import UserError

T = TypeVar("T")

_SIMPLE: dict[object, str] = {int: "a whole number", str: "text", bool: "true or false", float: "a number"}


def write_json(path: Path, value: object) -> None:
    """Write a document under a temporary name, then rename: a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(value, ensure_ascii=False, allow_nan=False, indent=1) + "\n", encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path, format_name: str, version: int) -> dict[str, Any]:
    """The document of a file that begins with the right `format` and `version`, without those two.

    Raises:
        UserError: the file cannot be read, is no JSON object, or is of another format or version.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not text, expected JSON of format {format_name}") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: is no JSON ({error.msg})") from None
    except RecursionError:
        raise UserError(f"{path}: is nested too deeply, expected JSON of format {format_name}") from None
    if not isinstance(document, dict):
        raise UserError(f"{path}: expected a JSON object of format {format_name}, found {show(document)}")
    found = document.pop("format", None)
    if found != format_name:
        raise UserError(f"{path}: format: expected {format_name}, found {show(found)}")
    found = document.pop("version", None)
    if found != version or isinstance(found, bool):
        raise UserError(f"{path}: version: expected {version}, found {show(found)}")
    return document


def to_json(record: Any) -> dict[str, Any]:
    """What `from_json` reads: the fields in their order, tuples as lists."""
    return {field.name: _plain(getattr(record, field.name)) for field in dataclasses.fields(record)}


def from_json(cls: type[T], value: object, source: str, key: str = "") -> T:
    """Make a record of a JSON value.

    Args:
        cls: a frozen dataclass whose fields are numbers, texts, None, tuples, mappings of text, or such dataclasses.
        value: what `json.loads` gave.
        source: the file, as messages name it.
        key: where in the file, such as ``jobs[3]``; "" at the top.

    Raises:
        UserError: names file, key, what was found and what was expected.
    """
    if not isinstance(value, dict):
        raise _misfit(source, key, "a mapping of keys", value)
    hints = _hints(cast("Any", cls))
    for name in value:
        if name not in hints:
            guess = closest(str(name), hints)
            tail = f", did you mean {guess}?" if guess else f", expected {', '.join(hints)}"
            raise UserError(f"{source}: unknown key {_join(key, str(name))}{tail}")
    made = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]  # cls is a dataclass
        if field.name not in value:
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                raise UserError(f"{source}: {_join(key, field.name)} is missing")
            continue
        made[field.name] = _value(hints[field.name], value[field.name], source, _join(key, field.name))
    try:
        return cls(**made)
    except ValueError as error:
        raise UserError(f"{source}: {key or 'the file'}: {error}") from None


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)


def _value(hint: Any, value: object, source: str, key: str) -> object:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        options = [option for option in get_args(hint) if option is not type(None)]
        if value is None and len(options) < len(get_args(hint)):
            return None
        return _value(options[0], value, source, key)
    if origin is Literal:
        if value not in get_args(hint) or isinstance(value, bool):
            raise _misfit(source, key, f"one of {', '.join(map(str, get_args(hint)))}", value)
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise _misfit(source, key, "a list", value)
        inner = get_args(hint)[0]
        return tuple(_value(inner, item, source, f"{key}[{index}]") for index, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            raise _misfit(source, key, "a mapping of keys", value)
        inner = get_args(hint)[1]
        return {name: _value(inner, item, source, _join(key, name)) for name, item in value.items()}
    if dataclasses.is_dataclass(hint):
        return from_json(hint, value, source, key)  # type: ignore[arg-type]  # a class, not an instance
    return _simple(hint, value, source, key)


def _simple(hint: Any, value: object, source: str, key: str) -> object:
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    if type(value) is not hint or hint is float:
        raise _misfit(source, key, _SIMPLE[hint], value)
    return value


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_json(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def _misfit(source: str, key: str, expected: str, value: object) -> UserError:
    return UserError(f"{source}: {key or 'the file'}: expected {expected}, found {show(value)}")
