"""Sweeps from file to folder: each point once, nothing lost, nothing doubled, whatever fails a row."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console
from sweep_builder import config_of, identities, small_trace, swept, write_sweep
from typer.testing import CliRunner

import kvsim
from kvsim.cli import app
from kvsim.console import output_console
from kvsim.errors import UserError
from kvsim.plan.outcome import PointFiles
from kvsim.plan.point_key import key_of
from kvsim.plan.pool import evaluate
from kvsim.plan.task import Task, run_task
from kvsim.plan.workers import connected
from kvsim.report.points_table import points_table

SIZES = {"connector.cpu_bytes_to_use": ["100MiB", "1GiB"], "engine.max_num_seqs": [1, 64]}
KILLER = """
import os
from pathlib import Path
from kvsim.steptime.base import StepTimeModel

class Killer(StepTimeModel):
    def __init__(self, deployment, marker, times):
        marker = Path(__file__).with_name(marker)
        with marker.open("a") as file:
            file.write("x")
        if marker.stat().st_size <= times:
            os.kill(os.getpid(), 9)

    def step_ns(self, prefill, decode):
        return 10_000_000
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a trace."""
    small_trace(tmp_path)
    return tmp_path


def test_a_sweep_is_what_its_runs_are(folder: Path) -> None:
    """A row per point in the order of the file, with the figures and the digest of `kvsim.run`, numbers as numbers."""
    done = swept(write_sweep(folder, grid=SIZES), folder / "out")
    table = pd.read_parquet(folder / "out" / "results.parquet")
    assert list(table.columns[:7]) == ["index", *SIZES, "status", "reason", "key", "digest"]
    assert table["connector.cpu_bytes_to_use"].tolist() == ["100MiB", "100MiB", "1GiB", "1GiB"]
    assert table["engine.max_num_seqs"].tolist() == [1, 64, 1, 64]
    assert table["engine.max_num_seqs"].dtype == "int64"
    assert len(set(table["digest"])) == 4
    for number, (cpu, seqs) in enumerate([("100MiB", 1), ("100MiB", 64), ("1GiB", 1), ("1GiB", 64)]):
        alone = kvsim.run(
            config_of(folder), overrides=[f"connector.cpu_bytes_to_use={cpu}", f"engine.max_num_seqs={seqs}"]
        )
        row = table.loc[number]
        assert (row["status"], row["digest"]) == ("ok", alone.digest)
        assert row["latency.ttft_ms.p90"] == alone.summary["latency"]["ttft_ms"]["p90"]
        assert row["transfers.d2h.bytes"] == alone.summary["transfers"]["d2h"]["bytes"]
        kept = json.loads((folder / "out" / "points" / f"{row['key']}.json").read_text())
        assert kept["summary"] == json.loads(json.dumps(alone.summary))
    assert (done.failed, done.reused) == (0, 0)
    assert pd.read_csv(folder / "out" / "results.csv")["digest"].tolist() == table["digest"].tolist()
    assert sorted(path.name for path in (folder / "out").iterdir()) == [
        *("points", "results.csv", "results.parquet", "sweep.yaml"),
    ]


def test_one_process_or_two(folder: Path) -> None:
    """Results have the same bytes with one process and with two, and when they are put together again."""
    file = write_sweep(folder, grid=SIZES)
    swept(file, folder / "one", jobs=1)
    swept(file, folder / "two", jobs=2)
    first = identities(folder / "two")
    again = swept(folder / "two" / "sweep.yaml", folder / "two", jobs=2)
    assert again.reused == 4
    assert identities(folder / "two") == first
    for name in ("results.parquet", "results.csv", "sweep.yaml"):
        assert (folder / "one" / name).read_bytes() == (folder / "two" / name).read_bytes(), name


def test_equal_points_run_once(folder: Path) -> None:
    """Points that come to the same config, whatever they are called, have one file, and a row each."""
    file = write_sweep(
        folder,
        list=[{"name": "a"}, {"connector.cpu_bytes_to_use": "1024MiB"}, {"name": "b", "seed": 0}, {"seed": 1}],
    )
    done = swept(file, folder / "out")
    assert len(identities(folder / "out")) == 2
    assert done.table["key"].tolist()[:3] == [done.table["key"][0]] * 3
    assert done.table["name"].tolist()[:1] == ["a"]
    seen: list[tuple[int, int]] = []
    configs = [config_of(folder), config_of(folder), config_of(folder, seed=2)]
    found = list(evaluate(configs, folder=folder / "out" / "points", jobs=1, progress=lambda *at: seen.append(at)))
    assert [(place, outcome.is_reused) for place, outcome in found] == [(0, True), (1, True), (2, False)]
    assert seen == [(2, 3), (3, 3)]


def test_another_trace_is_another_point(folder: Path) -> None:
    """A trace with other content is played again, one that was only moved or touched is not."""
    file = write_sweep(folder, grid={"seed": [0, 1]})
    first = swept(file, folder / "out").table
    before = identities(folder / "out")
    (folder / "trace.jsonl.gz").touch()
    assert swept(file, folder / "out").reused == 2
    small_trace(folder, seed=2)
    other = swept(file, folder / "out")
    assert other.reused == 0
    assert not set(other.table["digest"]) & set(first["digest"])
    assert before.items() <= identities(folder / "out").items()
    (folder / "elsewhere").mkdir()
    small_trace(folder / "elsewhere")
    moved = write_sweep(folder, grid={"trace.path": ["elsewhere/trace.jsonl.gz"], "seed": [0, 1]})
    assert swept(moved, folder / "out").reused == 2


def test_what_a_key_covers(folder: Path) -> None:
    """A key depends on what decides the summary, down to the content of files and of a user's modules; not on names."""
    module, helper = folder / "mine.py", folder / "helper_of_mine.py"
    helper.write_text("STEP_NS = 10_000_000\n")
    module.write_text(
        "import helper_of_mine\nfrom kvsim.steptime.base import StepTimeModel\n\n"
        "class Mine(StepTimeModel):\n    def __init__(self, deployment):\n        pass\n\n"
        "    def step_ns(self, prefill, decode):\n        return helper_of_mine.STEP_NS\n"
    )
    model = folder / "model.json"
    base = config_of(folder)
    mine = config_of(folder, step_time={"kind": "mine:Mine"})
    keys = {key_of(base), key_of(mine), key_of(config_of(folder, seed=1)), key_of(config_of(folder, debug=True))}
    assert len(keys) == 4
    assert key_of(config_of(folder, name="x", output={"plots": False, "folder": "y", "kv_events": True})) == key_of(
        base
    )
    assert key_of(config_of(folder, output={"series_points": 5})) != key_of(base)
    before = key_of(mine)
    helper.write_text("STEP_NS = 20_000_000\n")
    assert key_of(mine) != before
    model.write_text('{"a": 1}')
    named = config_of(folder, step_time={"kind": "mine:Mine"}, notes=[str(model)])
    before = key_of(named)
    model.write_text('{"a": 2}')
    assert key_of(named) != before


