"""Reports as single HTML files that need nothing else: no network, no script, light or dark, fit to print."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from kvsim.errors import UserError
from kvsim.report.instances import HEADER, instance_rows
from kvsim.report.plots import e2e_cdf, overlay, plots_of
from kvsim.report.rows import Group, comparison_groups, summary_groups
from kvsim.report.style import as_svg, inline_svg
from kvsim.report.tenants import tenant_header, tenant_rows
from kvsim.report.words import describe, describe_comparison
from kvsim.results.compare import labels, mismatches
from kvsim.results.run import Run

COLUMNS = 4
"""Runs in one table, the first one included; more runs go into further tables."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A plot ready to be put into a page, and the sentence under it."""

    svg: Markup
    caption: str


@dataclass(frozen=True, slots=True)
class Sheet:
    """One table of a comparison: the names over its columns and its rows."""

    names: tuple[str, ...]
    groups: tuple[Group, ...]


def write_report(run: Run, path: Path, plots: Path | None = None) -> None:
    """Write the report of one run.

    Args:
        run: What to report.
        path: File to write.
        plots: Folder in which its plots have been saved; without it they are drawn.

    Raises:
        UserError: The file cannot be written.
    """
    pictures = [
        Picture(inline_svg(as_svg(draw(run)) if plots is None else _saved(plots, key), key, text), text)
        for key, (draw, text) in plots_of(run).items()
    ]
    _write(
        path,
        _template("run.html.j2").render(
            title=f"kvsim run {run.name}",
            lead=_unbroken(describe(run.summary)),
            warnings=run.summary["warnings"],
            groups=summary_groups(run.summary),
            instance_columns=HEADER,
            instances=instance_rows(run.summary),
            tenant_columns=tenant_header(run.summary),
            tenants=tenant_rows(run.summary),
            pictures=pictures,
            info=run.summary["info"],
            notes=run.summary["notes"],
            config=run.config_text,
            digest=run.summary["digest"],
            versions=run.summary["versions"],
        ),
    )


def write_comparison(runs: Sequence[Run], path: Path) -> None:
    """Write a page that sets runs side by side; the first one is what the others are compared with.

    Raises:
        UserError: There are fewer than two runs, or the file cannot be written.
    """
    if len(runs) < 2:
        raise UserError(f"{path}: a comparison needs at least two runs, found {len(runs)}")
    names = labels(runs)
    pictures = [
        Picture(inline_svg(as_svg(drawn), key, text), text)
        for key, drawn, text in (
            ("overlay", overlay(runs), "TTFT, cache hits and throughput; a colour belongs to one run."),
            ("e2e", e2e_cdf(*runs), "Which share of the requests were complete within a time."),
        )
    ]
    _write(
        path,
        _template("comparison.html.j2").render(
            title=f"kvsim comparison of {len(runs)} runs",
            lead=_unbroken(describe_comparison(runs)),
            names=names,
            mismatches=mismatches(runs),
            warnings=[(name, run.summary["warnings"]) for name, run in zip(names, runs, strict=True)],
            sheets=_sheets(runs, names),
            pictures=pictures,
            infos=[(name, run.summary["info"]) for name, run in zip(names, runs, strict=True)],
            notes=_notes(runs, names),
            changes=[(name, _changes(runs[0], run)) for name, run in zip(names[1:], runs[1:], strict=True)],
            config=runs[0].config_text,
            digests=[(name, run.summary["digest"]) for name, run in zip(names, runs, strict=True)],
            versions=runs[0].summary["versions"],
        ),
    )


@functools.cache
def _template(name: str) -> Template:
    environment = Environment(
        loader=PackageLoader("kvsim.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise UserError(f"{path}: cannot write the report: {error.strerror or error}") from error


def _unbroken(text: str) -> str:
    """The text with no-break spaces before units, so that no line ends between a number and its unit."""
    return re.sub(r"(?<=\d) (?=(%|ms|s|min|h|points|times|output)(\W|$))", "\N{NO-BREAK SPACE}", text)


def _saved(plots: Path, key: str) -> str:
    return (plots / f"{key}.svg").read_text(encoding="utf-8")


def _sheets(runs: Sequence[Run], names: Sequence[str]) -> list[Sheet]:
    sheets = []
    for start in range(1, len(runs), COLUMNS - 1):
        chosen = [0, *range(start, min(start + COLUMNS - 1, len(runs)))]
        groups = comparison_groups([runs[index] for index in chosen])
        sheets.append(Sheet(tuple(names[index] for index in chosen), tuple(groups)))
    return sheets


def _notes(runs: Sequence[Run], names: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Each note once, with the runs it belongs to; "all runs" first where they share it."""
    found: dict[str, list[str]] = {}
    for name, run in zip(names, runs, strict=True):
        for note in run.summary["notes"]:
            found.setdefault(note, []).append(name)
    by_owner: dict[str, list[str]] = {}
    for note, owners in found.items():
        by_owner.setdefault("All runs" if len(owners) == len(runs) else ", ".join(owners), []).append(note)
    return sorted(by_owner.items(), key=lambda item: item[0] != "All runs")


def _changes(first: Run, other: Run) -> list[dict[str, Any]]:
    """The lines of the configuration that differ, with the lines around them."""
    before, after = first.config_text.splitlines(), other.config_text.splitlines()
    lines = list(difflib.unified_diff(before, after, n=2, lineterm=""))[2:]
    kinds = {"+": "added", "-": "removed", "@": "gap"}
    return [{"kind": kinds.get(line[:1], "kept"), "text": "…" if line.startswith("@@") else line} for line in lines]
