"""The commands that turn results into a profile and into a comparison; neither touches a device."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from hwreplay.console import output_console
from kvsim.errors import UserError


def fit(
    results: Annotated[list[Path], typer.Argument(help="Files of hwreplay probe and hwreplay run, of one device.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Profile to write: NAME.profile.yaml.")],
    name: Annotated[str | None, typer.Option("--name", help="Name of the profile (default: the file's).")] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option(
            "--backend", help="Use only these backends' results; repeatable (default: what vLLM itself does)."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the errors of cells and jobs as JSON.")] = False,
) -> None:
    """Fit a link profile for kvsim: rates by size and count, submit cost, both directions at once, slow-down."""
    from hwreplay.fit import SUFFIX, fit_files, write_profile, written_beside
    from hwreplay.records import write_json
    from hwreplay.tables import check_cells, left_out_tables, table_of

    if not output.name.endswith((".yaml", ".yml")):
        raise UserError(f"--output {output}: expected a name that ends in {SUFFIX}, so that kvsim takes it for a path")
    found = fit_files(
        results, name or output.name.removesuffix(".yml").removesuffix(".yaml").removesuffix(".profile"), backend or ()
    )
    write_profile(output, found.profile)
    errors: dict[str, Any] = {
        "format": "hwreplay-fit",
        "version": 1,
        "profile": found.profile.name,
        "device": found.profile.device,
        "cells": {direction: [_cell(cell) for cell in cells] for direction, cells in found.left_out.items()},
        "checks": [asdict(check) for check in found.checks],
    }
    write_json(written_beside(output), errors)
    if as_json:
        typer.echo(json.dumps(errors, indent=1, allow_nan=False))
        return
    console = output_console()
    console.print(f"{found.profile.name}: {found.profile.device}", style="bold", markup=False, highlight=False)
    for note in found.profile.notes:
        console.print(f"- {note}", style="dim", markup=False, highlight=False)
    for direction, cells in found.left_out.items():
        for table in left_out_tables(direction, cells):
            console.print(table)
    if found.checks:
        console.print(table_of(check_cells(found.checks), "Jobs of replays against the profile"))
    console.print(f"profile {output}", highlight=False, soft_wrap=True)
    console.print(f"errors of cells {written_beside(output)}", highlight=False, soft_wrap=True)


def compare(
    schedule: Annotated[Path, typer.Argument(help="The schedule that was replayed (.jsonl or .jsonl.gz).")],
    results: Annotated[list[Path], typer.Argument(help="Files of hwreplay run: replays of it, each a repeat.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for compare.json, plots and the page.")],
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile", help="Predict with this link profile (name or path) instead of the schedule's times."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
) -> None:
    """Predicted against measured, for each job and step: errors, makespan, overlap, bandwidth, plots, a page."""
    from hwreplay.compare import compare_files
    from hwreplay.page import write_page
    from hwreplay.plots import save_plots
    from hwreplay.records import write_json
    from hwreplay.tables import error_cells, facts, rate_cells, table_of, time_cells
    from kvsim.profile import load_link

    compared = compare_files(schedule, results, load_link(profile) if profile is not None else None)
    svgs = save_plots(compared, output)
    write_json(output / "compare.json", compared.as_json())
    write_page(compared, output / "report.html", svgs)
    if as_json:
        typer.echo(json.dumps(compared.as_json(), indent=1, allow_nan=False))
        return
    console = output_console()
    for caution in compared.cautions:
        console.print(Text.assemble(("caution: ", "yellow"), caution))
    for key, text in facts(compared).items():
        console.print(Text.assemble((f"{key}: ", "bold"), text))
    on = f"on {compared.device.label}"
    console.print(table_of(error_cells(compared), f"Errors {on} (predicted over measured, minus 1)", ["Median %"]))
    console.print(table_of(time_cells(compared), f"Times {on}"))
    console.print(table_of(rate_cells(compared), f"Bandwidth {on}", ["Measured GB/s"]))
    console.print(f"page {output / 'report.html'}", highlight=False, soft_wrap=True)


def register(app: typer.Typer) -> None:
    """Add the commands to an app."""
    app.command(epilog="Example: hwreplay fit probe.json run.json -o gpu.profile.yaml")(fit)
    app.command(epilog="Example: hwreplay compare s.jsonl run-0.json run-1.json -o comparison")(compare)


def _cell(cell: Any) -> dict[str, Any]:
    """A cell of the grid and its errors, flat."""
    measured = cell.cell
    return {
        "descriptor_bytes": measured.descriptor_bytes,
        "count": measured.count,
        "ns": measured.ns,
        "p10_ns": measured.low_ns,
        "p90_ns": measured.high_ns,
        "samples": measured.samples,
        "fitted_error": cell.fitted,
        "left_out_error_by_count": cell.by_count,
        "left_out_error_by_size": cell.by_size,
        "between_counts": cell.inside,
    }
