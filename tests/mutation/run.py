"""Break one rule at a time and see whether a recording of the real vLLM notices. Run with `make mutants`.

Each mutant is a copy of the package with one text replaced; the recordings of both releases are replayed, small ones
first, until one differs (or our engine trips over itself). Exit code 1 if a mutant is not noticed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import joblib
from mutants import MUTANTS
from rich.console import Console
from rich.progress import track

REPO = Path(__file__).resolve().parents[2]
GOLDEN = REPO / "tests" / "golden"
PATIENCE_SECONDS = 1800


def replay_all() -> str:
    """In a process with the mutant on its path: the first recording that notices, or nothing."""
    from kvsim.conform.jobs import Pair, check_pair  # noqa: PLC0415 - the mutant's

    recordings = sorted(GOLDEN.glob("recordings/*/*.jsonl.gz"), key=lambda path: path.stat().st_size)
    for path in recordings:
        version, name = path.parent.name, path.name.removesuffix(".jsonl.gz")
        outcome = check_pair(Pair(GOLDEN / "scenarios" / f"{name}.json", path, finish_order=version == "0.23.0"))
        if isinstance(outcome, Exception):
            raise outcome
        if outcome.difference is not None:
            return f"{name} ({version})"
    return ""


def verdict(mutant: tuple[str, str, str, str]) -> tuple[bool, str]:
    """Make the mutant and replay: did a recording notice, and what is there to say."""
    _rule, module, text, becomes = mutant
    source = (REPO / "kvsim" / module).read_text()
    if source.count(text) != 1:
        return False, f"STALE, the text occurs {source.count(text)} times in {module}"
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(REPO / "kvsim", Path(folder) / "kvsim", ignore=shutil.ignore_patterns("__pycache__"))
        (Path(folder) / "kvsim" / module).write_text(source.replace(text, becomes))
        environment = {**os.environ, "PYTHONPATH": folder, "PYTHONHASHSEED": "0"}
        try:
            done = subprocess.run(  # noqa: S603 - our own interpreter
                [sys.executable, __file__, "--replay"], env=environment, capture_output=True, text=True, check=False,
                timeout=PATIENCE_SECONDS,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return False, f"no answer after {PATIENCE_SECONDS} s"
    if done.returncode:
        return False, f"the replay broke off: {(done.stderr.splitlines() or ['without a word'])[-1]}"
    return bool(done.stdout), f"noticed by {done.stdout}" if done.stdout else "NOBODY NOTICES"


def main() -> None:
    """Run all mutants, one per core."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replay", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--only", default="", help="rules that contain this text")
    options = parser.parse_args()
    if options.replay:
        sys.stdout.write(replay_all())
        return
    chosen = [mutant for mutant in MUTANTS if options.only in mutant[0]]
    if not chosen:
        sys.exit(f"--only {options.only}: no such rule")
    console = Console(width=120)
    sound, found = verdict(("nothing is broken", "engine.py", "import simpy\n", "import simpy\n"))
    if sound or found != "NOBODY NOTICES":
        sys.exit(f"without any mutant: {found}")
    bad = 0
    with ThreadPoolExecutor(joblib.cpu_count()) as pool:
        verdicts = pool.map(verdict, chosen)
        for mutant, (ok, text) in zip(track(chosen, console=Console(stderr=True)), verdicts, strict=True):
            bad += not ok
            console.print(f"{'ok ' if ok else 'BAD'} {mutant[0]}: {text}", highlight=False, soft_wrap=True)
    console.print(f"{len(chosen)} mutants, {bad} unnoticed or stale")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
