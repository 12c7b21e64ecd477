"""`kvsim conform` as a user types it."""

from __future__ import annotations

import gzip
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvsim.conform.compare import first_difference
from kvsim.conform.files import read_recording, recording_bytes

Conform = Callable[..., subprocess.CompletedProcess[str]]

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
NAME = "h10-arc"  # finishing order matters in it
SCENARIO = GOLDEN / "scenarios" / f"{NAME}.json"
RECORDING = GOLDEN / "recordings" / "0.33.0" / f"{NAME}.jsonl.gz"


def changed(path: Path, change: Callable[[list[dict[str, Any]]], None], source: Path = RECORDING) -> Path:
    """A copy of a recording in which something is different."""
    with gzip.open(source, "rt") as file:
        lines = [json.loads(line) for line in file]
    change(lines)
    path.write_bytes(recording_bytes(lines[0], lines[1:]))
    return path


def one_free_block_more(lines: list[dict[str, Any]]) -> None:
    """The step in line 100 tells one free block more, and another request in front of the queue."""
    lines[100]["free"] += 1
    lines[100]["waiting"] = ["x0t0", *lines[100]["waiting"]]


def test_equal_recordings(conform_process: Conform) -> None:
    """One line per pair, exit code 0, whatever hash seed this process has."""
    other = GOLDEN / "recordings" / "0.23.0" / f"{NAME}.jsonl.gz"
    done = conform_process(SCENARIO, RECORDING, SCENARIO, other, PYTHONHASHSEED="5")
    assert done.stderr == ""
    assert done.stdout == f"{NAME}: 380 steps equal (vLLM 0.33.0)\n{NAME}: 384 steps equal (vLLM 0.23.0)\n"
    assert done.returncode == 0


def test_the_order_of_finishing_can_be_chosen(conform: Conform) -> None:
    """In finish order this recording differs: vLLM committed two requests in the order of a set."""
    done = conform(SCENARIO, RECORDING, "--finish-order", "--json")
    assert done.returncode == 1
    (pair,) = json.loads(done.stdout)["pairs"]
    assert (pair["equal"], pair["equal_steps"], pair["difference"]["step"]) == (False, 18, 18)


def test_a_difference_is_shown(conform: Conform, tmp_path: Path) -> None:
    """The first step that differs, each field with both values, and two steps before; at most 100 columns."""
    wrong = changed(tmp_path / "wrong.jsonl.gz", one_free_block_more)
    record = read_recording(wrong).records[99]
    done = conform(SCENARIO, wrong)
    assert done.returncode == 1
    assert done.stderr == ""
    assert f"{NAME}: step {record['step']} differs (vLLM 0.33.0), 99 steps before it are equal" in done.stdout
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    (row,) = [line for line in lines if line.startswith("│ free")]
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells == ["free", str(record["free"]), str(record["free"] - 1)]
    assert "x0t0" in done.stdout
    before = [line for line in lines if line.startswith(("│   97", "│   98"))]
    assert [line.split("│")[-2].strip() for line in before] == [
        str(step["free"]) for step in read_recording(wrong).records[97:99]
    ]


def test_a_difference_for_machines(conform: Conform, tmp_path: Path) -> None:
    """The same as JSON, with the whole values and the whole steps before."""
    wrong = changed(tmp_path / "wrong.jsonl.gz", one_free_block_more)
    records = read_recording(wrong).records
    done = conform(SCENARIO, wrong, "--json")
    assert done.returncode == 1
    (pair,) = json.loads(done.stdout)["pairs"]
    assert (pair["name"], pair["vllm"], pair["profile"], pair["failure"]) == (NAME, "0.33.0", "0.33.0", None)
    assert pair["difference"]["fields"] == {
        "free": {"vllm": records[99]["free"], "kvsim": records[99]["free"] - 1},
        "waiting": {"vllm": records[99]["waiting"], "kvsim": records[99]["waiting"][1:]},
    }
    assert pair["difference"]["steps_before"] == records[97:99]


def test_a_recording_that_ends_early(conform: Conform, tmp_path: Path) -> None:
    """The first line tells how many steps there are; without it, steps that only one side has are a difference."""
    short = changed(tmp_path / "short.jsonl.gz", lambda lines: lines.__delitem__(slice(300, None)))
    done = conform(SCENARIO, short)
    assert (done.returncode, done.stderr) == (2, f"error: {short}: holds 299 steps, expected 380 as line 1 says\n")
    silent = changed(tmp_path / "silent.jsonl.gz", lambda lines: lines[0].pop("steps"), short)
    done = conform(SCENARIO, silent)
    assert done.returncode == 1
    assert "number of records" in done.stdout


