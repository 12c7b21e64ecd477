"""Schedules on disk: what comes back, and what is said about files that are none."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from schedule_world import header, small, step

from kvsim.errors import UserError
from kvsim.results.schedule import (
    BrokenRuleError,
    Initial,
    Schedule,
    ScheduleWriter,
    read_schedule,
    write_schedule,
)


@pytest.mark.parametrize("name", ["s.jsonl", "s.jsonl.gz"])
def test_what_is_written_comes_back(tmp_path: Path, name: str) -> None:
    """A schedule is read as it was written, and written twice alike."""
    whole = Schedule(header(filter={"start_ns": 5}, initial=Initial(((1, 2),), (), ((3, 4),))), small().steps)
    write_schedule(tmp_path / name, whole)
    assert read_schedule(tmp_path / name) == whole
    first = (tmp_path / name).read_bytes()
    write_schedule(tmp_path / name, whole)
    assert (tmp_path / name).read_bytes() == first
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_the_lines_are_those_of_the_format(tmp_path: Path) -> None:
    """Field names and their order are the format's; numbers stay whole."""
    write_schedule(tmp_path / "s.jsonl", small())
    first, _, second, *_ = (tmp_path / "s.jsonl").read_text().splitlines()
    assert json.loads(first) == {
        "format": "kvsim-schedule", "version": 1, "run": "small", "kvsim": "0.0.1", "digest": "d1", "model": "tiny",
        "vllm_version": "0.33.0", "gpu": "h100-sxm", "link": "pcie5-h100", "rank": 0, "tensor_parallel_size": 1,
        "gpu_blocks": 8, "host_blocks": 4,
        "layout": {"kind": "per_layer_kv", "layers": 2, "kv_heads": 1, "head_size": 4, "dtype": "bfloat16",
                   "block_tokens": 4, "pieces": 2, "piece_bytes": 64},
        "way": {"load": "dma_batch", "store": "dma_batch"}, "filter": None, "initial": None,
    }  # fmt: skip
    assert second == (
        '{"step":1,"start_ns":10,"not_before_ns":null,"compute_ns":10,"end_ns":20,"after":[],"writes":[],"jobs":'
        '[{"job":0,"direction":"store","request":"a","source":[1,2],"destination":[0,1],"contents":[10,11],'
        '"behind":"previous","after":[],"bytes":256,"submitted_ns":0,"started_ns":null,"finished_ns":5}]}'
    )


def test_a_schedule_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    """Whatever happens while it is written, nothing is left behind and an older file stays."""
    (tmp_path / "s.jsonl").write_text("old")
    with pytest.raises(ZeroDivisionError), ScheduleWriter(tmp_path / "s.jsonl", header()):
        raise ZeroDivisionError
    with (
        pytest.raises(BrokenRuleError, match="start_ns is -1"),
        ScheduleWriter(tmp_path / "s.jsonl", header()) as writer,
    ):
        writer.write(step(0, start_ns=-1))
    assert [path.name for path in tmp_path.iterdir()] == ["s.jsonl"]
    assert (tmp_path / "s.jsonl").read_text() == "old"


@pytest.mark.parametrize("name", ["s.json", "s", ".jsonl", "folder.jsonl", "missing/s.jsonl"])
def test_it_cannot_be_written_everywhere(tmp_path: Path, name: str) -> None:
    """A wrong name, a folder and a place that is not there are told before anything is written."""
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(UserError, match=r"expected a schedule's name|is a folder|cannot be written"):
        write_schedule(tmp_path / name, small())


def _lines(tmp_path: Path) -> list[Any]:
    write_schedule(tmp_path / "s.jsonl", small())
    return [json.loads(line) for line in (tmp_path / "s.jsonl").read_text().splitlines()]


