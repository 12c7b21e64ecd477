"""Trace files on disk: finding them, opening them (plain or gzip), and telling formats apart by content."""

from __future__ import annotations

import codecs
import gzip
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from kvsim.errors import UserError

SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
KINDS = ("kv-cache-tester", "mooncake", "sessions")

_GZIP_MAGIC = b"\x1f\x8b"
_HEAD_BYTES = 65536

# What the beginning of a file must hold for each kind, tried in order: all patterns of a row have to match.
_MARKS: tuple[tuple[str, tuple[bytes, ...]], ...] = (
    ("sessions", (rb'"schema"\s*:\s*"kvsim\.sessions"',)),
    ("", (rb'"schema"\s*:',)),  # somebody else's versioned format
    ("kv-cache-tester", (rb'"requests"\s*:\s*\[',)),
    ("kv-cache-tester", (rb'"hash_id_scope"\s*:',)),
    ("mooncake", (rb'"hash_ids"\s*:\s*\[', rb'"(input_length|output_length|timestamp)"\s*:')),
    ("mooncake", (rb'"input_length"\s*:', rb'"output_length"\s*:')),
)


def list_files(paths: Sequence[Path]) -> list[Path]:
    """The trace files meant by `paths`: files as they are, folders as their trace files in order of name.

    Raises:
        UserError: nothing given, a path does not exist, or a folder holds no trace file.
    """
    if not paths:
        raise UserError("no trace given, expected at least one file or folder")
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            try:
                inside = sorted(path.iterdir(), key=lambda entry: entry.name)
            except OSError as error:
                raise UserError(f"{path}: cannot be read ({error.strerror})") from error
            found = [entry for entry in inside if entry.name.endswith(SUFFIXES) and entry.is_file()]
            if not found:
                endings = ", ".join(SUFFIXES)
                raise UserError(f"{path}: no trace in this folder, expected files ending in {endings}")
            files.extend(found)
        elif path.exists():
            files.append(path)
        else:
            raise UserError(f"{path}: no such file or folder, expected a trace")
    return files


@contextmanager
def open_trace(path: Path) -> Iterator[IO[bytes]]:
    """Opens a file for reading bytes, unpacking gzip whatever its name; read errors become a `UserError`."""
    try:
        with path.open("rb") as plain:
            packed = plain.read(2) == _GZIP_MAGIC
            plain.seek(0)
            if packed:
                # (A GzipFile finds the ends of lines in Python.)
                with (
                    gzip.GzipFile(fileobj=plain) as unpacked,
                    io.BufferedReader(cast("io.RawIOBase", unpacked)) as lines,
                ):
                    yield lines
            else:
                yield plain
    except EOFError as error:
        raise UserError(f"{path}: the gzip data ends too early, expected a complete file") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: damaged gzip data ({error}), expected an intact file") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error


def read_text(path: Path) -> str:
    """The whole file as text."""
    with open_trace(path) as stream:
        data = stream.read()
    return _decode(data, path)


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file that are not blank, each with its number counted from 1."""
    with open_trace(path) as stream:
        for number, data in enumerate(stream, start=1):
            text = _decode(data, path, number)
            if text and not text.isspace():
                yield number, text


def detect_kind(path: Path) -> str:
    """The format of a file, told by its first bytes.

    Raises:
        UserError: the file is empty, not text, or of no known format.
    """
    with open_trace(path) as stream:
        head = stream.read(_HEAD_BYTES).removeprefix(codecs.BOM_UTF8)
    if not head.strip():
        raise UserError(f"{path}: the file is empty, expected a trace")
    if b"\0" in head:
        raise UserError(f"{path}: not a text file, expected JSON or JSON lines (plain or gzip)")
    if head.lstrip()[:1] in b"{[":
        for kind, marks in _MARKS:
            if all(re.search(mark, head) for mark in marks):
                if kind:
                    return kind
                break
    start = head.lstrip()[:40].decode("utf-8", "replace").splitlines()[0]
    raise UserError(
        f"{path}: line 1: begins with {start!r}, expected one of the formats {', '.join(KINDS)} (see traces/README.md)"
    )


def _decode(data: bytes, path: Path, line: int | None = None) -> str:
    try:
        return data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        bad = data[error.start : error.start + 1].hex()
        where = str(path) if line is None else f"{path}: line {line}"
        raise UserError(f"{where}: byte 0x{bad} is not UTF-8, expected a JSON text file") from error
