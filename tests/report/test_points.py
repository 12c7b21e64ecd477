"""Many choices as one: what sets them apart, which is the best, what memory buys, policies against the optimum."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sweep_points import SIZES_AND_POLICIES, point_summary, sweep_at

from kvsim.errors import UserError
from kvsim.report.html import write_points
from kvsim.report.point_plots import front, hit_rate_by_size, pareto
from kvsim.report.points import (
    Limit,
    Point,
    baseline_of,
    best_of,
    other_axes,
    points_of,
    size_axis,
    size_text,
    varied_axes,
)
from kvsim.report.policies import policy_table
from kvsim.report.sections import MOST_ROWS, service_of_points, sessions, sessions_of_two
from kvsim.report.words import describe_points
from kvsim.results.run import Run
from kvsim.results.sweep import load_sweep


@pytest.fixture(scope="module")
def points(sweep_folder: Path) -> list[Point]:
    """Those of the sweep over sizes and policies."""
    return points_of((), [load_sweep(sweep_folder)])


def point(name: str, met: bool | None = None, gpus: int = 4, **figures: Any) -> Point:
    """One point by hand."""
    limits = () if met is None else (Limit("ttft_p90", "at most 2s", "", met),)
    summary = point_summary(**{"gib": 64, "hit_rate": 0.5, "ttft_s": 1.0, "rate": 100.0, **figures})
    config = {"hardware": {"tensor_parallel_size": gpus}, "engine": {}}
    return Point(name, {}, summary, config, limits=limits)


def test_a_sweep_read_back(points: list[Point]) -> None:
    """Points have their axes by short name, a name made of them, and their figures."""
    first = points[0]
    assert dict(first.axes) == {"cpu_bytes_to_use": "64GiB", "eviction_policy": "lru"}
    assert (first.name, first.policy, first.gpus, first.dram_bytes) == ("64GiB, lru", "lru", 4, 64 * 2**30)
    assert first.ttft_p90_ms == pytest.approx(5600.0)
    assert varied_axes(points) == ["cpu_bytes_to_use", "eviction_policy"]
    assert [each.name for each in points[:4]] == ["64GiB, lru", "128GiB, lru", "256GiB, lru", "64GiB, arc"]


def test_a_sweep_without_its_points_files(sweep_folder: Path, tmp_path: Path) -> None:
    """The table alone is enough for all figures; only notes and configs are missing."""
    for name in ("results.parquet", "results.csv"):
        (tmp_path / name).write_bytes((sweep_folder / name).read_bytes())
    found = points_of((), [load_sweep(tmp_path)])
    assert [each.ttft_p90_ms for each in found] == [
        each.ttft_p90_ms for each in points_of((), [load_sweep(sweep_folder)])
    ]
    assert (found[0].gpus, found[0].policy) == (0, "lru")
    write_points(found, tmp_path / "report.html", "sweep")
    assert "Hit rate by capacity" in (tmp_path / "report.html").read_text()


def test_failed_points_are_told(tmp_path: Path) -> None:
    """A point that failed is a row with its reason, counts in the first sentence, and is never the best."""
    rows = [SIZES_AND_POLICIES[0], ({"connector.cpu_bytes_to_use": "1TiB"}, None), SIZES_AND_POLICIES[1]]
    found = points_of((), [load_sweep(sweep_at(tmp_path / "s", rows))])
    best = best_of(found)
    assert best is found[2]
    assert "3 configurations" in describe_points(found, found[0], best)
    assert "(1 of them failed)" in describe_points(found, found[0], best)
    write_points(found, tmp_path / "report.html", "sweep")
    text = (tmp_path / "report.html").read_text()
    assert "failed: does not fit" in text
    assert "1 of 3 points did not come to their end" in text


def test_nothing_was_simulated(tmp_path: Path) -> None:
    """A sweep of which every point failed has no report, and the message says so."""
    found = points_of((), [load_sweep(sweep_at(tmp_path / "s", [({"a": 1}, None), ({"a": 2}, None)]))])
    with pytest.raises(UserError, match="none of 2 points was simulated to its end"):
        write_points(found, tmp_path / "report.html", "sweep")
    assert not (tmp_path / "report.html").exists()


def test_runs_differ_in_their_configs(baseline: Run, offload: Run) -> None:
    """Runs have the keys in which their configs differ as axes; what only one of them has tells nothing apart."""
    one = replace(baseline, config_text="connector: {kind: none}\nengine: {block_size: 16}\nname: x\n")
    two = replace(
        offload, config_text="connector: {kind: offloading, cpu_bytes_to_use: 1GiB, tiers: [{kind: fs}]}\nengine: {}\n"
    )
    three = replace(offload, name="b", config_text="connector: {kind: offloading, cpu_bytes_to_use: 2GiB, tiers: []}\n")
    found = points_of([one, two, three], ())
    assert [dict(each.axes) for each in found] == [
        {"kind": "none", "cpu_bytes_to_use": None, "tiers": None},
        {"kind": "offloading", "cpu_bytes_to_use": "1GiB", "tiers": "fs"},
        {"kind": "offloading", "cpu_bytes_to_use": "2GiB", "tiers": "none"},
    ]


def test_best_without_and_with_an_slo() -> None:
    """Without an SLO the fastest is the best; with one, the cheapest that meets it: GPUs first, then memory."""
    fast, small, wide = point("fast", gib=256, ttft_s=0.5), point("small", gib=8, ttft_s=1.5), point("wide", gib=1)
    assert best_of([wide, small, fast]) is fast
    rated = [
        point("fast", True, gib=256, ttft_s=0.5),
        point("small", True, gib=8, ttft_s=1.5),
        point("missed", False, gib=1),
        point("wide", True, gpus=8, gib=1),
    ]
    best = best_of(rated)
    assert best is rated[1]
    assert describe_points(rated, rated[0], best).endswith(
        "The smallest that meets the SLO (3 of 4 meet it) is small with 8 GiB of CPU memory and 4 GPUs: a P90 time to"
        " first token of 1.50 s against 500 ms in fast (3.00 times) and an output throughput of 100 tokens/s against"
        " 100 (same)."
    )
    nobody = [point("a", False), point("b", False, ttft_s=0.4)]
    assert best_of(nobody) is nobody[1]
    assert "None of them meets the SLO; b has the lowest P90" in describe_points(nobody, nobody[0], nobody[1])


def test_first_is_best() -> None:
    """Where the baseline is the best already, the summary says so and compares it with nothing."""
    found = [point("a", ttft_s=0.5), point("b")]
    assert "The first of them, a, is the best already: a P90 time to first token of 500 ms" in describe_points(
        found, found[0], found[0]
    )


def test_baseline(offload: Run, baseline: Run) -> None:
    """The first run; of sweeps the first point without memory or storage for KV, or the first that did not fail."""
    runs = points_of([offload, baseline], ())
    assert baseline_of(runs) is runs[0]
    failed = Point("failed", {}, None, {})
    swept = [failed, point("cpu"), point("none", gib=0), point("also none", gib=0)]
    assert baseline_of(swept) is swept[2]
    assert baseline_of(swept[:2]) is swept[1]
    assert baseline_of([failed]) is None


def test_what_grows(points: list[Point]) -> None:
    """The axis of sizes is found by the sizes themselves; axes that a size determines are no series of their own."""
    found = size_axis(points)
    assert found is not None
    what, sizes = found
    assert (what, sizes[:3]) == ("CPU memory", [64 * 2**30, 128 * 2**30, 256 * 2**30])
    assert other_axes(points, sizes) == ["eviction_policy"]
    assert size_axis([point("a"), point("b")]) is None
    assert hit_rate_by_size([point("a"), point("b")]) is None
    assert pareto([point("a"), point("b")]) is None


def test_sizes_are_round() -> None:
    """Sizes are written as people write them."""
    assert [size_text(size) for size in (0, 2**29, 64 * 2**30, 3 * 2**39, 2000 * 2**30)] == [
        "none", "512 MiB", "64 GiB", "1.5 TiB", "1.95 TiB",
    ]  # fmt: skip


def test_bars_show_all_points_of_one_size() -> None:
    """Two runs with the same memory are both shown: each bar has its name."""
    runs = [point("none", gib=0), point("lru", gib=64), point("disk", gib=64)]
    apart = [replace(each, axes={"kind": name}) for each, name in zip(runs, "abc", strict=True)]
    drawn = hit_rate_by_size(apart)
    assert drawn is not None
    (axes,) = [each for each in drawn.axes if each.get_title("left")]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["none\nnone", "lru\n64 GiB", "disk\n64 GiB"]


def test_front_is_that_of_brute_force() -> None:
    """Nobody on the front is beaten, everybody else is: at least as good for at most as much, on random points."""
    rng = random.Random(5)
    for _ in range(300):
        count = rng.randint(1, 12)
        costs = [float(rng.randint(0, 5)) for _ in range(count)]
        values = [float(rng.randint(0, 5)) for _ in range(count)]
        for lower in (True, False):
            better = (lambda a, b: a <= b) if lower else (lambda a, b: a >= b)
            found = front(costs, values, lower_is_better=lower)
            for at in range(count):
                beaten = any(
                    costs[other] <= costs[at]
                    and better(values[other], values[at])
                    and (costs[other], values[other]) != (costs[at], values[at])
                    for other in range(count)
                )
                twin = any((costs[other], values[other]) == (costs[at], values[at]) for other in found)
                assert (not beaten) is twin


def cells(table: Any) -> list[list[str]]:
    """The texts of a table."""
    return [[cell.text for cell in row] for row in table.rows]


def test_policies_against_a_simulated_optimum(points: list[Point]) -> None:
    """A row per policy, a column per size; the gap is the mean over the sizes, to the policy that knows the future."""
    table = policy_table(points)
    assert table is not None
    assert [head.text.replace("\N{ZERO WIDTH SPACE}", "") for head in table.headings] == [
        "Policy", "64GiB", "128GiB", "256GiB", "Behind the optimum, mean", "TTFT P90, mean",
    ]  # fmt: skip
    assert cells(table) == [
        ["lru", "30.0 %", "50.0 %", "70.0 %", "10.0 points", "4.00 s"],
        ["arc", "35.0 %", "45.0 %", "70.0 %", "10.0 points", "4.00 s"],
        ["opt", "45.0 %", "60.0 %", "75.0 %", "0.0 points", "3.20 s"],
    ]
    assert table.hint.startswith("The optimum is policy opt, simulated in the same setting. It knows the trace")


def test_policies_against_the_optimum_of_a_curve(points: list[Point]) -> None:
    """Without a simulated optimum that of `kvsim mrc` is taken at the next size it knows, or its largest."""
    two = [each for each in points if each.policy != "opt"]
    gib = 2**30
    table = policy_table(two, [(104 * gib, 0.5), (200 * gib, 0.65), (250 * gib, 0.8)])  # GPU 40 GiB + CPU
    assert table is not None
    # 104 GiB: 0.5; 168 GiB: that of 200, 0.65; 296 GiB: the largest, 0.8.
    assert [row[4] for row in cells(table)] == ["15.0 points", "15.0 points"]
    assert "80.0 % at most, with any size. It caches prompts only" in table.hint
    without = policy_table(two)
    assert without is not None
    assert "Behind the optimum, mean" not in [head.text for head in without.headings]
    assert policy_table([each for each in points if each.policy == "lru"]) is None


def test_service_levels_of_a_sweep(points: list[Point]) -> None:
    """One row per point with its axes and figures; hundreds of rows are cut, with a word about it."""
    (table,) = service_of_points(points, points[8]).tables
    assert [head.text for head in table.headings][2:] == [
        "TTFT P50", "TTFT P90", "TTFT P99", "TPOT P50", "TPOT P90", "E2E P50", "E2E P90", "Hit rate", "Output tok/s",
    ]  # fmt: skip
    assert cells(table)[0][:5] == ["64GiB", "lru", "2.80 s", "5.60 s", "11.2 s"]
    many = [replace(points[0], axes={"n": number}) for number in range(MOST_ROWS + 7)]
    (long,) = service_of_points(many, None).tables
    assert len(long.rows) == MOST_ROWS
    assert long.hint == f"The first {MOST_ROWS} of {MOST_ROWS + 7} choices; results.csv in the sweep's folder has all."


def test_sessions_of_one_and_of_two(baseline: Run, offload: Run) -> None:
    """The longest session first; of two runs the same sessions side by side, with their change."""
    alone = sessions(offload)
    assert alone is not None
    (table,) = alone.tables
    assert len(table.rows) == 40
    times = [float(row[4].key) for row in table.rows]
    assert times == sorted(times, reverse=True)
    both = sessions_of_two(baseline, "a", offload, "b")
    assert both is not None
    (table,) = both.tables
    for row in table.rows:
        assert float(row[4].key) == pytest.approx(float(row[3].key) - float(row[2].key), abs=1e-6)
        assert row[4].mark == ("good" if float(row[4].key) < 0 else "bad")


def test_page_of_a_sweep(points: list[Point], tmp_path: Path) -> None:
    """Its parts come in the order of the questions; what it cannot know (curves, sessions) is not there."""
    drawn = write_points(points, tmp_path / "report.html", "sizes", bound=[(2**40, 0.8)])
    text = (tmp_path / "report.html").read_text()
    assert re.findall(r'<h2 id="(\w+)"', text) == [
        "warnings", "service", "capacity", "pareto", "policies", "notes", "made",
    ]  # fmt: skip
    assert [each.key for each in drawn] == ["hit_rate_by_size", "pareto", "optimum"]
    assert len(text) < 3_000_000
    assert baseline_of(points) is points[0]


def test_other_traces_are_told(tmp_path: Path) -> None:
    """Points that played something else than the first are named: their differences are not the configuration's."""
    figures = {"gib": 64, "hit_rate": 0.5, "ttft_s": 1.0, "rate": 100.0}
    rows = [({"n": 1}, figures), ({"n": 2}, figures | {"trace": "u (9 sessions)", "gib": 128})]
    write_points(points_of((), [load_sweep(sweep_at(tmp_path / "s", rows))]), tmp_path / "r.html", "x")
    assert "1 points (n 2) played another trace" in (tmp_path / "r.html").read_text()
