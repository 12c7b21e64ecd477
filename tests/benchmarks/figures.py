"""From measurements to a table: what is printed, how it scales, how two sets compare."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table

Results = Mapping[str, Mapping[str, Any]]

# What a simulation finds out, whatever it took: if one of them differs, two runs did not do the same.
OUTCOME = ("requests", "statuses", "prompt_tokens", "output_tokens", "hit_tokens", "preemptions", "end_s", "steps")


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """By which power of x y grows: slope of the least-squares line through the logarithms."""
    if len({x for x, _ in points}) < 2:
        raise ValueError("an exponent needs points at two places")
    logs = [(math.log(x), math.log(y)) for x, y in points]
    mean_x = sum(x for x, _ in logs) / len(logs)
    mean_y = sum(y for _, y in logs) / len(logs)
    return sum((x - mean_x) * (y - mean_y) for x, y in logs) / sum((x - mean_x) ** 2 for x, _ in logs)


def scaling(results: Results) -> dict[str, float]:
    """Fitted exponents of the time to simulate, where there are enough cases for one."""
    found: dict[str, float] = {}
    for prefix, what in (("e-s-", "sessions"), ("e-c-", "context")):
        points = [
            (float(name.removeprefix(prefix)), float(result["run_s"]))
            for name, result in results.items()
            if name.startswith(prefix)
        ]
        if len(points) > 1:
            found[what] = exponent(points)
    return found


def speedups(results: Results) -> dict[str, dict[str, float]]:
    """How many times faster the fast engine is where both were measured: simulating alone, and in all."""
    found: dict[str, dict[str, float]] = {}
    for name, fast in results.items():
        slow = results.get(f"{name.removesuffix('-fast')}-reference") if name.endswith("-fast") else None
        if slow is not None:
            ratios = {key: slow[key] / fast[key] for key in ("run_s", "user_s")}
            found[name.removesuffix("-fast")] = ratios | {"same": float(outcome_differs(slow, fast) == [])}
    return found


def outcome_differs(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Fields of the outcome that two measurements do not share."""
    return [key for key in OUTCOME if one.get(key) != other.get(key)]


def best(measured: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Of several measurements of one case the one that was disturbed least."""
    return min(measured, key=lambda result: float(result["user_s"]))


def results_table(results: Results) -> Table:
    """One row per simulation, at most 100 columns wide."""
    table = Table(padding=(0, 0, 0, 1), box=None, header_style="bold")
    columns = ("case", "user s", "import", "read", "run", "wall", "MiB", "req/s", "Mtok/s")
    for column in (*columns, "steps", "decided", "events", "µs/dec"):
        table.add_column(column, justify="left" if column == "case" else "right", no_wrap=True)
    for name, result in results.items():
        table.add_row(name, *_cells(result))
    return table


def _cells(result: Mapping[str, Any]) -> list[str]:
    run_s = max(float(result.get("run_s", result["user_s"])), 1e-3)
    cells = [f"{result['user_s']:.2f}"]
    cells += [f"{result[key]:.2f}" if key in result else "" for key in ("import_s", "read_s", "run_s")]
    cells += [f"{result['wall_s']:.1f}", f"{result['rss_mib']:.0f}"]
    if "ns_per_reference" in result:
        return [*cells, f"{result['ns_per_reference']:.2f} ns", "per", "block", "", "", ""]
    if "requests" not in result:
        return [*cells, "", "", "", "", "", ""]
    tokens = result["prompt_tokens"] + result["output_tokens"]
    cells += [f"{result['requests'] / run_s:,.0f}", f"{tokens / run_s / 1e6:.1f}"]
    cells += [short(result["steps"]), short(result["decisions"]), short(result["events"])]
    return [*cells, f"{1e6 * run_s / max(result['decisions'], 1):.0f}"]


def short(count: float) -> str:
    """A count in at most five characters."""
    for factor, unit in ((1e6, "M"), (1e3, "K")):
        if count >= factor:
            return f"{count / factor:.2f}{unit}" if count < 10 * factor else f"{count / factor:.0f}{unit}"
    return f"{count:.0f}"


def comparison_table(old: Results, new: Results) -> Table:
    """New over old per case: below 1 is faster, or smaller."""
    table = Table(padding=(0, 1), box=None, header_style="bold")
    for column in ("case", "old s", "new s", "user", "run", "MiB", "decisions", ""):
        table.add_column(column, justify="left" if column in {"case", ""} else "right", no_wrap=True)
    for name in [*old, *(name for name in new if name not in old)]:
        before, after = old.get(name), new.get(name)
        if before is None or after is None:
            table.add_row(name, *_one_side(before), *_one_side(after), "", "", "", "", "")
            continue
        differing = outcome_differs(before, after)
        table.add_row(
            name,
            *_one_side(before),
            *_one_side(after),
            *(ratio(before, after, key) for key in ("user_s", "run_s", "rss_mib", "decisions")),
            f"other results: {', '.join(differing)}" if differing else "",
        )
    return table


def _one_side(result: Mapping[str, Any] | None) -> list[str]:
    return ["-" if result is None else f"{result['user_s']:.2f}"]


def ratio(before: Mapping[str, Any], after: Mapping[str, Any], key: str) -> str:
    """New over old; empty where one of them does not have it."""
    if not before.get(key) or key not in after:
        return ""
    return f"{after[key] / before[key]:.2f}"
