"""The commands as a user types them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import REPO, kvsim, kvsim_process

from kvsim.catalogue import catalogue
from kvsim.cli import main
from kvsim.results.schedule import read_schedule
from kvsim.trace.generate import GeneratorParameters, write_trace

RUN = """
trace: {path: trace.jsonl.gz, session_interval: 1s}
model: llama-3.1-8b
engine: {num_gpu_blocks_override: 3000}
connector: {kind: offloading, cpu_bytes_to_use: 20GiB}
"""


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small trace and a config."""
    folder = tmp_path_factory.mktemp("work")
    write_trace(folder / "trace.jsonl.gz", GeneratorParameters(sessions=4, seed=3, median_turns=8))
    (folder / "run.yaml").write_text(RUN)
    return folder


@pytest.fixture(scope="module")
def first_run(workplace: Path) -> subprocess.CompletedProcess[str]:
    """A run with plots, under one hash seed."""
    return kvsim_process("run", "run.yaml", "-o", "first", cwd=workplace, PYTHONHASHSEED="1")


def test_run_writes_a_whole_folder(workplace: Path, first_run: subprocess.CompletedProcess[str]) -> None:
    """A run prints its table and digest and leaves every file of the run folder; nothing on standard error."""
    assert first_run.returncode == 0, first_run.stderr
    assert first_run.stderr == ""
    assert "Token hit rate" in first_run.stdout
    assert "generated tokens come back in the next prompt" in first_run.stdout
    assert max(map(len, first_run.stdout.splitlines())) <= 100
    names = {path.name for path in (workplace / "first").iterdir()}
    assert names >= {
        "summary.json",
        "requests.parquet",
        "series.parquet",
        "config.resolved.yaml",
        "plots",
        "report.html",
    }
    summary = json.loads((workplace / "first" / "summary.json").read_text())
    assert summary["digest"] in first_run.stdout
    counts = summary["requests"]
    assert counts["arrived"] == counts["finished"] + counts["rejected"] + counts["failed"] + counts["stuck"] > 0


def test_same_bytes_in_another_process(workplace: Path, first_run: subprocess.CompletedProcess[str]) -> None:
    """Another process with another hash seed, from the resolved config: same parquet bytes, same digest."""
    assert first_run.returncode == 0
    resolved = "first/config.resolved.yaml"
    words = ("run", resolved, "-o", "again", "--json", "--set", "output.plots=false")
    again = kvsim_process(*words, cwd=workplace, PYTHONHASHSEED="2")
    assert again.returncode == 0, again.stderr
    for name in ("requests.parquet", "series.parquet"):
        assert (workplace / "again" / name).read_bytes() == (workplace / "first" / name).read_bytes()
    digest = json.loads((workplace / "first" / "summary.json").read_text())["digest"]
    assert json.loads(again.stdout)["digest"] == digest


def test_a_schedule_is_exported(workplace: Path, first_run: subprocess.CompletedProcess[str]) -> None:
    """Beside the run its copies are written, the run itself is the same, and part of it can be had."""
    assert first_run.returncode == 0
    words = ("run", "run.yaml", "--set", "output.plots=false", "--overwrite")
    done = kvsim(*words, "-o", "exported", "--export-schedule", "s.jsonl.gz", cwd=workplace)
    assert (done.returncode, done.stderr) == (0, "")
    assert "because of --export-schedule" in done.stdout
    assert "exported schedule: " in done.stdout
    assert done.stdout.splitlines()[-1] == "schedule s.jsonl.gz"
    schedule = read_schedule(workplace / "s.jsonl.gz")
    assert schedule.header.digest == json.loads((workplace / "first" / "summary.json").read_text())["digest"]
    part = ("--export-schedule", "part.jsonl", "--schedule-from", "1s", "--schedule-until", "1min", "--json")
    done = kvsim(*words, "-o", "exported", *part, "--schedule-max-bytes", "20GB", cwd=workplace)
    assert json.loads(done.stdout)["schedule"] == "part.jsonl"
    found = read_schedule(workplace / "part.jsonl")
    assert found.header.filter is not None
    assert 0 < found.bytes <= 20 * 10**9
    assert all(10**9 <= step.start_ns < 60 * 10**9 for step in found.steps)


