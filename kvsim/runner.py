"""From a config to a run folder: simulate, summarise, draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TextIO

import pandas as pd

from kvsim.build import Simulation
from kvsim.cluster_plan import ClusterPlan, MemberPlan, hardware_of, resolve_run
from kvsim.cohort_members import InexactError
from kvsim.config import ClusterConfig, RunConfig, dump_config
from kvsim.errors import UserError
from kvsim.garbage import rarely_collected
from kvsim.resolve import Plan, read_whole_trace_of, with_max_sessions
from kvsim.results.instances import InstanceTables
from kvsim.results.records import InstanceRecord, RequestRecord, RunRecord, Sample, as_row
from kvsim.results.run import Run, assemble
from kvsim.results.runfolder import OWN_NAMES, RunFolder
from kvsim.results.schedule import write_schedule
from kvsim.results.summary import FAULT, REQUEST_COLUMNS, SERIES_COLUMNS
from kvsim.results.tiers import TIER_COLUMNS
from kvsim.results.timeline import Timeline, write_timeline
from kvsim.schedule_export import ScheduleExport
from kvsim.schedule_plan import check_exportable, note_of, schedule_of
from kvsim.trace.session import Trace

Progress = Callable[[int, int], None]
COMPARISON_FILES = {"overlay.png", "report.html"}


def simulate(
    config: RunConfig,
    progress: Progress | None = None,
    kv_events: TextIO | None = None,
    *,
    exports_schedule: bool = False,
    trace: Trace | None = None,
) -> tuple[Plan | ClusterPlan, RunRecord]:
    """Run a config in memory; KV events, if wanted, go to a file line by line.

    ``exports_schedule``: the record is to have all copies. ``trace``: as `read_whole_trace_of` gives it, where it has
    been read before; it is not changed.

    Raises:
        UserError: the trace cannot be read, or the config does not fit model, GPU or trace.
    """
    with rarely_collected():
        whole = read_whole_trace_of(config) if trace is None else trace
        played = with_max_sessions(whole, config.trace.max_sessions)
        plan = resolve_run(config, played, exports_schedule=exports_schedule)
        if exports_schedule and isinstance(plan, Plan):
            check_exportable(plan)
        try:
            return plan, Simulation(plan, progress, kv_events).run()
        except InexactError as error:
            if config.engine.kind == "fast":
                raise UserError(f"engine.kind: fast: expected reference (or auto): {error}") from None
            plan = plan.with_reference_engine(str(error))
        return plan, Simulation(plan, progress, kv_events).run()


def run_and_save(
    config: RunConfig,
    folder: Path,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    export: ScheduleExport | None = None,
) -> Run:
    """Run a config and write its run folder, which appears whole or not at all.

    ``export``: the schedule of its copies is wanted too.
    """
    if export is not None:
        export.check(folder, OWN_NAMES, overwrite=overwrite)
    with RunFolder.create(folder, overwrite=overwrite) as target:
        with target.kv_events() if config.output.kv_events else nullcontext() as kv_events:
            plan, record = simulate(config, progress, kv_events, exports_schedule=export is not None)
        run = run_of(plan, record)
        schedule = None
        if export is not None and record.schedule is not None and isinstance(plan, Plan):
            schedule = schedule_of(plan, record.schedule, run.summary["digest"], export)
            run.summary["notes"].append(note_of(schedule))
        if record.timeline is not None:
            shown = write_timeline(target.timeline, record.timeline)
            run.summary["notes"] += _notes_of_timeline(record.timeline, shown, fast=_is_fast(plan))
        run = write_run(run, target, plots=config.output.plots)
        if export is not None and schedule is not None:
            inside = export.path.absolute().parent == folder.absolute()
            write_schedule(target.path / export.path.name if inside else export.path, schedule)
    return run


def run_of(plan: Plan | ClusterPlan, record: RunRecord) -> Run:
    """What a run has left behind, as tables with their summary."""
    config = plan.config
    return assemble(
        requests=requests_frame(record),
        series=series_frame(record),
        totals=totals_row(record),
        tiers=[as_row(tier) for tier in record.tiers],
        tier_series=tiers_frame(record),
        config_text=dump_config(config),
        name=config.name or "unnamed",
        notes=record.notes,
        cautions=record.cautions,
        info=_info(plan),
        router=_routers(config.cluster),
        instances=instance_tables(record),
        quotas=[as_row(quota) for quota in record.quotas],
    )


def write_run(run: Run, target: RunFolder, *, plots: bool) -> Run:
    """Fill a run folder: tables, summary and report, and plots (in the report, too) if wanted."""
    from kvsim.report.html import write_report  # noqa: PLC0415 - plots take longer to import than a point of a sweep
    from kvsim.report.plots import save_plots  # noqa: PLC0415 - as above

    run = target.write(run)
    if plots:
        save_plots(run, target.plots)
    write_report(run, target.report, plots=target.plots if plots else None, draws=plots)
    return run


def save_comparison(runs: Sequence[Run], folder: Path) -> None:
    """Write report and overlay plot of a comparison; replaces those of an earlier one, nothing else.

    Raises:
        UserError: the folder is a run folder or a file, or cannot be written.
    """
    from kvsim.report.html import write_comparison  # noqa: PLC0415 - as in `write_run`
    from kvsim.report.plots import overlay  # noqa: PLC0415 - as above
    from kvsim.report.style import as_png  # noqa: PLC0415 - as above

    if folder.exists() and (not folder.is_dir() or {path.name for path in folder.iterdir()} - COMPARISON_FILES):
        raise UserError(f"{folder}: expected a new folder, or one that holds a comparison only")
    plot = as_png(overlay(runs))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "overlay.png").write_bytes(plot)
        write_comparison(runs, folder / "report.html")
    except OSError as error:
        raise UserError(f"{folder}: cannot write the comparison: {error.strerror or error}") from error


def totals_row(record: RunRecord) -> dict[str, int]:
    """All totals, those of faults under a name of their own."""
    return as_row(record.totals) | {f"{FAULT}{name}": count for name, count in record.faults.happened.items()}


def requests_frame(record: RunRecord) -> pd.DataFrame:
    """One row per request, in order of arrival."""
    return _frame(record.requests, _columns(RequestRecord, REQUEST_COLUMNS))


def series_frame(record: RunRecord | InstanceRecord) -> pd.DataFrame:
    """One row per sample."""
    return _frame(record.series.samples, [name for name in _columns(Sample, SERIES_COLUMNS) if name != "tiers"])


def tiers_frame(record: RunRecord | InstanceRecord) -> pd.DataFrame:
    """One row per sample and secondary tier."""
    return _frame([state for sample in record.series.samples for state in sample.tiers], list(TIER_COLUMNS))


def instance_tables(record: RunRecord) -> list[InstanceTables]:
    """The tables of each instance of a cluster."""
    return [_tables_of(instance) for instance in record.instances]


def _tables_of(instance: InstanceRecord) -> InstanceTables:
    return InstanceTables(
        instance.name,
        instance.group,
        instance.hardware,
        instance.state,
        as_row(instance.totals),
        series_frame(instance),
        [as_row(tier) for tier in instance.tiers],
        tiers_frame(instance),
        instance.role,
        None if instance.network is None else as_row(instance.network),
        None if instance.parts is None else _frame(instance.parts, _columns(RequestRecord, REQUEST_COLUMNS)),
    )


def _frame(records: Sequence[object], columns: Sequence[str]) -> pd.DataFrame:
    """Records as a table, a column at a time: all rows as objects would be the largest thing in memory."""
    if not records:
        return pd.DataFrame(columns=list(columns))
    return pd.DataFrame({name: pd.Series([getattr(each, name) for each in records]) for name in columns}, copy=False)


def _columns(kind: type, wanted: Mapping[str, str]) -> list[str]:
    return [*wanted, *(name for name in kind.__slots__ if name not in wanted)]  # type: ignore[attr-defined]


def _notes_of_timeline(timeline: Timeline, num_events: int, *, fast: bool) -> list[str]:
    notes = [f"timeline.json: {num_events:,} events, for ui.perfetto.dev"]
    if fast:
        notes[0] += "; a stretch of quiet steps that the fast engine jumped over is one slice"
    if timeline.dropped:
        notes.append(
            f"timeline.json is a sample, because of output.timeline_max_events {timeline.max_events:,}:"
            f" {'; '.join(timeline.dropped)}"
        )
    return notes


def _is_fast(plan: Plan | ClusterPlan) -> bool:
    return any(each.plan.fast for each in plan.members) if isinstance(plan, ClusterPlan) else plan.fast


def _info(plan: Plan | ClusterPlan) -> dict[str, str]:
    config = plan.config
    first = plan.members[0].plan if isinstance(plan, ClusterPlan) else plan
    cluster = _info_of_cluster(plan) if isinstance(plan, ClusterPlan) else {}
    return {
        "trace": f"{plan.trace.name} ({plan.trace.kind}, {len(plan.trace.sessions)} sessions)",
        "model": first.model.name,
        **(cluster or {"hardware": f"{hardware_of(first)}, link {first.link.name}"}),
        "vLLM": config.engine.vllm_version,
        "connector": config.connector.kind,
    }


def _info_of_cluster(plan: ClusterPlan) -> dict[str, str]:
    groups: dict[str, list[MemberPlan]] = {}
    for member in plan.members:
        groups.setdefault(member.group, []).append(member)
    assert plan.config.cluster is not None
    hardware = [
        f"{name}: {len(same)} x ({same[0].hardware}, link {same[0].plan.link.name})" for name, same in groups.items()
    ]
    return {"cluster": "; ".join(hardware), "router": _routers(plan.config.cluster)}


def _routers(cluster: ClusterConfig | None) -> str:
    """Of both pools, if there are two."""
    if cluster is None:
        return ""
    first, second = cluster.router.kind, (cluster.decode_router or cluster.router).kind
    return first if first == second else f"{first}, {second}"
