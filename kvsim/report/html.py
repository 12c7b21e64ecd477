"""Reports as single HTML files that need nothing else: no network, light or dark, fit to print.

The only script makes tables sortable; without it they are read as they are.
"""

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
from kvsim.report.plots import e2e_cdf, kv_usage, overlay, plots_of, transfers
from kvsim.report.point_plots import Bound
from kvsim.report.points import Limit, Point, baseline_of, best_of, points_of
from kvsim.report.rows import Group, comparison_groups, summary_groups
from kvsim.report.sections import (
    Drawn,
    Section,
    of_points,
    run_service,
    service_of_points,
    sessions,
    sessions_of_two,
)
from kvsim.report.sortable import SortableTable, script, script_policy
from kvsim.report.style import as_svg, inline_svg
from kvsim.report.tenants import tenant_header, tenant_rows
from kvsim.report.words import describe, describe_comparison, describe_points, refusal
from kvsim.results.compare import labels, mismatches
from kvsim.results.records import ASSUMED
from kvsim.results.run import Run

COLUMNS = 4
"""Runs in one table, the first one included; more runs go into further tables."""
MOST_RUNS = 12
"""Whose figures and curves stand side by side; more of them are in the table of service levels only."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A plot ready to be put into a page, and the sentence under it."""

    svg: Markup
    caption: str


@dataclass(frozen=True, slots=True)
class Part:
    """A section ready to be put into a page."""

    key: str
    title: str
    tables: tuple[SortableTable, ...]
    pictures: tuple[Picture, ...]


@dataclass(frozen=True, slots=True)
class Sheet:
    """One table of a comparison: the names over its columns and its rows."""

    names: tuple[str, ...]
    groups: tuple[Group, ...]


