"""Runs hwreplay's commands one after another within a time budget, and goes on where one fails.

Only the standard library is imported before the wheels are unpacked. Each command is a process of its own, so that a
GPU error in one does not spoil the next.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCHEDULE = HERE / "agents.schedule.jsonl.gz"
NEEDED = ("numpy", "yaml", "pydantic", "typer", "rich", "jinja2", "matplotlib")
WANTED = ("torch", "triton")  # a GPU's
GPU_BACKENDS = ("memcpy_batch", "memcpy_async", "cuda", "triton", "torch")  # most important first
PREDICTED = ("memcpy_batch", "memcpy_async", "cuda", "triton", "host")  # of which a profile has a section
LARGEST = 15 * 2**20  # bytes of a file that is left outside of the archive


@dataclass(frozen=True)
class Step:
    """One command. ``needs``: files without which it is skipped. ``must``: the script fails if it does."""

    name: str
    command: Sequence[str]
    limit_s: int
    needs: Sequence[Path] = ()
    must: bool = False


def main() -> int:
    """Parse, then run or say what would be run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--wheels", type=Path, help="folder of wheels to unpack where a package is missing")
    parser.add_argument("--schedule", type=Path, default=SCHEDULE, help="what to replay")
    parser.add_argument("--backend", action="append", help="only these; repeatable")
    parser.add_argument("--seconds", type=int, default=540, help="all steps together")
    parser.add_argument("--probe-seconds", type=int, default=90)
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, check imports and commands")
    options = parser.parse_args()
    _unpack_missing(options.wheels)
    work = options.out / "work"
    steps = list(_steps(options.schedule, work, options.backend or list(GPU_BACKENDS), options.probe_seconds))
    if options.dry_run:
        return _dry_run(steps, options.schedule)
    work.mkdir(parents=True, exist_ok=True)
    return _run(steps, options.out, work, options.seconds)


def _steps(schedule: Path, work: Path, backends: Sequence[str], probe_seconds: int) -> Iterator[Step]:
    probe, profile = work / "probe.json", work / "gpu.profile.yaml"
    chosen = [f"--backend={each}" for each in backends]
    yield Step("backends", _hwreplay("backends"), 60)
    # Without --backend the probe takes what is there; one that is missing does not stop it.
    only = chosen if backends != list(GPU_BACKENDS) else []
    budget = [f"--seconds={probe_seconds}", f"--files={work}"]
    yield Step("probe", _hwreplay("probe", "-o", probe, "--quick", *budget, *only), probe_seconds + 60, must=True)
    for place, each in enumerate(backends):
        result, repeat = work / f"run-{each}.json", "3" if not place else "1"
        command = _hwreplay("run", schedule, "-o", result, "--backend", each, "--repeat", repeat)
        yield Step(f"run {each}", command, 130 if not place else 80, must=not place)
    yield Step("fit", _hwreplay("fit", probe, "-o", profile), 60, needs=[probe], must=True)
    for place, each in enumerate(backends):
        if each in PREDICTED:
            names = [f"run-{each}-{number}.json" for number in (1, 2, 3)] if not place else [f"run-{each}.json"]
            results = [work / name for name in names]
            command = _hwreplay(
                "compare", schedule, *results, "-o", work / f"compare-{each}", "--profile", str(profile)
            )
            yield Step(f"compare {each}", command, 60, needs=[profile, *results], must=not place)


def _hwreplay(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "hwreplay", *map(str, arguments)]


def _run(steps: Sequence[Step], out: Path, work: Path, seconds: int) -> int:
    end_s = time.monotonic() + seconds
    rows, failed = [], False
    log_path = out / "log.txt"
    with log_path.open("w", encoding="utf-8") as log:
        for step in steps:
            missing = [path.name for path in step.needs if not path.exists()]
            left_s = end_s - time.monotonic()
            if missing or left_s < 5:
                why = f"no {', '.join(missing)}" if missing else "no time left"
                status, took_s = f"skipped: {why}", 0.0
            else:
                status, took_s = _call(step, min(step.limit_s, left_s), log)
            failed |= step.must and status != "done"
            rows.append({"step": step.name, "status": status, "seconds": round(took_s, 1)})
            _say(log, f"== {step.name}: {status} ({took_s:.1f} s)")
    summary = {"steps": rows, "gpu": _gpu(), "files": _leave(out, work)}
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    return int(failed)