def test_a_deadlock_must_be_one_here_too(conform: Conform, tmp_path: Path) -> None:
    """A recording that says it got stuck differs from a run that ends."""
    stuck = changed(tmp_path / "stuck.jsonl.gz", lambda lines: lines[0].update(deadlock=True))
    done = conform(SCENARIO, stuck, "--json")
    assert done.returncode == 1
    (pair,) = json.loads(done.stdout)["pairs"]
    assert pair["difference"]["fields"] == {"deadlock": {"vllm": True, "kvsim": False}}


def test_folders_are_matched(conform: Conform, tmp_path: Path) -> None:
    """Pairs are compared in order of name, and what has no partner is named and counts as not equal."""
    scenarios, recordings = tmp_path / "scenarios", tmp_path / "recordings"
    scenarios.mkdir()
    recordings.mkdir()
    for name in ("h10-arc", "f28-lru", "x-priority-ties"):
        (scenarios / f"{name}.json").write_bytes((GOLDEN / "scenarios" / f"{name}.json").read_bytes())
    for name in ("h10-arc", "f28-lru"):
        source = GOLDEN / "recordings" / "0.23.0" / f"{name}.jsonl.gz"
        (recordings / f"{name}.jsonl.gz").write_bytes(source.read_bytes())
    done = conform(scenarios, recordings, "-j", 2)
    names = [line.split(":")[0] for line in done.stdout.splitlines()]
    assert (done.returncode, names) == (1, ["f28-lru", "h10-arc", "x-priority-ties"])
    assert done.stdout.splitlines()[-1] == f"x-priority-ties: no recording in {recordings}"
    (scenarios / "x-priority-ties.json").unlink()
    assert conform(scenarios, recordings).returncode == 0


def test_an_unknown_release_is_compared_with_the_nearest(conform: Conform, tmp_path: Path) -> None:
    """The line says which one that was."""
    other = changed(tmp_path / "other.jsonl.gz", lambda lines: lines[0].update(vllm="0.33.1"))
    done = conform(SCENARIO, other)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{NAME}: 380 steps equal (vLLM 0.33.1 against profile 0.33.0)\n"


def test_a_recording_of_another_scenario_is_refused(conform: Conform) -> None:
    """The recording names the scenario it is of."""
    done = conform(GOLDEN / "scenarios" / "f28-lru.json", RECORDING)
    assert done.returncode == 2
    assert "records scenario 'h10-arc', expected 'f28-lru'" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "conform: nothing to compare, expected SCENARIO RECORDING, --live SCENARIO or --fuzz N"),
        ([SCENARIO, "absent.gz"], "absent.gz: no such file, expected a recording"),
        ([SCENARIO], f"1 files given, {SCENARIO} has no partner, expected pairs: SCENARIO RECORDING"),
        ([RECORDING, RECORDING], f"{RECORDING}: is not JSON: Extra data at line 2 column 1"),
        (["--fuzz", 1, "--live"],
         "conform: --fuzz makes its own scenarios, expected neither --live nor files beside it"),
        ([SCENARIO, RECORDING, "--record", "x"], "conform: --record is given, expected --live with it"),
        ([SCENARIO, RECORDING, "--vllm-source", "x"],
         "conform: --vllm-source or --python is given, expected --live or --fuzz with it"),
        (["--live", SCENARIO, "--vllm-source", "."],
         "--vllm-source .: holds no vllm/__init__.py, expected an unpacked vLLM wheel"),
        (["--live", SCENARIO, "--python", "./absent"],
         "--python ./absent: cannot be run (No such file or directory)"),
        (["--live", SCENARIO, "--python", "/bin/echo"],
         "--python /bin/echo: is no Python that can run the recorder"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(conform: Conform, words: list[object], message: str) -> None:
    """What the user can mend is one line on standard error, and exit code 2."""
    done = conform(*words)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {message}\n")


def test_live(conform: Conform, fake_python: str, tmp_path: Path) -> None:
    """A scenario is recorded and compared; the recording is kept and compares again."""
    kept = tmp_path / "kept.jsonl.gz"
    done = conform("--live", SCENARIO, "--python", fake_python, "--record", kept)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{NAME}: 380 steps equal (vLLM 0.33.0)\n"
    assert conform(SCENARIO, kept).returncode == 0
    assert first_difference(read_recording(kept).records, read_recording(RECORDING).records) is None


def test_live_against_a_release_without_profile(conform: Conform, fake_python: str) -> None:
    """An unknown version is compared under the nearest profile, and the first difference is named."""
    done = conform("--live", SCENARIO, "--python", fake_python, FAKE_VLLM="0.34.1rc1")
    assert done.stdout == f"{NAME}: 380 steps equal (vLLM 0.34.1rc1 against profile 0.33.0)\n"
    done = conform("--live", SCENARIO, "--python", fake_python, FAKE_VLLM="0.20.2")
    assert done.returncode == 1
    assert f"{NAME}: step 17 differs (vLLM 0.20.2 against profile 0.23.0), 17 steps before it are equal" in done.stdout


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"FAKE_FATAL": "no torch"}, "no torch (choose with --vllm-source DIR and --python PYTHON)"),
        ({"FAKE_ERROR": "KeyError: 'x'"}, f"{SCENARIO}: vLLM broke off: KeyError: 'x'"),
        (
            {"FAKE_EXIT": "0"},
            f"{SCENARIO}: vLLM broke off: the recorder (PYTHON) ended with exit code 3: out of memory",
        ),
    ],
)
def test_a_recorder_that_cannot(conform: Conform, fake_python: str, environment: dict[str, str], message: str) -> None:
    """Why there is no recording is said in one line."""
    done = conform("--live", SCENARIO, "--python", fake_python, **environment)
    message = message.replace("PYTHON)", f"{fake_python})") if "exit code" in message else message
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {message}\n")


