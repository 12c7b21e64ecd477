"""Runs side by side: differences and ratios to the first, names, and whether requests are the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from run_builder import small_requests, small_series, small_totals

from kvsim.results.compare import METRICS, compare, compare_frame, is_shown, labels, mismatches
from kvsim.results.run import Run
from kvsim.results.summary import summarize


def run(name: str = "a", **totals: int) -> Run:
    """The small run in memory, with some counters changed."""
    requests, series = small_requests(), small_series()
    return Run(Path("/runs") / name, name, summarize(requests, small_totals() | totals, series), requests, series)


def test_differences_and_ratios() -> None:
    """Each value comes with its difference and its ratio to the first run, null where there is none."""
    rows = {row.metric.key: row for row in compare([run(), run("b", cannot_store=5, h2d_busy_ns=0), run("c")])}
    refused = rows["tiers.cpu.cannot_store"]
    assert refused.values == (2, 5, 2)
    assert refused.differences == (0, 3, 0)
    assert refused.ratios == (1.0, 2.5, 1.0)
    rate = rows["transfers.h2d.gb_per_s_busy"]
    assert rate.values == (20.0, None, 20.0)
    assert rate.differences == (0.0, None, 0.0)
    busy = rows["transfers.h2d.busy_share"]
    assert busy.values == (0.1, 0.0, 0.1)
    assert busy.ratios == (1.0, 0.0, 1.0)


def test_zero_has_no_ratio() -> None:
    """Nothing is a multiple of zero: the ratio is null, the difference is not."""
    row = next(row for row in compare([run(stall_ns=0), run("b")]) if row.metric.key == "gpu.stall_s")
    assert row.differences == (0.0, 0.5)
    assert row.ratios == (None, None)


def test_every_metric_exists() -> None:
    """Every metric of the tables is in the summary, once, and has a number in a run that has it all."""
    summary = run().summary
    assert [metric.key for metric in METRICS if metric.of(summary) is None] == []
    assert len({metric.key for metric in METRICS}) == len(METRICS)


def test_frame() -> None:
    """The frame has a row per metric and three columns per run."""
    frame = compare_frame([run(), run("b")])
    assert list(frame.columns) == ["metric", "unit", "a", "a diff", "a ratio", "b", "b diff", "b ratio"]
    assert len(frame) == len(METRICS)
    ttft = frame[frame["metric"] == "latency.ttft_ms.p50"].iloc[0]
    assert (ttft["unit"], ttft["a"], ttft["b diff"], ttft["b ratio"]) == ("ms", 300.0, 0.0, 1.0)


def test_names_are_unique() -> None:
    """Runs of the same name are told apart by their parent folder, by numbers when that is the same too."""
    runs = [replace(run(), path=Path(path)) for path in ("/x/a", "/y/a", "/y/a")] + [run("b")]
    assert labels(runs) == ["x/a", "y/a", "y/a (2)", "b"]


def test_same_requests() -> None:
    """Runs of the same requests compare without a word, whatever became of the requests."""
    other = replace(run("b"), requests=small_requests().assign(finish_ns=-1, status="stuck", reason="x"))
    assert mismatches([run(), other]) == []
    assert mismatches([]) == []


def test_other_requests() -> None:
    """Runs of other requests are named, with what they share."""
    requests = small_requests()
    requests.loc[0, "prompt_tokens"] = 1001
    assert mismatches([run(), run("b"), replace(run("c"), requests=requests)]) == [
        (
            "These runs share only a part of their requests with a, which has 7: c (6 of its 7 requests). "
            "Differences are not due to the configuration alone."
        )
    ]


@pytest.mark.parametrize(("blocks", "shown"), [(0, False), (400, True)])
def test_absent_tier_is_not_shown(blocks: int, shown: bool) -> None:
    """Rows about a CPU tier are shown only where some run has one."""
    metric = next(metric for metric in METRICS if metric.key == "tiers.cpu.evicted_blocks")
    assert is_shown(metric, [run(num_cpu_blocks=blocks).summary]) is shown
