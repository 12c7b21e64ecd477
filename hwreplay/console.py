"""What the commands print: tables of results, sizes and times as people read them."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from hwreplay.result import CopyCell, JobResult, ProbeResult, RunResult
from hwreplay.text import moved, time_text


def output_console() -> Console:
    """Standard output; where it is not a terminal, as wide as COLUMNS says, else 100."""
    console = Console()
    return console if console.is_terminal else Console(width=int(os.environ.get("COLUMNS") or 100))


def rate_text(size: int, ns: int) -> str:
    """Bytes over a time, in GB/s."""
    return f"{size / ns:.3g} GB/s" if ns > 0 else ""


def run_table(result: RunResult) -> Table:
    """Jobs by direction (medians, rate while any of them ran), then forward passes (rate: longer than asked)."""
    table = Table(box=None)
    for name in ("", "number", "bytes", "median", "longest", "busy", "rate", "submit"):
        table.add_column(name, justify="left" if not name else "right")
    for direction in ("store", "load", "write", "read"):
        jobs = [job for job in result.jobs if job.direction == direction]
        if jobs:
            table.add_row(direction, *_job_row(jobs))
    steps = [step for step in result.steps if step.compute_ns]
    if steps:
        taken = sorted(step.compute_measured_ns for step in steps)
        asked = sum(step.compute_ns for step in steps)
        slower = f"{100 * (sum(taken) / asked - 1):+.1f} %"
        median, total = taken[len(taken) // 2], time_text(sum(taken))
        table.add_row("forward", f"{len(steps):,}", "", time_text(median), time_text(taken[-1]), total, slower, "")
    return table


def _job_row(jobs: Sequence[JobResult]) -> list[str]:
    taken = sorted(job.finished_ns - job.started_ns for job in jobs)
    submit = sorted(job.submit_ns for job in jobs)
    size, busy = sum(job.bytes for job in jobs), _union_ns(jobs)
    middle = len(jobs) // 2
    return [
        f"{len(jobs):,}", moved(size), time_text(taken[middle]), time_text(taken[-1]), time_text(busy),
        rate_text(size, busy), time_text(submit[middle]),
    ]  # fmt: skip


def _union_ns(jobs: Sequence[JobResult]) -> int:
    """How long at least one of them was running."""
    busy = end = 0
    for start, finish in sorted((job.started_ns, job.finished_ns) for job in jobs):
        busy += max(0, finish - max(start, end))
        end = max(end, finish)
    return busy


def probe_table(result: ProbeResult) -> Table:
    """Rates by backend, direction and size, at the largest count of each."""
    table = Table(box=None)
    for name in ("backend", "direction", "descriptor", "number", "link", "rate", "submit"):
        table.add_column(name, justify="left" if name in ("backend", "direction") else "right")
    best: dict[tuple[str, str, int], CopyCell] = {}
    for cell in result.copies:
        if cell.scattered and cell.pinned:
            key = (cell.backend, cell.direction, cell.descriptor_bytes)
            if key not in best or best[key].count < cell.count:
                best[key] = cell
    for (backend, direction, size), cell in sorted(best.items()):
        median = cell.link_ns.median
        rate = rate_text(size * cell.count, median)
        number, link, submit = f"{cell.count:,}", time_text(median), time_text(cell.submit_ns.median)
        table.add_row(backend, direction, f"{size:,} B", number, link, rate, submit)
    return table
