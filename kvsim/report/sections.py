"""What reports are made of: a heading with tables and plots. A part that would be empty is not there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.figure import Figure

from kvsim.report.format import change
from kvsim.report.point_plots import Bound, against_optimum, hit_rate_by_size, pareto
from kvsim.report.points import Limit, Point, size_text, varied_axes
from kvsim.report.policies import policy_table
from kvsim.report.sortable import Entry, Heading, Mark, SortableTable, first_rows, number_entry, text_entry
from kvsim.results.compare import METRIC
from kvsim.results.run import Run
from kvsim.results.sessions import sessions_frame

MOST_ROWS = 300
"""Of a table in a page; the files beside it have all rows."""


@dataclass(frozen=True)
class Drawn:
    """A plot, what its files are called, and the sentence under it."""

    key: str
    figure: Figure
    text: str


@dataclass(frozen=True)
class Section:
    """A part of a page."""

    key: str
    title: str
    tables: tuple[SortableTable, ...] = ()
    plots: tuple[Drawn, ...] = field(default=())


def run_service(run: Run, limits: Sequence[Limit]) -> Section | None:
    """Percentiles of the times that users notice, of one run, and its SLO if there is one."""
    requests = run.requests
    finished = (requests["status"] == "finished").to_numpy(dtype=bool) & (requests["finish_ns"] >= 0).to_numpy(
        dtype=bool
    )
    arrival, first, finish, output = (
        requests[name].to_numpy(dtype=np.float64)
        for name in ("arrival_ns", "first_token_ns", "finish_ns", "output_tokens")
    )
    spoke, several = finished & (first >= 0), finished & (first >= 0) & (output > 1)
    rows = []
    for name, times_ns in (
        ("Time to first token (TTFT)", (first - arrival)[spoke]),
        ("Time per output token (TPOT)", ((finish - first)[several] / (output[several] - 1))),
        ("End to end (E2E)", (finish - arrival)[finished]),
    ):
        if len(times_ns):
            found = [*np.percentile(times_ns, [50, 90, 95, 99]), times_ns.max()]
            rows.append((text_entry(name), *(number_entry(float(each) / 1e6, "ms") for each in found)))
    if not rows:
        return None
    headings = [Heading("Of finished requests", "text"), *map(Heading, ("P50", "P90", "P95", "P99", "Worst"))]
    tables = [SortableTable(tuple(headings), tuple(rows))]
    if limits:
        tables.append(limits_table(limits))
    return Section("service", "Service levels", tuple(tables))


def limits_table(limits: Sequence[Limit]) -> SortableTable:
    """What was asked for and what was measured."""
    headings = (Heading("SLO", "text"), Heading("Limit", "text"), Heading("Measured", "text"), Heading("Met", "text"))
    rows = tuple(
        (text_entry(each.key), text_entry(each.limit), text_entry(each.measured), _met(each.is_met)) for each in limits
    )
    return SortableTable(headings, rows)


def _met(is_met: bool) -> Entry:
    return text_entry("yes", "good") if is_met else text_entry("no", "bad")


_FIGURES = (
    ("TTFT P50", "latency.ttft_ms.p50"),
    ("TTFT P90", "latency.ttft_ms.p90"),
    ("TTFT P99", "latency.ttft_ms.p99"),
    ("TPOT P50", "latency.tpot_ms.p50"),
    ("TPOT P90", "latency.tpot_ms.p90"),
    ("E2E P50", "latency.e2e_s.p50"),
    ("E2E P90", "latency.e2e_s.p90"),
    ("Hit rate", "hit_rate.total"),
    ("Output tok/s", "throughput.output_tokens_per_s"),
)


def service_of_points(points: Sequence[Point], best: Point | None) -> Section:
    """A row for each choice: what sets it apart, its percentiles, and whether it meets the SLO."""
    axes = varied_axes(points)
    has_slo = any(each.limits for each in points)
    has_trouble = any(each.status != "ok" for each in points)
    has_rejected = any(each.rejected[0] for each in points)
    own_names = not axes or any(each.run is not None for each in points)
    goodput = {each.key for point in points for each in point.limits if each.key == "goodput"}
    headings = [Heading("Choice", "text")] if own_names else []
    headings += [Heading(axis.replace("_", "_\N{ZERO WIDTH SPACE}"), "text") for axis in axes]  # may break there
    headings += [Heading("SLO", "text")] if has_slo else []
    headings += [Heading("Goodput", "text")] if goodput else []
    headings += [Heading(title) for title, _ in _FIGURES]
    headings += [Heading("Rejected")] if has_rejected else []
    headings += [Heading("Status", "text")] if has_trouble else []
    rows = []
    for point in points:
        mark: Mark = "good" if point is best else ""
        cells = [text_entry(point.name, mark)] if own_names else []
        cells += [_axis_entry(point.axes.get(axis)) for axis in axes]
        if has_slo:
            missed = [each.key for each in point.limits if not each.is_met]
            cells.append(text_entry("misses " + ", ".join(missed), "bad") if missed else _slo_met(point))
        if goodput:
            found = [each.measured for each in point.limits if each.key == "goodput"]
            cells.append(text_entry(found[0] if found else ""))
        for _, key in _FIGURES:
            metric = METRIC[key]
            amount = None if point.summary is None else metric.of(point.summary)
            cells.append(number_entry(amount, metric.unit))
        if has_rejected:
            rejected, arrived = point.rejected
            text = f"{rejected:,} of {arrived:,}" if rejected else ""
            cells.append(Entry(text, f"{point.rejected_share:.12g}", "bad" if rejected else ""))
        if has_trouble:
            reason = f"{point.status}: {point.reason}" if point.reason else point.status
            cells.append(text_entry("" if point.status == "ok" else reason, "bad"))
        rows.append(tuple(cells))
    shown, hint = first_rows(rows, MOST_ROWS, "choices; results.csv in the sweep's folder has all")
    table = SortableTable(tuple(headings), shown, "Over finished requests, as in vllm bench serve.", hint)
    return Section("service", "Service levels", (table,))


def _slo_met(point: Point) -> Entry:
    return text_entry("met", "good") if point.limits else text_entry("")


def _axis_entry(found: str | float | None) -> Entry:
    if isinstance(found, int | float):
        return Entry(f"{found:,.12g}", f"{found:.12g}")
    return text_entry(found or "")


def of_points(points: Sequence[Point], best: Point | None, bound: Bound) -> list[Section]:
    """What memory buys, who is not beaten, and the policies: where points differ in it."""
    found = []
    by_size = hit_rate_by_size(points)
    if by_size is not None:
        text = "Share of prompt tokens that each tier served, by its size."
        found.append(Section("capacity", "Hit rate by capacity", plots=(Drawn("hit_rate_by_size", by_size, text),)))
    money = pareto(points, best)
    if money is not None:
        text = (
            "Filled: nobody else is as good with as few GPUs, as little CPU memory and as little storage. Hollow:"
            " somebody is, or it is no choice. Joined: filled ones with as many GPUs."
        )
        found.append(Section("pareto", "What it costs", plots=(Drawn("pareto", money, text),)))
    policies, optimum = policy_table(points, bound), against_optimum(points, bound)
    text = (
        "The optimum knows the future, but caches prompts only, in the order of `kvsim mrc`: runs, which find answers"
        " too and whose requests come in an order of their own, may be a little above it."
    )
    plots = [] if optimum is None else [Drawn("optimum", optimum, text)]
    tables = [] if policies is None else [policies]
    if tables or plots:
        found.append(Section("policies", "Eviction policies", tuple(tables), tuple(plots)))
    return found


_SESSION_FIGURES = (
    ("Requests", "requests", "count"),
    ("Finished", "finished", "count"),
    ("Start", "start_s", "s"),
    ("Session time", "time_s", "s"),
    ("Prompt tokens", "prompt_tokens", "count"),
    ("Output tokens", "output_tokens", "count"),
    ("GPU hits", "gpu_hit_rate", "share"),
    ("Offload hits", "offload_hit_rate", "share"),
    ("TTFT P50", "ttft_p50_ms", "ms"),
    ("TTFT worst", "ttft_max_ms", "ms"),
    ("Load wait", "load_wait_s", "s"),
    ("Preemptions", "preemptions", "count"),
)  # fmt: skip


def sessions(run: Run) -> Section | None:
    """A row per session, the longest first; none where every request is a session of its own."""
    frame = sessions_frame(run.requests)
    if len(frame) < 2 or len(frame) == len(run.requests):
        return None
    shown = [entry for entry in _SESSION_FIGURES if entry[1] != "offload_hit_rate" or frame[entry[1]].sum() > 0]
    headings = [Heading("Session", "text"), *(Heading(title) for title, _, _ in shown)]
    frame = frame.sort_values("time_s", ascending=False, kind="stable")
    rows = [
        (
            text_entry(row["session"]),
            *(
                number_entry(int(row[key]) if unit == "count" else float(row[key]), unit)  # type: ignore[arg-type]
                for _, key, unit in shown
            ),
        )
        for row in frame.head(MOST_ROWS + 1).to_dict("records")
    ]
    kept, _ = first_rows(rows, MOST_ROWS, "sessions")
    hint = (
        f"The {MOST_ROWS} longest of {len(frame):,} sessions; requests.parquet has all."
        if len(rows) > MOST_ROWS
        else ""
    )
    caption = "The longest first; a click on a heading sorts."
    return Section("sessions", "Sessions", (SortableTable(tuple(headings), kept, caption, hint),))


def sessions_of_two(first: Run, first_name: str, best: Run, best_name: str) -> Section | None:
    """The sessions that both runs played to their end: how long they took in each."""
    before, after = (sessions_frame(run.requests).set_index("session") for run in (first, best))
    both = before.add_suffix(" before").join(after.add_suffix(" after"), how="inner")
    both = both[both["time_s before"].notna() & both["time_s after"].notna()]
    if len(both) < 2 or len(before) == len(first.requests):
        return None
    both = both.sort_values("time_s before", ascending=False, kind="stable")
    headings = (
        Heading("Session", "text"), Heading("Requests"), Heading(f"Time, {first_name}"), Heading(f"Time, {best_name}"),
        Heading("Change"), Heading(f"TTFT P50, {first_name}"), Heading(f"TTFT P50, {best_name}"),
        Heading(f"Hit rate, {first_name}"), Heading(f"Hit rate, {best_name}"),
    )  # fmt: skip
    rows = []
    for name, row in both.head(MOST_ROWS + 1).iterrows():
        old, new = float(row["time_s before"]), float(row["time_s after"])
        shift = new - old
        mark: Mark = "" if not shift else "good" if shift < 0 else "bad"
        rows.append((
            text_entry(str(name)), number_entry(int(row["requests before"]), "count"),
            number_entry(old, "s"), number_entry(new, "s"),
            Entry(change(shift, new / old if old else None, "s"), f"{shift:.9g}", mark),
            number_entry(float(row["ttft_p50_ms before"]), "ms"), number_entry(float(row["ttft_p50_ms after"]), "ms"),
            *(
                number_entry(float(row[f"gpu_hit_rate {when}"] + row[f"offload_hit_rate {when}"]), "share")
                for when in ("before", "after")
            ),
        ))  # fmt: skip
    kept, _ = first_rows(rows, MOST_ROWS, "sessions")
    hint = f"The {MOST_ROWS} longest of {len(both):,} sessions." if len(rows) > MOST_ROWS else ""
    caption = "Sessions that finished in both runs, the longest first; a click on a heading sorts."
    return Section("sessions", "Sessions", (SortableTable(headings, kept, caption, hint),))


def what_it_takes(point: Point) -> str:
    """``with 256 GiB of CPU memory``; "" where nothing is known of it."""
    parts = [f"{size_text(point.dram_bytes)} of CPU memory"] if point.dram_bytes else []
    parts += [f"{size_text(point.storage_bytes)} of storage"] if point.storage_bytes else []
    parts += [f"{point.gpus} GPU{'s' if point.gpus > 1 else ''}"] if point.gpus else []
    return f"with {', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else f"with {parts[0]}" if parts else ""
