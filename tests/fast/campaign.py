"""Random worlds and larger cuts of real traces, played by both engines. Run with `make fuzz`.

Some worlds are played again as clusters, with faults of tiers or with API servers in front.
Prints what has happened in them, so that one sees what has been covered. Exit code 1 if the engines differ anywhere;
the seed and the first difference are named.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from pathlib import Path

import joblib
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import fast_cuts
from cluster_worlds import compare_cluster
from fast_compare import Verdict, compare, compare_seed
from fast_worlds import SHAPES
from store_worlds import compare_store

from kvsim.resolve import resolve

FRONTENDS = 10  # one of so many is played again with API servers in front, alone and as a cluster
CLUSTERS = 4  # one of so many worlds is played once more, by a cluster, and one by a cluster with a shared store

TIER_FAULTS = 4  # one of so many is played again with faults of CPU memory and of tiers

REPO = Path(__file__).resolve().parents[2]
TRACES = Path(os.environ.get("KVSIM_SHARED", REPO.parent / "shared")) / "traces"


def play_cut(cut: fast_cuts.Cut) -> Verdict:
    """One cut of a real trace."""
    config = cut.config(TRACES)
    difference, seen = compare(resolve(config, cut.trace(config)))
    return Verdict(-1, cut.name, difference, seen)


def summary(verdicts: list[Verdict]) -> Table:
    """What has happened in all of them."""
    seen: Counter[str] = Counter()
    worlds_with: Counter[str] = Counter()
    for verdict in verdicts:
        seen.update(verdict.seen)
        worlds_with.update(name for name, count in verdict.seen.items() if count)
    seen["steps jumped over"] = worlds_with["steps jumped over"] = 0
    seen["steps jumped over"] = seen["steps"] - seen["forward passes decided"]
    table = Table("", "in all", "worlds with it", title=f"{len(verdicts):,} worlds")
    for name in sorted(seen, key=lambda name: (name not in SHAPES, name.lower())):
        table.add_row(name, f"{seen[name]:,}", f"{worlds_with[name]:,}" if worlds_with[name] else "")
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def main() -> None:
    """Play the campaign on all cores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=5_000, metavar="N", help="how many (default: 5,000)")
    parser.add_argument("--first", type=int, default=2_000, metavar="SEED", help="seed of the first (default: 2,000)")
    parser.add_argument("--scale", type=int, default=1, metavar="N", help="times as many sessions (default: 1)")
    parser.add_argument("--cuts", action="store_true", help="play larger cuts of real traces, too")
    parser.add_argument("--jobs", type=int, default=-1, metavar="N", help="processes (default: one per core)")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.worlds)
    cuts = fast_cuts.LARGE if options.cuts else ()
    if cuts and not TRACES.is_dir():
        sys.exit(f"third-party data absent: {TRACES} (set KVSIM_SHARED to its parent folder)")
    console = Console(width=120)
    tasks = [joblib.delayed(play_cut)(cut) for cut in cuts]
    tasks += [joblib.delayed(compare_seed)(seed, scale=options.scale) for seed in seeds]
    tasks += [joblib.delayed(compare_cluster)(seed) for seed in seeds[: options.worlds // CLUSTERS]]
    tasks += [joblib.delayed(compare_store)(seed) for seed in seeds[: options.worlds // CLUSTERS]]
    tasks += [joblib.delayed(compare_seed)(seed, tier_faults=True) for seed in seeds[: options.worlds // TIER_FAULTS]]
    in_front = seeds[: options.worlds // FRONTENDS]
    tasks += [
        joblib.delayed(each)(seed, frontend=True) for each in (compare_seed, compare_cluster) for seed in in_front
    ]
    work = joblib.Parallel(n_jobs=options.jobs, return_as="generator", batch_size="auto")(tasks)
    quiet = Console(stderr=True, quiet=not sys.stderr.isatty())
    verdicts: list[Verdict] = []
    for verdict in track(work, "worlds", total=len(tasks), console=quiet):
        verdicts.append(verdict)
        if verdict.difference:
            name = f"seed {verdict.seed} ({verdict.shape})" if verdict.seed >= 0 else verdict.shape
            console.print(f"BAD {name}: {verdict.difference}", highlight=False, soft_wrap=True)
    console.print(summary(verdicts))
    bad = sum(bool(verdict.difference) for verdict in verdicts)
    console.print(f"{len(verdicts):,} worlds, {bad} differences")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
