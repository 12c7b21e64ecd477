"""Scenario and recording files: found, read, and checked before anything runs."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvsim.checked import check, show
from kvsim.conform.compare import Record
from kvsim.conform.schema import Scenario
from kvsim.errors import UserError
from kvsim.yamlfile import Document, Keys

RECORDING_SUFFIXES = (".jsonl.gz", ".jsonl")

_GZIP_MAGIC = b"\x1f\x8b"
_NAMES: dict[type, str] = {int: "a whole number", list: "a list", dict: "a mapping", str: "text", bool: "true or false"}
# Of the first line.
_SUMMARY_FIELDS: dict[str, type] = {"vllm": str, "scenario": str, "deadlock": bool}
# Of the lines of steps; more are compared if a line has them.
_STEP_FIELDS: dict[str, type] = {
    "step": int, "sched": dict, "new": list, "resumed": list, "preempted": list, "finished_prev": list,
    "computed": dict, "lookup": list, "running": list, "waiting": list, "skipped": list, "new_blocks": dict,
    "evicted": list, "free": int, "finished": list, "free_after": int,
}  # fmt: skip
# Only with a connector.
_CONNECTOR_FIELDS: dict[str, type] = {"dma": list, "cpu": list, "meta": dict}


@dataclass(frozen=True, slots=True)
class Recording:
    """What the real vLLM did."""

    vllm: str  # its version
    scenario: str  # the name
    deadlock: bool  # it made no progress any more
    records: list[Record]


@dataclass(frozen=True, slots=True)
class Pairs:
    """Scenarios with their recordings, and the names that have only one of them."""

    pairs: list[tuple[Path, Path]]
    unmatched: list[str]


def read_scenario(path: Path) -> dict[str, Any]:
    """A scenario that `kvsim.conform.scenario.Conformance` can run.

    Raises:
        UserError: one line with the file and the field.
    """
    try:
        data = json.loads(_read(path, "a scenario"))
    except ValueError as error:
        raise UserError(f"{path}: {_not_json(error)}") from None
    except RecursionError:
        raise UserError(f"{path}: is nested too deeply") from None
    return check_scenario(data, str(path))


def check_scenario(data: object, source: str) -> dict[str, Any]:
    """The scenario itself, if there is nothing wrong with it.

    Raises:
        UserError: one line with `source` and the field.
    """

    def where(_keys: Keys) -> str:
        return source

    check(Scenario, Document(source, data), where)
    assert isinstance(data, dict)
    return data


def read_recording(path: Path) -> Recording:
    """A recording: a line about the whole, then one line per step.

    Raises:
        UserError: one line with file, line and field.
    """
    lines = _read(path, "a recording").splitlines()
    values: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        where = f"{path}: line {number}"
        try:
            value = json.loads(line)
        except ValueError as error:
            raise UserError(f"{where}: {_not_json(error, one_line=True)}") from None
        except RecursionError:
            raise UserError(f"{where}: is nested too deeply") from None
        if not isinstance(value, dict):
            raise UserError(f"{where}: expected a mapping, found {show(value)}")
        values.append(value)
    if not values:
        raise UserError(f"{path}: is empty, expected a recording")
    summary, *records = values
    _check_fields(summary, _SUMMARY_FIELDS, f"{path}: line 1")
    for number, record in enumerate(records, start=2):
        _check_step(record, f"{path}: line {number}")
    if not records:
        raise UserError(f"{path}: holds no step, expected one line per step after the first line")
    steps = summary.get("steps", len(records))
    if steps != len(records):
        raise UserError(f"{path}: holds {len(records)} steps, expected {show(steps)} as line 1 says")
    return Recording(summary["vllm"], summary["scenario"], summary["deadlock"], records)


def find_pairs(paths: Sequence[Path]) -> Pairs:
    """Scenario, recording, scenario, recording, ...; or a folder of each, matched by name.

    Raises:
        UserError: an odd number of files, a folder beside a file, nothing that matches.
    """
    folders = [path for path in paths if path.is_dir()]
    if folders:
        if len(paths) != 2 or len(folders) != 2:
            other = next((path for path in paths if path not in folders), folders[-1])
            raise UserError(f"{other}: expected two folders (scenarios, recordings), or pairs of files and no folder")
        return _match(*paths)
    if len(paths) % 2 or not paths:
        last = f", {paths[-1]} has no partner" if paths else ""
        raise UserError(f"{len(paths)} files given{last}, expected pairs: SCENARIO RECORDING")
    return Pairs(list(zip(paths[::2], paths[1::2], strict=True)), [])


def find_scenarios(paths: Sequence[Path]) -> list[Path]:
    """The scenario files meant: files as they are, folders as their .json files in order of name.

    Raises:
        UserError: nothing given, or a folder without one.
    """
    if not paths:
        raise UserError("no scenario given, expected at least one file or folder")
    found: list[Path] = []
    for path in paths:
        inside = sorted(_by_name(path, (".json",)).values()) if path.is_dir() else [path]
        if not inside:
            raise UserError(f"{path}: no scenario in this folder, expected files ending in .json")
        found += inside
    return found


def recording_bytes(summary: dict[str, Any], records: Sequence[Record]) -> bytes:
    """A recording as a file holds it; equal recordings give equal bytes."""
    lines = [json.dumps(summary), *(json.dumps(record, separators=(",", ":")) for record in records)]
    return gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0)


def _match(scenarios: Path, recordings: Path) -> Pairs:
    left, right = _by_name(scenarios, (".json",)), _by_name(recordings, RECORDING_SUFFIXES)
    common = sorted(left.keys() & right.keys())
    if not common:
        found = f"{len(left)} scenarios (.json) and {len(right)} recordings ({', '.join(RECORDING_SUFFIXES)})"
        raise UserError(f"{scenarios}, {recordings}: {found}, expected at least one name in both")
    unmatched = [f"{name}: no recording in {recordings}" for name in sorted(left.keys() - right.keys())]
    unmatched += [f"{name}: no scenario in {scenarios}" for name in sorted(right.keys() - left.keys())]
    return Pairs([(left[name], right[name]) for name in common], unmatched)


def _by_name(folder: Path, suffixes: Sequence[str]) -> dict[str, Path]:
    found = {}
    for path in sorted(folder.iterdir()):
        suffix = next((suffix for suffix in suffixes if path.name.endswith(suffix)), None)
        if suffix and path.is_file():
            found[path.name.removesuffix(suffix)] = path
    return found


def _read(path: Path, what: str) -> str:
    try:
        data = path.read_bytes()
        if data.startswith(_GZIP_MAGIC):
            data = gzip.decompress(data)
        return data.decode("utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file, expected {what}") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a folder, expected {what}") from None
    except EOFError:
        raise UserError(f"{path}: the gzip data ends too early, expected a complete file") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: damaged gzip data ({error}), expected an intact file") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 text (byte 0x{error.object[error.start]:02x})") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None


def _not_json(error: ValueError, *, one_line: bool = False) -> str:
    if isinstance(error, json.JSONDecodeError):
        place = f"column {error.colno}" if one_line else f"line {error.lineno} column {error.colno}"
        return f"is not JSON: {error.msg} at {place}"
    return f"is not JSON: {error}"


def _check_fields(value: dict[str, Any], fields: dict[str, type], where: str) -> None:
    for name, kind in fields.items():
        if name not in value:
            raise UserError(f"{where}: {name} is missing, expected {_NAMES[kind]}")
        found = value[name]
        if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
            raise UserError(f"{where}: {name}: expected {_NAMES[kind]}, found {show(found)}")


def _check_step(record: Record, where: str) -> None:
    _check_fields(record, _STEP_FIELDS, where)
    _check_fields(record, {name: kind for name, kind in _CONNECTOR_FIELDS.items() if name in record}, where)
    if "kvout" not in record:
        raise UserError(f"{where}: kvout is missing, expected a mapping, or null without a connector")
    for name in ("step", "free", "free_after"):
        if record[name] < 0:
            raise UserError(f"{where}: {name}: expected at least 0, found {record[name]}")
    for request, tokens in record["sched"].items():
        if not isinstance(tokens, int) or tokens < 1:
            raise UserError(f"{where}: sched.{request}: expected at least 1 token, found {show(tokens)}")
    for entry in record.get("dma", ()):
        waits = isinstance(entry, list) and entry[:1] == ["wait"]
        if not isinstance(entry, list) or not entry or (waits and not (len(entry) == 2 and isinstance(entry[1], int))):
            raise UserError(f"{where}: dma: expected entries [kind, job, ...], found {show(entry)}")
