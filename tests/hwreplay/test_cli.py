"""Commands: what they write, and how they end."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from replay_worlds import QuickMachine
from schedule_world import small

from hwreplay import cli, run
from hwreplay.backends.host import HostCopier
from hwreplay.probe_plan import PLANS
from hwreplay.result import read_probe, read_run
from kvsim.results.schedule import write_schedule


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Exit code of the command line, with passes that take no time."""
    monkeypatch.setattr(sys, "argv", ["hwreplay", *map(str, arguments)])
    monkeypatch.setattr(run, "machine_for", lambda _: QuickMachine())
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


@pytest.fixture
def schedule(tmp_path: Path) -> Path:
    """A file with the small schedule."""
    path = tmp_path / "s.jsonl"
    write_schedule(path, small())
    return path


def test_run(
    schedule: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Results are written, one per replay; the table names the device."""
    assert call(monkeypatch, "run", schedule, "-o", tmp_path / "out" / "r.json", "--repeat", 2) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["r-1.json", "r-2.json"]
    assert read_run(tmp_path / "out" / "r-2.json").repeat == 1
    shown = capsys.readouterr().out
    assert "(host threads, no GPU)" in shown
    assert "10 blocks" in shown


def test_run_as_json(
    schedule: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Totals for machines."""
    assert call(monkeypatch, "run", schedule, "-o", tmp_path / "r.json", "--json") == 0
    (totals,) = json.loads(capsys.readouterr().out)
    assert totals["jobs"] == 6
    assert totals["integrity"]["first_wrong"] is None
    assert read_run(tmp_path / "r.json").schedule.path == str(schedule)


def test_a_wrong_byte_is_exit_code_1(
    schedule: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first wrong block is named in one line, and the result is written all the same."""
    monkeypatch.setattr(HostCopier, "copy", lambda *_, **__: None)
    assert call(monkeypatch, "run", schedule, "-o", tmp_path / "r.json") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {tmp_path / 'r.json'}: host block 0, written by job 0, is wrong at byte ")
    wrong = read_run(tmp_path / "r.json").integrity.first_wrong
    assert wrong is not None
    assert (wrong.block, wrong.job, wrong.found) == (0, 0, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "absent.jsonl", "-o", "r.json"], "absent.jsonl: cannot be read (No such file or directory)"),
        (["run", "{s}", "-o", "r.json", "--backend", "hots"], "--backend: expected one of host, "),
        (["run", "{s}", "-o", "r.json", "--max-bytes", "8G"], "--max-bytes: expected a size"),
        (["run", "{s}", "-o", "r.json", "--max-bytes", "10B"], "blocks take"),
        (["run", "{s}", "-o", "{s}/r.json"], "{s}"),
        (["probe", "-o", "p.json", "--backend", "x"], "--backend: expected one of host, "),
    ],
)
def test_bad_input_is_exit_code_2(
    arguments: Sequence[str], message: str, schedule: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:  # fmt: skip
    """One line that says what is wrong."""
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, *(each.replace("{s}", str(schedule)) for each in arguments)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message.replace("{s}", str(schedule)) in line


def test_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Written and shown."""
    monkeypatch.setitem(PLANS, "quick", replace(PLANS["quick"], region_bytes=2**22, file_total=2**21, registrations=()))
    target = tmp_path / "p.json"
    assert call(monkeypatch, "probe", "-o", target, "--quick", "--seconds", 3, "--backend", "host") == 0
    assert read_probe(target).mode == "quick"
    assert "(host threads, no GPU)" in capsys.readouterr().out


def test_backends(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """All are listed, with what is missing."""
    assert call(monkeypatch, "backends", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["key"] for row in rows] == ["host", "torch", "memcpy_async", "memcpy_batch", "triton", "cuda"]
    assert rows[0]["missing"] is None
    assert call(monkeypatch, "backends") == 0


def test_help_needs_no_gpu_software() -> None:
    """Neither torch nor triton is imported before a backend needs it."""
    code = (
        "import sys; sys.argv = ['hwreplay', '--help']\n"
        "import hwreplay.cli\n"
        "try:\n    hwreplay.cli.main()\nexcept SystemExit:\n    pass\n"
        "print(sorted({'torch', 'triton', 'cuda', 'matplotlib'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert shown.splitlines()[-1] == "[]"
