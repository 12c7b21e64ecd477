"""Schedules on disk: JSON lines, plain or gzip. Written whole or not at all, and checked line by line when read."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from kvsim.errors import UserError
from kvsim.results.schedule.as_json import header_line, header_of, parse_object, step_line, step_of
from kvsim.results.schedule.records import Header, Schedule, Step
from kvsim.results.schedule.rules import BrokenRuleError, Rules

SUFFIXES = (".jsonl", ".jsonl.gz")
_GZIP_MAGIC = b"\x1f\x8b"


def check_path(path: Path) -> None:
    """Raise UserError unless a schedule can be written there, as far as its name tells."""
    if not path.name.endswith(SUFFIXES) or path.name in SUFFIXES:
        raise UserError(f"{path}: expected a schedule's name that ends in {' or '.join(SUFFIXES)}")
    if path.is_dir():
        raise UserError(f"{path}: is a folder, expected a file to write")


class ScheduleWriter:
    """Writes a schedule step by step under a temporary name; it takes its own when the block ends well.

    ::

        with ScheduleWriter(path, header) as writer:
            for step in steps:
                writer.write(step)

    The same schedule gives the same bytes, also packed. Steps are held to the rules of the format.

    Args:
        path: ends in ``.jsonl`` or ``.jsonl.gz``; a file that is there is replaced.
        header: the first line.

    Raises:
        UserError: here and at the end: the name is wrong, or the file cannot be written.
        BrokenRuleError: header or a step cannot be, which is the caller's mistake.
    """

    def __init__(self, path: Path, header: Header) -> None:
        check_path(path)
        self._path, self._temporary = path, path.with_name(f".{path.name}.partial-{os.getpid()}")
        self._header, self._rules = header, Rules(header)
        self._files = contextlib.ExitStack()
        self._out: IO[bytes]

    def __enter__(self) -> Self:
        with self._mendable():
            plain = self._files.enter_context(self._temporary.open("wb"))
            self._out = plain
            if self._path.name.endswith(".gz"):  # no name, no date: the same bytes every time
                packed = self._files.enter_context(
                    gzip.GzipFile(filename="", mode="wb", fileobj=plain, mtime=0, compresslevel=3)
                )
                self._out = self._files.enter_context(io.BufferedWriter(packed, 1 << 16))
            self._out.write(header_line(self._header).encode())
        return self

    def write(self, step: Step) -> None:
        """The next step."""
        self._rules.take(step)
        with self._mendable():
            self._out.write(step_line(step).encode())

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if kind is not None:
            with contextlib.suppress(OSError):
                self._files.close()
            self._remove()
            return
        with self._mendable():
            self._files.close()
            self._temporary.replace(self._path)

    @contextlib.contextmanager
    def _mendable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            with contextlib.suppress(OSError):
                self._files.close()
            self._remove()
            raise UserError(f"{self._path}: cannot be written ({error.strerror or error})") from error

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            self._temporary.unlink()


def write_schedule(path: Path, schedule: Schedule) -> None:
    """Write a whole schedule. See `ScheduleWriter`."""
    with ScheduleWriter(path, schedule.header) as writer:
        for step in schedule.steps:
            writer.write(step)


def read_schedule(path: Path | str) -> Schedule:
    """Read a schedule; every line is checked by itself. Whether the steps go together is `check`'s question.

    Raises:
        UserError: the first thing that is wrong: file, line, field, value and what was expected.
    """
    path = Path(path)
    lines = _lines(path)
    header: Header | None = None
    rules: Rules | None = None
    steps: list[Step] = []
    for number, text in lines:
        try:
            if header is None or rules is None:
                header = header_of(parse_object(text))
                rules = Rules(header)
                continue
            step = step_of(parse_object(text))
            rules.take(step)
        except BrokenRuleError as error:
            raise UserError(f"{path}: line {number}: {error}") from None
        steps.append(step)
    if header is None:
        raise UserError(f"{path}: the file is empty, expected a schedule as `kvsim run --export-schedule` writes it")
    if not steps:
        raise UserError(f"{path}: line 2: no step follows the header, expected one or more")
    return Schedule(header, steps)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open("rb") as plain:
            packed = plain.read(2) == _GZIP_MAGIC
            plain.seek(0)
            if path.name.endswith(".gz") and not packed and plain.peek(1):
                raise UserError(f"{path}: not gzip data, expected what its name says")
            stream: IO[bytes] = gzip.GzipFile(fileobj=plain) if packed else plain  # type: ignore[assignment]
            for number, line in enumerate(stream, start=1):
                try:
                    text = line.decode()
                except UnicodeDecodeError as error:
                    bad = line[error.start : error.start + 1].hex()
                    raise UserError(f"{path}: line {number}: byte 0x{bad} is not UTF-8, expected JSON") from None
                if text.strip():
                    yield number, text
    except EOFError:
        raise UserError(f"{path}: the gzip data ends too early, expected a complete file") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: damaged gzip data ({error}), expected an intact file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error
