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
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import joblib
from rich.console import Console
from rich.progress import track

REPO = Path(__file__).resolve().parents[2]
GOLDEN = REPO / "tests" / "golden"
PATIENCE_SECONDS = 1800
Mutant = tuple[str, str, str, str]  # rule, module under kvsim/, text, what it becomes


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


def verdict(mutant: Mutant, script: str) -> tuple[bool, str]:
    """Make the mutant and let the script replay: did something notice, and what is there to say."""
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
                [sys.executable, script, "--replay"], env=environment, capture_output=True, text=True, check=False,
                timeout=PATIENCE_SECONDS,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return False, f"no answer after {PATIENCE_SECONDS} s"
    if done.returncode:
        return False, f"the replay broke off: {(done.stderr.splitlines() or ['without a word'])[-1]}"
    return bool(done.stdout), f"noticed by {done.stdout}" if done.stdout else "NOBODY NOTICES"


def run_all(mutants: Sequence[Mutant], script: str, replay: Callable[[], str], about: str | None) -> None:
    """Run all mutants, one per core.

    Args:
        mutants: of the code.
        script: calls this; with ``--replay`` it finds the mutant on its path.
        replay: what to do then; returns who has noticed, or nothing.
        about: what the script says of itself.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replay", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--only", default="", help="rules that contain this text")
    options = parser.parse_args()
    if options.replay:
        sys.stdout.write(replay())
        return
    chosen = [mutant for mutant in mutants if options.only in mutant[0]]
    if not chosen:
        sys.exit(f"--only {options.only}: no such rule")
    console = Console(width=120)
    sound, found = verdict(("nothing is broken", "engine.py", "import simpy\n", "import simpy\n"), script)
    if sound or found != "NOBODY NOTICES":
        sys.exit(f"without any mutant: {found}")
    bad = 0
    with ThreadPoolExecutor(joblib.cpu_count()) as pool:
        verdicts = pool.map(partial(verdict, script=script), chosen)
        for mutant, (ok, text) in zip(track(chosen, console=Console(stderr=True)), verdicts, strict=True):
            bad += not ok
            console.print(f"{'ok ' if ok else 'BAD'} {mutant[0]}: {text}", highlight=False, soft_wrap=True)
    console.print(f"{len(chosen)} mutants, {bad} unnoticed or stale")
    sys.exit(bad > 0)


if __name__ == "__main__":
    from mutants import MUTANTS

    run_all(MUTANTS, __file__, replay_all, __doc__)
