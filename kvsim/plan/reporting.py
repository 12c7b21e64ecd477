"""Reports over run folders and sweep folders: read them, measure them against an SLO, write the page and its plots."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from kvsim.errors import UserError
from kvsim.plan.plan_answer import PlanAnswer, read_plan
from kvsim.plan.slo import FINISHED, GOODPUT, TOO_LONG, Check, Slo, parse_slo, show_limit
from kvsim.report.format import duration, percent
from kvsim.report.html import write_points, write_report
from kvsim.report.plots import PLOTS, plots_of
from kvsim.report.point_plots import Bound
from kvsim.report.points import Limit, Point, baseline_of, best_of, points_of, refuse_more
from kvsim.report.sections import Drawn
from kvsim.report.style import as_png, as_svg
from kvsim.report.tier_plots import TIER_PLOTS
from kvsim.results.compare import METRIC, Metric
from kvsim.results.run import Run
from kvsim.results.runfolder import SUMMARY, load_run
from kvsim.results.sweep import RESULTS, Sweep, is_sweep, load_sweep
from kvsim.results.whole_folder import whole_file, whole_folder

Progress = Callable[[int, int], None]

_OF_POINTS = (
    *("overlay", "e2e", "hit_rate_by_size", "pareto", "optimum"),
    "plan_pareto",
    *("kv_usage-first", "kv_usage-best", "transfers-first", "transfers-best"),
)
PLOT_FILES = frozenset(f"{key}.{end}" for key in (*PLOTS, *TIER_PLOTS, *_OF_POINTS) for end in ("png", "svg"))
"""Everything that may lie in the folder beside a report."""

_PATHS: Mapping[str, tuple[str, str, float]] = {
    "ttft": ("latency.ttft_ms", "ms", 1e6),
    "tpot": ("latency.tpot_ms", "ms", 1e6),
    "e2e": ("latency.e2e_s", "s", 1e9),
}
"""Where a summary has the times of an SLO, and how many ns its unit has."""


@dataclass(frozen=True)
class Report:
    """What is going to be on a page: all points, with their runs, measured against the SLO.

    Attributes:
        plan: what the plan itself has answered; None where this is no plan, or it is measured against another SLO.
        doubts: what to know before anything else.
    """

    points: tuple[Point, ...]
    runs: tuple[Run, ...]
    bound: Bound
    plan: PlanAnswer | None = None
    doubts: tuple[str, ...] = ()

    @property
    def baseline(self) -> Point | None:
        """What the others are compared with."""
        return baseline_of(self.points)

    @property
    def best(self) -> Point | None:
        """The choice to recommend."""
        return best_of(self.points) if self.plan is None or self.plan.best is None else self.points[self.plan.best]

    @property
    def lead(self) -> str:
        """What a plan has answered; "" = what the best choice gives."""
        return "" if self.plan is None else str(self.plan.content["answer"])


def slo_of(options: Sequence[str]) -> Slo | None:
    """An SLO from ``ttft_p90=2s``, ``goodput=0.95``, ``request.ttft=2s``; None without any.

    Raises:
        UserError: names the option.
    """
    section: dict[str, object] = {}
    per_request: dict[str, object] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or not key or not value:
            raise UserError(f"--slo {option}: expected KEY=VALUE, such as ttft_p90=2s")
        if key == GOODPUT:
            section[key] = _number(option, value)
        elif key.startswith("request."):
            per_request[key.removeprefix("request.")] = value
        else:
            section[key] = value
    if per_request:
        section["request"] = per_request
    if not section:
        return None
    try:
        return parse_slo(section)
    except UserError as error:
        raise UserError(f"--slo: {str(error).removeprefix('slo: ').removeprefix('slo.')}") from None


def _number(option: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise UserError(f"--slo {option}: expected a share above 0 and up to 1, such as 0.95") from None


def read_report(paths: Sequence[Path], slo: Slo | None = None, mrc: Path | None = None) -> Report:
    """Read run folders and sweep folders.

    Args:
        paths: in the order in which they are shown; the first point is the baseline.
        slo: what was asked for.
        mrc: what `kvsim mrc -o` has written, for the optimum.

    Raises:
        UserError: one of them is neither, or is damaged.
    """
    runs: list[Run] = []
    sweeps: list[Sweep] = []
    for path in paths:
        if is_sweep(path):
            sweeps.append(load_sweep(path))
        elif path.is_dir() and not (path / SUMMARY).exists():
            raise UserError(f"{path}: expected a run folder (with {SUMMARY}) or a sweep folder (with {RESULTS})")
        else:
            runs.append(load_run(path))
    points = points_of(runs, sweeps)
    plan = read_plan(paths[0], sweeps[0]) if len(paths) == len(sweeps) == 1 else None
    doubts: list[str] = []
    if plan is not None and slo is None:
        points = [replace(each, limits=shown(plan.checks[place])) for place, each in enumerate(points)]
    if slo is not None:
        points = [replace(each, limits=_limits(each, slo)) for each in points]
        points = _with_refusals(points)
        if plan is not None:
            own = ", ".join(f"{key} {limit}" for key, limit in plan.content["slo"].items())
            doubts.append(f"The plan's own answer, for {own}, is left out: this is the best of its points for --slo.")
            plan = None
    bound: Bound = ()
    if mrc is not None:
        bound = read_bound(mrc)
        doubts += _other_workload(mrc, points)
    return Report(tuple(points), tuple(runs), bound, plan, tuple(doubts))


def _with_refusals(points: Sequence[Point]) -> list[Point]:
    """Who rejects more requests than another could have had misses the SLO."""
    more = {id(each) for each in refuse_more(points)}
    least = f"at most {percent(min((each.rejected_share for each in points if id(each) not in more), default=0.0))}"
    return [
        replace(each, limits=(*each.limits, Limit("rejected", least, percent(each.rejected_share), is_met=False)))
        if id(each) in more
        else each
        for each in points
    ]


def _other_workload(mrc: Path, points: Sequence[Point]) -> list[str]:
    """What `kvsim mrc` says of its trace and model, where that is not what the points had."""
    try:
        said = json.loads(((mrc if mrc.is_dir() else mrc.parent) / "mrc.json").read_text(encoding="utf-8"))
        trace, (model, _, _) = str(said["trace"]), str(said["kv_of"]).rpartition(", ")
    except (OSError, ValueError, KeyError, TypeError):
        return []  # the table alone may have been kept
    infos = [(each.summary or {}).get("info", {}) for each in points]
    found = []
    if others := [each["trace"] for each in infos if not each.get("trace", trace).startswith(trace)]:
        found.append(f"The optimum of {mrc} is that of trace {trace}, not of {others[0]}.")
    if model and (others := [each["model"] for each in infos if each.get("model", model) != model]):
        found.append(f"The optimum of {mrc} is that of model {model}, not of {others[0]}.")
    return found


def read_bound(path: Path) -> Bound:
    """Hit rate of the optimum by cache size, from the folder that `kvsim mrc -o` has written, or its mrc.csv.

    Raises:
        UserError: it has none.
    """
    file = path / "mrc.csv" if path.is_dir() else path
    try:
        frame = pd.read_csv(file)
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: cannot be read as what kvsim mrc writes: {error}") from None
    for column in ("size_bytes", "opt_hit_rate"):
        if column not in frame.columns:
            raise UserError(
                f"{file}: expected a column {column}, as `kvsim mrc -o FOLDER` writes it (without --no-opt)"
            )
    known = frame[["size_bytes", "opt_hit_rate"]].apply(pd.to_numeric, errors="coerce").dropna()
    if not len(known):
        raise UserError(f"{file}: expected sizes with the hit rate of the optimum, found none")
    return sorted((int(size), float(rate)) for size, rate in known.itertuples(index=False))


def write(report: Report, path: Path, *, title: str = "", progress: Progress | None = None) -> Path:
    """Write the page, and its plots into a folder beside it, which appears whole or not at all.

    Returns:
        The folder.

    Raises:
        UserError: nothing was simulated, or a place cannot be written.
    """
    folder = path.with_name(f"{path.stem}-plots")
    alone = len(report.points) == 1 and len(report.runs) == 1
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as partial, whole_folder(folder, PLOT_FILES, "the plots of a report") as target:
            if alone:
                drawn = [
                    Drawn(key, draw(report.runs[0]), text) for key, (draw, text) in plots_of(report.runs[0]).items()
                ]
                _save(drawn, target, progress)
                write_report(report.runs[0], partial, plots=target, limits=report.points[0].limits)
            else:
                name = title or f"kvsim report on {len(report.points)} configurations"
                _save(write_page(report, partial, name), target, progress)
    except OSError as error:
        raise UserError(f"{path}: cannot write the report: {error.strerror or error}") from error
    return folder


def write_page(report: Report, path: Path, title: str) -> Sequence[Drawn]:
    """The page about many points, and its plots, which are not written."""
    plan = report.plan
    return write_points(
        report.points,
        path,
        title,
        bound=report.bound,
        lead=report.lead,
        best=report.best,
        first=None if plan is None else plan.section(),
        doubts=report.doubts,
    )


def _save(plots: Sequence[Drawn], folder: Path, progress: Progress | None) -> None:
    for done, each in enumerate(plots, start=1):
        (folder / f"{each.key}.svg").write_text(as_svg(each.figure), encoding="utf-8", newline="\n")
        (folder / f"{each.key}.png").write_bytes(as_png(each.figure))
        if progress is not None:
            progress(done, len(plots))


def _limits(point: Point, slo: Slo) -> tuple[Limit, ...]:
    if point.run is not None:
        measured = slo.of(point.run.requests)
    else:
        measured = {limit.key: _from_summary(point, limit.key) for limit in slo.limits}
        measured[FINISHED] = _finished(point)
    return shown(slo.check(measured))


def shown(checks: Sequence[Check]) -> tuple[Limit, ...]:
    """Limits as a page has them."""
    return tuple(_shown(each) for each in checks if each.key != FINISHED or not each.is_met)


def _finished(point: Point) -> float | None:
    """Of the requests that some server of this model could serve, as `Slo.of` counts them."""
    counts = {} if point.summary is None else point.summary.get("requests", {})
    finished, reasons = counts.get("finished"), counts.get("reasons", {}).get("rejected", {})
    served = (counts.get("arrived") or 0) - sum(times for reason, times in reasons.items() if TOO_LONG in reason)
    return finished / served if served and finished is not None else None


def _from_summary(point: Point, key: str) -> float | None:
    """A point of a sweep keeps figures and no requests.

    Raises:
        UserError: this one is not among them.
    """
    name, _, what = key.partition("_")
    if name in _PATHS and what in {"mean", "p50", "p90", "p99"}:
        path, unit, unit_ns = _PATHS[name]
        metric: Metric = METRIC[f"{path}.{what}"]
        assert metric.unit == unit
        found = None if point.summary is None else metric.of(point.summary)
        return None if found is None else found * unit_ns
    raise UserError(
        f"--slo {key}: a sweep keeps no requests: expected mean, p50, p90 or p99 of ttft, tpot or e2e (or run folders)"
    )


def _shown(check: Check) -> Limit:
    is_share = check.key in (GOODPUT, FINISHED)
    measured = "nothing" if check.measured is None else ""
    if check.measured is not None:
        measured = percent(check.measured) if is_share else duration(check.measured / 1e6)
    limit = f"at least {percent(check.limit)}" if is_share else f"at most {show_limit(check.key, check.limit)}"
    return Limit(check.key, limit, measured, check.is_met)
