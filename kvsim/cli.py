"""The command line."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.table import Table
from rich.text import Text

from kvsim import __version__
from kvsim.cli_conform import conform
from kvsim.cli_mrc import EXAMPLE as MRC_EXAMPLE
from kvsim.cli_mrc import mrc
from kvsim.cli_plan import EPILOG as PLAN_EPILOG
from kvsim.cli_plan import plan
from kvsim.cli_report import EXAMPLE as REPORT_EXAMPLE
from kvsim.cli_report import report
from kvsim.cli_sweep import EPILOG as SWEEP_EPILOG
from kvsim.cli_sweep import sweep
from kvsim.cli_trace import trace_app
from kvsim.cli_vllm import Gpu, LineOptions, ModelFile, TraceOption, Version, from_vllm, to_vllm
from kvsim.cli_vllm import Text as VllmLine
from kvsim.console import output_console, print_json, progress
from kvsim.errors import ConfigError, UserError
from kvsim.registry import user_code

INTERRUPTED, UNREAD = 130, 141
"""Exit codes as shells have them: 128 and the signal's number, SIGINT (typer's choice too) or SIGPIPE."""
_GO_ON = (["sweep"], ["plan"])
"""Commands that keep each finished point, and do not run it again."""

app = typer.Typer(
    help="Predict what KV-cache offloading does to LLM serving.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(trace_app, name="trace")
app.command(epilog="Example: kvsim conform SCENARIO.json RECORDING.jsonl.gz")(conform)
app.command(epilog=MRC_EXAMPLE)(mrc)
app.command(epilog=REPORT_EXAMPLE)(report)
app.command(epilog=SWEEP_EPILOG)(sweep)
app.command(epilog=PLAN_EPILOG)(plan)
app.command("from-vllm", epilog="Example: kvsim from-vllm 'vllm serve Qwen/Qwen3-8B -tp 2 --kv-offloading-size 64'")(
    from_vllm
)
app.command("to-vllm", epilog="Example: kvsim to-vllm runs/demo/config.resolved.yaml")(to_vllm)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kvsim {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Predict what KV-cache offloading does to LLM serving."""


@app.command(epilog="Example: kvsim run demo.yaml --set connector.cpu_bytes_to_use=256GiB -o runs/smaller")
def run(
    config: Annotated[Path | None, typer.Argument(help="The run's YAML file; with --vllm, it may be left out.")] = None,
    vllm: VllmLine = None,
    trace: TraceOption = None,
    gpu: Gpu = None,
    vllm_version: Version = None,
    model_config: ModelFile = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the config; repeatable."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Run folder (default: output.folder, else runs/NAME)."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run folder if there is one.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Check all invariants after every step (slow).")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    export_schedule: Annotated[
        Path | None,
        typer.Option(
            "--export-schedule",
            metavar="FILE",
            help="Write every KV copy with its blocks to FILE, .jsonl or .jsonl.gz (see traces/SCHEDULE.md).",
        ),
    ] = None,
    schedule_from: Annotated[
        str | None, typer.Option(metavar="TIME", help="Export steps from this moment on, such as 10s.")
    ] = None,
    schedule_until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Export steps before this moment, such as 60s.")
    ] = None,
    schedule_request: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Export copies of this request, and of what it reads; repeatable."),
    ] = None,
    schedule_max_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Export steps until so much is copied, such as 20GB.")
    ] = None,
    timeline: Annotated[
        bool, typer.Option("--timeline", help="Write timeline.json, to be opened in ui.perfetto.dev.")
    ] = False,
    timeline_from: Annotated[
        str | None, typer.Option(metavar="TIME", help="Begin the timeline at this moment, such as 10s.")
    ] = None,
    timeline_until: Annotated[
        str | None, typer.Option(metavar="TIME", help="End the timeline at this moment, such as 60s.")
    ] = None,
) -> None:
    """Simulate a vLLM server, or a cluster, on a trace and write a run folder with tables, plots and a report."""
    from kvsim.overrides import Change, parse_override
    from kvsim.schedule_export import ScheduleExport

    export = ScheduleExport.from_options(
        export_schedule, schedule_from, schedule_until, schedule_request, schedule_max_bytes
    )
    wanted = {"debug": debug, "output.timeline": timeline or timeline_from or timeline_until}
    changes: list[str | Change] = [*(overrides or [])]
    changes += [f"{key}=true" for key, is_wanted in wanted.items() if is_wanted]
    window = {"from": timeline_from, "until": timeline_until}
    changes += [
        parse_override(f"output.timeline_{end}={time}", f"--timeline-{end} {time}")
        for end, time in window.items()
        if time is not None
    ]
    line = LineOptions(vllm, trace, gpu, vllm_version, model_config)
    settings = line.load(config, changes)
    from kvsim.report.tables import instances_table, summary_table, tenants_table
    from kvsim.results.records import ASSUMED
    from kvsim.runner import run_and_save

    target = output or settings.output_folder
    with progress("simulating", "requests") as report:
        try:
            saved = run_and_save(settings, target, overwrite=overwrite, progress=report, export=export)
        except ConfigError as error:
            raise UserError(f"{config or '--vllm'}: {error}") from None
    if as_json:
        files = {} if export is None else {"schedule": str(export.path)}
        files |= {"timeline": str(target / "timeline.json")} if settings.output.timeline else {}
        print_json({"folder": str(target), **files, **saved.summary})
        return
    console = output_console()
    assumed = 0
    for note in saved.summary["notes"]:
        if note.startswith(ASSUMED):
            assumed += 1
        else:
            console.print(f"- {note}", style="dim", markup=False, highlight=False)
    if assumed:
        console.print(f"- {assumed} numbers are assumed, not measured: the report lists them", style="dim")
    console.print(summary_table(saved.summary, title=saved.name))
    for table in (instances_table(saved.summary), tenants_table(saved.summary)):
        if table is not None:
            console.print(table)
    for warning in saved.summary["warnings"]:
        console.print(Text.assemble(("warning: ", "yellow"), warning))
    console.print(f"digest {saved.summary['digest']}", highlight=False, soft_wrap=True)
    console.print(f"report {target / 'report.html'}", highlight=False, soft_wrap=True)
    if settings.output.timeline:
        console.print(f"timeline {target / 'timeline.json'}", highlight=False, soft_wrap=True)
    if export is not None:
        console.print(f"schedule {export.path}", highlight=False, soft_wrap=True)