def _call(step: Step, limit_s: float, log: object) -> tuple[str, float]:
    """Run a command; its output is shown and kept."""
    _say(log, f"== {step.name}: {' '.join(map(str, step.command))}")
    start = time.monotonic()
    try:
        done = subprocess.run(
            step.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit_s, check=False
        )
        output, status = done.stdout, "done" if not done.returncode else f"failed with exit code {done.returncode}"
    except subprocess.TimeoutExpired as error:
        output = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else error.stdout or ""
        status = f"stopped after {limit_s:.0f} s"
    _say(log, output.rstrip())
    return status, time.monotonic() - start


def _say(log: object, text: str) -> None:
    print(text, flush=True)
    print(text, file=log, flush=True)  # type: ignore[call-overload]  # an open file


def _leave(out: Path, work: Path) -> list[str]:
    """One archive with everything; beside it what one wants to see first."""
    archive = out / "results.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(work, "results")
    first = next(iter(sorted(work.glob("compare-memcpy_batch")) or sorted(work.glob("compare-*"))), None)
    wanted = [work / "gpu.profile.yaml", work / "probe.json"]
    wanted += [first / "compare.json", *sorted(first.glob("*.png"))[:2]] if first is not None else []
    left = [archive.name]
    for path in wanted:
        if path.exists() and path.stat().st_size <= LARGEST:
            shutil.copy(path, out / path.name)
            left.append(path.name)
    shutil.rmtree(work)
    return left


def _gpu() -> str:
    query = "--query-gpu=name,driver_version,memory.total,pcie.link.gen.current,pcie.link.width.current,clocks.sm"
    try:
        found = subprocess.run(
            ["nvidia-smi", query, "--format=csv"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return "nvidia-smi is not there"
    return found.stdout.strip()


def _unpack_missing(wheels: Path | None) -> None:
    """Unpack all wheels into a folder that Python searches last, if a package is missing."""
    if wheels is None or not wheels.is_dir() or not [name for name in NEEDED if _importable(name) is not None]:
        return
    target = Path(tempfile.gettempdir()) / f"hwreplay-site-{os.getuid()}"
    target.mkdir(mode=0o700, exist_ok=True)
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(target)
    sys.path.append(str(target))
    os.environ["PYTHONPATH"] = f"{os.environ.get('PYTHONPATH', '')}:{target}".lstrip(":")
    importlib.invalidate_caches()


def _importable(name: str) -> str | None:
    """Why a package cannot be imported, None if it can."""
    try:
        importlib.import_module(name)
    except Exception as error:  # a broken package is as bad as none
        return f"{type(error).__name__}: {error}"
    return None


def _dry_run(steps: Sequence[Step], schedule: Path) -> int:
    """Every step in words, and whatever can be checked before there is a GPU."""
    failed = False
    print(f"{sys.executable}, Python {sys.version.split()[0]}; {_gpu()}")
    for name in (*NEEDED, *WANTED):
        why = _importable(name)
        failed |= why is not None and name in NEEDED
        print(f"import {name}: {'yes' if why is None else why}")
    for module in _modules():
        why = _importable(module)
        # The one module that is written for triton cannot be imported without it.
        failed |= why is not None and not ("triton" in module and _importable("triton") is not None)
        if why is not None:
            print(f"import {module}: {why}")
    print(f"schedule {schedule}: {_checked(schedule)}")
    for step in steps:
        print(f"step {step.name} (at most {step.limit_s} s): {' '.join(map(str, step.command))}")
    for command in ("backends", "probe", "run", "fit", "compare"):
        done = subprocess.run(_hwreplay(command, "--help"), capture_output=True, text=True, check=False)
        failed |= done.returncode != 0
        print(f"hwreplay {command} --help: exit code {done.returncode}")
    done = subprocess.run(_hwreplay("backends"), capture_output=True, text=True, check=False)
    print(done.stdout.rstrip() or done.stderr.rstrip())
    failed |= done.returncode != 0
    print("dry run: something is missing" if failed else "dry run: all that can be checked here is well")
    return int(failed)


def _modules() -> list[str]:
    root = HERE.parent.parent / "hwreplay"
    found = [path.relative_to(root.parent).with_suffix("") for path in sorted(root.rglob("*.py"))]
    return [".".join(path.parts) for path in found if path.name not in ("__init__", "__main__")]


def _checked(schedule: Path) -> str:
    from hwreplay.run import prepare

    found = prepare(schedule).schedule
    layout = found.header.layout
    size = layout.block_bytes * (found.header.gpu_blocks + found.header.host_blocks)
    return (
        f"{len(found.steps):,} steps, {found.num_jobs} jobs, {found.bytes / 10**9:.1f} GB,"
        f" {layout.kind}, {layout.pieces} x {layout.piece_bytes} bytes, pools of {size / 2**30:.1f} GiB"
    )


if __name__ == "__main__":
    sys.exit(main())
