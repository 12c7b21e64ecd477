"""The command ``kvsim conform``: our steps against those of the real vLLM."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from kvsim.console import WIDTH, output_console, print_json, progress
from kvsim.errors import UserError


class Extension(StrEnum):
    """What random worlds may hold beyond the basics."""

    abort = "abort"
    tiers = "tiers"
    fs = "fs"
    steps_in_flight = "async"
    drafts = "spec"
    groups = "groups"


def conform(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="SCENARIO RECORDING",
            help="Scenarios and recordings in turn, or a folder of each; with --live scenarios or folders only.",
        ),
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Record the scenarios now, with the vLLM at hand.")] = False,
    fuzz: Annotated[
        int | None, typer.Option("--fuzz", min=1, metavar="N", help="Record and compare N random worlds.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The first world's seed (--fuzz).")] = 0,
    extensions: Annotated[
        list[Extension] | None, typer.Option("--with", help="What worlds may also hold; repeatable (--fuzz).")
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for worlds that differ, made small (--fuzz).")
    ] = Path("runs/fuzz"),
    record: Annotated[
        Path | None, typer.Option("--record", help="Keep the recording: a file, or a folder for several (--live).")
    ] = None,
    vllm_source: Annotated[
        Path | None, typer.Option("--vllm-source", metavar="DIR", help="Unpacked vLLM wheel (default: the installed).")
    ] = None,
    python: Annotated[
        str | None, typer.Option("--python", help="Interpreter with torch, and vLLM unless --vllm-source names one.")
    ] = None,
    hash_seed: Annotated[
        int, typer.Option("--hash-seed", min=0, max=2**32 - 1, help="PYTHONHASHSEED of the recordings.")
    ] = 0,
    finish_order: Annotated[
        bool, typer.Option("--finish-order", help="Commit finished requests as they finish, not in vLLM's set order.")
    ] = False,
    jobs: Annotated[int | None, typer.Option("--jobs", "-j", min=1, help="Processes (default: one per core).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare our scheduler with the real vLLM's: every field of every step.

    Exit code 0: all equal. 1: something differs; the first step that does is shown. 2: bad input.
    """
    _check_options(paths or [], live=live, fuzz=fuzz, output=output, record=record, source=vllm_source, python=python)
    recorder = (python, vllm_source, hash_seed)
    if fuzz is not None:
        equal = _fuzz(range(seed, seed + fuzz), extensions or [], output, recorder, jobs, finish_order, as_json)
    else:
        equal = _compare(paths or [], record, recorder if live else None, hash_seed, jobs, finish_order, as_json)
    if not equal:
        raise typer.Exit(1)


def _check_options(
    paths: list[Path],
    *,
    live: bool,
    fuzz: int | None,
    output: Path,
    record: Path | None,
    source: Path | None,
    python: str | None,
) -> None:
    if fuzz is not None and (live or paths):
        raise UserError("conform: --fuzz makes its own scenarios, expected neither --live nor files beside it")
    if fuzz is None and not paths:
        raise UserError("conform: nothing to compare, expected SCENARIO RECORDING, --live SCENARIO or --fuzz N")
    if output.exists() and not output.is_dir():
        raise UserError(f"--output {output}: is a file, expected a folder")
    if record is not None and not live:
        raise UserError("conform: --record is given, expected --live with it")
    if (source is not None or python is not None) and not live and fuzz is None:
        raise UserError("conform: --vllm-source or --python is given, expected --live or --fuzz with it")


def _compare(
    paths: list[Path],
    record: Path | None,
    recorder: tuple[str | None, Path | None, int] | None,
    hash_seed: int,
    jobs: int | None,
    finish_order: bool,
    as_json: bool,
) -> bool:
    from kvsim.conform import show
    from kvsim.conform.check import Outcome
    from kvsim.conform.client import start_recorder
    from kvsim.conform.files import find_pairs, find_scenarios
    from kvsim.conform.jobs import Live, Pair, check_live, check_pair
    from kvsim.conform.pool import run_all

    unmatched: list[str] = []
    results: Generator[Outcome | UserError, None, None]
    if recorder is None:
        found = find_pairs(paths)
        unmatched = found.unmatched
        pairs = [Pair(scenario, recording, finish_order) for scenario, recording in found.pairs]
        total = len(pairs)
        results = run_all(check_pair, pairs, hash_seed=hash_seed, processes=_processes(jobs, total))
    else:
        scenarios = find_scenarios(paths)
        total = len(scenarios)
        kept = _recording_paths(scenarios, record)
        live = [Live(path, keep, finish_order) for path, keep in zip(scenarios, kept, strict=True)]
        results = run_all(
            check_live,
            live,
            hash_seed=hash_seed,
            processes=_processes(jobs, total),
            initializer=start_recorder,
            initargs=recorder,
        )
    console = output_console(WIDTH)
    outcomes, errors = [], []
    with closing(results):
        for result in _with_progress(results, total, "scenarios"):
            if isinstance(result, UserError):
                errors.append(result)
                if recorder is not None:
                    break  # most likely there is no vLLM, or every scenario fails alike
                continue
            outcomes.append(result)
            if not as_json and result.difference is None:
                console.print(Text(show.equal_line(result)), soft_wrap=True)
            elif not as_json:
                console.print(show.difference_report(result))
    if as_json:
        print_json({"pairs": [show.as_json(outcome) for outcome in outcomes], "unmatched": unmatched})
    for line in unmatched if not as_json else ():
        console.print(Text(line), soft_wrap=True)
    if errors:
        raise errors[0]
    return not unmatched and all(outcome.difference is None for outcome in outcomes)