def test_debug_changes_nothing(workplace: Path) -> None:
    """--debug checks every invariant at every step and gives the same digest."""
    words = (
        "run",
        "run.yaml",
        "-o",
        "debug",
        "--debug",
        "--json",
        "--set",
        "trace.max_sessions=1",
        "--set",
        "output.plots=false",
    )
    checked = kvsim(*words, cwd=workplace)
    plain = kvsim(*(word for word in words if word != "--debug"), "--overwrite", cwd=workplace)
    assert checked.returncode == plain.returncode == 0, checked.stderr + plain.stderr
    assert json.loads(checked.stdout)["digest"] == json.loads(plain.stdout)["digest"]


def test_compare(workplace: Path, first_run: subprocess.CompletedProcess[str]) -> None:
    """Two runs side by side, as a table, as JSON and as a report with one overlay plot."""
    assert first_run.returncode == 0
    changes = ("--set", "connector.kind=none", "--set", "output.plots=false")
    other = kvsim("run", "run.yaml", "-o", "none", *changes, "--json", cwd=workplace)
    assert other.returncode == 0, other.stderr
    table = kvsim_process("compare", "none", "first", "-o", "both", cwd=workplace)
    assert table.returncode == 0, table.stderr
    assert max(map(len, table.stdout.splitlines())) <= 100
    assert (workplace / "both" / "overlay.png").stat().st_size > 10_000
    assert "first" in (workplace / "both" / "report.html").read_text()
    rows = json.loads(kvsim("compare", "none", "first", "--json", cwd=workplace).stdout)
    finished = next(row for row in rows if row["metric"] == "requests.finished")
    assert finished["none"] == finished["first"] > 0
    loaded = next(row for row in rows if row["metric"] == "hit_rate.external")
    assert loaded["none"] == 0 < loaded["first"] == loaded["first diff"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("run", "absent.yaml"), "absent.yaml: no such file"),
        (("run", "run.yaml", "--set", "engine.blocksize=16"), "did you mean block_size?"),
        (("run", "run.yaml", "--set", "model.name=llama-9"), "llama-9"),
        (("run", "run.yaml", "--set", "hardware.gpu=h1000"), "h1000"),
        (("run", "run.yaml", "--set", "hardware.tensor_parallel_size=3"), "tensor_parallel_size: 3"),
        (("run", "run.yaml", "--set", "model.name=llama-3.1-405b", "--set", "engine.num_gpu_blocks_override=null"),
         "weights"),
        (("run", "run.yaml", "--set", "trace.path=nowhere"), "nowhere"),
        (("run", "run.yaml", "--set", "engine.num_gpu_blocks_override=1"), "expected 2 (one is the null block)"),
        (("run", "run.yaml", "--set", "connector.cpu_bytes_to_use=1KiB"), "room for at least one"),
        (("run", "run.yaml", "--set", "engine.enable_chunked_prefill=false",
          "--set", "engine.max_num_batched_tokens=512"), "max_model_len (131072)"),
        (("run", "run.yaml", "--export-schedule", "s.txt"), "s.txt: expected a schedule's name that ends in .jsonl"),
        (("run", "run.yaml", "--export-schedule", "no/s.jsonl"), "no/s.jsonl: cannot be written: there is no folder"),
        (("run", "run.yaml", "--schedule-from", "1s"), "--schedule-from: expected --export-schedule beside it"),
        (("run", "run.yaml", "--export-schedule", "s.jsonl", "--schedule-max-bytes", "9"), "a size with its unit"),
        (("run", "run.yaml", "--export-schedule", "s.jsonl", "--set", "connector.kind=none"), "nothing is copied"),
        (("run", "run.yaml", "--export-schedule", "s.jsonl", "--set", "engine.kind=fast"), "has no block ids"),
        (("run", "run.yaml", "--export-schedule", "s.jsonl", "--schedule-request", "me"), "request 'me' has no job"),
        (("compare", "run.yaml", "run.yaml"), "run.yaml"),
        (("compare", "absent", "absent"), "absent"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(workplace: Path, words: tuple[str, ...], complaint: str) -> None:
    """A mistake is one line on standard error, exit code 2, and no run folder."""
    before = sorted(path.name for path in workplace.iterdir())
    if words[0] == "run":
        words = (*words, "-o", "broken")
    done = kvsim(*words, cwd=workplace)
    assert done.returncode == 2, done.stdout
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert complaint in line
    assert sorted(path.name for path in workplace.iterdir()) == before


def test_a_mistake_in_a_process_of_its_own(workplace: Path) -> None:
    """Standard error and the exit code are those of the process."""
    done = kvsim_process("run", "absent.yaml", cwd=workplace)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: absent.yaml: no such file")
    assert done.stderr.count("\n") == 1


def test_a_killed_run_leaves_nothing(workplace: Path) -> None:
    """SIGTERM in the middle of a run: no run folder, no hidden remains."""
    before = sorted(path.name for path in workplace.iterdir())
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    script = (
        "import os, signal, sys, kvsim.build as b\n"
        "b.Simulation.run = lambda self: os.kill(os.getpid(), signal.SIGTERM)\n"
        "sys.argv = ['kvsim', 'run', 'run.yaml', '-o', 'killed']\n"
        "from kvsim.cli import main\n"
        "main()\n"
    )
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", script], cwd=workplace, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode not in {0, 2}
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in workplace.iterdir()) == before


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("run", "Interrupted.\n"),
        ("sweep", "Interrupted. What was finished is kept: started again, it goes on.\n"),
        ("plan", "Interrupted. What was finished is kept: started again, it goes on.\n"),
    ],
)
def test_interrupted(
    command: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C gives one line and exit code 130; of what goes on when it is started again, that is told."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kvsim.yamlfile.Path", interrupt)  # a file is being read
    monkeypatch.setattr("kvsim.cli.signal.signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["kvsim", command, "file.yaml"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130
    assert capsys.readouterr() == ("", said)


@pytest.mark.parametrize("words", [("list", "gpus"), ("list", "gpus", "--json")])
def test_nobody_reads(words: tuple[str, ...]) -> None:
    """A command whose output nobody reads, a table or JSON, ends quietly with exit code 141."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-m", "kvsim.cli", *words], cwd=REPO, stdout=writer, stderr=subprocess.PIPE, text=True,
        check=False,
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_lists() -> None:
    """Every name that a config may use is listed with a line about it, for people and machines."""
    names = {
        "models": "llama-3.1-70b", "gpus": "h100-sxm", "links": "pcie5-h100", "policies": "arc",
        "connectors": "simple_cpu", "tiers": "module:Class", "step-times": "fixed", "releases": "0.23.0",
    }  # fmt: skip
    for kind, name in names.items():
        rows = dict(catalogue(kind))
        assert all(rows.values())
        assert name in rows
    rows = json.loads(kvsim("list", "models", "--json", cwd=REPO).stdout)
    assert "llama-3.1-70b" in {row["name"] for row in rows}
    assert "llama-3.1-70b" in kvsim_process("list", "models", cwd=REPO).stdout


def test_help_has_an_example() -> None:
    """Every command's help ends with an example."""
    for words in (("run",), ("compare",), ("trace", "stats"), ("trace", "generate")):
        done = kvsim(*words, "--help", cwd=REPO)
        assert "Example" in done.stdout, words
    assert kvsim_process("--version", cwd=REPO).stdout.startswith("kvsim ")
