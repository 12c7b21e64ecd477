# ruff: noqa: INP001 - scripts, run by path
"""Predicted against measured step times: TPOT of public vLLM servers, prefill times, client-side TTFT.

Run `python experiments/step_time/run.py`; the measurements are downloaded once into the cache folder
(third-party data, see silicon.py). `--json` prints the same figures for machines.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fit import Errors, errors, fit_slack_and_request, fit_step_and_request
from points import client_ttft, llm_d_prefill
from rich.console import Console
from rich.table import Table
from silicon import Row, find_csv, read_rows, with_host

from kvsim.errors import UserError
from kvsim.steptime.gpu import Host, host_times

_CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kvsim" / "aiconfigurator-core-0.12.0"
Fit = Callable[[Sequence[Row]], Host]


def held_out(rows: list[Row], fit: Fit, *, by_release: bool) -> list[tuple[Row, float]]:
    """Each row with its TPOT predicted by constants that were fitted without the row's group."""
    out = []
    for group in dict.fromkeys(r.group for r in rows if r.in_fit):
        for since in (False, True) if by_release else (None,):
            test = [r for r in rows if r.group == group and since in {None, r.since_0_14}]
            train = [r for r in rows if r.in_fit and r.group != group and since in {None, r.since_0_14}]
            if test:
                host = fit(train)
                out += [(r, with_host(r, host)) for r in test]
    return out


def shipped(rows: list[Row]) -> list[tuple[Row, float]]:
    """Each row with the constants that kvsim ships for its release."""
    hosts = {True: host_times("since-0.14"), False: host_times("before-0.14")}
    return [(r, with_host(r, hosts[r.since_0_14])) for r in rows]


def by_group(pairs: list[tuple[Row, float]], key: Callable[[Row], str]) -> dict[str, Errors]:
    """Error figures per group."""
    groups = sorted({key(r) for r, _ in pairs})
    return {
        g: errors([p for r, p in pairs if key(r) == g], [r.tpot_ms for r, _ in pairs if key(r) == g]) for g in groups
    }


def measure(data: Path) -> dict[str, Any]:
    """All figures of this experiment."""
    path = find_csv(data)
    first, rows = read_rows(path, as_facts=True), read_rows(path)
    fitted, never = [r for r in rows if r.in_fit], [r for r in rows if not r.in_fit]
    columns = {
        "kernels alone": [(r, r.kernel_ms) for r in fitted],
        "first fit, held out": held_out([r for r in first if r.in_fit], fit_slack_and_request, by_release=False),
        "by release, held out": held_out(fitted, fit_step_and_request, by_release=True),
        "shipped": shipped(fitted),
    }
    since = [r for r in fitted if r.since_0_14]
    before = [r for r in fitted if not r.since_0_14]
    return {
        "rows": len(fitted),
        "groups": {name: by_group(pairs, lambda r: r.group) for name, pairs in columns.items()},
        "pooled": {
            name: by_group(pairs, lambda r: f"all {r.gpu.removesuffix('-sxm')}") for name, pairs in columns.items()
        },
        "never used": by_group(shipped(never), lambda r: r.group),
        "fit": {
            "since-0.14": (len(since), asdict(fit_step_and_request(since))),
            "before-0.14": (len(before), asdict(fit_step_and_request(before))),
        },
        "prefill": llm_d_prefill(),
        "client ttft": client_ttft(rows),
    }


def show(result: dict[str, Any], console: Console) -> None:
    """Tables of at most 100 columns."""
    table = Table(title=f"TPOT, {result['rows']} measured servers; median / P90 of |error|, bias, in %")
    table.add_column("group")
    table.add_column("n", justify="right")
    for name in result["groups"]:
        table.add_column(name, justify="right")
    for part in ("groups", "pooled"):
        for group in result[part]["shipped"]:
            cells = [_cell(result[part][name].get(group)) for name in result[part]]
            table.add_row(group, str(result[part]["shipped"][group].count), *cells)
        table.add_section()
    console.print(table)
    for name, (count, host) in result["fit"].items():
        console.print(
            f"host time {name}, all {count} rows: {host['step_us']:.0f} us per step"
            f" + {host['request_us']:.1f} us per request"
        )

    table = Table(title="Groups that no constant has seen, shipped constants; median / P90 of |error|, bias, in %")
    table.add_column("group")
    table.add_column("n", justify="right")
    table.add_column("TPOT", justify="right")
    for group, error in result["never used"].items():
        table.add_row(group, str(error.count), _cell(error))
    console.print(table)

    table = Table(title="Prefill of gpt-oss-120b on an H200 (llm-d blog), TP 1 assumed, engine time")
    for column in ("prompt tokens", "measured ms", "predicted ms", "error %"):
        table.add_column(column, justify="right")
    for prompt, measured, predicted in result["prefill"]:
        table.add_row(f"{prompt:,}", f"{measured:.0f}", f"{predicted:.0f}", f"{100 * (predicted / measured - 1):+.0f}")
    console.print(table)
    for model, (slope, offset, error) in result["client ttft"].items():
        console.print(
            f"TTFT at concurrency 4, {model} on H100/H200: measured = {slope:.2f} x simulated"
            f" {offset:+.0f} ms (median error {error:.0f} % after that)"
        )


def _cell(error: Errors | None) -> str:
    return "" if error is None else f"{error.median:.1f}/{error.p90:.0f} {error.bias:+.1f}"


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=_CACHE, help="folder with silicon_sample.csv (default: cache)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args(argv)
    console = Console(width=100)
    try:
        result = measure(options.data)
    except UserError as err:
        Console(stderr=True).print(f"error: {err}", highlight=False)
        return 2
    if options.json:
        sys.stdout.write(json.dumps(result, default=asdict, indent=1) + "\n")
    else:
        show(result, console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
