"""``kvsim sweep``: many runs side by side, from one file into one table."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from kvsim.console import output_console, print_json, progress

if TYPE_CHECKING:
    from kvsim.plan.sweep import SweepResult

EPILOG = (
    "Example: kvsim sweep sizes.yaml -o runs/sizes, where sizes.yaml says"
    " {base: run.yaml, grid: {connector.cpu_bytes_to_use: [64GiB, 128GiB], connector.eviction_policy: [lru, arc]}}."
    " A sweep that was interrupted goes on where it was when it is started again."
    " Exit code 1: no point gave a result to rely on."
)


class BackendName(StrEnum):
    """Where points are run."""

    loky = "loky"
    dask = "dask"
    ray = "ray"


def sweep(
    file: Annotated[Path, typer.Argument(metavar="SWEEP.yaml", help="The sweep's YAML file.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FOLDER", help="Sweep folder (default: runs/NAME).")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Processes at a time (default: one per CPU).")
    ] = None,
    backend: Annotated[
        BackendName, typer.Option(help="loky = processes of this machine; dask and ray = those of a cluster.")
    ] = BackendName.loky,
    address: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Of the cluster's scheduler, such as tcp://host:8786.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key of all points; axes win; repeatable."),
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run points again that gave no result to rely on.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """Run a grid, a list or a random choice of configs side by side, each of them once, and put them into one table."""
    from kvsim.plan.sweep import run_sweep
    from kvsim.plan.sweep_file import read_sweep

    wanted = read_sweep(file)
    folder = output or Path("runs") / wanted.name
    with progress("sweeping", "points") as report:
        done = run_sweep(
            wanted,
            folder,
            overrides=overrides or (),
            jobs=jobs,
            backend=backend.value,
            address=address,
            retry_failed=retry_failed,
            progress=report,
        )
    if as_json:
        rows = json.loads(done.table.to_json(orient="records", double_precision=15))
        print_json({"folder": str(folder), "axes": list(done.axes), "failed": done.failed, "rows": rows})
    else:
        _show(done)
    if done.failed == len(done.outcomes):
        raise typer.Exit(1)


def _show(done: SweepResult) -> None:
    from kvsim.report.points_table import points_table

    console = output_console()
    console.print(points_table(done.table, done.axes, f"{done.name}: {len(done.table):,} points", console.width))
    if done.reused:
        console.print(f"- {done.reused:,} points were there already and were not run again", style="dim")
    if done.failed:
        reasons = [outcome.reason for outcome in done.outcomes if not outcome.ok]
        most = max(dict.fromkeys(reasons), key=reasons.count)
        text = f"{done.failed:,} of {len(done.outcomes):,} points have no result to rely on; most often: {most}"
        console.print(Text.assemble(("warning: ", "yellow"), text))
    rejected = [outcome.summary["requests"]["rejected"] for outcome in done.outcomes if outcome.summary is not None]
    if len(set(rejected)) > 1:
        text = (
            f"points reject different numbers of requests ({min(rejected):,} to {max(rejected):,}): figures are of"
            " those that finished, so points that reject more look better than they are"
        )
        console.print(Text.assemble(("warning: ", "yellow"), text))
    console.print(f"results {done.folder / 'results.csv'} (and .parquet)", highlight=False, soft_wrap=True)
