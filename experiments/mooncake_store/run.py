# ruff: noqa: INP001, T201 - scripts, run by path
"""Published against simulated: the scaling case of the vLLM x Mooncake blog, 12 to 60 GPUs.

Run `python experiments/mooncake_store/run.py`; `--gpus 12 60` for some sizes only, `--set key=value` for another
assumption (an override of scaling.yaml), `--out FOLDER` to keep the figures: scaling.csv and scaling.png.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from kvsim.build import Simulation
from kvsim.cluster_plan import ClusterPlan, resolve_run
from kvsim.config import RunConfig, load_config
from kvsim.report.style import BLUE, GREEN, ORANGE, as_png, figure, styled
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
        "cpu_s": round(time.process_time() - started, 1),
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "digest": digest(requests),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, nargs="+", default=GPUS, choices=GPUS, help="sizes")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="an override of scaling.yaml")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keep the figures there")
    wanted = parser.parse_args(arguments)
    config = load_config(HERE / "scaling.yaml", wanted.set)
    rows = []
    for gpus in wanted.gpus:
        rows.append(figures(config, gpus))
        print(json.dumps(rows[-1]), flush=True)
    if wanted.out is not None:
        wanted.out.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(rows).to_csv(wanted.out / "scaling.csv", index=False, float_format="%.6g")
        (wanted.out / "scaling.png").write_bytes(as_png(plot(rows)))
    Console().print(compared(rows))


@styled
def plot(rows: Sequence[dict[str, Any]]) -> Figure:
    """Throughput and hit rate over the number of GPUs, beside what was published."""
    drawn = figure(6.4)
    speed, hits = drawn.subplots(2, 1, sharex=True)
    gpus, least = [row["gpus"] for row in rows], rows[0]
    speed.plot(gpus, [row["tokens_per_s"] / least["tokens_per_s"] for row in rows], "o-", color=BLUE, label="simulated")
    speed.plot(
        gpus, [n / least["gpus"] for n in gpus], "--", color=ORANGE, label="linear (published: nearly, no figures)"
    )
    speed.set_title(f"Throughput, as a multiple of that of {least['gpus']} GPUs")
    speed.set_ylabel("times")
    hits.plot(gpus, [row["hit_rate"] * 100 for row in rows], "o-", color=BLUE, label="all, simulated")
    hits.plot(gpus, [row["local_hit_rate"] * 100 for row in rows], "s:", color=GREEN, label="on the instance itself")
    hits.axhline(95, linestyle="--", color=ORANGE, label="published: more than 95 %")
    hits.set_title("Prompt tokens found in a cache")
    hits.set_ylabel("% of prompt tokens")
    hits.set_xlabel("GPUs (GB200, four per instance)")
    hits.set_xticks(gpus)
    for axes, floor in ((speed, 0), (hits, 0)):
        axes.set_ylim(bottom=floor)
        axes.legend()
    hits.set_ylim(top=105)
    return drawn


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
