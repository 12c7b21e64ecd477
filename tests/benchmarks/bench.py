"""How long simulations take, and how much memory. Run with `make bench`; `--json FILE` writes the figures too.

Every case is measured in a process of its own (see `measure.py`): user CPU seconds of it all, imports and reading
included, then their parts. "req/s" and "Mtok/s" are requests and simulated tokens, hits included, per second of
"run". "steps" were simulated, of these "decided" executed; "events" are SimPy's. "MiB" includes pandas and pyarrow.

Examples:
    python tests/benchmarks/bench.py --quick
    python tests/benchmarks/bench.py --only b c-nvme --repeat 3 --json bench.json
    python tests/benchmarks/bench.py --compare old.json new.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from cases import DEFAULT_GROUPS, GROUPS, QUICK, REPO, Case, all_cases, chosen
from figures import best, comparison_table, results_table, scaling, speedups
from rich.console import Console

from kvsim import __version__
from kvsim.trace.generate import write_trace

HERE = Path(__file__).resolve().parent
PACKAGES = ("numpy", "pandas", "pyarrow", "pydantic", "simpy")


class MeasureError(Exception):
    """A measurement broke off."""


class Bench:
    """Measures cases, one at a time.

    Args:
        folder: for configs, generated traces and run folders.
        patience_s: wall time after which a measurement is given up.
    """

    def __init__(self, folder: Path, patience_s: float) -> None:
        self._folder, self._patience_s = folder, patience_s
        self._traces: dict[str, Path] = {}

    def measure(self, case: Case) -> dict[str, Any]:
        """One measurement in a process of its own."""
        if case.config is None:
            return _run([str(HERE / "measure.py"), "--pool", case.pool], self._patience_s, json.loads)
        config = dict(case.config)
        if case.generated is not None:
            config["trace"] = config["trace"] | {"path": str(self._generated(case))}
        file = self._folder / f"{case.name}.yaml"
        file.write_text(yaml.safe_dump(config), encoding="utf-8")
        if not case.whole:
            command = [str(HERE / "measure.py"), str(file), "--replicas", str(case.replicas)]
            return _run(command, self._patience_s, json.loads)
        command = ["-m", "kvsim", "run", str(file), "-o", str(self._folder / "run"), "--overwrite"]
        return _run(command, self._patience_s, lambda _output: {})

    def _generated(self, case: Case) -> Path:
        assert case.generated is not None
        key = json.dumps(asdict(case.generated))
        if key not in self._traces:
            self._traces[key] = self._folder / f"{case.name}.jsonl.gz"
            write_trace(self._traces[key], case.generated)
        return self._traces[key]


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(REPO), os.environ.get("PYTHONPATH", "")])}


def _run(command: Sequence[str], patience_s: float, parse: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """What the system says about a process, and what it says itself, which counts more."""
    started = time.perf_counter()
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, *command], stdout=output, stderr=errors, env=_environment()
        )
        alarm = threading.Timer(patience_s, process.kill)
        alarm.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except KeyboardInterrupt:
            process.kill()
            raise
        finally:
            alarm.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        wall_s = time.perf_counter() - started
        if process.returncode == -signal.SIGKILL and wall_s >= patience_s:
            raise MeasureError(f"not done after {patience_s:.0f} s")
        if process.returncode:
            errors.seek(0)
            raise MeasureError((errors.read().splitlines() or [f"exit code {process.returncode}"])[-1])
        output.seek(0)
        seen = {"user_s": usage.ru_utime, "wall_s": wall_s, "rss_mib": usage.ru_maxrss / 1024}
        return seen | parse(output.read())


def machine() -> dict[str, Any]:
    """Where and with what the figures were measured."""
    try:
        model = next(
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        )
    except (OSError, StopIteration):
        model = platform.processor() or "unknown"
    git = ["git", "-C", str(REPO), "describe", "--always", "--dirty", "--abbrev=12"]
    described = subprocess.run(git, capture_output=True, text=True, check=False)  # noqa: S603 - as given
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": described.stdout.strip(),
        "machine": {"cpu": model, "cpus": os.cpu_count(), "system": platform.platform()},
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "interpreter": str(Path(sys.executable).resolve()),  # pyenv's takes 15 % longer than Debian's
        "versions": {"kvsim": __version__} | {name: version(name) for name in PACKAGES},
    }


def run(cases: Sequence[Case], bench: Bench, repeat: int, console: Console) -> dict[str, dict[str, Any]]:
    """Measure all of them, the best of some attempts each; a case without its traces is skipped.

    An interrupt ends it early, with what has been measured.
    """
    results: dict[str, dict[str, Any]] = {}
    for case in cases:
        missing = next((path for path in case.needs if not path.exists()), None)
        if missing is not None:
            console.print(f"{case.name} skipped: {missing} is not there", highlight=False, soft_wrap=True)
            continue
        try:
            with console.status(case.name):
                results[case.name] = best(bench.measure(case) for _ in range(repeat))
        except MeasureError as error:
            console.print(f"{case.name} failed: {error}", highlight=False, soft_wrap=True)
            continue
        except KeyboardInterrupt:
            console.print(f"interrupted at {case.name}")
            break
        statuses = results[case.name].get("statuses", {})
        if statuses.keys() - {"finished"}:
            text = ", ".join(f"{count:,} {status}" for status, count in statuses.items())
            console.print(f"{case.name}: requests: {text}", highlight=False, soft_wrap=True)
    return results


def compare(old: Path, new: Path, console: Console) -> None:
    """Print ratios per case of two files."""
    before, after = (json.loads(path.read_text(encoding="utf-8")) for path in (old, new))
    for name, figures in (("old", before), ("new", after)):
        cpu = figures["machine"]["cpu"]
        console.print(f"{name}: {figures['commit']}, {figures['date']}, Python {figures['python']}, {cpu}")
    console.print(comparison_table(before["cases"], after["cases"]))


def main() -> None:
    """Run the cases asked for and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--only", nargs="+", default=[], metavar="CASE", help="cases, or what their names begin with")
    parser.add_argument("--quick", action="store_true", help="those of under a minute in all")
    parser.add_argument("--repeat", type=int, default=1, help="attempts per case, of which the fastest counts")
    parser.add_argument("--patience", type=float, default=900, help="wall seconds after which a case is given up")
    parser.add_argument("--list", action="store_true", help="only say what there is")
    parser.add_argument("--traces", type=Path, default=REPO.parent / "shared" / "traces", help="recorded traces")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("OLD", "NEW"), help="ratios of two files, per case")
    options = parser.parse_args()
    console = Console(width=100)
    if options.compare:
        compare(*options.compare, console)
        return
    cases = chosen(all_cases(options.traces), options.only or (QUICK if options.quick else DEFAULT_GROUPS))
    if not cases:
        sys.exit(f"--only {' '.join(options.only)}: no such case, see --list")
    if options.list:
        for letter, text in GROUPS.items():
            names = [case.name for case in all_cases(options.traces) if case.name.startswith(letter)]
            console.print(f"{letter}  {text}\n   {' '.join(names)}", highlight=False)
        return
    with tempfile.TemporaryDirectory(prefix="kvsim-bench-") as folder:
        results = run(cases, Bench(Path(folder), options.patience), options.repeat, console)
    console.print(results_table(results))
    exponents, ratios = scaling(results), speedups(results)
    for what, power in exponents.items():
        console.print(f"time to simulate grows with {what} to the power of {power:.2f}", highlight=False)
    for name, found in ratios.items():
        same = "same results" if found["same"] else "OTHER RESULTS"
        text = (
            f"{name}: fast engine {found['run_s']:.0f} times faster, {found['user_s']:.0f} times with reading; {same}"
        )
        console.print(text, highlight=False)
    if options.json is not None:
        figures = machine() | {"cases": results, "exponents": exponents, "speedups": ratios}
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