def _fuzz(
    seeds: range,
    extensions: list[Extension],
    output: Path,
    recorder: tuple[str | None, Path | None, int],
    jobs: int | None,
    finish_order: bool,
    as_json: bool,
) -> bool:
    from kvsim.conform import show
    from kvsim.conform.client import start_recorder
    from kvsim.conform.fuzz import World, try_world
    from kvsim.conform.pool import run_all
    from kvsim.conform.worlds import Extensions

    drawn = Extensions(
        aborts=Extension.abort in extensions,
        tiers=Extension.tiers in extensions,
        file_tier=Extension.fs in extensions,
        async_scheduling=Extension.steps_in_flight in extensions,
        speculative=Extension.drafts in extensions,
        groups=Extension.groups in extensions,
    )
    worlds = [World(seed, drawn, finish_order) for seed in seeds]
    results = run_all(
        try_world,
        worlds,
        hash_seed=recorder[2],
        processes=_processes(jobs, len(worlds)),
        initializer=start_recorder,
        initargs=recorder,
    )
    console = output_console(WIDTH)
    steps, deadlocks, versions, findings = 0, 0, dict[str, None](), []
    with closing(results):
        for result in _with_progress(results, len(worlds), "worlds"):
            if result.outcome is not None:
                versions[result.outcome.vllm] = None
                steps += result.outcome.steps
                deadlocks += result.outcome.deadlock
            if result.outcome is not None and result.outcome.difference is None:
                continue
            findings.append(result)
            path = result.save(output)
            if as_json:
                continue
            if result.outcome is None:
                console.print(Text(f"world {result.seed}: vLLM broke off: {result.failure}"), soft_wrap=True)
            else:
                console.print(show.difference_report(result.outcome))
            console.print(Text(f"the small scenario is {path}"), soft_wrap=True)
    version = ", ".join(versions) or "unknown"
    if as_json:
        found = [show.finding_json(finding) for finding in findings]
        print_json({"worlds": len(worlds), "steps": steps, "vllm": version, "findings": found})
        return not findings
    span = f"seeds {seeds[0]} to {seeds[-1]}, {steps} steps, {deadlocks} deadlocks"
    result_text = f"{len(findings)} of {len(worlds)} worlds differ" if findings else f"{len(worlds)} worlds equal"
    console.print(Text(f"{result_text} (vLLM {version}, {span})"), soft_wrap=True)
    return not findings


def _recording_paths(scenarios: list[Path], record: Path | None) -> list[Path | None]:
    """Where the recording of each scenario is kept."""
    if record is None:
        return [None] * len(scenarios)
    if len(scenarios) == 1 and not record.is_dir():
        return [record]
    kept = {path.stem: path for path in scenarios}
    twice = next((path for path in scenarios if kept[path.stem] is not path), None)
    if twice is not None:
        raise UserError(f"{twice}: {kept[twice.stem]} has the same name, expected different ones with --record FOLDER")
    record.mkdir(parents=True, exist_ok=True)
    return [record / f"{path.stem}.jsonl.gz" for path in scenarios]


def _processes(wanted: int | None, num_tasks: int) -> int:
    if wanted is not None or num_tasks < 2:
        return wanted or 1
    import joblib  # takes as long to import as a scenario to compare

    return int(joblib.cpu_count())  # of this container, not of the machine


def _with_progress(results: Iterable[Any], total: int, unit: str) -> Iterator[Any]:
    with progress("comparing", unit) as report:
        for done, result in enumerate(results, start=1):
            yield result
            report(done, total)