@pytest.mark.parametrize("command", ["yes", "echo 1", "echo {}"])
def test_what_is_no_python(conform: Conform, tmp_path: Path, command: str) -> None:
    """A program that says something else, even without end, is told apart at once."""
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\nexec {command}\n")
    program.chmod(0o755)
    done = conform("--live", SCENARIO, "--python", program)
    message = f"error: --python {program}: is no Python that can run the recorder\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)


def test_the_first_failure_ends_it(conform: Conform, fake_python: str, tmp_path: Path) -> None:
    """When one scenario cannot be recorded the others are left alone."""
    for number in range(20):
        (tmp_path / f"s{number:02}.json").write_text(SCENARIO.read_text())
    log = tmp_path / "asked"
    done = conform("--live", tmp_path, "--python", fake_python, "-j", 1, FAKE_ERROR="broken", FAKE_LOG=str(log))
    assert (done.returncode, done.stderr) == (2, f"error: {tmp_path / 's00.json'}: vLLM broke off: broken\n")
    assert len(log.read_text().splitlines()) < 10


def test_recordings_of_one_name(conform: Conform, tmp_path: Path) -> None:
    """Two scenarios whose recordings would overwrite each other."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.json").write_text(SCENARIO.read_text())
    done = conform("--live", tmp_path / "a", tmp_path / "b", "--record", tmp_path / "kept")
    assert done.returncode == 2
    assert "same.json has the same name, expected different ones with --record FOLDER" in done.stderr
    assert not (tmp_path / "kept").exists()


def test_a_recorder_that_dies_in_a_world(conform: Conform, fake_python: str, tmp_path: Path) -> None:
    """The world is kept, and the next ones are tried with a new recorder."""
    done = conform("--fuzz", 3, "--seed", 20, "--python", fake_python, "-j", 1, "-o", tmp_path / "found", FAKE_EXIT="1")
    assert done.returncode == 1
    assert "world 21: vLLM broke off: the recorder" in done.stdout
    assert "1 of 3 worlds differ" in done.stdout
    assert len(list((tmp_path / "found").iterdir())) == 1


def test_fuzz(conform: Conform, fake_python: str, tmp_path: Path) -> None:
    """Worlds that agree are counted in one line."""
    done = conform("--fuzz", 6, "--seed", 20, "--python", fake_python, "-j", 2)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("6 worlds equal (vLLM 0.33.0, seeds 20 to 25, ")
    assert not (tmp_path / "runs").exists()


def test_a_fuzz_finding_is_made_small_and_kept(conform: Conform, fake_python: str, tmp_path: Path) -> None:
    """A world that differs is shown, shrunk and written as scenario and recording, which differ when compared."""
    done = conform("--fuzz", 1, "--seed", 3, "--python", fake_python, "-o", "found", FAKE_WRONG="20")
    assert (done.returncode, done.stderr) == (1, "")
    (scenario,) = (tmp_path / "found").glob("*.json")
    (recording,) = (tmp_path / "found").glob("*.jsonl.gz")
    assert f"the small scenario is found/{scenario.name}\n1 of 1 worlds differ" in done.stdout
    small = json.loads(scenario.read_text())
    assert [session["turns"] for session in small["sessions"]] == [[[20, 1]]]
    assert small["connector"] == {}
    assert conform(scenario, recording).returncode == 1