def _written(tmp_path: Path, lines: list[Any]) -> Path:
    (tmp_path / "s.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path / "s.jsonl"


HEADER, STEP, JOB = 0, 2, 3


@pytest.mark.parametrize(
    ("where", "field", "value", "message"),
    [
        (HEADER, "format", "other", 'line 1: format is "other", expected "kvsim-schedule"'),
        (HEADER, "version", 2, "line 1: version is 2, expected 1"),
        (HEADER, "version", True, "line 1: version is true, expected 1"),
        (HEADER, "digest", "", 'line 1: digest is "", expected a text that is not empty'),
        (HEADER, "rank", 1, r"line 1: rank is 1, expected 0 to 0"),
        (HEADER, "gpu_blocks", 0, "line 1: gpu_blocks is 0, expected 1 to"),
        (HEADER, "host_blocks", 1.0, "line 1: host_blocks is 1.0, expected a whole number"),
        (HEADER, "host_blocks", 1, r"line 3: job 0: destination\[1\] is 1, expected 0 to 0"),
        (HEADER, "filter", 3, "line 1: filter is 3, expected null or an object"),
        (HEADER, "initial", {}, "line 1: initial: gpu is missing, expected gpu, host, files"),
        (HEADER, "initial", {"gpu": [[8, 0]], "host": [], "files": []}, r"line 1: initial.gpu\[0\] is 8, expected 0"),
        (HEADER, "way", {"load": "x", "store": "kernel"}, 'line 1: way.load is "x", expected one of dma_batch'),
        (HEADER, "layout", [], r"line 1: layout is \[\], expected an object"),
        (HEADER, "colour", 1, "line 1: colour is unknown, expected format, version"),
        (STEP, "step", 0, "line 3: step is 0, expected a number above 0"),
        (STEP, "start_ns", None, "line 3: start_ns is null, expected a whole number"),
        (STEP, "start_ns", -5, "line 3: start_ns is -5, expected 0 to"),
        (STEP, "start_ns", 2**63, "line 3: start_ns is 9223372036854775808, expected 0 to"),
        (STEP, "compute_ns", "9", 'line 3: compute_ns is "9", expected a whole number'),
        (STEP, "after", [True], r"line 3: after\[0\] is true, expected a whole number"),
        (STEP, "after", {"a": 1}, "line 3: after is an object with 1 keys, expected a list"),
        (STEP, "after", [1], r"line 3: after\[0\] is 1, expected the number of an earlier job"),
        (STEP, "writes", [[1, 2, 3]], r"line 3: writes\[0\] is \[1, 2, 3\], expected a pair"),
        (STEP, "writes", [1], r"line 3: writes\[0\] is 1, expected a pair"),
        (STEP, "jobs", None, "line 3: jobs is null, expected a list of objects"),
        (STEP, "jobs", [3], r"line 3: jobs\[0\] is 3, expected an object"),
        (STEP, "colour", 1, "line 3: colour is unknown, expected step, start_ns"),
        (JOB, "direction", "move", r'line 3: jobs\[0\].direction is "move", expected one of store, load, write, read'),
        (JOB, "behind", "that", r'line 3: jobs\[0\].behind is "that", expected "previous", "this" or null'),
        (JOB, "source", [1, -2], r"line 3: job 0: source\[1\] is -2, expected 0 to 7"),
        (JOB, "source", [1, 8], r"line 3: job 0: source\[1\] is 8, expected 0 to 7"),
        (JOB, "source", [], r"line 3: job 0: source is empty, expected one block or more"),
        (JOB, "contents", [1], r"line 3: job 0: contents is of length 1, expected 2 as in source"),
        (JOB, "request", 7, r"line 3: jobs\[0\].request is 7, expected a text"),
        (JOB, "bytes", 0, r"line 3: job 0: bytes is 0, expected 256"),
        (JOB, "colour", 1, r"line 3: jobs\[0\]: colour is unknown, expected job, direction"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named(tmp_path: Path, where: int, field: str, value: object, message: str) -> None:
    """A field that is unknown, of another type or out of range is told with file, line, value and expectation."""
    lines = _lines(tmp_path)
    (lines[2]["jobs"][0] if where == JOB else lines[where])[field] = value
    path = _written(tmp_path, lines)
    with pytest.raises(UserError, match=rf"s\.jsonl: {message}"):
        read_schedule(path)


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ({"pieces": 1}, "layout.pieces is 1, expected 2 with per_layer_kv and 2 layers"),
        ({"piece_bytes": 32}, "layout.piece_bytes is 32, expected 64"),
        ({"dtype": "float8"}, "layout.dtype is float8, expected one of bfloat16"),
        ({"layers": 0}, "layout.layers is 0, expected 1 to"),
        ({"kind": "rows"}, 'layout.kind is "rows", expected one of cross_layer, per_layer_kv, per_layer, mla'),
    ],
)
def test_a_layout_must_add_up(tmp_path: Path, layout: dict[str, Any], message: str) -> None:
    """Pieces and their bytes are those of layers, heads, tokens and dtype."""
    lines = _lines(tmp_path)
    lines[0]["layout"] |= layout
    with pytest.raises(UserError, match=f"line 1: {message}"):
        read_schedule(_written(tmp_path, lines))


@pytest.mark.parametrize("field", ["jobs", "writes", "not_before_ns"])
def test_a_missing_field_is_named(tmp_path: Path, field: str) -> None:
    """Every field must be there, also those that may be null."""
    lines = _lines(tmp_path)
    del lines[2][field]
    with pytest.raises(UserError, match=f"line 3: {field} is missing, expected step, start_ns"):
        read_schedule(_written(tmp_path, lines))


def _packed(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("s.jsonl", lambda _: b"", "s.jsonl: the file is empty, expected a schedule"),
        ("s.jsonl", lambda _: b"\n \n", "s.jsonl: the file is empty"),
        ("s.jsonl", lambda data: data.split(b"\n")[0], "line 2: no step follows the header"),
        ("s.jsonl", lambda data: data[:-9], r"line 9: not JSON \(.*, column \d+\), expected a JSON object"),
        ("s.jsonl", lambda data: data.replace(b'"bytes":256', b'"bytes":NaN', 1), "line 3: holds NaN, expected whole"),
        ("s.jsonl", lambda data: data.replace(b'"bytes":256', b'"bytes":1' + b"0" * 5000, 1), "holds an integer"),
        ("s.jsonl", lambda _: b"[1]\n", r"line 1: found \[1\], expected a JSON object"),
        ("s.jsonl", lambda _: b"[" * 100_000, "line 1: nested too deeply|line 1: not JSON"),
        ("s.jsonl", lambda data: b"\xff" + data, "line 1: byte 0xff is not UTF-8"),
        ("s.jsonl.gz", lambda data: data, "s.jsonl.gz: not gzip data, expected what its name says"),
        ("s.jsonl.gz", lambda data: _packed(data)[:-20], "s.jsonl.gz: the gzip data ends too early"),
        ("s.jsonl.gz", lambda data: _packed(data)[:40] + b"00" + _packed(data)[42:], "s.jsonl.gz: damaged gzip data"),
        ("s.jsonl.gz", lambda _: b"", "s.jsonl.gz: the file is empty"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_one_error(tmp_path: Path, name: str, damage: Callable[[bytes], bytes], message: str) -> None:
    """Truncated, empty, packed badly or no JSON at all: one error with the file, and the line where there is one."""
    write_schedule(tmp_path / "whole.jsonl", small())
    (tmp_path / name).write_bytes(damage((tmp_path / "whole.jsonl").read_bytes()))
    with pytest.raises(UserError, match=message):
        read_schedule(tmp_path / name)


def test_a_file_must_be_there(tmp_path: Path) -> None:
    """A missing file and a folder are told as such."""
    with pytest.raises(UserError, match=r"none.jsonl: cannot be read \(No such file"):
        read_schedule(tmp_path / "none.jsonl")
    with pytest.raises(UserError, match=r"cannot be read \(Is a directory"):
        read_schedule(tmp_path)


def test_a_packed_file_may_have_a_plain_name(tmp_path: Path) -> None:
    """Gzip is told by the data."""
    write_schedule(tmp_path / "s.jsonl.gz", small())
    (tmp_path / "s.jsonl.gz").rename(tmp_path / "s.jsonl")
    assert read_schedule(tmp_path / "s.jsonl") == small()


def test_requests_have_any_name(tmp_path: Path) -> None:
    """Text comes back as it was."""
    steps = [*small().steps]
    steps[1] = replace(steps[1], jobs=(replace(steps[1].jobs[0], request='000001:Ä/\n "#3'),))
    write_schedule(tmp_path / "s.jsonl", Schedule(header(), steps))
    assert read_schedule(tmp_path / "s.jsonl").steps == steps
