"""What a point's result depends on, as one key: equal keys, equal results.

A key covers the resolved config without its name and without what it leaves behind; the content of every file that the
config names (traces, models, profiles, and the modules of ``module:Class`` with what they import from beside them); and
the content of kvsim's own files that decide results. Where files lie does not count, only their names and content.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import kvsim
from kvsim.config import RunConfig
from kvsim.config.custom import class_paths
from kvsim.errors import UserError
from kvsim.trace.files import list_files

SCHEMA = 2
"""Version of a stored point; raised when what is stored, or what a key means, changes."""

_ROOT = Path(kvsim.__file__).parent
_SHOWS_ONLY = ("api.py", "catalogue.py", "cli", "conform", "console.py", "plan", "report")
"""Beginnings of names in the package that cannot change a result: they run, compare and show what others compute."""
_ENDINGS = frozenset((".py", ".yaml", ".yml", ".json"))
_CHUNK_BYTES = 1 << 20


class Digests:
    """SHA-256 of files by their content; each file is read once."""

    def __init__(self) -> None:
        self._of: dict[Path, str] = {}

    def of(self, path: Path) -> str:
        """Of one file.

        Raises:
            UserError: it cannot be read.
        """
        if path not in self._of:
            self._of[path] = file_digest(path)
        return self._of[path]

    def of_trace(self, config: RunConfig) -> str:
        """Of the files of a config's trace, with their names, in order.

        Raises:
            UserError: one is missing or cannot be read.
        """
        files = list_files([Path(path) for path in config.trace.path])
        return _sha([[Path(path).name for path in config.trace.path], [(file.name, self.of(file)) for file in files]])


def file_digest(path: Path) -> str:
    """SHA-256 of a file.

    Raises:
        UserError: it cannot be read.
    """
    sha = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                sha.update(chunk)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    return sha.hexdigest()


def key_of(config: RunConfig, digests: Digests | None = None, measured: str = "") -> str:
    """The key of a config's result.

    Args:
        config: what is run.
        digests: of files that were read before.
        measured: names the figures that are wanted besides the summary.

    Raises:
        UserError: a file that it names is missing or cannot be read.
    """
    digests = digests or Digests()
    data = config.model_dump(mode="json")
    wanted = {name: value for name, value in data.items() if name not in ("name", "output", "python_path")}
    wanted["output"] = {"series_points": config.output.series_points}  # peaks and ends of the summary come from these
    wanted["trace"] = data["trace"] | {"path": digests.of_trace(config)}
    modules = _modules_of(config, data, digests)
    parts = [SCHEMA, kvsim.__version__, code_digest(), _with_content(wanted, digests), modules]
    return _sha([*parts, measured] if measured else parts)


@cache
def code_digest() -> str:
    """Of the files of this package that decide results. Any change to them counts: nobody can say which ones matter."""
    found = []
    for path in sorted(_ROOT.rglob("*")):
        inside = path.relative_to(_ROOT)
        if path.suffix in _ENDINGS and not inside.parts[0].startswith(_SHOWS_ONLY):
            found.append((inside.as_posix(), file_digest(path)))
    return _sha(found)


def _sha(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _with_content(value: Any, digests: Digests) -> Any:
    """The same with each absolute path of a file, or of a folder with a config.json, replaced by its content."""
    if isinstance(value, Mapping):
        return {key: _with_content(each, digests) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_content(each, digests) for each in value]
    if isinstance(value, str) and value.startswith("/") and "\0" not in value:
        path = Path(value)
        file = path / "config.json" if path.is_dir() else path
        if file.is_file():
            return {"file": path.name, "sha256": digests.of(file)}
    return value


def _modules_of(config: RunConfig, data: Mapping[str, Any], digests: Digests) -> dict[str, str]:
    """The user's modules by name, each with the digest of its file: those of classes, and what they import."""
    folders = [Path(folder) for folder in config.python_path]
    found: dict[str, str] = {}
    for place, _, registry in class_paths(data):
        value: Any = data
        for key in place:
            value = value[key]
        module = sys.modules[registry.find(str(value), config.python_path).__module__]
        for each in _with_imports(module, folders, {}):
            found[each.__name__] = digests.of(Path(str(each.__file__)))
    return found


def _with_imports(module: ModuleType, folders: list[Path], seen: dict[str, ModuleType]) -> Iterator[ModuleType]:
    """A module, and the modules from these folders whose objects it holds, and theirs."""
    seen[module.__name__] = module
    yield module
    for value in list(vars(module).values()):
        home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        other = sys.modules.get(home) if isinstance(home, str) else None
        file = getattr(other, "__file__", None)
        if other is None or file is None or other.__name__ in seen:
            continue
        parents = Path(file).parents
        is_installed = _ROOT in parents or any(parent.name in ("site-packages", "dist-packages") for parent in parents)
        if not is_installed and any(folder in parents for folder in folders):
            yield from _with_imports(other, folders, seen)
