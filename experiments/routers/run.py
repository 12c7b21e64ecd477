# ruff: noqa: INP001 - a script, run by path
"""Seven routers before eight replicas, without and with CPU offloading: one table, one plot.

Run `python experiments/routers/run.py` (a minute on two cores); `--kv-events` adds the routers that hear KV events,
which only the reference engine publishes (ten minutes more). The traces are third-party data in `$KVSIM_SHARED/traces`.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import joblib
import matplotlib.ticker
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import kvsim
from kvsim.report.style import PALETTE, as_png, figure, styled

HERE = Path(__file__).resolve().parent
SHARED = Path(os.environ.get("KVSIM_SHARED", HERE.parents[2] / "shared"))
TRACES = SHARED / "traces" / "kv-cache-tester"

ROUTERS = {
    "round_robin": "{kind: round_robin}",
    "random": "{kind: random}",
    "least_requests": "{kind: least_requests}",
    "least_tokens": "{kind: least_tokens}",
    "session_affinity": "{kind: session_affinity}",
    "prefix_aware": "{kind: prefix_aware}",
    "cost_based": "{kind: cost_based}",
}
WITH_KV_EVENTS = {
    "prefix_aware, KV events": "{kind: prefix_aware, index: kv_events}",
    "cost_based, KV events": "{kind: cost_based, index: kv_events}",
}
# A shared store of all replicas will be the third: its connector goes here.
STORES = {
    "GPU only": "{kind: none}",
    "CPU 512 GB": "{kind: offloading, cpu_bytes_to_use: 512GB}",
}
COLUMNS = {
    "token hit rate": ("hit_rate", "total"),
    "of it GPU": ("hit_rate", "local"),
    "TTFT P50 s": ("latency", "ttft_ms", "p50"),
    "TTFT P90 s": ("latency", "ttft_ms", "p90"),
    "TTFT P99 s": ("latency", "ttft_ms", "p99"),
    "E2E P90 s": ("latency", "e2e_s", "p90"),
    "session P50 min": ("sessions", "time_s", "p50"),
    "output tokens/s": ("throughput", "output_tokens_per_s"),
    "busiest / mean": ("cluster", "busiest"),
}
SCALES = {"TTFT P50 s": 1e-3, "TTFT P90 s": 1e-3, "TTFT P99 s": 1e-3, "session P50 min": 1 / 60}
DIGITS = {"token hit rate": 3, "of it GPU": 3, "output tokens/s": 1}


def row_of(store: str, router: str) -> dict[str, Any]:
    """One run, as a row of the table."""
    choices = {**ROUTERS, **WITH_KV_EVENTS}
    overrides = [f"trace.path={TRACES}", f"connector={STORES[store]}", f"cluster.router={choices[router]}"]
    result = kvsim.run(HERE / "cluster.yaml", overrides=overrides)
    found = result.summary
    row: dict[str, Any] = {"store": store, "router": router}
    for name, path in COLUMNS.items():
        value: Any = found
        for key in path:
            value = value[key]
        row[name] = round(value * SCALES.get(name, 1), DIGITS.get(name, 2))
    return row | {"requests": found["requests"]["finished"], "digest": result.digest[:12]}


@styled
def plot(table: pd.DataFrame) -> Figure:
    """Hit rates and times to first token, a group of bars per router."""
    drawn = figure(7.2)
    hits, median, tail = drawn.subplots(3, 1, sharex=True)
    for axes, column, title in (
        (hits, "token hit rate", "Prompt tokens found in a cache"),
        (median, "TTFT P50 s", "Time to first token, P50 (s)"),
        (tail, "TTFT P90 s", "Time to first token, P90 (s)"),
    ):
        _bars(axes, table, column)
        axes.set_title(title)
    hits.set_ylim(0, 1.12)
    hits.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0))
    for axes in (median, tail):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(matplotlib.ticker.StrMethodFormatter("{x:g}"))
        axes.margins(y=0.2)
    hits.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=len(STORES), frameon=False)
    routers = list(dict.fromkeys(table["router"]))
    tail.set_xticks(range(len(routers)), [name.replace("_", "\n").replace(", ", "\n") for name in routers], fontsize=9)
    return drawn


def _bars(axes: Axes, table: pd.DataFrame, column: str) -> None:
    stores, routers = list(dict.fromkeys(table["store"])), list(dict.fromkeys(table["router"]))
    axes.grid(visible=False, axis="x")
    width = 0.8 / len(stores)
    for number, store in enumerate(stores):
        values = table[table["store"] == store].set_index("router")[column].reindex(routers)
        places = [place + (number - (len(stores) - 1) / 2) * width for place in range(len(routers))]
        bars = axes.bar(places, values, width, color=PALETTE[number], label=store)
        texts = [f"{value:.0%}" if column == "token hit rate" else f"{value:.2g}" for value in values]
        axes.bar_label(bars, texts, fontsize=7, padding=1)


def main() -> None:
    """Run all, write `routers.csv`, `routers.md` and `routers.png` beside this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kv-events", action="store_true", help="with the routers that hear KV events, too")
    parser.add_argument("--redraw", action="store_true", help="draw the plot of an earlier run again")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes (default: 2)")
    parser.add_argument("-o", "--output", type=Path, default=HERE, help="folder (default: this one)")
    options = parser.parse_args()
    if not options.redraw:
        play([*ROUTERS, *(WITH_KV_EVENTS if options.kv_events else ())], options.jobs, options.output)
    table = pd.read_csv(options.output / "routers.csv")
    (options.output / "routers.md").write_text(_markdown(table), encoding="utf-8")
    (options.output / "routers.png").write_bytes(as_png(plot(table)))
    print(_markdown(table))  # noqa: T201 - a script


def play(routers: list[str], jobs: int, folder: Path) -> None:
    """Run all and write the table."""
    if not TRACES.is_dir():
        sys.exit(f"third-party data absent: {TRACES} (set KVSIM_SHARED to the folder that holds traces/)")
    work = [joblib.delayed(row_of)(store, router) for store in STORES for router in routers]
    folder.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(joblib.Parallel(n_jobs=jobs)(work)).to_csv(folder / "routers.csv", index=False, lineterminator="\n")


def _markdown(table: pd.DataFrame) -> str:
    columns = [name for name in table.columns if name not in {"requests", "digest"}]
    rows = [columns, ["---"] * len(columns), *table[columns].astype(str).to_numpy().tolist()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


if __name__ == "__main__":
    main()
