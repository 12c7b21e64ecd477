"""Which choice a report names: not one that refuses what others serve, nor one that knows the future or costs more."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from sweep_points import point_summary, sweep_at

from kvsim.plan.reporting import read_report, slo_of
from kvsim.report.format import MISSING
from kvsim.report.html import write_points
from kvsim.report.plots import hit_rate
from kvsim.report.point_plots import _lines, unbeaten
from kvsim.report.points import Point, baseline_of, best_of, other_axes, points_of
from kvsim.report.points_table import points_table
from kvsim.report.policies import policy_table
from kvsim.report.tenants import tenant_rows
from kvsim.report.words import describe_points
from kvsim.results.run import Run
from kvsim.results.sweep import load_sweep


def point(name: str, gpus: int = 4, rejected: int = 0, policy: str = "lru", **figures: Any) -> Point:
    """One point by hand."""
    summary = point_summary(**{"gib": 64, "hit_rate": 0.5, "ttft_s": 1.0, "rate": 100.0, **figures})
    counts = summary["requests"]
    counts |= {"rejected": rejected, "finished": counts["arrived"] - rejected}
    counts["reasons"] = {"rejected": {"prompt too long for max_model_len 32768": rejected} if rejected else {}}
    config = {"hardware": {"tensor_parallel_size": gpus}, "engine": {}, "connector": {"eviction_policy": policy}}
    return Point(name, {"policy": policy}, summary, config)


def test_who_refuses_more_is_not_the_best(tmp_path: Path) -> None:
    """A point that rejects more than another is faster for that alone: it is told and shown, never the best."""
    found = [point("long", ttft_s=3.0), point("short", rejected=5, ttft_s=0.5)]
    best = best_of(found)
    assert best is found[0]
    assert baseline_of(found[::-1]) is best
    said = describe_points(found, found[0], best)
    assert "Left out: 1 of 2 configurations that reject more requests than others (71.4 %)" in said
    assert unbeaten(found, [3.0, 0.5], lower_is_better=True) == [0]
    write_points(found, tmp_path / "r.html", "x")
    text = (tmp_path / "r.html").read_text()
    assert ">Rejected<" in text
    assert "5 of 7" in text
    assert "1 of 2 configurations that reject more requests" in text
    everyone = [point("a", rejected=5), point("b", rejected=5, ttft_s=0.5)]
    assert best_of(everyone) is everyone[1]
    assert describe_points(everyone, everyone[0], everyone[1]).endswith("b rejects 5 of 7 requests.")


def refusing_sweep(folder: Path) -> Path:
    """Two lengths of the model: the shorter one refuses most requests."""
    figures = {"gib": 0, "hit_rate": 0.5, "rate": 100.0}
    rows = [
        ({"engine.max_model_len": 8192}, figures | {"ttft_s": 0.5}),
        ({"engine.max_model_len": 131072}, figures | {"ttft_s": 1.5}),
    ]
    return sweep_at(folder, rows, rejected={0: 5})


def test_who_refuses_more_misses_the_slo(tmp_path: Path) -> None:
    """With an SLO, too, the point that serves all is taken, and the other one's row says why not."""
    found = read_report([refusing_sweep(tmp_path / "s")], slo_of(["ttft_p90=2s"]))
    assert found.best is found.points[1]
    assert [each.meets_slo for each in found.points] == [False, True]
    (limit,) = [each for each in found.points[0].limits if not each.is_met]
    assert (limit.key, limit.limit, limit.measured) == ("rejected", "at most 0.0 %", "71.4 %")


def test_a_sweeps_table_says_what_was_rejected(tmp_path: Path) -> None:
    """The terminal's table has the number of rejected requests where there are any."""
    table = pd.read_parquet(refusing_sweep(tmp_path / "s") / "results.parquet")
    shown = points_table(table, ["engine.max_model_len"], "x")
    (rejected,) = [each for each in shown.columns if str(each.header) == "Rejected"]
    assert list(rejected.cells) == ["5", "0"]
    table["requests.rejected"] = 0
    assert "Rejected" not in [str(each.header) for each in points_table(table, ["engine.max_model_len"], "x").columns]


def test_who_knows_the_future_is_not_the_best() -> None:
    """A policy that nobody can run bounds the others; it is named as the best only where there is nothing else."""
    found = [point("lru"), point("opt_bypass", policy="opt_bypass", ttft_s=0.1), point("opt", policy="opt", ttft_s=0.2)]
    assert best_of(found) is found[0]
    assert best_of(found[1:]) is found[1]
    assert "Left out: 2 with policy opt_bypass or opt," in describe_points(found, found[0], found[0])
    assert unbeaten(found, [1.0, 0.1, 0.2], lower_is_better=True) == [0]


