"""One measurement in a process of its own, so that memory and imports are its own; prints a line of JSON.

Seconds are user CPU of the whole process, the interpreter's start included: wall time varies up to five times on a
shared machine. `bench.py` starts this once per case.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections import Counter
from dataclasses import replace
from typing import Any


def user_s() -> float:
    """User CPU seconds of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


def rss_mib() -> float:
    """Most memory this process has had so far; Linux counts KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def simulate(config_path: str, replicas: int) -> dict[str, Any]:
    """Simulate a config on so many replicas, each with every n-th session of the trace.

    Where sessions have one turn and fixed arrival times, this is what a round-robin router in front of them does.
    """
    # Imports are measured.
    from kvsim.build import Simulation  # noqa: PLC0415
    from kvsim.config import load_config  # noqa: PLC0415
    from kvsim.resolve import read_trace_of, resolve  # noqa: PLC0415

    imported = user_s()
    config = load_config(config_path)
    trace = read_trace_of(config)
    read = user_s()
    parts = [replace(trace, sessions=trace.sessions[at::replicas]) for at in range(replicas)]
    simulations = [Simulation(resolve(config, part)) for part in parts]
    records = [simulation.run() for simulation in simulations]
    ran = user_s()
    simulated_mib = rss_mib()
    totals = [record.totals for record in records]
    steps = sum(total.steps for total in totals)
    found = {
        "user_s": ran,
        "import_s": imported,
        "read_s": read - imported,
        "run_s": ran - read,
        "requests": sum(len(record.requests) for record in records),
        "statuses": dict(Counter(request.status for record in records for request in record.requests)),
        "prompt_tokens": sum(total.prompt_tokens for total in totals),
        "output_tokens": sum(total.output_tokens for total in totals),
        "hit_tokens": sum(total.local_hit_tokens + total.external_hit_tokens for total in totals),
        "preemptions": sum(total.preemptions for total in totals),
        "end_s": max(total.end_ns for total in totals) / 1e9,
        "steps": steps,
        # The reference engine decides about every step.
        "decisions": sum(getattr(simulation.instance.engine, "num_decisions", 0) for simulation in simulations)
        or steps,
        # SimPy numbers its events.
        "events": sum(next(simulation.clock._eid) for simulation in simulations),
        "is_fast": simulations[0].plan.fast,
        "simulated_mib": simulated_mib,
    }
    # What a run folder needs besides: pandas, pyarrow, and the tables.
    from kvsim.runner import requests_frame, series_frame  # noqa: PLC0415

    frames = [(requests_frame(record), series_frame(record)) for record in records]
    return found | {"rss_mib": rss_mib(), "rows": sum(len(frame) for pair in frames for frame in pair)}


def lengths(turn: int) -> tuple[int, int]:
    """Which of three prefixes a turn of the pool's benchmark has, and how many blocks: they grow, then start again."""
    return turn % 3, 6_000 + turn // 3 % 20 * 300


def reference_pool(turns: int = 60) -> tuple[int, int]:
    """Block references made on the pool by the block, each looked up, touched and freed; and blocks evicted."""
    from kvsim.cache.block_pool import BlockPool  # noqa: PLC0415 - imports are not the pool's

    pool, references = BlockPool(30_000), 0
    for turn in range(turns):
        prefix, length = lengths(turn)
        hashes = list(range(prefix * 100_000, prefix * 100_000 + length))
        hits = pool.longest_prefix(hashes, length)
        pool.touch(hits)
        table = hits + pool.get_new_blocks(length - len(hits))
        pool.cache_full_blocks(table, hashes, len(hits), length)
        pool.free_blocks(reversed(table))
        references += length
    return references, pool.evicted_blocks


def extent_pool(turns: int = 30_000) -> tuple[int, int]:
    """The same on the pool by the run."""
    from kvsim.extents.extent_pool import ExtentPool  # noqa: PLC0415 - as above
    from kvsim.extents.path import Path  # noqa: PLC0415 - as above
    from kvsim.extents.pool_pieces import Table  # noqa: PLC0415 - as above

    pool, references = ExtentPool(30_000), 0
    for turn in range(turns):
        prefix, length = lengths(turn)
        path, table = Path((prefix,), (length,)), Table()
        hit = pool.longest_prefix(path, length).num_blocks
        if hit:
            pool.touch(path, hit, table)
        pool.take(length - hit)
        table.gain(length - hit)
        pool.cache_full_blocks(table, path, length)
        pool.free_table(table)
        references += length
    return references, pool.evicted_blocks


def measure_pool(kind: str) -> dict[str, Any]:
    """Nanoseconds per block reference."""
    use = reference_pool if kind == "reference" else extent_pool
    use(3)  # imports
    before = user_s()
    references, _ = use()
    run_s = user_s() - before
    return {
        "user_s": user_s(),
        "run_s": run_s,
        "references": references,
        "ns_per_reference": 1e9 * run_s / references,
        "rss_mib": rss_mib(),
    }


def main() -> None:
    """Measure what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", nargs="?", help="a run's config")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--pool", choices=("reference", "extent"))
    options = parser.parse_args()
    started = time.perf_counter()
    found = measure_pool(options.pool) if options.pool else simulate(options.config, options.replicas)
    sys.stdout.write(json.dumps(found | {"wall_s": time.perf_counter() - started}) + "\n")


if __name__ == "__main__":
    main()
