# ruff: noqa: INP001, T201 - scripts, run by path
"""Published against simulated: the scaling case of the vLLM x Mooncake blog, 12 to 60 GPUs.

Run `python experiments/mooncake_store/run.py`; `--gpus 12 60` for some sizes only, `--set key=value` for another
assumption (an override of scaling.yaml), `--json FILE` to keep the figures.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kvsim.build import Simulation
from kvsim.cluster_plan import ClusterPlan, resolve_run
from kvsim.config import RunConfig, load_config
from kvsim.resolve import read_trace_of
from kvsim.results.records import as_row
from kvsim.results.summary import digest, summarize
from kvsim.runner import requests_frame, series_frame

HERE = Path(__file__).parent
GPUS = (12, 24, 36, 48, 60)
SESSIONS_PER_GPU, GPUS_PER_INSTANCE = 75 / 12, 4


def sized(config: RunConfig, gpus: int) -> RunConfig:
    """The same on so many GPUs, with as many sessions for each."""
    assert config.cluster is not None
    (group,) = config.cluster.instances
    group = group.model_copy(update={"count": gpus // GPUS_PER_INSTANCE})
    trace = config.trace.model_copy(update={"max_sessions": round(gpus * SESSIONS_PER_GPU)})
    cluster = config.cluster.model_copy(update={"instances": (group,)})
    return config.model_copy(update={"trace": trace, "cluster": cluster})


def figures(config: RunConfig, gpus: int) -> dict[str, Any]:
    """One size, simulated."""
    started, wanted = time.process_time(), sized(config, gpus)
    plan = resolve_run(wanted, read_trace_of(wanted))
    assert isinstance(plan, ClusterPlan)
    record = Simulation(plan).run()
    requests = requests_frame(record)
    found = summarize(requests, as_row(record.totals), series_frame(record))
    (store,) = record.tiers
    return {
        "gpus": gpus,
        "sessions": wanted.trace.max_sessions,
        "requests": found["requests"]["finished"],
        "hit_rate": found["hit_rate"]["total"],
        "local_hit_rate": found["hit_rate"]["local"],
        "tokens_per_s": found["throughput"]["total_tokens_per_s"],
        "output_tokens_per_s": found["throughput"]["output_tokens_per_s"],
        "ttft_p50_ms": found["latency"]["ttft_ms"]["p50"],
        "e2e_p50_s": found["latency"]["e2e_s"]["p50"],
        "load_wait_p50_ms": found["latency"]["load_wait_ms"]["p50"],
        "read_gb": store.read_bytes / 1e9,
        "written_gb": store.write_bytes / 1e9,
        "makespan_s": found["throughput"]["makespan_s"],
        "cpu_s": time.process_time() - started,
        "digest": digest(requests),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, nargs="+", default=GPUS, choices=GPUS, help="sizes")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="an override of scaling.yaml")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    wanted = parser.parse_args(arguments)
    config = load_config(HERE / "scaling.yaml", wanted.set)
    rows = []
    for gpus in wanted.gpus:
        rows.append(figures(config, gpus))
        print(json.dumps(rows[-1]), flush=True)
    if wanted.json is not None:
        wanted.json.write_text(json.dumps(rows, indent=1) + "\n")
    Console().print(compared(rows))


def compared(rows: Sequence[dict[str, Any]]) -> Table:
    """A line per size: what the blog says, and what came out."""
    table = Table(title="12 to 60 GB200, round robin (published: vLLM x Mooncake blog, 2026-05-06)")
    for name in (
        "GPUs",
        "Sessions",
        "Hit rate, published",
        "simulated",
        "Throughput, published",
        "simulated",
        "TTFT P50",
    ):
        table.add_column(name, justify="right")
    least = rows[0]
    for row in rows:
        factor, ideal = row["tokens_per_s"] / least["tokens_per_s"], row["gpus"] / least["gpus"]
        table.add_row(
            str(row["gpus"]), str(row["sessions"]), "> 95 %", f"{row['hit_rate']:.1%}",
            f"nearly x {ideal:g}" if ideal > 1 else "", f"x {factor:.2f} ({row['tokens_per_s']:,.0f} tokens/s)",
            f"{row['ttft_p50_ms'] / 1e3:.1f} s",
        )  # fmt: skip
    return table


if __name__ == "__main__":
    main()