def test_a_policy_ahead_of_the_simulated_optimum() -> None:
    """The optimum is the best of those that know the future; whoever is better still is ahead of it, not behind."""
    rates = {"lru": 0.65, "opt": 0.4, "opt_bypass": 0.6}
    table = policy_table([point(name, policy=name, hit_rate=rate) for name, rate in rates.items()])
    assert table is not None
    assert [row[2].text for row in table.rows] == ["5.0 points ahead", "20.0 points", "0.0 points"]


def test_more_gpus_do_not_beat_fewer() -> None:
    """A point is beaten only by one with neither more GPUs nor more memory; the lead tells both numbers of GPUs."""
    found = [point("two", gpus=8, gib=64, ttft_s=1.0), point("one", gpus=4, gib=128, ttft_s=2.0)]
    assert unbeaten(found, [1.0, 2.0], lower_is_better=True) == [0, 1]
    assert unbeaten([found[0], replace(found[1], config=found[0].config)], [1.0, 2.0], lower_is_better=True) == [0]
    summary = copy.deepcopy(dict(found[0].summary or {}))
    summary["info"]["hardware"] = "8 x h100-sxm"
    found[0] = replace(found[0], summary=summary)
    said = describe_points(found, found[1], found[0])
    assert "llama-3.1-70b on 4 x h100-sxm or 8 x h100-sxm (4 to 8 GPUs) serving" in said


def test_what_a_point_of_a_list_does_not_set(tmp_path: Path) -> None:
    """It has what its base says there, and is named by what it does set."""
    figures = {"gib": 64, "hit_rate": 0.5, "ttft_s": 1.0, "rate": 100.0}
    rows = [
        ({"connector.eviction_policy": "arc"}, figures),
        ({"hardware.tensor_parallel_size": 8}, figures),
        ({}, figures),
    ]
    found = points_of((), [load_sweep(sweep_at(tmp_path / "s", rows))])
    assert [each.name for each in found] == ["arc", "tensor_parallel_size 8", "the base"]
    assert [each.axes["eviction_policy"] for each in found] == ["arc", "lru", "lru"]
    assert [each.axes["tensor_parallel_size"] for each in found] == [4, 8, 4]


def test_a_size_in_other_words_is_no_series() -> None:
    """64 GiB in each of two servers is 128 GiB: the size of one server is no series beside how many there are."""
    axes = [("64GiB", 2), ("128GiB", 1), ("0GiB", 1), (None, 2)]
    found = [
        replace(point("x", gib=gib), axes={"cpu": cpu, "replicas": count})
        for (cpu, count), gib in zip(axes, (128, 128, 0, 0), strict=True)
    ]
    assert other_axes(found, [each.dram_bytes for each in found]) == ["replicas"]


def test_series_of_one_colour_have_other_markers() -> None:
    """Twelve series, some of a single point: no two look alike."""
    drawn = _lines("CPU memory", {f"series {number}": [(2**30, point("x"))] for number in range(12)})
    assert len({(line.get_color(), line.get_marker()) for line in drawn.axes[0].lines}) == 12


def test_names_in_a_legend_are_told_apart() -> None:
    """Long names that would be cut to the same text lose what most of them have, or are numbered."""
    long = "tensor_parallel_size 1 and max_model_len"
    drawn = _lines(
        "CPU memory",
        {
            f"tensor_parallel_size 1, {name}, max_model_len 131072": [(2**30, point("x"))]
            for name in ("opt", "arc", "lru")
        },
    )
    assert drawn.axes[0].get_legend_handles_labels()[1] == [
        "opt", "arc", "lru",
    ]  # fmt: skip
    drawn = _lines("CPU memory", {f"{long}{number} and so on": [(2**30, point("x"))] for number in range(3)})
    assert len(set(drawn.axes[0].get_legend_handles_labels()[1])) == 3


def test_a_store_without_cpu_memory_has_no_cpu_in_its_plot(offload: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no CPU tier is, the legend names the GPU and the store alone."""
    monkeypatch.setattr("kvsim.report.plots.tier_names", lambda _: ["store"])
    monkeypatch.setattr("kvsim.report.curves.tier_column", lambda run, *_: run.series["external_hit_tokens"].to_numpy())
    for blocks, expected in ((0, ["GPU cache", "store"]), (10, ["GPU cache", "CPU", "store"])):
        summary = copy.deepcopy(dict(offload.summary))
        summary["tiers"]["cpu"]["capacity_blocks"] = blocks
        drawn = hit_rate(replace(offload, summary=summary))
        assert drawn.axes[0].get_legend_handles_labels()[1] == expected


def test_a_tenant_without_a_quota() -> None:
    """What is not counted for it is marked as such, not left blank."""
    summary = point_summary(gib=1, hit_rate=0.5, ttft_s=1.0, rate=1.0)
    tenant = {**summary, "slowdown": {}}
    store = {"used_peak_bytes": 2**30, "quota_bytes": 2**31}
    rows = tenant_rows({"tenants": [{**tenant, "name": "a", "store": store}, {**tenant, "name": "b"}]})
    assert [row[-2:] for row in rows] == [("1.00 GiB", "2.00 GiB"), (MISSING, "none")]
