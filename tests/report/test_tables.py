"""Terminal tables: what they say, and that they stay within 100 columns."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console
from rich.table import Table

from kvsim.report.plan_tables import PlanRow, plan_table
from kvsim.report.tables import comparison_table, summary_table
from kvsim.results.run import Run


def text(table: Table, width: int = 160) -> list[str]:
    """The lines of a table on a wide terminal without colours, ends trimmed."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def cells(lines: list[str], label: str) -> list[str]:
    """The cells of the first row whose label is ``label``."""
    rows = ([cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in lines if "│" in line or "┃" in line)
    return next(row[1:] for row in rows if row[0] == label)


def test_summary(small: Run) -> None:
    """A run's table has its numbers with units, and the percentiles of latencies in one row."""
    lines = text(summary_table(small.summary))
    assert cells(lines, "Arrived") == ["7", "", "", ""]
    assert cells(lines, "Offload tiers")[0] == "20.0 %"
    assert cells(lines, "TTFT") == ["mean 300 ms", "300 ms", "460 ms", "496 ms"]
    assert cells(lines, "E2E") == ["mean 1.30 s", "1.10 s", "2.22 s", "2.47 s"]
    assert cells(lines, "Makespan")[0] == "4.50 s"
    assert cells(lines, "Loaded (H2D)")[0] == "20.0 GB"
    assert cells(lines, "CPU size")[0] == "800 MiB"
    assert max(map(len, lines)) <= 100


def test_summary_of_nothing(empty: Run) -> None:
    """A run without requests shows n/a, not zero, for what does not exist."""
    lines = text(summary_table(empty.summary, "x" * 300))
    assert cells(lines, "TTFT") == ["n/a", "n/a", "n/a", "n/a"]
    assert cells(lines, "Total")[0] == "n/a"
    assert max(map(len, lines)) <= 100


def test_absent_tier_has_no_rows(baseline: Run) -> None:
    """Without a CPU tier there are no rows about one."""
    assert not any("CPU" in line for line in text(summary_table(baseline.summary)))


def test_comparison(baseline: Run, offload: Run) -> None:
    """Two runs stand side by side with the change against the first; same requests give no warning."""
    lines = text(comparison_table([baseline, offload]))
    assert cells(lines, "Metric") == ["baseline", "cpu-128GiB"]
    assert cells(lines, "Arrived") == ["400", "400"]
    assert cells(lines, "CPU size") == ["0 bytes", "128 GiB (+128 GiB)"]
    assert "(-" in cells(lines, "TTFT P90")[1]
    assert " points)" in cells(lines, "Total")[1]
    assert not any("warning" in line for line in lines)
    assert any("Changes are against baseline." in line for line in lines)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 9])
def test_width(baseline: Run, small: Run, empty: Run, count: int) -> None:
    """However many runs are compared, and however wide the terminal, a table has at most 100 columns."""
    runs = [(baseline, small, empty)[index % 3] for index in range(count)]
    lines = text(comparison_table(runs), width=300)
    assert max(len(line) for line in lines if line[:1] in "┏┃┡│├└") <= 100
    assert any("small <b>[red]&" in line for line in lines) == (count > 1)


@pytest.mark.parametrize(("width", "named"), [(100, ""), (80, "d, change, USD/h"), (60, "c, d, change, USD/h")])
def test_a_plan_in_a_narrow_terminal(width: int, named: str) -> None:
    """Of a plan's points whole words fit, whatever the terminal's width; columns without room are named below it."""
    rows = [PlanRow("replicas 1, cpu 64GiB", ["12.2 ms", "1.11 s", "15.1 s", "99.0 %"], ("14.19", "4.26"))]
    lines = text(plan_table("best", ["a", "b", "c", "d"], rows, width), width=width)
    assert max(map(len, lines)) <= width
    assert any("replicas" in line for line in lines)
    assert "14.19" in "".join(lines)
    assert " ".join(lines).partition("No room for ")[2].partition(";")[0] == named


def test_other_requests_are_told(baseline: Run, small: Run) -> None:
    """Comparing runs of different requests prints a warning under the table."""
    shown = " ".join(text(comparison_table([baseline, small])))
    assert "warning: These runs share only a part of their requests with baseline" in shown
