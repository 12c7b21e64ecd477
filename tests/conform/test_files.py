"""Reading scenarios and recordings: what is wrong is said in one line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from kvsim.conform.defaults import DEFAULTS
from kvsim.conform.files import (
    check_scenario,
    find_pairs,
    find_scenarios,
    read_recording,
    read_scenario,
    recording_bytes,
)
from kvsim.conform.schema import ConnectorOptions, EngineOptions
from kvsim.errors import UserError

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
SUMMARY = {"vllm": "0.33.0", "scenario": "small", "deadlock": False}
STEP: dict[str, Any] = {
    "step": 0, "sched": {"s0t0": 4}, "new": ["s0t0"], "resumed": [], "preempted": [], "finished_prev": [],
    "computed": {"s0t0": 4}, "lookup": [["s0t0", 0, None, None]], "running": ["s0t0"], "waiting": [], "skipped": [],
    "new_blocks": {"s0t0": [1]}, "evicted": [], "free": 8, "finished": [], "kvout": None, "free_after": 8,
}  # fmt: skip


KEYS = "name, engine, connector, system_tokens, think_steps, sessions, max_steps"


def small(**changes: Any) -> dict[str, Any]:
    """A valid scenario with something changed."""
    scenario: dict[str, Any] = {
        "name": "small",
        "engine": {"num_gpu_blocks": 10},
        "connector": {},
        "system_tokens": 0,
        "think_steps": 0,
        "sessions": [{"name": "s0", "start_step": 0, "turns": [[4, 2]]}],
    }
    return scenario | changes


def session(**changes: Any) -> list[dict[str, Any]]:
    """The one session of `small`, with something changed."""
    return [{"name": "s0", "start_step": 0, "turns": [[4, 2]], **changes}]


def test_options_have_the_defaults_of_the_engine() -> None:
    """What a scenario may say, and what holds where it says nothing, is the same in the check and in the engine."""
    fields = {**EngineOptions.model_fields, **ConnectorOptions.model_fields}
    assert {name: field.default for name, field in fields.items()} == DEFAULTS


def test_all_golden_files_pass() -> None:
    """Every scenario of ours is accepted, flags written as numbers and null included."""
    for path in (GOLDEN / "scenarios").glob("*.json"):
        read_scenario(path)
    check_scenario(small(engine={"reserve_full_isl": 0, "max_num_seqs": None}), "x")


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        ([], f"x: expected a mapping of keys ({KEYS}), found a list"),
        (None, f"x: is empty, expected {KEYS}"),
        (small(engine={"num_gpu_block": 9}),
         "x: unknown key engine.num_gpu_block, did you mean num_gpu_blocks? (in engine)"),
        (small(engine={"num_gpu_blocks": -4}), "x: engine.num_gpu_blocks: expected at least 2, found -4"),
        (small(engine={"num_gpu_blocks": "ten"}), "x: engine.num_gpu_blocks: expected a whole number, found 'ten'"),
        (small(engine={"num_gpu_blocks": 9.5}), "x: engine.num_gpu_blocks: expected a whole number, found 9.5"),
        (small(engine={"num_gpu_blocks": True}), "x: engine.num_gpu_blocks: expected a whole number, found true"),
        (small(engine={"policy": "lifo"}), "x: engine.policy: expected one of fcfs, priority, found 'lifo'"),
        (small(engine={"reserve_full_isl": 2}), "x: engine.reserve_full_isl: expected true or false, found 2"),
        (small(engine=[]), "x: engine: expected a mapping of keys, found a list"),
        (small(connector={"connector": "lmcache"}),
         "x: connector.connector: expected one of offloading, simple, example, stub, found 'lmcache'"),
        (small(connector={"cpu_policy": "fifo"}), "x: connector.cpu_policy: expected one of lru, arc, found 'fifo'"),
        (small(connector={"load_delay": -1}), "x: connector.load_delay: expected at least 0, found -1"),
        (small(connector={"tiers": [{"load_delay": 1}]}), "x: connector.tiers.0.store_delay is missing"),
        (small(connector={"tier": "virt", "tiers": [{"load_delay": 1, "store_delay": 1}]}),
         "x: connector.tiers: tiers and tier are both given, expected one of them"),
        (small(sessions=[]), "x: sessions: expected at least 1 entries, found a list"),
        (small(sessions=session(turns=[[4, 0]])), "x: sessions.0.turns.0.1: expected at least 1, found 0"),
        (small(sessions=session(turns=[[4]])), "x: sessions.0.turns.0: expected at least 2 entries, found a list"),
        (small(sessions=session(start_step=-1)), "x: sessions.0.start_step: expected at least 0, found -1"),
        (small(sessions=session(same_as="s9")),
         "x: sessions: s0 is same_as 's9', expected a session of this file that repeats no other"),
        (small(sessions=session() * 2), "x: sessions: two sessions have the name 's0', expected different names"),
        (small(sessions=session(abort=[[1, 0]])), "x: sessions.0.abort: turn 1 is aborted, expected a turn below 1"),
        (small(sessions=session(abort=[[0, 1], [0, 2]])),
         "x: sessions.0.abort: a turn is aborted twice, expected once"),
        (small(engine={"max_model_len": 4}),
         "x: sessions: turn 0 of s0 has a prompt of 4 tokens, expected fewer than max_model_len (4)"),
        (small(extra=1), f"x: unknown key extra, expected in the top level: {KEYS}"),
        ({key: value for key, value in small().items() if key != "sessions"}, "x: sessions is missing"),
    ],
)  # fmt: skip
def test_bad_scenarios(scenario: object, message: str) -> None:
    """A scenario that cannot be meant is refused with the field, the value and what was expected."""
    with pytest.raises(UserError) as error:
        check_scenario(scenario, "x")
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "is not JSON: Expecting property name enclosed in double quotes at line 1 column 2"),
        (b"\xff{}", "is not UTF-8 text (byte 0xff)"),
        (gzip.compress(b"{}", mtime=0)[:-9], "the gzip data ends too early, expected a complete file"),
        (b"[" * 100_000, "is nested too deeply"),
    ],
)
def test_files_that_are_no_json(tmp_path: Path, data: bytes, message: str) -> None:
    """A file that is not text, not JSON or not whole is named with the reason."""
    path = tmp_path / "scenario.json"
    path.write_bytes(data)
    with pytest.raises(UserError) as error:
        read_scenario(path)
    assert str(error.value) == f"{path}: {message}"


def without(name: str) -> dict[str, Any]:
    """The step without a field."""
    return {key: value for key, value in STEP.items() if key != name}


def lines(*values: object) -> bytes:
    """JSON lines."""
    return "".join(f"{json.dumps(value)}\n" for value in values).encode()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty, expected a recording"),
        (lines(SUMMARY), "holds no step, expected one line per step after the first line"),
        (lines(STEP), "line 1: vllm is missing, expected text"),
        (lines(SUMMARY | {"deadlock": 1}, STEP), "line 1: deadlock: expected true or false, found 1"),
        (lines(SUMMARY, STEP) + b"{\n", ("line 3: is not JSON: Expecting property name enclosed in double quotes at "
                                        "column 2")),
        (lines(SUMMARY, [1]), "line 2: expected a mapping, found a list"),
        (lines(SUMMARY, without("sched")), "line 2: sched is missing, expected a mapping"),
        (lines(SUMMARY, without("kvout")),
         "line 2: kvout is missing, expected a mapping, or null without a connector"),
        (lines(SUMMARY, STEP | {"free": -1}), "line 2: free: expected at least 0, found -1"),
        (lines(SUMMARY, STEP | {"step": True}), "line 2: step: expected a whole number, found true"),
        (lines(SUMMARY, STEP | {"sched": {"s0t0": "4"}}), "line 2: sched.s0t0: expected at least 1 token, found '4'"),
        (lines(SUMMARY, STEP | {"running": {}}), "line 2: running: expected a list, found a mapping"),
        (lines(SUMMARY, STEP | {"dma": [["wait", "x"]]}),
         "line 2: dma: expected entries [kind, job, ...], found a list"),
        (gzip.compress(lines(SUMMARY, STEP), mtime=0)[:-9], "the gzip data ends too early, expected a complete file"),
        (gzip.compress(lines(SUMMARY, STEP), mtime=0).replace(b"\x03", b"\x7f"), "damaged gzip data"),
    ],
)  # fmt: skip
def test_bad_recordings(tmp_path: Path, data: bytes, message: str) -> None:
    """A recording that is damaged or misses a field is refused with the line and the field."""
    path = tmp_path / "recording.jsonl.gz"
    path.write_bytes(data)
    with pytest.raises(UserError) as error:
        read_recording(path)
    assert str(error.value).startswith(f"{path}: {message}")


def test_recordings_are_written_and_read_back(tmp_path: Path) -> None:
    """What is written is what is read, and equal recordings are equal files."""
    data = recording_bytes(SUMMARY, [STEP])
    assert data == recording_bytes(SUMMARY, [STEP])
    path = tmp_path / "recording.jsonl.gz"
    path.write_bytes(data)
    recording = read_recording(path)
    assert (recording.vllm, recording.scenario, recording.deadlock) == ("0.33.0", "small", False)
    assert recording.records == [STEP]


def test_folders_are_matched_by_name(tmp_path: Path) -> None:
    """Files with the same name belong together; one without a partner is named."""
    scenarios, recordings = tmp_path / "s", tmp_path / "r"
    for folder, names in ((scenarios, ("a.json", "b.json", "notes.txt")), (recordings, ("b.jsonl.gz", "c.jsonl"))):
        folder.mkdir()
        for name in names:
            (folder / name).touch()
    found = find_pairs([scenarios, recordings])
    assert found.pairs == [(scenarios / "b.json", recordings / "b.jsonl.gz")]
    assert found.unmatched == [f"a: no recording in {recordings}", f"c: no scenario in {scenarios}"]
    assert find_scenarios([scenarios, scenarios / "x.json"]) == [
        scenarios / "a.json",
        scenarios / "b.json",
        scenarios / "x.json",
    ]


def test_arguments_that_make_no_pairs(tmp_path: Path) -> None:
    """Odd numbers of files, a folder beside a file, and folders without a common name are refused."""
    file, folder, other = tmp_path / "a.json", tmp_path / "s", tmp_path / "r"
    folder.mkdir()
    other.mkdir()
    for paths, message in (
        ([file], f"1 files given, {file} has no partner, expected pairs: SCENARIO RECORDING"),
        ([folder, file], f"{file}: expected two folders (scenarios, recordings), or pairs of files and no folder"),
        ([folder, other], (f"{folder}, {other}: 0 scenarios (.json) and 0 recordings (.jsonl.gz, .jsonl), "
                          "expected at least one name in both")),
    ):  # fmt: skip
        with pytest.raises(UserError) as error:
            find_pairs(paths)
        assert str(error.value) == message
    with pytest.raises(UserError, match="no scenario in this folder"):
        find_scenarios([folder])
