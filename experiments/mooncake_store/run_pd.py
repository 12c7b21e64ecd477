# ruff: noqa: INP001, T201 - scripts, run by path
"""Published against simulated: the 1P1D case of the vLLM x Mooncake blog, without and with the shared store.

Run `python experiments/mooncake_store/run_pd.py`; `--set key=value` for another assumption (an override of pd.yaml),
`-o pd.csv` to write both rows down (behind those that are there).
The baseline is the same config with the connector nixl alone and without the store.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kvsim.build import Simulation
from kvsim.cluster_plan import resolve_run
from kvsim.config import MultiConnectorConfig, RunConfig, load_config
from kvsim.resolve import read_trace_of
from kvsim.results.records import as_row
from kvsim.results.summary import summarize
from kvsim.runner import requests_frame
from kvsim.trace.generate import GeneratorParameters, write_trace

HERE = Path(__file__).parent
# The published baseline hits 1.7 %, so sessions share next to nothing; the other keeps 94.2 % of an unlimited cache.
SESSIONS = GeneratorParameters(shared_prefix_tokens=500, rewrite_share=0.0235)


def baseline(config: RunConfig) -> RunConfig:
    """The same without the store."""
    assert isinstance(config.connector, MultiConnectorConfig)
    assert config.cluster is not None
    cluster = config.cluster.model_copy(update={"store": None})
    return config.model_copy(update={"connector": config.connector.connectors[0], "cluster": cluster})


def figures(config: RunConfig) -> dict[str, float]:
    """Hit rate, throughput, latencies, and the time that it took here."""
    started = time.process_time()
    record = Simulation(resolve_run(config, read_trace_of(config))).run()
    found = summarize(requests_frame(record), as_row(record.totals))
    return {
        "hit": found["hit_rate"]["total"],
        "tokens_per_s": found["throughput"]["total_tokens_per_s"],
        "ttft_ms": found["latency"]["ttft_ms"]["p50"],
        "ttft_mean_ms": found["latency"]["ttft_ms"]["mean"],
        "frontend_ms": (found["latency"].get("frontend_ms") or {"p50": 0.0})["p50"],
        "frontend_mean_ms": (found["latency"].get("frontend_ms") or {"mean": 0.0})["mean"],
        "load_wait_ms": found["latency"]["load_wait_ms"]["p50"],
        "e2e_s": found["latency"]["e2e_s"]["mean"],
        "finished": found["requests"]["finished"],
        "cpu_s": time.process_time() - started,
    }


def write_down(path: Path, changed: Sequence[str], rows: Sequence[tuple[str, dict[str, float]]]) -> None:
    """Behind the rows of a table that may be there."""
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        write = csv.writer(file, lineterminator="\n")
        if is_new:
            write.writerow(["changed", "store", *rows[0][1]])
        for name, row in rows:
            cells = [f"{value:.6g}" if isinstance(value, float) else value for value in row.values()]
            write.writerow([" ".join(changed), name, *cells])


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulate both and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="an override of pd.yaml")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="a CSV file, which grows by two rows")
    wanted = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "codex-610.jsonl.gz"
        write_trace(path, SESSIONS)
        config = load_config(HERE / "pd.yaml", [f"trace.path={path}", *wanted.set])
        without, with_store = figures(baseline(config)), figures(config)
    rows = [("without", without), ("with", with_store)]
    for name, row in rows:
        print(name, row)
    if wanted.output is not None:
        write_down(wanted.output, wanted.set, rows)
    table = Table(title="1P1D, 12 GB200 (published: vLLM x Mooncake blog, 2026-05-06)")
    for name in ("", "published", "simulated"):
        table.add_column(name, justify="right" if name else "left")
    table.add_row(
        "Hit rate without / with the store", "1.7 % / 92.2 %", f"{without['hit']:.1%} / {with_store['hit']:.1%}"
    )
    table.add_row("Throughput", "x 3.8", f"x {with_store['tokens_per_s'] / without['tokens_per_s']:.2f}")
    table.add_row("TTFT P50", "46 times lower", f"{without['ttft_ms'] / with_store['ttft_ms']:.1f} times")
    table.add_row("E2E, mean", "8.6 times lower", f"{without['e2e_s'] / with_store['e2e_s']:.1f} times")
    Console().print(table)


if __name__ == "__main__":
    main()
