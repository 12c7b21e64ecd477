"""`kvsim report`: what it reads and refuses, what is measured against an SLO, what it leaves behind."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "report"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "results"))

from run_builder import small_requests, small_series, small_totals
from sweep_points import SIZES_AND_POLICIES, sweep_at

from kvsim.cli import app
from kvsim.errors import UserError
from kvsim.plan.reporting import read_bound, read_report, slo_of
from kvsim.results.run import assemble
from kvsim.results.runfolder import RunFolder
from kvsim.results.sweep import load_sweep


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine points over sizes and policies; P90 of TTFT from 2 s to 5.6 s."""
    return sweep_at(tmp_path_factory.mktemp("sweeps") / "sizes", SIZES_AND_POLICIES)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven requests, three of which finished: TTFT 100, 300 and 500 ms."""
    path = tmp_path_factory.mktemp("runs") / "small"
    with RunFolder.create(path) as folder:
        folder.write(
            assemble(
                requests=small_requests(), series=small_series(), totals=small_totals(),
                config_text="hardware: {tensor_parallel_size: 2}\nengine: {}\n",
            )
        )  # fmt: skip
    return path


def call(*options: str | Path) -> Any:
    """The command's JSON."""
    done = CliRunner().invoke(app, ["report", *map(str, options), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_run_against_an_slo(run_folder: Path, tmp_path: Path) -> None:
    """A run knows any percentile, its goodput is counted request by request, and what did not finish shows."""
    slo = ("--slo", "ttft_p50=300ms", "--slo", "ttft_p95=400ms", "--slo", "goodput=0.5", "--slo", "request.ttft=350ms")
    said = call(run_folder, "-o", tmp_path / "r.html", *slo)
    (point,) = said["points"]
    assert (point["gpus"], point["meets_slo"]) == (2, False)
    assert point["slo"] == [
        {"key": "ttft_p50", "limit": "at most 300ms", "measured": "300 ms", "met": True},
        {"key": "ttft_p95", "limit": "at most 400ms", "measured": "480 ms", "met": False},
        {"key": "goodput", "limit": "at least 50.0 %", "measured": "28.6 %", "met": False},  # 2 of 7
        {"key": "finished", "limit": "at least 100.0 %", "measured": "42.9 %", "met": False},  # 3 of 7
    ]
    text = (tmp_path / "r.html").read_text()
    assert "kvsim run small" in text
    assert "480 ms" in text


def test_sweep_against_an_slo(sweep: Path, tmp_path: Path) -> None:
    """Of the points that pass by their summaries, the one with the least memory is best; opt is never a choice."""
    said = call(sweep, "-o", tmp_path / "s.html", "--slo", "ttft_p90=4s")
    assert (said["baseline"], said["best"]) == ("64GiB, lru", "128GiB, lru")
    assert [each["meets_slo"] for each in said["points"]] == [
        False, True, True, False, False, True, False, True, True,
    ]  # fmt: skip


def test_what_is_left_behind(sweep: Path, tmp_path: Path) -> None:
    """A page and a folder of plots as PNG and SVG; again with --overwrite gives the same bytes, and no scraps."""
    said = call(sweep, "-o", tmp_path / "a" / "all.html", "--title", "Sizes & runs")
    assert said["report"] == str(tmp_path / "a" / "all.html")
    assert len(said["points"]) == 9
    before = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {str(path) for path in before} >= {"a/all.html", "a/all-plots/pareto.png", "a/all-plots/pareto.svg"}
    assert b"<title>Sizes &amp; runs</title>" in before[Path("a/all.html")]
    call(sweep, "-o", tmp_path / "a" / "all.html", "--title", "Sizes & runs", "--overwrite")
    after = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert after == before


def test_said_on_the_terminal(sweep: Path, tmp_path: Path) -> None:
    """The two sentences of the page, the SLO, and where the page is."""
    done = CliRunner().invoke(app, ["report", str(sweep), "-o", str(tmp_path / "s.html"), "--slo", "ttft_p90=1s"])
    text = " ".join(done.output.split())
    assert text.startswith("9 configurations of llama-3.1-70b on 4 x h100-sxm serving t (10 sessions) were simulated.")
    assert "None of them meets the SLO; 256GiB, lru has the lowest P90 time to first token" in text
    assert "Left out: 3 with policy opt, which knows the future." in text
    assert "ttft_p90: 2.40 s, at most 1s: missed" in text
    assert f"report {tmp_path / 's.html'}" in done.output


def test_optimum_of_a_miss_ratio_curve(sweep: Path, tmp_path: Path) -> None:
    """The folder of `kvsim mrc` gives the optimum; sizes without one are left out."""
    table = pd.DataFrame({"size_bytes": [2**40, 2**30, 5], "opt_hit_rate": [0.9, 0.5, None], "mark": ["", "x", ""]})
    (tmp_path / "mrc").mkdir()
    table.to_csv(tmp_path / "mrc" / "mrc.csv", index=False)
    assert read_bound(tmp_path / "mrc") == [(2**30, 0.5), (2**40, 0.9)]
    call(sweep, "-o", tmp_path / "s.html", "--mrc", tmp_path / "mrc")
    assert (tmp_path / "s-plots" / "optimum.png").exists()


def failure(*options: str | Path) -> str:
    """The message of a command that fails."""
    with pytest.raises(UserError) as caught:
        CliRunner().invoke(app, ["report", *map(str, options)], catch_exceptions=False)
    return str(caught.value)


@pytest.mark.parametrize(
    ("slo", "expected"),
    [
        ("ttft_p90", "--slo ttft_p90: expected KEY=VALUE, such as ttft_p90=2s"),
        ("ttft_p90=2", "--slo: ttft_p90: expected a time with its unit, such as 30ms, 60s or 1.5h, found '2'"),
        ("ttf_p90=2s", "--slo: unknown key ttf_p90, did you mean ttft_p90?"),
        ("goodput=often", "--slo goodput=often: expected a share above 0 and up to 1, such as 0.95"),
        ("goodput=0.9", "--slo: request is missing, expected beside goodput"),
        ("ttft_p90=nan", "--slo: ttft_p90: expected a time with its unit"),
    ],
)
def test_wrong_slos(run_folder: Path, tmp_path: Path, slo: str, expected: str) -> None:
    """A limit that is none is one line that names it; nothing is written."""
    assert failure(run_folder, "-o", tmp_path / "r.html", "--slo", slo).startswith(expected)
    assert not any(tmp_path.iterdir())


def test_a_percentile_that_a_sweep_has_not(sweep: Path, tmp_path: Path) -> None:
    """A sweep keeps no requests: what its summaries lack is refused by name."""
    message = failure(sweep, "-o", tmp_path / "s.html", "--slo", "ttft_p95=2s")
    assert message.startswith("--slo ttft_p95: a sweep keeps no requests: expected mean, p50, p90 or p99")


def test_wrong_places(run_folder: Path, tmp_path: Path) -> None:
    """Folders that are neither, pages that are there, names that are no page: each is one line, and nothing is lost."""
    (tmp_path / "empty").mkdir()
    page = tmp_path / "there.html"
    page.write_text("mine")
    assert "expected a run folder (with summary.json) or a sweep folder" in failure(
        tmp_path / "empty", "-o", tmp_path / "r.html"
    )
    assert "does not exist" in failure(tmp_path / "nowhere", "-o", tmp_path / "r.html")
    assert "is there already; expected a new name, or --overwrite" in failure(run_folder, "-o", page)
    assert "expected a file that ends in .html" in failure(run_folder, "-o", tmp_path / "r.pdf")
    (tmp_path / "r-plots").mkdir()
    (tmp_path / "r-plots" / "mine.txt").write_text("mine")
    assert "expected a new folder, or one that holds only the plots of a report" in failure(
        run_folder, "-o", tmp_path / "r.html"
    )
    assert page.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "r-plots", "there.html"]
    (tmp_path / "mrc.csv").write_text("size_bytes,lru_hit_rate\n1,0.5\n")
    with pytest.raises(UserError, match="expected a column opt_hit_rate"):
        read_bound(tmp_path / "mrc.csv")
    with pytest.raises(UserError, match=r"mrc.csv: cannot be read as what kvsim mrc writes"):
        read_bound(tmp_path / "empty")


def plan_at(folder: Path) -> Path:
    """Three points as a plan whose answer is the largest: what it cost is not looked at."""
    sweep_at(folder, SIZES_AND_POLICIES[:3])
    table = pd.read_parquet(folder / "results.parquet")
    ttft_ns = table["latency.ttft_ms.p90"] * 1e6
    table = table.assign(recommended=[place == 2 for place in range(3)])
    table.assign(**{"slo.ttft_p90": ttft_ns, "slo.finished": 1.0}).to_parquet(folder / "results.parquet")
    answer = {"kind": "kvsim-plan", "schema": 1, "slo": {"ttft_p90": "3s"}, "answer": "Take 256GiB."}
    (folder / "plan.json").write_text(json.dumps(answer))
    return folder


def test_a_plan_against_another_slo(tmp_path: Path) -> None:
    """With an SLO of its own the report of a plan's folder is that of its points: best, lead, page are for that SLO."""
    folder = plan_at(tmp_path / "plan")
    report = read_report([folder])
    assert (report.best, report.lead) == (report.points[2], "Take 256GiB.")
    report = read_report([folder], slo_of(["ttft_p90=4s"]))
    assert (report.best, report.lead) == (report.points[1], "")
    assert report.plan is None
    assert report.doubts == (
        "The plan's own answer, for ttft_p90 3s, is left out: this is the best of its points for --slo.",
    )
    assert [each.meets_slo for each in report.points] == [False, True, True]


def test_nothing_was_simulated(tmp_path: Path) -> None:
    """The message names the sweep whose points all failed, and no file of the report's own."""
    sweep_at(tmp_path / "s", [({"a": 1}, None), ({"a": 2}, None)])
    assert failure(tmp_path / "s", "-o", tmp_path / "r.html") == (
        f"{tmp_path / 's'}: none of 2 points was simulated to its end: nothing to report"
    )


def test_optimum_of_another_workload(sweep: Path, tmp_path: Path) -> None:
    """A miss ratio curve of another trace or model than the points' is told, one of theirs is not."""
    pd.DataFrame({"size_bytes": [2**30], "opt_hit_rate": [0.5]}).to_csv(tmp_path / "mrc.csv", index=False)
    for said, expected in (
        ({"trace": "t", "kv_of": "llama-3.1-70b, 327,680 bytes per token"}, []),
        ({"trace": "t", "kv_of": "1,024 bytes per token"}, []),
        ({"trace": "u", "kv_of": "x, 1 bytes per token"}, ["trace u, not of t (10 sessions)", "model x, not of llama"]),
    ):
        (tmp_path / "mrc.json").write_text(json.dumps(said))
        doubts = read_report([sweep], mrc=tmp_path).doubts
        assert len(doubts) == len(expected)
        assert all(part in doubt for part, doubt in zip(expected, doubts, strict=True))


def test_damaged_sweeps(sweep: Path, tmp_path: Path) -> None:
    """A table that is none, or not a sweep's, or a damaged point: one line that names the file."""
    (tmp_path / "results.parquet").write_bytes(b"not parquet")
    with pytest.raises(UserError, match=r"results.parquet: cannot be read as the table of a sweep"):
        load_sweep(tmp_path)
    pd.DataFrame({"index": [0]}).to_parquet(tmp_path / "results.parquet")
    with pytest.raises(UserError, match="not the table of a sweep: expected a column status"):
        load_sweep(tmp_path)
    (tmp_path / "results.parquet").write_bytes((sweep / "results.parquet").read_bytes())
    (tmp_path / "points").mkdir()
    (tmp_path / "points" / f"{0:064d}.json").write_text("{")
    with pytest.raises(UserError, match=r"0.json: cannot be read as a point of a sweep"):
        load_sweep(tmp_path)
    (tmp_path / "points" / f"{0:064d}.json").write_text('{"summary": 3}')
    with pytest.raises(UserError, match="not a point of a sweep"):
        load_sweep(tmp_path)


def test_slo_options() -> None:
    """No options, no SLO; others become the section that a plan has."""
    assert slo_of([]) is None
    found = slo_of(["ttft_p90=2s", "goodput=0.95", "request.ttft=2s", "request.tpot=50ms"])
    assert found is not None
    assert found.plain() == {"ttft_p90": "2s", "goodput": 0.95, "request": {"ttft": "2s", "tpot": "50ms"}}


def test_points_of_several_inputs(sweep: Path, run_folder: Path) -> None:
    """Runs come first, whatever the order on the command line; names of sweeps tell their points apart."""
    report = read_report([sweep, run_folder])
    assert [each.name for each in report.points[:2]] == ["small", "sizes: 64GiB, lru"]
    assert report.baseline is report.points[0]
