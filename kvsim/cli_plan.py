"""``kvsim plan``: the cheapest memory hierarchy that meets an SLO on a trace."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text as RichText

from kvsim.cli_vllm import Gpu, LineOptions, ModelFile, Text, TraceOption, Version
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
    vllm: Text = None,
    trace: TraceOption = None,
    gpu: Gpu = None,
    vllm_version: Version = None,
    model_config: ModelFile = None,
    slo: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A limit, such as ttft_p90=2s; repeatable; wins over the file's."),
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

    from kvsim.plan.plan_folder import answer, claim, save_plan, serve_line
    from kvsim.plan.planner import carry_out
    from kvsim.plan.point_runs import PointRuns
    from kvsim.plan.recommend import advise
    from kvsim.plan.sweep import POINTS
    from kvsim.resolve import read_whole_trace_of

    wanted = [*(overrides or []), *([f"objective={objective.value}"] if objective else []), *_limits(slo or [])]
    task = _task(file, wanted, LineOptions(vllm, trace, gpu, vllm_version, model_config))
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
    line = serve_line(planned, advice)
    save_plan(planned, advice, line, folder)
    if as_json:
        print_json({"folder": str(folder), **answer(planned, advice, line)})
    else:
        _show(planned, advice, line, folder)
    if strict and not advice.meets_slo:
        raise typer.Exit(1)


def _limits(slo: list[str]) -> list[str]:
    for each in slo:
        if "=" not in each:
            raise UserError(f"--slo {each}: expected a limit such as ttft_p90=2s")
    return [f"slo.{each}" for each in slo]


def _task(file: Path | None, overrides: list[str], line: LineOptions) -> PlanTask:
    """The plan of a file, of a vLLM line with limits, or of both: the line wins over the file's base."""
    from kvsim.plan.plan_config import base_path, load_plan, make_plan
    from kvsim.yamlfile import Document, read_yaml

    if file is None and line.line is None:
        raise UserError("plan: expected a PLAN.yaml, or --vllm 'vllm serve ...' with --trace PATH and --slo KEY=VALUE")
    if file is not None and line == LineOptions(None, None, None, None, None):
        return load_plan(file, overrides)
    if file is not None:
        base = base_path(read_yaml(file), file.parent)
        if base is None and line.trace is None:
            raise UserError(f"{file}: expected base: a run's file, or --trace PATH, beside --vllm")
        return load_plan(file, overrides, line.load(base, ()))
    if not any(each.startswith("slo.") for each in overrides):
        raise UserError("--slo is missing, expected a limit such as --slo ttft_p90=2s")
    return make_plan(Document("plan", {"slo": {}}), Path.cwd(), "plan", overrides, line.load(None, ()))


def _show(planned: Planned, advice: Advice, line: str, folder: Path) -> None:
    from kvsim.plan.plan_text import neighbour_rows, pareto_rows
    from kvsim.plan.words import amount, limit_name
    from kvsim.report.plan_tables import plan_table

    console = output_console()
    for note in (*planned.task.base.notes, *planned.bounds.notes):
        console.print(f"- {note}", style="dim", markup=False, highlight=False)
    limits = [
        f"{limit_name(limit.key)} {'>=' if limit.key == 'goodput' else '<='} {amount(limit.key, limit.limit)}"
        for limit in planned.task.slo.limits
    ]
    if advice.best is not None:
        what = "Recommended, and what is next to it" if advice.meets_slo else "Closest, and what is next to it"
        console.print(plan_table(what, limits, neighbour_rows(planned, advice), console.width))
        if len(advice.pareto) > 1:
            console.print(
                plan_table(
                    "What each level of service costs: nothing is better in both",
                    limits,
                    pareto_rows(planned, advice),
                    console.width,
                )
            )
        for source in planned.task.prices.sources(planned.rated[advice.best].resources):
            console.print(f"- {source}", style="dim", markup=False, highlight=False)
    console.print(RichText(advice.text, style="bold" if advice.meets_slo else "bold yellow"), highlight=False)
    for reason in advice.reasons:
        console.print(RichText(reason), highlight=False)
    if line:
        console.print(line, markup=False, highlight=False, soft_wrap=True, end="")
    if advice.meets_slo:
        console.print(f"config {folder / 'recommended.yaml'}", highlight=False, soft_wrap=True)
    page = f"report {folder / 'report.html'}" if (folder / "report.html").exists() else f"plan {folder}"
    console.print(
        f"{page} (points results.csv, plot pareto.png, all of it plan.json)",
        highlight=False,
        soft_wrap=True,
    )