def test_failures_are_rows(folder: Path) -> None:
    """What cannot be run, gets stuck or breaks is a row with its reason; it is run again only if asked for."""
    (folder / "broken.py").write_text(
        "from kvsim.steptime.base import StepTimeModel\n\nclass Broken(StepTimeModel):\n"
        "    def __init__(self, deployment):\n        pass\n\n"
        "    def step_ns(self, prefill, decode):\n        return 1 // 0\n"
    )
    file = write_sweep(
        folder,
        list=[
            {"name": "good"},
            {"name": "too large", "model": "llama-3.1-405b", "engine.num_gpu_blocks_override": None},
            {"name": "broken", "step_time": {"kind": "broken:Broken"}},
            {"name": "stuck", "trace.streaming_sessions": True, "connector.kind": "none"}
            | {"engine.num_gpu_blocks_override": 250, "trace.session_interval": "0"},
        ],
    )
    done = swept(file, folder / "out")
    rows = done.table.set_index("name")
    assert rows["status"].to_dict() == {"good": "ok", "too large": "failed", "broken": "failed", "stuck": "stuck"}
    assert "do not fit" in rows["reason"]["too large"]
    assert rows["reason"]["broken"].startswith(
        "ZeroDivisionError in the code that module:Class names: integer division"
    )
    assert " requests had not ended: holds 0 GPU blocks, needs " in rows["reason"]["stuck"]
    assert pd.isna(rows["hit_rate.total"]["broken"])
    assert rows["requests.stuck"]["stuck"] > 0
    assert (done.failed, swept(file, folder / "out").reused) == (3, 4)
    before = identities(folder / "out")
    again = swept(file, folder / "out", retry_failed=True)
    assert (again.failed, again.reused) == (3, 1)
    assert identities(folder / "out") == before


