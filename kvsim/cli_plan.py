"""``kvsim plan``: the cheapest memory hierarchy that meets an SLO on a trace."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from kvsim.console import output_console, print_json, progress
from kvsim.errors import UserError

if TYPE_CHECKING:
    from kvsim.plan.plan_config import PlanTask
    from kvsim.plan.planner import Planned
    from kvsim.plan.recommend import Advice

EPILOG = (
    "Example: kvsim plan plan.yaml -o runs/plan, where plan.yaml says {base: run.yaml, slo: {ttft_p90: 2s},"
    " space: {replicas: [1, 2, 4], cpu: {from: 0GiB, to: 2TiB}}}. Or from what you run today: kvsim plan"
    " --vllm 'vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 4' --trace sessions.jsonl.gz --slo ttft_p90=2s"
)


class Goal(StrEnum):
    """What a plan is after."""

    cost = "cost_per_1m_output_tokens"
    least_dram = "least_dram"
    max_sessions = "max_sessions"


def plan(
    file: Annotated[Path | None, typer.Argument(metavar="PLAN.yaml", help="The plan's YAML file.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FOLDER", help="Plan folder (default: runs/NAME).")
    ] = None,
    vllm: Annotated[
        str | None,
        typer.Option(metavar="LINE", help="Start from this `vllm serve` line instead; @FILE and - (stdin) read it."),
    ] = None,
    trace: Annotated[
        list[Path] | None, typer.Option(metavar="PATH", help="With --vllm: the trace to play; repeatable.")
    ] = None,
    slo: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A limit, such as ttft_p90=2s; repeatable; wins over the file's."),
    ] = None,
    gpu: Annotated[str | None, typer.Option(metavar="NAME", help="With --vllm: the GPU (default: h100-sxm).")] = None,
    vllm_version: Annotated[
        str | None, typer.Option(metavar="VERSION", help="With --vllm: the release (default: 0.33.0).")
    ] = None,
    objective: Annotated[Goal | None, typer.Option(help="What is to be small (with max_sessions: large).")] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the plan, such as budget.time=10min."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Processes at a time (default: one per CPU).")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 1 if no point meets the SLO.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Find the cheapest GPUs, CPU memory, storage and policies that meet an SLO on your trace, and say why."""
    import joblib

    from kvsim.plan.plan_folder import answer, claim, save_plan
    from kvsim.plan.planner import carry_out
    from kvsim.plan.point_runs import PointRuns
    from kvsim.plan.recommend import advise
    from kvsim.plan.sweep import POINTS
    from kvsim.resolve import read_whole_trace_of

    wanted = [*(overrides or []), *([f"objective={objective.value}"] if objective else []), *_limits(slo or [])]
    task, notes = _task(file, wanted, vllm, trace or [], gpu, vllm_version)
    folder = output or Path("runs") / task.name
    claim(folder)
    workers = jobs or joblib.cpu_count()
    with progress("planning", "points") as report:
        planned = carry_out(
            task,
            read_whole_trace_of(task.base),
            PointRuns(task.slo, folder / POINTS, workers),
            width=workers,
            progress=report,
        )
    advice = advise(planned)
    line = ""
    save_plan(planned, advice, line, folder)
    if as_json:
        print_json({"folder": str(folder), "notes": notes, **answer(planned, advice, line)})
    else:
        _show(planned, advice, line, notes, folder)
    if strict and not advice.meets_slo:
        raise typer.Exit(1)


def _limits(slo: list[str]) -> list[str]:
    for each in slo:
        if "=" not in each:
            raise UserError(f"--slo {each}: expected a limit such as ttft_p90=2s")
    return [f"slo.{each}" for each in slo]


def _task(
    file: Path | None,
    overrides: list[str],
    vllm: str | None,
    trace: list[Path],
    gpu: str | None,
    vllm_version: str | None,
) -> tuple[PlanTask, list[str]]:
    from kvsim.plan.plan_config import load_plan, make_plan
    from kvsim.yamlfile import Document

    if vllm is None:
        if file is None:
            raise UserError("plan: expected a PLAN.yaml, or --vllm with --trace and --slo")
        for name, given in (("--trace", trace), ("--gpu", gpu), ("--vllm-version", vllm_version)):
            if given:
                raise UserError(f"{name}: expected only with --vllm; in a plan's file it is a key of the base")
        return load_plan(file, overrides), []
    if not trace and file is None:
        raise UserError("--trace is missing, expected the trace to play beside --vllm")
    base, notes = _base_of(vllm, trace, gpu, vllm_version)
    if file is not None:
        return load_plan(file, overrides, base), notes
    if not any(each.startswith("slo.") for each in overrides):
        raise UserError("--slo is missing, expected a limit such as --slo ttft_p90=2s")
    return make_plan(Document("--vllm", {"slo": {}}), Path.cwd(), "plan", overrides, base), notes


def _base_of(vllm: str, trace: list[Path], gpu: str | None, version: str | None) -> tuple[Any, list[str]]:
    """The config of a pasted command line, and what it left out."""
    from kvsim.config import make_config
    from kvsim.vllm_line import parse_command_line
    from kvsim.yamlfile import Document

    if vllm == "-":
        vllm = sys.stdin.read()
    elif vllm.startswith("@"):
        path = Path(vllm[1:])
        try:
            vllm = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--vllm: {path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    line = parse_command_line(vllm, version, gpu)
    sections = line.checked_sections() | {"trace": {"path": [str(path) for path in trace]}}
    return make_config(Document("--vllm", sections), Path.cwd(), (), "plan"), list(line.notes)


def _show(planned: Planned, advice: Advice, line: str, notes: list[str], folder: Path) -> None:
    from kvsim.plan.plan_text import neighbour_rows, pareto_rows
    from kvsim.plan.words import amount, limit_name
    from kvsim.report.plan_tables import plan_table

    console = output_console()
    for note in (*notes, *planned.bounds.notes):
        console.print(f"- {note}", style="dim", markup=False, highlight=False)
    limits = [
        f"{limit_name(limit.key)} {'>=' if limit.limit <= 1 else '<='} {amount(limit.key, limit.limit)}"
        for limit in planned.task.slo.limits
    ]
    if advice.best is not None:
        what = "Recommended, and what is next to it" if advice.meets_slo else "Closest, and what is next to it"
        console.print(plan_table(what, limits, neighbour_rows(planned, advice)))
        if len(advice.pareto) > 1:
            console.print(plan_table("Nothing is better in both", limits, pareto_rows(planned, advice)))
        for source in planned.task.prices.sources(planned.rated[advice.best].resources):
            console.print(f"- {source}", style="dim", markup=False, highlight=False)
    console.print(Text(advice.text, style="bold" if advice.meets_slo else "bold yellow"), highlight=False)
    for reason in advice.reasons:
        console.print(Text(reason), highlight=False)
    if line:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if advice.meets_slo:
        console.print(f"config {folder / 'recommended.yaml'}", highlight=False, soft_wrap=True)
    console.print(
        f"points {folder / 'results.csv'}, plot {folder / 'pareto.png'}, all of it {folder / 'plan.json'}",
        highlight=False,
        soft_wrap=True,
    )
