"""The command line of hwreplay; commands of results only (fit, compare) are in `hwreplay.cli_fit`, if it is there."""

from __future__ import annotations

import json
import os
import signal
import sys
from enum import StrEnum
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.table import Table
from rich.text import Text

from hwreplay.backends import all_backends, backend
from hwreplay.backends.base import Backend
from hwreplay.console import output_console, probe_table, run_table
from hwreplay.driver import CudaError
from hwreplay.nvrtc import CompileError
from hwreplay.records import to_json
from hwreplay.result import RunResult, write_probe, write_run
from hwreplay.text import moved
from kvsim import __version__
from kvsim.errors import UserError
from kvsim.units import parse_size

app = typer.Typer(
    help="Replay the KV copies of a simulated run as real ones; measure, verify, calibrate.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class WorkKind(StrEnum):
    """Work that stands for the forward passes."""

    gemm = "gemm"
    memory = "memory"


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hwreplay {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Replay the KV copies of a simulated run as real ones; measure, verify, calibrate."""


@app.command(epilog="Example: hwreplay backends")
def backends(as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False) -> None:
    """List the ways to copy, and why some cannot be had here."""
    found = [(each, each.available()) for each in all_backends()]
    if as_json:
        rows = [
            {"key": each.key, "machine": each.machine, "way": each.way, "description": each.description, "missing": why}
            for each, why in found
        ]
        typer.echo(json.dumps(rows, indent=1))
        return
    table = Table(box=None)
    for name in ("backend", "machine", "measures", "", "here"):
        table.add_column(name)
    for each, why in found:
        table.add_row(each.key, each.machine, each.way, each.description, "yes" if why is None else f"no: {why}")
    output_console().print(table)


@app.command(epilog="Example: hwreplay run s.jsonl --backend host -o result.json --repeat 5")
def run(
    schedule: Annotated[Path, typer.Argument(help="What kvsim run --export-schedule wrote.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Result; with --repeat, NAME-1.json and so on.")],
    key: Annotated[str, typer.Option("--backend", help="One of: hwreplay backends.")] = "host",
    repeat: Annotated[int, typer.Option(min=1, help="Replays, one result each.")] = 1,
    max_bytes: Annotated[
        str | None, typer.Option(help="Most memory of both pools together, such as 8GiB; blocks become smaller.")
    ] = None,
    compute: Annotated[WorkKind, typer.Option(help="Work that stands for the forward passes.")] = WorkKind.gemm,
    files: Annotated[Path | None, typer.Option(help="Folder for the file tier (default: a temporary one).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results' totals as JSON.")] = False,
) -> None:
    """Replay a schedule as real copies beside real compute work, and verify every block that was written."""
    from hwreplay.run import Options, prepare, replays

    chosen = _available(key)
    limit = None if max_bytes is None else _size("--max-bytes", max_bytes)
    prepared = prepare(schedule, limit)
    options = Options(repeat, limit, compute.value, files, output.parent)
    wrong: list[str] = []
    written: list[tuple[Path, RunResult]] = []
    for result in replays(prepared, chosen, options):
        target = output if repeat == 1 else output.with_name(f"{output.stem}-{result.repeat + 1}{output.suffix}")
        write_run(target, result)
        written.append((target, result))
        if not as_json:
            _show_run(target, result)
        if result.integrity.first_wrong is not None:
            wrong.append(_wrong_text(target, result))
    if as_json:
        typer.echo(json.dumps([{"path": str(path), **_totals(result)} for path, result in written], indent=1))
    if wrong:
        _fail(wrong[0], 1)


@app.command(epilog="Example: hwreplay probe -o probe.json --quick")
def probe(
    output: Annotated[Path, typer.Option("--output", "-o", help="Result.")],
    quick: Annotated[bool, typer.Option("--quick", help="One minute instead of six.")] = False,
    keys: Annotated[
        list[str] | None, typer.Option("--backend", help="Only these; repeatable. Default: all of this machine.")
    ] = None,
    seconds: Annotated[int | None, typer.Option(min=2, help="Another time budget.")] = None,
    files: Annotated[Path | None, typer.Option(help="Folder for the file tier (default: beside the result).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Measure copies by size, number, direction and way, alone, both ways at once, and beside computing."""
    from hwreplay.probe import ProbeOptions
    from hwreplay.probe import probe as measure
    from hwreplay.probe_plan import chosen_backends

    options = ProbeOptions(
        mode="quick" if quick else "full",
        seconds=seconds or (60 if quick else 360),
        files=files or output.parent,
    )
    result = measure(chosen_backends(keys), options)
    write_probe(output, result)
    if as_json:
        typer.echo(json.dumps(to_json(result), indent=1))
        return
    console = output_console()
    console.print(Text(f"link time on {result.device.label}, largest number of each size"), soft_wrap=True)
    console.print(probe_table(result))
    for note in result.notes:
        console.print(f"- {note}", style="dim", markup=False, highlight=False)
    console.print(f"probe {output}", highlight=False, soft_wrap=True, markup=False)


def _available(key: str) -> Backend:
    chosen = backend(key)
    why = chosen.available()
    if why is not None:
        raise UserError(f"--backend {key}: cannot be had here: {why}")
    return chosen


def _size(name: str, text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise UserError(f"{name}: {error}") from None


def _show_run(path: Path, result: RunResult) -> None:
    console = output_console()
    console.print(Text(f"{result.schedule.run}: {result.backend} on {result.device.label}"), soft_wrap=True)
    console.print(run_table(result))
    for note in result.notes:
        console.print(f"- {note}", style="dim", markup=False, highlight=False)
    verified = result.integrity
    console.print(
        f"makespan {result.makespan_ns / 10**9:.3f} s, {verified.verified_blocks:,} blocks"
        f" ({moved(verified.verified_bytes)}) and {verified.witnessed_words:,} words of all copies verified",
        highlight=False,
    )
    console.print(Text(f"result {path}"), soft_wrap=True)


def _totals(result: RunResult) -> dict[str, object]:
    whole = to_json(result)
    return {
        **{name: whole[name] for name in ("backend", "repeat", "makespan_ns", "integrity", "notes")},
        "device": result.device.label,
        "jobs": len(result.jobs),
        "bytes": sum(job.bytes for job in result.jobs),
    }


def _wrong_text(path: Path, result: RunResult) -> str:
    wrong = result.integrity.first_wrong
    assert wrong is not None
    who = "a forward pass" if wrong.job is None else f"job {wrong.job}"
    return (
        f"{path}: {wrong.side} {'' if wrong.side == 'file' else 'block '}{wrong.block}, written by {who}, is wrong"
        f" at byte {wrong.offset}: expected 0x{wrong.expected:02x} of content {wrong.content},"
        f" found 0x{wrong.found:02x}"
    )


def main() -> None:
    """Entry point: whatever the user can mend is one line on standard error and exit code 2."""
    signal.signal(signal.SIGTERM, _terminated)
    try:
        app()
    except (UserError, CudaError, CompileError) as error:
        _fail(str(error), 2)
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        _fail(f"{error.filename or 'input/output'}: {error.strerror or error}", 2)
    except MemoryError:
        _fail("out of memory: --max-bytes makes a schedule fit", 2)


def _terminated(_signal: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt  # so that memory and half-written files are given back; typer says "Aborted."


def _fail(message: str, code: int) -> NoReturn:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


if find_spec("hwreplay.cli_fit") is not None:
    import_module("hwreplay.cli_fit").register(app)


if __name__ == "__main__":
    main()
