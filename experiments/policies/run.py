# ruff: noqa: INP001 - a script, run by path
"""Every eviction policy on agent sessions: the cache alone against the optimum, and simulated with time.

    python experiments/policies/run.py replay               # the cache alone, whole traces
    python experiments/policies/run.py simulate             # with GPU and time
    python experiments/policies/run.py replay --sessions 8 --policy lru s3fifo opt -o /tmp/look    # a look
    python experiments/policies/run.py draw                 # tables and plot again

Each finished point is a line of `replay.csv` or `simulated.csv`; a run that was stopped goes on where it was. The
kv-cache-tester traces are third-party data in `$KVSIM_SHARED/traces`; without them only the other set is played.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import matplotlib.ticker
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from measures import WORKLOADS, config_of, replayed, simulated

from kvsim.registry import POLICIES
from kvsim.report.style import PALETTE, as_png, figure, styled
from kvsim.resolve import read_trace_of

HERE = Path(__file__).resolve().parent
CPU_GIB = (64, 128, 256, 512, 1024)
SIMULATED_CPU_GIB = (128, 256, 512)
GPU_BLOCKS = (14_500, 29_019)  # half of, and all of what 4 x H100 have beside Llama-3.1-70B
SIMULATED_SESSIONS = {"swe-bench-like": 30, "kv-cache-tester": 10}  # the reference engine takes its time
KEYS = {"replay": ["workload", "sessions", "cpu_gib", "policy"]}
KEYS["simulated"] = [*KEYS["replay"][:2], "gpu_blocks", *KEYS["replay"][2:]]


def points(what: str, options: argparse.Namespace) -> Iterator[tuple[Any, ...]]:
    """All points of a table, a workload at a time, so that a process reads it once."""
    for workload in options.workload:
        sessions = options.sessions or (SIMULATED_SESSIONS[workload] if what == "simulated" else None)
        for gpu in GPU_BLOCKS if what == "simulated" else (None,):
            for cpu in CPU_GIB if what == "replay" else SIMULATED_CPU_GIB:
                for policy in options.policy:
                    yield (workload, sessions, *(() if gpu is None else (gpu,)), cpu, policy)


def play(what: str, options: argparse.Namespace) -> None:
    """Play what is missing in the table, and add a line for each."""
    path: Path = options.output / f"{what}.csv"
    known = pd.read_csv(path) if path.exists() else pd.DataFrame(columns=KEYS[what])
    done = set(known[KEYS[what]].itertuples(index=False, name=None))
    sizes = {name: len(read_trace_of(config_of(name, None)).sessions) for name in options.workload}
    todo = [
        point
        for point in points(what, options)
        if (point[0], min(point[1] or sizes[point[0]], sizes[point[0]]), *point[2:]) not in done
    ]
    measure = replayed if what == "replay" else simulated
    rows = joblib.Parallel(n_jobs=options.jobs, return_as="generator_unordered")(
        joblib.delayed(measure)(*point) for point in todo
    )
    for number, row in enumerate(rows, 1):
        pd.DataFrame([row]).to_csv(path, mode="a", header=not path.exists(), index=False, lineterminator="\n")
        print(f"{number}/{len(todo)}", *row.values(), file=sys.stderr)  # noqa: T201 - a script


def as_tables(table: pd.DataFrame, what: str) -> str:
    """For people: per workload (and GPU pool) a line per policy, columns by size of CPU memory."""
    order = [policy for policy in POLICIES.names() if policy in set(table["policy"])]
    where = [key for key in KEYS[what] if key not in {"policy", "cpu_gib"}]
    parts = []
    for found, part in table.groupby(where, sort=False):
        title = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in zip(where, found, strict=True))
        columns: dict[str, pd.Series] = {}
        for gib, same in part.groupby("cpu_gib"):
            rows = same.set_index("policy").reindex(order)
            columns[f"{gib} GiB: hits"] = rows["hit_rate"].map("{:.1%}".format)
            if what == "replay":
                best = rows["hit_mtokens"].get("opt")
                columns["of opt" + " " * len(columns)] = (rows["hit_mtokens"] / best).map("{:.0%}".format)
            else:
                columns["TTFT P50, P90 s" + " " * len(columns)] = [
                    f"{a:.2f}, {b:.1f}" for a, b in zip(rows["ttft_p50_s"], rows["ttft_p90_s"], strict=True)
                ]
                columns["session P50 min" + " " * len(columns)] = rows["session_p50_min"].map("{:.1f}".format)
        parts.append(
            f"### {title}\n\n{_markdown(pd.DataFrame(columns, index=order).rename_axis('policy').reset_index())}"
        )
    return "\n".join(parts)


@styled
def plot(table: pd.DataFrame) -> Figure:
    """Hit rate of each policy at each size, a panel per workload; the optimum is the last row."""
    workloads = list(dict.fromkeys(table["workload"]))
    drawn = figure(5.2)
    drawn.suptitle("Prompt tokens found in the CPU tier alone, by its size (Llama-3.1-70B)", x=0.01, ha="left")
    panels = drawn.subplots(1, len(workloads), sharey=True, squeeze=False)[0]
    for axes, workload in zip(panels, workloads, strict=True):
        _dots(axes, table[table["workload"] == workload])
        axes.set_title(f"{workload}, {table[table['workload'] == workload]['sessions'].iloc[0]} sessions")
        axes.set_xlabel("token hit rate (dotted: opt)")
        axes.xaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0))
    handles, labels = panels[0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return drawn


def _dots(axes: Axes, table: pd.DataFrame) -> None:
    policies = [policy for policy in POLICIES.names() if policy in set(table["policy"])]
    rows = {policy: len(policies) - 1 - number for number, policy in enumerate(policies)}
    markers = "osD^v"
    for number, (gib, part) in enumerate(table.groupby("cpu_gib")):
        axes.scatter(
            part["hit_rate"],
            part["policy"].map(rows),
            color=PALETTE[number % len(PALETTE)],
            marker=markers[number % len(markers)],
            label=f"{gib} GiB",
            zorder=3,
        )
        best = part[part["policy"] == "opt"]["hit_rate"]
        if len(best):
            axes.axvline(best.iloc[0], color=PALETTE[number % len(PALETTE)], linewidth=0.8, linestyle=":")
    axes.set_yticks(list(rows.values()), list(rows))
    axes.grid(visible=True, axis="y")


def draw(folder: Path) -> None:
    """Write `policies.md` and `policies.png` from the tables that there are."""
    parts = []
    for what, title in (("replay", "The CPU tier alone"), ("simulated", "Simulated, with GPU and time")):
        path = folder / f"{what}.csv"
        if not path.exists():
            continue
        table = pd.read_csv(path)
        parts.append(f"## {title}\n\n{as_tables(table, what)}")
        if what == "replay":
            (folder / "policies.png").write_bytes(as_png(plot(table)))
    if not parts:
        sys.exit(f"{folder}: expected replay.csv or simulated.csv, found neither")
    (folder / "policies.md").write_text("\n".join(parts), encoding="utf-8")


def _markdown(table: pd.DataFrame) -> str:
    rows = [
        [name.strip() for name in table.columns],
        ["---"] * len(table.columns),
        *(
            [cell.replace("nan%", "").replace("nan, nan", "").replace("nan", "") for cell in row]
            for row in table.astype(str).to_numpy()
        ),
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def main() -> None:
    """Play, then write the tables and the plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["replay", "simulate", "draw"], help="which table; draw = none, only draw")
    parser.add_argument("--workload", nargs="+", choices=WORKLOADS, help="default: those that are there")
    parser.add_argument("--policy", nargs="+", choices=POLICIES.names(), default=POLICIES.names(), metavar="NAME")
    parser.add_argument("--sessions", type=int, metavar="N", help="only the first N sessions of each workload")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes (default: 2)")
    parser.add_argument("-o", "--output", type=Path, default=HERE, help="folder (default: this one)")
    options = parser.parse_args()
    there = [name for name, (path, _) in WORKLOADS.items() if path.exists()]
    missing = [name for name in options.workload or () if name not in there]
    if missing:
        sys.exit(f"third-party data absent: {WORKLOADS[missing[0]][0]} (set KVSIM_SHARED to the folder with traces/)")
    if options.sessions is not None and options.sessions < 1:
        parser.error(f"--sessions: expected 1 or more, found {options.sessions}")
    options.workload = options.workload or there
    options.output.mkdir(parents=True, exist_ok=True)
    if options.what != "draw":
        play("replay" if options.what == "replay" else "simulated", options)
    draw(options.output)


if __name__ == "__main__":
    main()