@app.command(epilog="Example: kvsim compare runs/none runs/lru runs/arc -o runs/comparison")
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Two or more run folders; the first is the baseline.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for the comparison's report and overlay plot."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """Put runs side by side: differences to the first one, and one overlay plot."""
    from kvsim.report.tables import comparison_table
    from kvsim.results.compare import compare_frame, mismatches
    from kvsim.results.runfolder import load_run
    from kvsim.runner import save_comparison

    if len(runs) < 2:
        raise UserError(f"compare: {len(runs)} run given, expected at least two")
    loaded = [load_run(path) for path in runs]
    if output is not None:
        save_comparison(loaded, output)
    if as_json:
        print_json(json.loads(compare_frame(loaded).to_json(orient="records")))
        return
    console = output_console()
    for line in mismatches(loaded):
        console.print(Text.assemble(("warning: ", "yellow"), line))
    console.print(comparison_table(loaded))
    if output is not None:
        console.print(f"report {output / 'report.html'}", highlight=False, soft_wrap=True)


class Kind(StrEnum):
    """What `kvsim list` can list."""

    connectors = "connectors"
    policies = "policies"
    tiers = "tiers"
    routers = "routers"
    step_times = "step-times"
    models = "models"
    gpus = "gpus"
    links = "links"
    storage = "storage"
    networks = "networks"
    frontends = "frontends"
    presets = "presets"
    releases = "releases"


@app.command("list", epilog="Example: kvsim list models")
def list_names(
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """Print the names that a config may use, one line each."""
    from kvsim.catalogue import catalogue

    rows = catalogue(kind.value)
    if as_json:
        print_json([{"name": name, "description": text} for name, text in rows])
        return
    table = Table(box=None, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for name, text in rows:
        table.add_row(name, text)
    output_console().print(table)


def main() -> None:
    """Entry point: whatever the user can mend is one line on standard error and exit code 2.

    Ctrl-C and SIGTERM end with exit code 130. Where the reader of our output has gone (``| head -1``), nothing is said,
    and the exit code is 141, as of a process that SIGPIPE ends.
    """
    signal.signal(signal.SIGTERM, _terminated)
    try:
        with _users_code():
            app()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # rich and typer each make an exit code of 1 of it
            _leave_unread()
        if end.code == INTERRUPTED:
            _say_interrupted()
        raise
    except UserError as error:
        _fail(str(error), 2)
    except BrokenPipeError:
        _leave_unread()
    except OSError as error:
        _fail(f"{error.filename or 'input/output'}: {error.strerror or error}", 2)
    except MemoryError:
        _fail("out of memory: fewer blocks (num_gpu_blocks_override, cpu_bytes_to_use) or sessions would fit", 2)


@contextmanager
def _users_code() -> Iterator[None]:
    """An error in a module that the user brought is shown as the user's own: its part of the traceback, exit code 1."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        own = user_code(error)
        if not own:
            raise
        print("in the code that module:Class names (most recent call last):", file=sys.stderr)
        print("".join(own), end="", file=sys.stderr)
        _fail(f"{type(error).__name__}: {error}", 1)


def _terminated(_signal: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt  # so that half-written folders are removed


def _say_interrupted() -> None:
    goes_on = " What was finished is kept: started again, it goes on." if sys.argv[1:2] in _GO_ON else ""
    print(f"Interrupted.{goes_on}", file=sys.stderr)


def _leave_unread() -> NoReturn:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else what is left is written at exit, and fails
    sys.exit(UNREAD)


def _fail(message: str, code: int) -> NoReturn:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