def test_a_worker_that_is_killed(folder: Path) -> None:
    """A point that kills its process is run again, alone: one that does so twice is a row, and no other one is lost."""
    (folder / "killer.py").write_text(KILLER)

    def killing(times: int) -> dict[str, object]:
        options = {"marker": f"marker-{times}", "times": times}
        return {"step_time": {"kind": "killer:Killer", "options": options}}

    file = write_sweep(folder, list=[killing(1), killing(9), {"seed": 0}, {"seed": 1}, {"seed": 2}])
    done = swept(file, folder / "out", jobs=2)
    assert done.table["status"].tolist() == ["ok", "failed", "ok", "ok", "ok"]
    assert done.table["reason"][1].startswith("its process was killed, twice")
    assert swept(file, folder / "out", jobs=2).reused == 5


def test_a_sweep_that_is_killed(folder: Path) -> None:
    """SIGKILL in the middle loses no finished point; started again, it runs the others, and the table is the same."""
    small_trace(folder, sessions=4, turns=8)
    grid = {"connector.cpu_bytes_to_use": ["100MiB", "1GiB"], "seed": list(range(8))}
    file = write_sweep(folder, grid=grid)
    code = (
        "import sys\nfrom pathlib import Path\nfrom kvsim.plan.sweep import run_sweep\n"
        "from kvsim.plan.sweep_file import read_sweep\n"
        "run_sweep(read_sweep(Path(sys.argv[1])), Path(sys.argv[2]), jobs=2,\n"
        "          progress=lambda done, total: print(done, total, flush=True))\n"
    )
    command = [sys.executable, "-c", code, str(file), str(folder / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        reported = next(int(line.split()[0]) for line in process.stdout if not line.startswith("0 "))
        process.kill()
    before = identities(folder / "out")
    assert reported <= len(before) < 16
    assert not (folder / "out" / "results.parquet").exists()
    resumed = swept(file, folder / "out")
    after = identities(folder / "out")
    assert len(after) == 16
    assert before.items() <= after.items()
    assert resumed.reused >= len(before)
    swept(file, folder / "whole")
    for name in ("results.parquet", "results.csv"):
        assert (folder / "out" / name).read_bytes() == (folder / "whole" / name).read_bytes()
    assert not [
        path for path in (folder / "out" / "points").iterdir() if path.name.startswith(".") and path.suffix == ".json"
    ]


def test_a_worker_out_of_reach_of_the_folder(folder: Path) -> None:
    """Where the folder does not exist a worker gives its outcome back without keeping it; the parent keeps it then."""
    config = config_of(folder)
    task = Task(key_of(config), config, "another digest", folder / "nowhere")
    outcome = run_task(task)
    assert outcome.reason == f"{folder / 'trace.jsonl.gz'}: the trace was changed while the sweep ran"
    assert not (folder / "nowhere").exists()
    PointFiles(folder / "nowhere").put(outcome)
    assert PointFiles(folder / "nowhere").get(outcome.key) == outcome


def test_a_damaged_point_is_run_again(folder: Path) -> None:
    """A point's file that is cut off, of another version or of another point is as if it were not there."""
    config = config_of(folder)
    ((_, outcome),) = evaluate([config], folder=folder / "points", jobs=1)
    path = folder / "points" / f"{outcome.key}.json"
    whole = path.read_text()
    for text in (whole[:-20], whole.replace('"schema": 2', '"schema": 0'), whole.replace(outcome.key, "0"), "[]"):
        path.write_text(text)
        ((_, again),) = evaluate([config], folder=folder / "points", jobs=1)
        assert (again, again.is_reused) == (outcome, False)
        assert path.read_text() == whole


def test_points_on_dask(folder: Path) -> None:
    """Two worker processes of a dask cluster give what processes of ours give, and share the work."""
    distributed = pytest.importorskip("distributed", reason="dask[distributed] absent (it is in the extra `test`)")
    grid = {"seed": [0, 1], **SIZES}
    file = write_sweep(folder, grid=grid)
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as cluster:
        done = swept(file, folder / "dask", jobs=None, backend="dask", address=cluster.scheduler_address)
        with distributed.Client(cluster) as client:
            ran = client.run(_traces_read)
    assert sorted(ran.values()) == [1, 1]
    assert done.failed == 0
    swept(file, folder / "here")
    assert (folder / "dask" / "results.csv").read_bytes() == (folder / "here" / "results.csv").read_bytes()


def _traces_read() -> int:
    from kvsim.plan import task  # noqa: PLC0415 - of the worker

    return len(task._traces)


def test_backends_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address without a cluster, a cluster without one, a missing package: one line each."""
    for wanted, expected in (
        ({"jobs": 0}, "jobs: expected at least 1, found 0"),
        ({"address": "tcp://a:1"}, "address: tcp://a:1: expected backend dask or ray with it, found loky"),
        ({"backend": "dask"}, "backend: dask: expected the address of its scheduler with it"),
        ({"backend": "dask", "address": "tcp://a"}, "such as tcp://localhost:8786, found 'tcp://a'"),
        ({"backend": "dask", "address": "tcp://a:1", "jobs": 2}, "jobs: 2: expected none with backend dask"),
    ):
        with pytest.raises(UserError, match=expected), connected(**wanted):  # type: ignore[arg-type]
            pass
    for package, backend in (("distributed", "dask"), ("ray", "ray")):
        monkeypatch.setitem(sys.modules, package, None)
        expected = f"backend: {backend}: the package {package} is missing: pip install"
        with pytest.raises(UserError, match=expected), connected(backend=backend, address="tcp://a:1"):  # type: ignore[arg-type]
            pass


def test_the_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command prints a table of at most 100 columns and says what failed; --json has all rows."""
    monkeypatch.chdir(folder)
    write_sweep(folder, name="sizes", grid={"engine.max_num_seqs": [2, 64], "hardware.gpu": ["h100-sxm", "b200"]})
    text = CliRunner().invoke(app, ["sweep", "sweep.yaml", "--jobs", "1", "--set", "seed=4"])
    assert text.exit_code == 0, text.output
    assert max(map(len, text.output.splitlines())) <= 100
    assert "sizes: 4 points" in text.output
    assert "results runs/sizes/results.csv" in text.output
    printed = CliRunner().invoke(app, ["sweep", "sweep.yaml", "--jobs", "1", "--set", "seed=4", "--json"])
    rows = json.loads(printed.output)
    assert rows["axes"] == ["engine.max_num_seqs", "hardware.gpu"]
    assert [row["hardware.gpu"] for row in rows["rows"]] == ["h100-sxm", "b200"] * 2
    assert rows["failed"] == 0
    table = pd.read_parquet("runs/sizes/results.parquet")
    assert [row["latency.ttft_ms.mean"] for row in rows["rows"]] == table["latency.ttft_ms.mean"].tolist()
    write_sweep(folder, grid={"engine.num_gpu_blocks_override": [None], "model": ["llama-3.1-405b"]})
    failed = CliRunner().invoke(app, ["sweep", "sweep.yaml", "--jobs", "1", "-o", "bad"])
    assert failed.exit_code == 1
    assert "warning: 1 of 1 points have no result to rely on" in " ".join(failed.output.split())
    (folder / "mine").mkdir()
    (folder / "mine" / "sweep.yaml").write_text("mine")
    for place in ("trace.jsonl.gz", ".", "mine"):
        refused = CliRunner().invoke(app, ["sweep", "sweep.yaml", "-o", place])
        assert isinstance(refused.exception, UserError)
        assert "exists and is not a sweep's folder" in str(refused.exception)


def test_half_a_table_is_no_obstacle(folder: Path) -> None:
    """A sweep that was killed while its table was written is started again, and what it left is removed."""
    file = write_sweep(folder, grid={"seed": [0]})
    swept(file, folder / "out")
    (folder / "out" / "results.csv").rename(folder / "out" / ".results.csv.partial-99999999")
    assert swept(file, folder / "out").reused == 1
    names = sorted(path.name for path in (folder / "out").iterdir())
    assert names == ["points", "results.csv", "results.parquet", "sweep.yaml"]


def test_points_that_reject_requests(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rejected requests are a column, different numbers a warning, and a point that serves none is not ok."""
    monkeypatch.chdir(folder)
    write_sweep(folder, grid={"engine.max_model_len": [100, 2500, 4400]})
    mixed = CliRunner().invoke(app, ["sweep", "sweep.yaml", "--jobs", "1", "-o", "mixed"])
    assert mixed.exit_code == 0
    table = pd.read_parquet("mixed/results.parquet")
    assert table["status"].tolist() == ["unserved", "ok", "ok"]
    arrived, rejected = table["requests.arrived"][0], table["requests.rejected"].tolist()
    assert table["reason"][0] == (
        f"no request finished: {arrived} of {arrived} were rejected: prompt too long for max_model_len 100"
    )
    assert arrived == rejected[0] > rejected[1] > rejected[2]
    text = " ".join(mixed.output.split())
    assert "┃ Hit rate ┃ Rejected ┃" in text
    assert f"warning: points reject different numbers of requests ({rejected[2]} to {rejected[0]})" in text
    write_sweep(folder, grid={"engine.max_model_len": [100]})
    assert CliRunner().invoke(app, ["sweep", "sweep.yaml", "--jobs", "1", "-o", "none", "--json"]).exit_code == 1


@pytest.mark.parametrize(("width", "figures"), [(100, 5), (80, 4), (60, 2), (40, 1)])
def test_a_narrow_table(width: int, figures: int) -> None:
    """A table fits its terminal; figures without room are named below it, and those that are there are whole."""
    axes = ["engine.max_num_seqs", "hardware.gpu", "connector.cpu_bytes_to_use"]
    columns = {key: [1.0] for key in ("hit_rate.total", "throughput.output_tokens_per_s")}
    columns |= {f"latency.{name}": [123.0] for name in ("ttft_ms.p50", "ttft_ms.p90", "tpot_ms.p50")}
    labels = {axes[0]: [64], axes[1]: ["h100-sxm"], axes[2]: ["128GiB"]}
    table = pd.DataFrame({"index": [0], **labels, "status": "ok", **columns})
    console = Console(width=width)
    with console.capture() as captured:
        console.print(points_table(table, axes, "narrow", width))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= width
    assert "100.0 %" in captured.get()
    assert captured.get().count("123 ms") + ("1.00 " in captured.get()) + 1 == figures
    named = " ".join(captured.get().split()).partition("No room for ")[2]
    assert len(named.split(", ")) * bool(named) == 5 - figures


def test_a_long_table() -> None:
    """A table ends after 40 rows and says so; many axes and long values still fit 100 columns."""
    labels = {f"some.section.key_{number}": ["a rather long value " * 3] * 50 for number in range(6)}
    table = pd.DataFrame({"index": range(50), **labels, "status": "failed"})
    console = output_console()
    with console.capture() as captured:
        console.print(points_table(table, list(labels), "long"))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= 100
    assert "The first 40 of 50 points; results.csv has all of them." in lines[-1]
    assert sum("failed" in line for line in lines) == 40
