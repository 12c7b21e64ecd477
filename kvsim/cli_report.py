"""`kvsim report`: one page about runs and sweeps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvsim.console import output_console, print_json, progress
from kvsim.errors import UserError

if TYPE_CHECKING:
    from kvsim.plan.reporting import Report
    from kvsim.report.points import Point

EXAMPLE = "Example: kvsim report runs/sizes --slo ttft_p90=2s -o report.html"


def report(
    inputs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN_OR_SWEEP...", help="Run folders and sweep folders; the first run is the baseline."),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The page; its plots go into a folder beside it.")
    ] = Path("report.html"),
    slo: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="What is asked for: ttft_p90=2s, tpot_p50=50ms; goodput=0.95 with request.ttft=2s; repeatable.",
        ),
    ] = None,
    mrc: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="What `kvsim mrc -o` wrote: hit rates against the optimum.")
    ] = None,
    title: Annotated[str, typer.Option(help="Title of the page.")] = "",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the page if there is one.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
) -> None:
    """Write one page about runs and sweeps: what was simulated, which choice is the best, and why."""
    if output.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"{output}: expected a file that ends in .html")
    if output.exists() and (output.is_dir() or not overwrite):
        raise UserError(f"{output}: is there already; expected a new name, or --overwrite to replace it")
    from kvsim.plan.reporting import read_report, slo_of, write
    from kvsim.report.words import describe, describe_points

    found = read_report(inputs, slo_of(slo or ()), mrc)
    if found.baseline is None:
        where = ", ".join(map(str, inputs))
        raise UserError(f"{where}: none of {len(found.points)} points was simulated to its end: nothing to report")
    with progress("drawing", "plots") as told:
        plots = write(found, output, title=title, progress=told)
    if as_json:
        print_json(_as_json(found, output, plots))
        return
    console = output_console()
    baseline, best = found.baseline, found.best
    if len(found.points) == 1 and found.runs:
        console.print(describe(found.runs[0].summary), markup=False, highlight=False)
    else:
        lead = found.lead or describe_points(found.points, baseline, best or baseline)
        console.print(lead, markup=False, highlight=False)
    for doubt in found.doubts:
        console.print(doubt, markup=False, highlight=False)
    for point in [best or baseline]:
        for limit in point.limits:
            met = "met" if limit.is_met else "missed"
            console.print(f"{limit.key}: {limit.measured}, {limit.limit}: {met}", markup=False, highlight=False)
    console.print(f"report {output}", highlight=False, soft_wrap=True)
    console.print(f"plots {plots}", highlight=False, soft_wrap=True)


def _as_json(found: Report, output: Path, plots: Path) -> dict[str, Any]:
    baseline, best = found.baseline, found.best
    return {
        "report": str(output),
        "plots": str(plots),
        "baseline": None if baseline is None else baseline.name,
        "best": None if best is None else best.name,
        "doubts": list(found.doubts),
        "points": [_row(each) for each in found.points],
    }


def _row(point: Point) -> dict[str, Any]:
    return {
        "name": point.name,
        "axes": dict(point.axes),
        "status": point.status,
        "reason": point.reason,
        "ttft_p90_ms": point.ttft_p90_ms,
        "output_tokens_per_s": point.output_tokens_per_s,
        "cpu_bytes": point.dram_bytes,
        "gpus": point.gpus,
        "rejected": point.rejected[0],
        "meets_slo": point.meets_slo,
        "slo": [
            {"key": each.key, "limit": each.limit, "measured": each.measured, "met": each.is_met}
            for each in point.limits
        ],
    }
