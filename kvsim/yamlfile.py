"""YAML files that people write: read with the line of every key, and written back.

PyYAML parses; what this module adds is the line of each key (so that an error can name it), duplicate keys as
an error, and a limit on what aliases may unfold to. Numbers follow JSON, not YAML 1.1: ``010`` is not 8,
``1:30`` is not 90 and ``1e9`` is a number; dates stay text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from kvsim.errors import UserError

Keys = tuple[str | int, ...]
"""Where a value sits in a document: ``("engine", "block_size")``."""

MAX_FILE_BYTES = 4 * 2**20
MAX_VALUES = 100_000
"""More values than any config or profile has; stops a small file whose aliases unfold to billions."""


@dataclass(frozen=True)
class Document:
    """What a YAML file says and where it says it.

    Attributes:
        source: name of the file, for messages.
        data: dicts, lists, text, numbers, booleans and None.
        lines: first line (from 1) of each value, by its keys; for a value of a mapping the line of its key.
    """

    source: str
    data: Any
    lines: dict[Keys, int] = field(default_factory=dict)

    def where(self, keys: Keys) -> str:
        """``file:line`` of a value, or of the closest thing around it that the file does have (no file: no line)."""
        if not self.lines:
            return self.source
        while keys and keys not in self.lines:
            keys = keys[:-1]
        return f"{self.source}:{self.lines.get(keys, 1)}"


class _Loader(yaml.SafeLoader):
    """SafeLoader with JSON's numbers; its tables are filled below."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's table, filled below


class _Dumper(yaml.SafeDumper):
    """Puts quotes around exactly what `_Loader` would not read back as text."""

    yaml_implicit_resolvers: dict[str, Any] = _Loader.yaml_implicit_resolvers

    def ignore_aliases(self, data: Any) -> bool:
        """Written files repeat a value rather than refer to it."""
        return True


_PLAIN: list[tuple[str, str, str]] = [
    ("bool", r"(?:yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF)", "yYnNtTfFoO"),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*)", "-+0123456789"),
    (
        "float",
        r"(?:[-+]?(?:(?:0|[1-9][0-9_]*)(?:\.[0-9_]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))",
        "-+0123456789.",
    ),
    ("null", r"(?:~|null|Null|NULL|)", "~nN"),
    ("merge", r"(?:<<)", "<"),
]
_PLAIN_COLLECTIONS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
for _tag, _pattern, _first in _PLAIN:
    for _character in [*_first, *([""] if _tag == "null" else [])]:
        _entry = (f"tag:yaml.org,2002:{_tag}", re.compile(f"^{_pattern}$"))
        _Loader.yaml_implicit_resolvers.setdefault(_character, []).append(_entry)


def read_yaml(path: str | Path) -> Document:
    """Read a YAML file of one document.

    Raises:
        UserError: the file cannot be read, is not UTF-8 or not YAML, or repeats a key.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a folder, expected a YAML file") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(raw) > MAX_FILE_BYTES:
        raise UserError(f"{path}: is larger than {MAX_FILE_BYTES >> 20} MiB, expected a small YAML file")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: is not UTF-8 text (byte 0x{raw[error.start]:02x})") from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, source: str) -> Document:
    """Parse one YAML document; `source` is the name that messages use.

    Raises:
        UserError: with `source`, line and column.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return Document(source, None)
        reader = _Reader(source, loader)
        data = reader.read(node, ())
    except yaml.MarkedYAMLError as error:
        raise UserError(_explain(error, text, source)) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UserError(f"{source}:{line}: control character {_code_point(error)} is not allowed") from None
    except RecursionError:
        raise UserError(f"{source}: is nested too deeply") from None
    except ValueError as error:  # an integer of more digits than Python converts
        raise UserError(f"{source}: {error}") from None
    return Document(source, data, reader.lines)


def dump_yaml(data: Any) -> str:
    """Write plain data as YAML that `parse_yaml` reads back equal; keys keep their order."""
    text: str = yaml.dump(
        data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=110
    )
    return text


