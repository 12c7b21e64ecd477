"""Outcomes for people and for machines."""

from __future__ import annotations

import json
from itertools import zip_longest
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvsim.conform.check import Outcome
from kvsim.conform.compare import Record
from kvsim.conform.fuzz import Finding

_CONTEXT_FIELDS = ("sched", "running", "waiting", "skipped")
_CELL_WIDTH = 40
_CELL_LINES = 4
_AROUND = 2  # entries shown before the first one that differs
_NEIGHBOUR_WIDTH = 20  # of each of them


def equal_line(outcome: Outcome) -> str:
    """The one line about a pair that does not differ."""
    stuck = ", a deadlock in both" if outcome.deadlock else ""
    return f"{outcome.name}: {outcome.steps} steps equal (vLLM {outcome.vllm}{_profile(outcome)}{stuck})"


def difference_report(outcome: Outcome) -> RenderableType:
    """The first step that differs, its fields side by side, and the steps before it; at most 100 columns."""
    assert outcome.difference is not None
    found = outcome.difference
    title = f"{outcome.name}: step {found.step} differs (vLLM {outcome.vllm}{_profile(outcome)}), "
    title += f"{outcome.steps} steps before it are equal" if outcome.steps else "the first one"
    parts: list[RenderableType] = [Text(title, style="bold"), _fields_table(found.fields)]
    if outcome.failure:
        parts.append(Text(f"kvsim broke off: {outcome.failure}", style="red"))
    if outcome.context:
        parts.append(_context_table(outcome.context))
    return Group(*parts)


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Everything that is known about a pair."""
    found = outcome.difference
    return {
        "name": outcome.name,
        "vllm": outcome.vllm,
        "profile": outcome.profile,
        "equal": found is None,
        "equal_steps": outcome.steps,
        "deadlock": outcome.deadlock,
        "failure": outcome.failure or None,
        "difference": None
        if found is None
        else {
            "step": found.step,
            "fields": {name: {"vllm": theirs, "kvsim": ours} for name, (theirs, ours) in found.fields.items()},
            "steps_before": outcome.context,
        },
    }


def finding_json(finding: Finding) -> dict[str, Any]:
    """Everything that is known about a random world."""
    return {
        "seed": finding.seed,
        "failure": finding.failure or None,
        "outcome": None if finding.outcome is None else as_json(finding.outcome),
        "scenario": finding.scenario,
    }


def shorten(theirs: Any, ours: Any) -> tuple[str, str]:
    """Two values as short texts that show where they differ first, however deep that is."""
    left, right = _around(theirs, ours)
    return _fit(left), _fit(right)


def _around(theirs: Any, ours: Any) -> tuple[str, str]:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        keys = [*theirs, *(key for key in ours if key not in theirs)]
        apart = [key for key in keys if key not in theirs or key not in ours or theirs[key] != ours[key]]
        shown = {key: _around(theirs[key], ours[key]) for key in apart if key in theirs and key in ours}
        return _some_keys(theirs, apart, shown, 0), _some_keys(ours, apart, shown, 1)
    if isinstance(theirs, list) and isinstance(ours, list):
        pairs = enumerate(zip_longest(theirs, ours, fillvalue=...))
        first = next((index for index, (a, b) in pairs if a != b), 0)
        both = first < min(len(theirs), len(ours))
        shown_here = _around(theirs[first], ours[first]) if both else None
        left, right = shown_here or (None, None)
        return _some_entries(theirs, first, left), _some_entries(ours, first, right)
    return _text(theirs), _text(ours)


def _profile(outcome: Outcome) -> str:
    return "" if outcome.profile == outcome.vllm else f" against profile {outcome.profile}"


def _fields_table(fields: dict[str, tuple[Any, Any]]) -> Table:
    table = Table(expand=True)
    table.add_column("Field", no_wrap=True, max_width=18)
    table.add_column("vLLM", ratio=1, overflow="fold")
    table.add_column("kvsim", ratio=1, overflow="fold")
    for name, (theirs, ours) in fields.items():
        left, right = shorten(theirs, ours)
        table.add_row(name, Text(left), Text(right))
    return table


def _context_table(records: list[Record]) -> Table:
    table = Table(title="The steps before", title_justify="left", expand=True)
    table.add_column("Step", justify="right", no_wrap=True)
    for name in _CONTEXT_FIELDS:
        table.add_column(name, ratio=1, overflow="fold")
    table.add_column("free", justify="right", no_wrap=True)
    for record in records:
        cells = [Text(_fit(_names(record[name]), _CELL_WIDTH * 2)) for name in _CONTEXT_FIELDS]
        table.add_row(str(record["step"]), *cells, str(record["free"]))
    return table


def _names(value: Any) -> str:
    if isinstance(value, dict):
        value = list(value.items())
    if value and isinstance(value[0], (list, tuple)):  # ["s0t0", 16], as compared
        return " ".join(f"{name}:{count}" for name, count in value)
    return " ".join(map(str, value)) or "-"


def _some_keys(value: dict[str, Any], keys: list[str], shown: dict[str, tuple[str, str]], side: int) -> str:
    def text(key: str) -> str:
        if key in shown:
            return f"{key}: {shown[key][side]}"
        return f"{key}: {_text(value[key])}" if key in value else f"no {key}"

    return "{" + ", ".join(map(text, keys)) + "}"


def _some_entries(value: list[Any], first: int, shown: str | None) -> str:
    """The entry that differs, as `shown`, with a few before and what fits behind."""
    start = max(0, first - _AROUND)
    entries = [f"...{start} more"] if start else []
    entries += [_fit(_text(entry), _NEIGHBOUR_WIDTH) for entry in value[start:first]]
    if first < len(value):
        entries += [_text(value[first]) if shown is None else shown, *map(_text, value[first + 1 :])]
    end = "" if first < len(value) else f" (only {len(value)})"
    return f"[{', '.join(entries)}]{end}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _fit(text: str, width: int = _CELL_WIDTH * _CELL_LINES) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."
