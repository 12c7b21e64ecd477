"""How long the reference engine takes. Run with `make bench`; `--json FILE` writes the figures too.

User CPU seconds of this process, reading not included: wall time varies up to five times on a shared machine.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kvsim.build import Simulation
from kvsim.cache.block_pool import BlockPool
from kvsim.config import load_config
from kvsim.resolve import read_trace_of, resolve

REPO = Path(__file__).resolve().parents[2]
DEMO = REPO / "experiments" / "demo"
MOONCAKE = REPO.parent / "shared" / "traces" / "mooncake" / "conversation_trace.jsonl.gz"


def pool_micro() -> dict[str, Any]:
    """One block reference: looked up, touched, freed; a third of the blocks new, evicting older ones."""
    pool = BlockPool(30_000)
    turns, length, references = 60, 6_000, 0
    started = time.process_time()
    for turn in range(turns):
        hashes = list(range(turn % 3 * 100_000, turn % 3 * 100_000 + length + turn // 3 * 300))
        hits = pool.longest_prefix(hashes, len(hashes))
        pool.touch(hits)
        table = hits + pool.get_new_blocks(len(hashes) - len(hits))
        pool.cache_full_blocks(table, hashes, len(hits), len(hashes))
        pool.free_blocks(reversed(table))
        references += len(hashes)
    return {"cpu_s": time.process_time() - started, "references": references}


def replay(*overrides: str, config: str = "cpu-lru") -> dict[str, Any]:
    """One run of a demo config, in memory."""
    settings = load_config(DEMO / f"{config}.yaml", overrides)
    simulation = Simulation(resolve(settings, read_trace_of(settings)))
    started = time.process_time()
    totals = simulation.run().totals
    return {
        "cpu_s": time.process_time() - started,
        "requests": len(simulation.record.requests),
        "steps": totals.steps,
        "prompt_tokens": totals.prompt_tokens,
        "simulated_s": totals.end_ns / 1e9,
    }


def main() -> None:
    """Run all cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    cases: dict[str, dict[str, Any]] = {"pool: block references": pool_micro()}
    for name in ("no-offload", "cpu-lru", "cpu-arc"):
        cases[f"demo, {name}"] = replay(config=name)
    if MOONCAKE.is_file():
        trace = (f"trace.path={MOONCAKE}", "trace.max_concurrent_sessions=null")
        cases["Mooncake, no offload"] = replay(*trace, config="no-offload")
        cases["Mooncake, CPU"] = replay(*trace)
    table = Table(title="Reference engine")
    for column in ("case", "CPU s", "per unit", "steps", "requests/s"):
        table.add_column(column, justify="left" if column == "case" else "right")
    for name, case in cases.items():
        if "references" in case:
            table.add_row(name, f"{case['cpu_s']:.2f}", f"{1e9 * case['cpu_s'] / case['references']:.0f} ns", "", "")
        else:
            per_step = f"{1e6 * case['cpu_s'] / case['steps']:.0f} µs/step"
            rate = f"{case['requests'] / case['cpu_s']:.0f}"
            table.add_row(name, f"{case['cpu_s']:.1f}", per_step, f"{case['steps']:,}", rate)
    console = Console(width=100)
    console.print(table)
    rss_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    console.print(f"peak memory of this process {rss_mib} MiB")
    if options.json is not None:
        options.json.write_text(json.dumps({"cases": cases, "rss_mib": rss_mib}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