def is_path(text: str) -> bool:
    """Whether a preset's name is meant as a path: it starts like one or ends in .json, .yaml or .yml."""
    return text.startswith(("./", "../", "/", "~")) or text.endswith((".json", ".yaml", ".yml"))


class _Reader:
    """Turns YAML nodes into plain data and notes the lines."""

    def __init__(self, source: str, loader: _Loader) -> None:
        self.source = source
        self.loader = loader
        self.lines: dict[Keys, int] = {}
        self.values = 0
        self.open: list[yaml.Node] = []

    def read(self, node: yaml.Node, keys: Keys) -> Any:
        self.values += 1
        if self.values > MAX_VALUES:
            raise UserError(f"{self.source}: aliases unfold to more than {MAX_VALUES:,} values")
        if any(node is outer for outer in self.open):
            raise self._error(node, "an alias stands inside the value that it names")
        self.lines.setdefault(keys, node.start_mark.line + 1)
        if not isinstance(node, yaml.ScalarNode) and node.tag not in _PLAIN_COLLECTIONS:
            raise self._error(node, f"tag {node.tag!r} is not supported here")
        self.open.append(node)
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, keys)
            if isinstance(node, yaml.SequenceNode):
                return [self.read(child, (*keys, index)) for index, child in enumerate(node.value)]
            return self.loader.construct_object(node)
        finally:
            self.open.pop()

    def _mapping(self, node: yaml.MappingNode, keys: Keys) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: list[dict[str, Any]] = []
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._error(key_node, "a key must be text")
            key = key_node.value
            if key_node.tag == "tag:yaml.org,2002:merge":
                value = self.read(value_node, (*keys, "<<"))
                merged += value if isinstance(value, list) else [value]
                continue
            line = key_node.start_mark.line + 1
            if key in own:
                name = ".".join(str(part) for part in (*keys, key))
                raise UserError(
                    f"{self.source}:{line}: {name} stands here again, "
                    f"expected once (first on line {self.lines[(*keys, key)]})"
                )
            self.lines[(*keys, key)] = line
            own[key] = self.read(value_node, (*keys, key))
        if not all(isinstance(other, dict) for other in merged):
            raise self._error(node, "'<<' expects a mapping, or a list of mappings")
        result: dict[str, Any] = {}
        for other in reversed(merged):  # YAML's merge key: the earlier mapping wins, own keys win over all
            result.update(other)
        return result | own

    def _error(self, node: yaml.Node, problem: str) -> UserError:
        return UserError(f"{self.source}:{node.start_mark.line + 1}: {problem}")


def _code_point(error: yaml.reader.ReaderError) -> str:
    character = error.character  # a number in PyYAML's pure Python reader, text or bytes elsewhere
    return f"U+{character if isinstance(character, int) else ord(character):04X}"


def _explain(error: yaml.MarkedYAMLError, text: str, source: str) -> str:
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return f"{source}: is not valid YAML: {error.problem}"
    problem = " ".join(str(error.problem or error.context).split())
    written = text.splitlines()[mark.line : mark.line + 1]
    indent = re.match(r"\s*", written[0])[0] if written else ""  # type: ignore[index]  # \s* always matches
    if "\t" in indent or "'\\t'" in problem:
        problem = "a tab, expected spaces (YAML is not indented with tabs)"
    elif "found another document" in problem:
        problem = "a second document starts here, expected one"
    elif "could not determine a constructor" in problem:
        problem += " (tags are not supported here)"
    elif "mapping values are not allowed" in problem:
        problem = "a second ': ' in the line, expected text with it in quotes, or a key with too much indentation"
    elif "flow" in str(error.context) and error.context_mark is not None:
        problem += f" (inside the bracket that opens on line {error.context_mark.line + 1})"
    return f"{source}:{mark.line + 1}:{mark.column + 1}: is not valid YAML: {problem}"
