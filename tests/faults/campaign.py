"""Random fault scripts over small worlds, every invariant at every step. Run with `make faults`.

Each script draws a trace, limits that make everything scarce, and faults of several kinds. A script passes if nothing
leaks, nothing is read that was not written (see `kvsim.witness`), and every request has ended, for a reason if not
well. Only a stall without a deadline, or a request that waits for itself after a failed load (as in vLLM), may leave
requests behind, and then the run must say so.
Exit code 1 if a script does not pass.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import joblib
from rich.console import Console
from rich.progress import track

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from worlds import random_config, random_faults, random_trace

from kvsim.build import Simulation
from kvsim.config import RunConfig
from kvsim.resolve import resolve
from kvsim.results.records import RunRecord
from kvsim.trace.session import Trace

GIB = 2**30


@dataclass
class Verdict:
    """What one script has shown; ``problem`` is empty if it passes."""

    seed: int
    problem: str = ""
    requests: Counter[str] = field(default_factory=Counter)  # by status
    faults: Counter[str] = field(default_factory=Counter)  # by kind


def script(seed: int) -> tuple[Trace, RunConfig]:
    """The trace and the config of a script."""
    rng = random.Random(f"faults {seed}")
    trace, settings = random_trace(rng), random_config(rng)
    while trace.num_requests < 10:
        trace = random_trace(rng)
    while settings.connector.kind == "none" and rng.random() < 0.95:
        settings = random_config(rng)
    # Little room on the GPU, much beside it: many loads.
    engine = settings.engine.model_copy(update={"num_gpu_blocks_override": rng.choice([50, 70, 100, 130])})
    connector = settings.connector
    if connector.kind != "none" and rng.random() < 0.7:
        connector = connector.model_copy(update={"cpu_bytes_to_use": 2 * GIB})
    data = settings.model_dump(mode="json")
    data |= {"engine": engine.model_dump(mode="json"), "connector": connector.model_dump(mode="json")}
    if connector.kind == "offloading" and not data["connector"]["store_threshold"] and rng.random() < 0.5:
        data["connector"]["tiers"] = [{"kind": "fs"}, {"kind": "example"}, {"kind": "obj"}][: rng.randint(1, 3)]
        # A CPU tier so small that content comes back from the tiers, yet large enough for one prefix.
        data["connector"]["cpu_bytes_to_use"] = f"{rng.choice([120, 200, 400]) * 2}MiB"
    return trace, random_faults(rng, RunConfig.model_validate(data))


def run(seed: int) -> Verdict:
    """Play one script."""
    verdict = Verdict(seed)
    trace, settings = script(seed)
    simulation = Simulation(resolve(settings, trace))
    try:
        record = simulation.run()
    except Exception as error:  # noqa: BLE001 - whatever breaks is what the campaign looks for
        verdict.problem = f"{type(error).__name__}: {error}"
        return verdict
    verdict.requests.update(entry.status for entry in record.requests)
    verdict.faults.update(record.faults.happened)
    verdict.problem = _unaccounted(record, trace, hangs_allowed=_may_hang(settings))
    return verdict


def _may_hang(settings: RunConfig) -> bool:
    media = [settings.faults.cpu, *settings.faults.tiers]
    return any(not medium.stalls.deadline for medium in media)


def _unaccounted(record: RunRecord, trace: Trace, *, hangs_allowed: bool) -> str:
    reasons = [entry.reason for entry in record.requests if entry.status == "stuck"]
    # vLLM's own deadlock, with all who queue behind it: see the golden scenario z-load-fails-stuck.
    excused = any("whose load has failed" in reason for reason in reasons)
    for entry in record.requests:
        if (entry.status == "finished") != (not entry.reason):
            return f"{entry.request_id} is {entry.status} with the reason {entry.reason!r}"
        if entry.status == "stuck" and not excused and not (hangs_allowed and "stalled for ever" in entry.reason):
            return f"{entry.request_id} has not ended: {entry.reason}"
    if len(record.requests) != trace.num_requests and not reasons:
        return f"{len(record.requests)} of {trace.num_requests} requests were sent"
    return ""


def summary(verdicts: list[Verdict]) -> str:
    """All of them in one line."""
    requests: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for verdict in verdicts:
        requests.update(verdict.requests)
        faults.update(verdict.faults)
    ends = ", ".join(f"{requests[name]:,} {name}" for name in ("finished", "failed", "aborted", "rejected", "stuck"))
    kinds = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in sorted(faults.items()))
    bad = sum(bool(verdict.problem) for verdict in verdicts)
    return f"{len(verdicts)} fault scripts: {requests.total():,} requests ({ends}); {kinds}; leaks and errors: {bad}"


def main() -> None:
    """Play the campaign on all cores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scripts", type=int, default=200, metavar="N", help="how many (default: 200)")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="seed of the first one (default: 0)")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.scripts)
    console = Console(width=120)
    work = joblib.Parallel(n_jobs=-1, return_as="generator")(joblib.delayed(run)(seed) for seed in seeds)
    quiet = Console(stderr=True, quiet=not sys.stderr.isatty())
    verdicts = list(track(work, "fault scripts", total=len(seeds), console=quiet))
    for verdict in verdicts:
        if verdict.problem:
            console.print(f"BAD seed {verdict.seed}: {verdict.problem}", highlight=False, soft_wrap=True)
    console.print(summary(verdicts), highlight=False, soft_wrap=True)
    sys.exit(any(verdict.problem for verdict in verdicts))


if __name__ == "__main__":
    main()