def write_report(
    run: Run, path: Path, plots: Path | None = None, limits: Sequence[Limit] = (), *, draws: bool = True
) -> None:
    """Write the report of one run.

    Args:
        run: What to report.
        path: File to write.
        plots: Folder in which its plots have been saved; without it they are drawn.
        draws: False for a report without plots, in a quarter of the time.
        limits: Of an SLO, beside what the run gave.

    Raises:
        UserError: The file cannot be written.
    """
    pictures = [
        Picture(inline_svg(as_svg(draw(run)) if plots is None else _saved(plots, key), key, text), text)
        for key, (draw, text) in (plots_of(run).items() if draws else ())
    ]
    service, by_session = run_service(run, limits), sessions(run)
    assumed, notes = _split(run.summary["notes"])
    _write(
        path,
        _template("run.html.j2").render(
            **_script(service, by_session),
            title=f"kvsim run {run.name}",
            lead=_unbroken(describe(run.summary)),
            warnings=run.summary["warnings"],
            service=_part(service),
            groups=summary_groups(run.summary),
            instance_columns=HEADER,
            instances=instance_rows(run.summary),
            tenant_columns=tenant_header(run.summary),
            tenants=tenant_rows(run.summary),
            pictures=pictures,
            sessions=_part(by_session),
            info=run.summary["info"],
            assumed=assumed,
            notes=notes,
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
    title = f"kvsim comparison of {len(runs)} runs"
    write_points(points_of(runs, ()), path, title, lead=describe_comparison(runs))


def write_points(
    points: Sequence[Point],
    path: Path,
    title: str,
    *,
    bound: Bound = (),
    lead: str = "",
    best: Point | None = None,
    first: Section | None = None,
    doubts: Sequence[str] = (),
) -> tuple[Drawn, ...]:
    """Write a page about many choices: runs, points of sweeps, or both.

    Args:
        points: What the others are compared with, see `kvsim.report.points.baseline_of`.
        path: File to write.
        title: Of the page.
        bound: Hit rate of the optimum by cache size, if that is known.
        lead: What to say first; "" = what the best choice gives.
        best: The choice to recommend, if that is known; else see `kvsim.report.points.best_of`.
        first: A part that comes before the others.
        doubts: What to know before anything else.

    Returns:
        The plots of the page.

    Raises:
        UserError: Nothing was simulated, or the file cannot be written.
    """
    baseline, best = baseline_of(points), best or best_of(points)
    if baseline is None:
        raise UserError(f"{path}: none of {len(points)} points was simulated to its end, so there is nothing to report")
    best = best or baseline
    runs = [each.run for each in points if each.run is not None][:MOST_RUNS]
    names = labels(runs)
    service, curves = service_of_points(points, best), _curves(runs)
    found = [*of_points(points, best, bound), *_of_two(baseline, best), *([curves] if curves is not None else [])]
    sections = sorted(found, key=lambda section: _ORDER.index(section.key))
    assumed, notes = _owned_notes(points)
    infos = [(each.name, (each.summary or {}).get("info")) for each in _two(baseline, best)]
    _write(
        path,
        _template("comparison.html.j2").render(
            **_script(first, service, *sections),
            title=title,
            lead=_unbroken(lead or describe_points(points, baseline, best)),
            first=_part(first),
            names=names,
            mismatches=[*filter(None, (*doubts, refusal(points))), *mismatches(runs), *_other_traces(points, baseline)],
            warnings=_warnings(points, baseline, best),
            service=_part(service),
            sheets=_sheets(runs, names) if len(runs) > 1 else [],
            sections=[_part(each) for each in sections],
            infos=infos,
            assumed=assumed,
            notes=notes,
            changes=[(name, _changes(runs[0], run)) for name, run in zip(names[1:], runs[1:], strict=True)],
            config=runs[0].config_text if runs else "",
            digests=[(name, run.summary["digest"]) for name, run in zip(names, runs, strict=True)],
            versions=(baseline.summary or {}).get("versions"),
        ),
    )
    return tuple(drawn for each in (*([first] if first is not None else []), *sections) for drawn in each.plots)


_ORDER = ("capacity", "plots", "pareto", "timeline", "policies", "sessions")


def _curves(runs: Sequence[Run]) -> Section | None:
    if len(runs) < 2:
        return None
    return Section(
        "plots",
        "Latency and throughput",
        plots=(
            Drawn("overlay", overlay(runs), "TTFT, cache hits and throughput; a colour belongs to one run."),
            Drawn("e2e", e2e_cdf(*runs), "Which share of the requests were complete within a time."),
        ),
    )


def _of_two(baseline: Point, best: Point) -> list[Section]:
    """KV and transfers over time, and the sessions, of the first run and the best one."""
    runs = {each.name: each.run for each in (baseline, best) if each.run is not None}
    plots = []
    for number, (name, run) in enumerate(runs.items()):
        role = "best" if number or best is baseline else "first"
        plots.append(Drawn(f"kv_usage-{role}", kv_usage(run), f"{name}: KV memory in use on each tier."))
        if any(run.summary["transfers"][way]["bytes"] for way in ("h2d", "d2h")):
            plots.append(Drawn(f"transfers-{role}", transfers(run), f"{name}: what moved between GPU and host."))
    found = [Section("timeline", "KV memory and transfers over time", plots=tuple(plots))] if plots else []
    by_session = None
    if baseline.run is not None and best.run is not None and best is not baseline:
        by_session = sessions_of_two(baseline.run, baseline.name, best.run, best.name)
    elif best.run is not None:
        by_session = sessions(best.run)
    return [*found, *([by_session] if by_session is not None else [])]


def _two(baseline: Point, best: Point) -> list[Point]:
    return [baseline] if best is baseline else [baseline, best]


def _warnings(points: Sequence[Point], baseline: Point, best: Point) -> list[tuple[str, list[str]]]:
    """Of all runs, or of the two points that matter; and how many points have come to nothing."""
    all_runs = all(each.run is not None for each in points) and len(points) <= MOST_RUNS
    shown = points if all_runs else _two(baseline, best)
    found = [(each.name, list((each.summary or {}).get("warnings", ()))) for each in shown]
    lost = [each for each in points if each.status != "ok"]
    if lost:
        reasons = [f"{each.name}: {each.status}, {each.reason or 'no reason given'}" for each in lost]
        more = [f"and {len(reasons) - 5} more"] if len(reasons) > 5 else []
        found.insert(0, (f"{len(lost)} of {len(points)} points did not come to their end", [*reasons[:5], *more]))
    others = sum(bool((each.summary or {}).get("warnings")) for each in points if each not in shown)
    if others:
        found.append(("Other points", [f"{others} of them have warnings of their own, in their summaries."]))
    return [(name, lines) for name, lines in found if lines]


def _other_traces(points: Sequence[Point], baseline: Point) -> list[str]:
    """A sentence about points that played something else than the first; of runs `mismatches` knows more."""
    first = _trace_of(baseline)
    others = [each.name for each in points if each.run is None and _trace_of(each) not in (first, "")]
    if not first or not others:
        return []
    text = (
        f"{len(others)} points ({_listed(others)}) played another trace, or another part of it, than {baseline.name}"
        f" ({first}): differences are not due to the configuration alone."
    )
    return [text]


def _trace_of(point: Point) -> str:
    return str((point.summary or {}).get("info", {}).get("trace", ""))


def _script(*sections: Section | None) -> dict[str, Any]:
    """The script, where there are tables for it."""
    wanted = any(each is not None and each.tables for each in sections)
    return {"script": script() if wanted else "", "policy": script_policy()}


def _part(section: Section | None) -> Part | None:
    if section is None:
        return None
    pictures = (Picture(inline_svg(as_svg(each.figure), each.key, each.text), each.text) for each in section.plots)
    return Part(section.key, section.title, section.tables, tuple(pictures))


def _split(notes: Sequence[str]) -> tuple[list[str], list[str]]:
    """What is assumed, and everything else."""
    assumed = [note.removeprefix(ASSUMED) for note in notes if note.startswith(ASSUMED)]
    return assumed, [note for note in notes if not note.startswith(ASSUMED)]


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


Owned = list[tuple[str, list[str]]]


def _owned_notes(points: Sequence[Point]) -> tuple[Owned, Owned]:
    """Assumptions, and other notes: each once, with those it belongs to; "All" first where they share it."""
    known = [each for each in points if each.summary is not None]
    found: dict[str, list[str]] = {}
    for each in known:
        for note in (each.summary or {}).get("notes", ()):
            found.setdefault(note, []).append(each.name)
    parts: list[Owned] = []
    for wanted in (True, False):
        by_owner: dict[str, list[str]] = {}
        for note, owners in found.items():
            if note.startswith(ASSUMED) is wanted:
                whose = "All" if len(owners) == len(known) else _listed(owners)
                by_owner.setdefault(whose, []).append(note.removeprefix(ASSUMED))
        parts.append(sorted(by_owner.items(), key=lambda item: item[0] != "All"))
    return parts[0], parts[1]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _changes(first: Run, other: Run) -> list[dict[str, Any]]:
    """The lines of the configuration that differ, with the lines around them."""
    before, after = first.config_text.splitlines(), other.config_text.splitlines()
    lines = list(difflib.unified_diff(before, after, n=2, lineterm=""))[2:]
    kinds = {"+": "added", "-": "removed", "@": "gap"}
    return [{"kind": kinds.get(line[:1], "kept"), "text": "…" if line.startswith("@@") else line} for line in lines]
