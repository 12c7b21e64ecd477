"""The pure parts of the benchmarks. Nothing here asserts a time."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
OUTCOME = {
    "requests": 2_000,
    "statuses": {"finished": 2_000},
    "prompt_tokens": 9_000_000,
    "output_tokens": 1_000_000,
    "hit_tokens": 5_000_000,
    "preemptions": 3,
    "end_s": 12.5,
    "steps": 1_250_000,
}
TIMES = {"user_s": 4.0, "import_s": 0.5, "read_s": 1.5, "run_s": 2.0, "wall_s": 4.5, "rss_mib": 100.0}
FAST = {**OUTCOME, **TIMES, "decisions": 20_000, "events": 45_678}


@pytest.fixture(scope="module", autouse=True)
def _beside() -> Iterator[None]:
    """The benchmarks are scripts that import each other from their own folder."""
    sys.path.insert(0, str(HERE))
    yield
    sys.path.remove(str(HERE))


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    """Tables and fits."""
    import figures  # noqa: PLC0415

    return figures


@pytest.fixture(scope="module")
def cases() -> ModuleType:
    """What is measured."""
    import cases  # noqa: PLC0415

    return cases


def printed(table: Table, width: int = 100) -> list[str]:
    """The lines of a table, without space at their ends."""
    text = io.StringIO()
    Console(file=text, width=width).print(table)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def test_exponent_of_a_power_law(figures: ModuleType) -> None:
    """Points on 3 x^1.5 have exponent 1.5; a factor does not change it."""
    points = [(x, 3 * x**1.5) for x in (100.0, 300.0, 1_000.0, 10_000.0)]
    assert figures.exponent(points) == pytest.approx(1.5)
    assert figures.exponent([(x, 7 * y) for x, y in points]) == pytest.approx(1.5)


def test_exponent_of_scattered_points_is_the_least_squares_one(figures: ModuleType) -> None:
    """Logarithms (to 10) of (0, 0), (1, 2), (2, 1): slope 1/2."""
    assert figures.exponent([(1.0, 1.0), (10.0, 100.0), (100.0, 10.0)]) == pytest.approx(0.5)


def test_exponent_needs_two_places(figures: ModuleType) -> None:
    """One place says nothing about growth."""
    with pytest.raises(ValueError, match="two places"):
        figures.exponent([(10.0, 1.0), (10.0, 2.0)])


def test_scaling_takes_the_cases_of_its_group(figures: ModuleType) -> None:
    """Sessions and contexts apart, by the time to simulate; one case alone is not fitted."""
    results = {
        "e-s-100": {"run_s": 0.5},
        "e-s-1000": {"run_s": 5.0},
        "e-c-4096": {"run_s": 1.0},
        "c-none": {"run_s": 9.0},
    }
    assert figures.scaling(results) == {"sessions": pytest.approx(1.0)}


def test_speedups_pair_fast_with_reference(figures: ModuleType) -> None:
    """Ratios of both times, and whether both found the same."""
    slow = FAST | {"user_s": 102.0, "run_s": 100.0, "decisions": 1_250_000}
    found = figures.speedups({"x-none-fast": FAST, "x-none-reference": slow, "x-cpu-fast": FAST})
    assert found == {"x-none": {"run_s": 50.0, "user_s": 25.5, "same": 1.0}}
    other = figures.speedups({"x-none-fast": FAST, "x-none-reference": slow | {"steps": 1}})
    assert other["x-none"]["same"] == 0.0


def test_the_least_disturbed_attempt_counts(figures: ModuleType) -> None:
    """Least user CPU, with everything else of that attempt."""
    attempts = [{"user_s": 3.0, "run_s": 1.0}, {"user_s": 2.0, "run_s": 1.5}]
    assert figures.best(attempts) == {"user_s": 2.0, "run_s": 1.5}


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (999, "999"), (1_234, "1.23K"), (45_678, "46K"), (1_250_000, "1.25M"), (345_000_000, "345M")],
)
def test_short_counts(figures: ModuleType, count: int, text: str) -> None:
    """Three digits or so, and a unit."""
    assert figures.short(count) == text


def test_results_table(figures: ModuleType) -> None:
    """Rates are per second of the simulation alone; a pool has only its time per block."""
    pool = {"user_s": 1.0, "run_s": 0.5, "wall_s": 1.1, "rss_mib": 20.0, "ns_per_reference": 1.234}
    whole = {"user_s": 8.0, "wall_s": 9.0, "rss_mib": 300.0}
    lines = printed(figures.results_table({"c-nvme": FAST, "a-extent": pool, "f-mooncake-none": whole}))
    assert " ".join(lines[0].split()) == (
        "case user s import read run wall MiB req/s Mtok/s steps decided events µs/dec"
    )
    assert " ".join(lines[1].split()) == "c-nvme 4.00 0.50 1.50 2.00 4.5 100 1,000 5.0 1.25M 20K 46K 100"
    assert lines[2].split() == ["a-extent", "1.00", "0.50", "1.1", "20", "1.23", "ns", "per", "block"]
    assert lines[3].split() == ["f-mooncake-none", "8.00", "9.0", "300"]
    assert all("…" not in line for line in lines)


def test_comparison_table(figures: ModuleType) -> None:
    """New over old; cases of one side only are named, other results are pointed out."""
    better = FAST | {"user_s": 2.0, "run_s": 0.5, "rss_mib": 110.0, "decisions": 10_000}
    old = {"b-1-none": FAST, "c-none": FAST, "gone": FAST}
    new = {"b-1-none": better, "c-none": FAST | {"end_s": 12.6}, "added": FAST}
    lines = printed(figures.comparison_table(old, new))
    assert lines[0].split() == ["case", "old", "s", "new", "s", "user", "run", "MiB", "decisions"]
    assert [line.split() for line in lines[1:]] == [
        ["b-1-none", "4.00", "2.00", "0.50", "0.25", "1.10", "0.50"],
        ["c-none", "4.00", "4.00", "1.00", "1.00", "1.00", "1.00", "other", "results:", "end_s"],
        ["gone", "4.00", "-"],
        ["added", "-", "4.00"],
    ]


def test_ratio_without_figures_is_empty(figures: ModuleType) -> None:
    """Neither a missing figure nor a zero has a ratio."""
    assert figures.ratio({}, {"run_s": 1.0}, "run_s") == ""
    assert figures.ratio({"run_s": 0.0}, {"run_s": 1.0}, "run_s") == ""
    assert figures.ratio({"run_s": 1.0}, {}, "run_s") == ""


def test_cases_are_chosen_by_group_or_name(cases: ModuleType) -> None:
    """A word is a whole name or its beginning, up to a hyphen; names are unique, and every group has some."""
    everything = list(cases.all_cases(Path("missing")))
    names = [case.name for case in everything]
    assert len(set(names)) == len(names)
    assert {name[0] for name in names} == set(cases.GROUPS)
    picked = [case.name for case in cases.chosen(iter(everything), ["b-1", "d", "c-none"])]
    assert picked == ["b-1-none", "b-1-cpu", "b-1-nvme", "c-none", "d-none", "d-cpu", "d-nvme"]
    assert cases.chosen(iter(everything), ["nothing"]) == []


def test_pools_of_the_benchmark_do_the_same() -> None:
    """By the block and by the run: as many references, as many evictions."""
    import measure  # noqa: PLC0415

    assert measure.reference_pool(60) == measure.extent_pool(60) == (531_000, 45_918)
