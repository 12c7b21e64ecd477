"""Tables that a reader can sort, and use as they are without a script."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

from markupsafe import Markup

from kvsim.report.format import value
from kvsim.results.compare import Unit

Kind = Literal["text", "number"]
Mark = Literal["", "good", "bad"]


@dataclass(frozen=True, slots=True)
class Heading:
    """Over a column: what it holds, and how it is sorted."""

    text: str
    kind: Kind = "number"


@dataclass(frozen=True, slots=True)
class Entry:
    """A cell: what is read, and what it is sorted by ("" = missing, always last)."""

    text: str
    key: str = ""
    mark: Mark = ""


@dataclass(frozen=True, slots=True)
class SortableTable:
    """Headings, rows, and a sentence above and below them ("" = none)."""

    headings: tuple[Heading, ...]
    rows: tuple[tuple[Entry, ...], ...]
    caption: str = ""
    hint: str = ""


def number_entry(amount: float | None, unit: Unit, mark: Mark = "") -> Entry:
    """A number with its unit, sorted by its size; nothing where there is none."""
    if amount is None or math.isnan(amount):
        return Entry("", "")
    return Entry(value(amount, unit), f"{amount:.12g}", mark)


def text_entry(text: str, mark: Mark = "") -> Entry:
    """A text, sorted as it is read, numbers in it by their size."""
    return Entry(text, text, mark)


def first_rows(rows: Sequence[tuple[Entry, ...]], most: int, what: str) -> tuple[tuple[tuple[Entry, ...], ...], str]:
    """At most so many rows, and a sentence that says what is missing ("" if nothing is)."""
    if len(rows) <= most:
        return tuple(rows), ""
    return tuple(rows[:most]), f"The first {most:,} of {len(rows):,} {what}."


def script() -> Markup:
    """What makes tables sortable, to stand inside a page."""
    return Markup(_text())  # noqa: S704 - our own file


def script_policy() -> str:
    """The page's Content-Security-Policy: nothing is fetched, and no script runs but this one."""
    found = base64.b64encode(hashlib.sha256(_text().encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{found}'"


def _text() -> str:
    return "\n" + files("kvsim.report").joinpath("templates/sort.js").read_text(encoding="utf-8")
