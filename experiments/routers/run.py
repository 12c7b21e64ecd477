# ruff: noqa: INP001 - a script, run by path
"""Seven routers before eight replicas, with and without CPU memory or a shared store: one table, one plot.

    kvsim sweep experiments/routers/sweep.yaml -o runs/routers
    python experiments/routers/run.py runs/routers

A second folder, of the sweep kv_events.yaml, adds the routers that hear KV events.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib.ticker
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvsim.report.style import PALETTE, as_png, figure, styled

HERE = Path(__file__).resolve().parent

COLUMNS = {  # name here: (key of results.parquet, factor, digits)
    "token hit rate": ("hit_rate.total", 1, 3),
    "of it GPU": ("hit_rate.local", 1, 3),
    "TTFT P50 s": ("latency.ttft_ms.p50", 1e-3, 2),
    "TTFT P90 s": ("latency.ttft_ms.p90", 1e-3, 2),
    "TTFT P99 s": ("latency.ttft_ms.p99", 1e-3, 2),
    "E2E P90 s": ("latency.e2e_s.p90", 1, 2),
    "session P50 min": ("sessions.time_s.p50", 1 / 60, 2),
    "output tokens/s": ("throughput.output_tokens_per_s", 1, 1),
    "busiest / mean": ("cluster.busiest", 1, 2),
}


def table_of(folders: list[Path]) -> pd.DataFrame:
    """The points of all sweeps, stores in the order of their first, routers likewise."""
    points = pd.concat([pd.read_parquet(folder / "results.parquet") for folder in folders], ignore_index=True)
    points = points[points["status"] == "ok"]
    table = pd.DataFrame({"store": points["store"], "router": points["cluster.router"]})
    for name, (key, factor, digits) in COLUMNS.items():
        table[name] = (points[key] * factor).round(digits)
    table["requests"] = points["requests.finished"]
    table["digest"] = points["digest"].str[:12]
    order = {name: place for place, name in enumerate(dict.fromkeys(table["store"]))}
    return table.sort_values("store", key=lambda stores: stores.map(order), kind="stable", ignore_index=True)


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
    hits.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=table["store"].nunique(), frameon=False)
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
    """Write `routers.csv`, `routers.md` and `routers.png`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", type=Path, nargs="+", help="folders of sweeps")
    parser.add_argument("-o", "--output", type=Path, default=HERE, help="folder (default: that of this file)")
    options = parser.parse_args()
    table = table_of(options.sweeps)
    options.output.mkdir(parents=True, exist_ok=True)
    table.to_csv(options.output / "routers.csv", index=False, lineterminator="\n")
    (options.output / "routers.md").write_text(_markdown(table), encoding="utf-8")
    (options.output / "routers.png").write_bytes(as_png(plot(table)))
    print(_markdown(table))  # noqa: T201 - a script


def _markdown(table: pd.DataFrame) -> str:
    columns = [name for name in table.columns if name not in {"requests", "digest"}]
    rows = [columns, ["---"] * len(columns), *table[columns].astype(str).to_numpy().tolist()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


if __name__ == "__main__":
    main()
