"""Predicted against measured: literal errors of schedules by hand, and what is refused."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parent))

import known_machine as machine
import known_schedule as known

from hwreplay.cli_fit import register
from hwreplay.compare import Comparison, compare_files
from hwreplay.errors import errors_of
from hwreplay.pairs import Repeated, size_class
from hwreplay.plots import window
from hwreplay.result import Integrity, JobResult, RunResult, StepResult, WrongByte
from hwreplay.timeline import simulated
from kvsim.errors import UserError
from kvsim.profile import load_link

H100 = load_link("pcie5-h100")


def slow_replay() -> RunResult:
    """The small schedule with passes of 125, a store of 100, a load of 160 and a write of 40 ns."""
    jobs = [
        JobResult(0, "store", 4, 64, 256, 1, 125, 125, 225, 230),
        JobResult(1, "load", 2, 64, 128, 1, 125, 125, 285, 290),
        JobResult(2, "write", 1, 128, 128, 1, 250, 250, 290, 300),
    ]
    steps = [StepResult(n, 125 * n, 125 * n + 125, 100, 125) for n in range(4)]
    return machine.run(jobs, steps)


def compared(tmp_path: Path, *results: RunResult) -> Comparison:
    """Replays of the small schedule, compared."""
    path = known.save(tmp_path, known.small())
    return compare_files(path, known.save_replays(tmp_path, path, results))


def test_literal_errors(tmp_path: Path) -> None:
    """Store 50 for 100 ns, load 80 for 160 ns, write 80 for 40 ns, passes 100 for 125 ns."""
    found = compared(tmp_path, slow_replay())
    rows = {row.name: row for row in found.rows}
    assert list(rows) == [
        "Copies, both directions", "Loads (host to device)", "  loads below 256 KiB", "Stores (device to host)",
        "  stores below 256 KiB", "File writes", "Forward passes",
    ]  # fmt: skip
    copies = rows["Copies, both directions"]
    assert (copies.n, copies.bytes) == (2, 384)
    assert copies.bias == copies.bias.__class__(-0.5, -0.5, -0.5)
    assert copies.median.median == 0.5
    assert copies.mean.median == 0.5
    assert copies.mae_ns.median == 65  # between 50 and 80
    assert copies.predicted_ns[0] == 65
    assert copies.measured_ns[0].median == 130
    assert rows["File writes"].bias.median == 1.0
    assert rows["Forward passes"].n == 4
    assert rows["Forward passes"].bias.median == pytest.approx(-0.2)
    assert found.makespan_ns.predicted == 400
    assert found.makespan_ns.measured == Repeated(500, 500, 500)
    assert found.makespan_error.median == pytest.approx(-0.2)
    assert found.undisturbed == Repeated(1.25, 1.25, 1.25)  # the pass of step 0 and the last
    rates = {rate.direction: rate for rate in found.rates}
    assert rates["store"].predicted == pytest.approx(256 / 50)  # bytes per ns = GB/s
    assert rates["store"].measured.median == pytest.approx(2.56)
    assert (rates["write"].descriptor_bytes, rates["write"].jobs) == (128, 1)


def test_hidden_share(tmp_path: Path) -> None:
    """Copies within passes are hidden whole; between two passes they are not."""
    found = compared(tmp_path, slow_replay())
    assert found.hidden_share.predicted == 1.0
    assert found.hidden_share.measured == Repeated(1.0, 1.0, 1.0)
    result = slow_replay()
    steps = [StepResult(n, 125 * n, 125 * n + 50, 100, 50) for n in range(4)]  # 75 ns of nothing after each
    jobs = (replace(result.jobs[0], started_ns=0, finished_ns=100), *result.jobs[1:])
    found = compared(tmp_path, replace(result, steps=tuple(steps), jobs=jobs))
    # the store: 50 of 100; the load from 125 to 285: 50 and 35 of 160
    assert found.hidden_share.measured == Repeated(
        pytest.approx(135 / 260), pytest.approx(135 / 260), pytest.approx(135 / 260)
    )  # type: ignore[arg-type]


def test_repeats(tmp_path: Path) -> None:
    """Each number of each replay; the median and the range are shown."""
    results = [slow_replay(), slow_replay(), slow_replay()]
    for number, end in ((1, 175), (2, 325)):
        jobs = (replace(results[number].jobs[0], finished_ns=end), *results[number].jobs[1:])
        results[number] = replace(results[number], jobs=jobs, repeat=number)
    found = compared(tmp_path, *results)
    store = next(row for row in found.rows if row.name.startswith("Stores"))
    assert store.bias == Repeated(-0.5, -0.75, 0.0)  # 50 for 100, 50 and 200 ns
    assert store.measured_ns[0] == Repeated(100, 50, 200)
    assert found.files == ("run-0.json", "run-1.json", "run-2.json")


def test_start_that_nobody_knows(tmp_path: Path) -> None:
    """Such jobs are left out, and it is said."""
    schedule = known.small()
    steps = list(schedule.steps)
    steps[2] = replace(steps[2], jobs=(replace(steps[2].jobs[0], started_ns=None),))
    path = known.save(tmp_path, replace(schedule, steps=steps))
    found = compare_files(path, known.save_replays(tmp_path, path, [slow_replay()]))
    assert "File writes" not in {row.name for row in found.rows}
    assert "1 jobs have no simulated start and are left out." in found.cautions


def test_refused(tmp_path: Path) -> None:
    """Another schedule, wrong bytes, lost jobs, mixed devices or backends, scaled blocks, nothing: one message each."""
    path = known.save(tmp_path, known.small())
    good = slow_replay()
    wrong = replace(good, integrity=Integrity(1, 1, WrongByte(0, "host", 3, 7, 100, 1, 2)))
    scaled = replace(good, schedule=replace(good.schedule, scaled=0.5))
    cases: dict[str, list[RunResult]] = {
        "no results given": [],
        "integrity failed: host block 3": [wrong],
        r"has no job 1: 2 jobs, expected the 3 of": [replace(good, jobs=(good.jobs[0], good.jobs[2]))],
        "has the unknown job 7": [replace(good, jobs=(*good.jobs, replace(good.jobs[0], job=7)))],
        r"measured on EPYC Test \(host threads, no GPU\), expected NVIDIA Test": [
            good, replace(good, device=machine.HOST)
        ],
        "copied by torch, expected memcpy_batch": [good, replace(good, backend="torch")],
        "--profile predicts the times of what was replayed": [scaled],
    }  # fmt: skip
    for message, results in cases.items():
        with pytest.raises(UserError, match=message):
            compare_files(path, known.save_replays(tmp_path, path, results))
    paths = known.save_replays(tmp_path, path, [scaled])
    assert compare_files(path, paths, H100).predicted_by == "link profile pcie5-h100"
    other = known.save(tmp_path / "other", replace(known.small(), header=known.header(model="other")))
    with pytest.raises(UserError, match="is of another schedule: sha256"):
        compare_files(other, paths)


def test_cautions(tmp_path: Path) -> None:
    """A host, another way of copying and a profile of another kind of device are pointed out."""
    host = replace(slow_replay(), device=machine.HOST, backend="host", notes=("no O_DIRECT",))
    cautions = compared(tmp_path, host).cautions
    assert any("no GPU: these are not the times of any GPU" in caution for caution in cautions)
    assert "no O_DIRECT" in cautions
    torch = replace(slow_replay(), backend="torch", way="dma_loop")
    assert any(
        "go by dma_batch, the replayed ones by dma_loop (torch)" in each for each in compared(tmp_path, torch).cautions
    )
    path = known.save(tmp_path, known.small())
    found = compare_files(path, known.save_replays(tmp_path, path, [host]), H100)
    assert any(caution.startswith("Link profile pcie5-h100 is of NVIDIA H100") for caution in found.cautions)


def test_simulated_passes() -> None:
    """A pass begins when the one before has ended and what it waits for is complete, not when it was decided."""
    ahead = known.Schedule(
        known.header(),
        [
            known.step(0, 0, 100, known.job(0, "load", 0, 150)),
            known.step(1, 50, 250, compute=100, after=(0,)),  # decided while step 0 still runs
            known.step(2, 250, 250),
        ],
    )
    line = simulated(ahead)
    assert [(each.start_ns, each.end_ns) for each in line.passes.values()] == [(0, 100), (150, 250)]
    assert line.makespan_ns == 250


def test_errors() -> None:
    """Percentiles are of absolute errors; nothing gives nothing."""
    errors = errors_of([(90, 100), (100, 100), (130, 100)])
    assert errors is not None
    assert (errors.n, errors.bias, errors.median, errors.mae_ns) == (3, 0.0, pytest.approx(0.1), 10)
    assert errors.mean == pytest.approx(0.4 / 3)
    assert errors_of([]) is None


def test_size_classes() -> None:
    """The border belongs to the larger class."""
    assert size_class(2**18 - 1) == "below 256 KiB"
    assert size_class(2**20) == "1 to 4 MiB"
    assert size_class(2**28) == "256 MiB and more"


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands write profile, JSON, plots and a page that needs no network; a host is named in every title."""
    app = typer.Typer()
    register(app)
    monkeypatch.setenv("COLUMNS", "100")  # whatever terminal the tests run in
    schedule = known.lifelike(H100, 60)
    path = known.save(tmp_path, schedule)
    times = simulated(schedule)
    results = [
        known.replayed(schedule, times, "", machine.noisy(seed), device=machine.HOST, backend="host", repeat=seed)
        for seed in range(2)
    ]
    runs = [str(each) for each in known.save_replays(tmp_path, path, results)]
    profile = tmp_path / "cpu.profile.yaml"
    fitted = CliRunner().invoke(app, ["fit", *runs, "-o", str(profile)], catch_exceptions=False)
    assert fitted.exit_code == 0
    tables = [line for line in fitted.output.splitlines() if not line.startswith(("-", "profile", "errors"))]
    assert max(map(len, tables)) <= 100
    assert load_link(profile).kind == "host"
    assert json.loads((tmp_path / "cpu.fit.json").read_text())["checks"][0]["held_out"] is True
    out = tmp_path / "out"
    shown = CliRunner().invoke(app, ["compare", str(path), *runs, "-o", str(out)], catch_exceptions=False)
    assert shown.exit_code == 0
    assert "…" not in shown.output  # nothing is cut at 100 columns
    assert {file.name for file in out.iterdir()} == {
        "compare.json", "report.html",
        *(f"{name}.{kind}" for name in ("scatter", "timelines", "bandwidth") for kind in ("png", "svg")),
    }  # fmt: skip
    page = (out / "report.html").read_text()
    assert not re.search(r"""(src|href)=["'](?!#)""", page)
    assert "http" not in page.replace("http-equiv", "")
    assert "prefers-color-scheme: dark" in page
    assert "<script" not in page
    assert "<title>Predicted and measured: by-hand on EPYC Test (host threads, no GPU)</title>" in page
    for name in ("scatter", "timelines", "bandwidth"):
        assert "EPYC Test (host threads, no GPU), backend host" in (out / f"{name}.svg").read_text()
    document = json.loads((out / "compare.json").read_text())
    assert document["device"]["kind"] == "host"
    assert len(document["jobs"]) == schedule.num_jobs
    assert len(document["steps"]["predicted_ns"]) == 60
    again = ["compare", str(path), *runs, "-o", str(out), "--profile", str(profile), "--json"]
    printed = json.loads(CliRunner().invoke(app, again, catch_exceptions=False).output)
    assert printed["predicted_by"] == "link profile cpu"
    assert printed["rows"][0]["median"]["median"] < 0.1


def test_window() -> None:
    """The window begins where the most is copied; a schedule without passes has none."""
    steps = [known.step(n, 100 * n, 100 * n + 100) for n in range(40)]
    steps[20] = known.step(20, 2000, 2100, known.job(0, "load", 2000, 2100))
    line = simulated(known.Schedule(known.header(), steps))
    first = window(line)
    assert first is not None
    assert 9 <= first <= 20
    assert window(simulated(known.Schedule(known.header(), []))) is None
