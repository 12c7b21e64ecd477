"""Break one rule of the fast engine at a time and see whether a random world notices. Run with `make fast-mutants`.

Each mutant is a copy of the package with one text replaced; it plays the worlds of `make test`, until it differs from
the reference, trips over itself or does not come to an end. Exit code 1 if a mutant is not noticed.
"""

from __future__ import annotations

import signal
import sys
from functools import partial
from pathlib import Path
from types import FrameType

TESTS = Path(__file__).resolve().parents[1]
sys.path += [str(TESTS), str(TESTS / "mutation")]

from mutants import MUTANTS  # noqa: E402 - found by the line above
from run import run_all  # noqa: E402

# The first two: somebody gives up what was reserved; somebody is stuck who has been in the cohort.
WORLDS, CLUSTERS = (200_985, 40_027_221, *range(2_000)), (40_040_011, *range(1_100))
TIER_FAULTS = (11_530, *range(1_000))  # the first one: a copy that waited for a stalled one begins inside a step
# The first three: somebody goes away, or dies, while decisions are held up.
STORES = (1_088, 200_020, 40_052_264, *range(400))
PATIENCE_SECONDS = 20  # with one world, which takes milliseconds


def _out_of_patience(_signal: int, _frame: FrameType | None) -> None:
    raise TimeoutError


def first_to_notice() -> str:
    """In a process with the mutant on its path: the first world that differs, or nothing."""
    from cluster_worlds import compare_cluster  # noqa: PLC0415 - over the mutant
    from fast_compare import compare_seed  # noqa: PLC0415 - over the mutant
    from store_worlds import compare_store  # noqa: PLC0415 - over the mutant

    signal.signal(signal.SIGPROF, _out_of_patience)  # time of this process, however busy the machine is
    for kind, compare, worlds in (
        ("store", compare_store, STORES),
        ("world", compare_seed, WORLDS),
        ("world with faults of tiers", partial(compare_seed, tier_faults=True), TIER_FAULTS),
        ("cluster", compare_cluster, CLUSTERS),
    ):
        for seed in worlds:
            signal.setitimer(signal.ITIMER_PROF, PATIENCE_SECONDS)
            try:
                difference = compare(seed).difference
            except TimeoutError:
                difference = f"no end after {PATIENCE_SECONDS} s"
            signal.setitimer(signal.ITIMER_PROF, 0)
            if difference:
                return f"{kind} {seed}: {difference}"
    return ""


if __name__ == "__main__":
    run_all(MUTANTS, __file__, first_to_notice, __doc__)
