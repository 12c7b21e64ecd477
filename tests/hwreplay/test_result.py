"""Results go to JSON and back unchanged; what does not fit is refused with file, key and expectation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hwreplay.result import (
    CopyCell,
    DeviceInfo,
    DuplexCell,
    FileCell,
    Integrity,
    JobResult,
    LayoutRecord,
    OverlapCell,
    ProbeResult,
    RegistrationCell,
    RunResult,
    ScheduleRef,
    Spread,
    StepResult,
    WrongByte,
    format_of,
    read_probe,
    read_run,
    spread,
    write_probe,
    write_run,
)
from kvsim.errors import UserError

DEVICE = DeviceInfo(
    kind="host", device="EPYC", driver="", cuda="", torch="", python="3.11", cpu="EPYC", kernel="6", date="2026-11-29"
)
RUN = RunResult(
    device=DEVICE,
    backend="host",
    way="dma_batch",
    schedule=ScheduleRef(path="s.jsonl", sha256="0", run="r", link="l"),
    layout=LayoutRecord("cross_layer", 2, 2, 64, "bfloat16", 16, 1, 16384),
    started="2026-11-29T10:00:00+00:00",
    repeat=0,
    steps=(StepResult(0, 0, 10, 9, 10),),
    jobs=(JobResult(0, "store", 1, 16384, 16384, 1, 2, 3, 4, 5),),
    integrity=Integrity(1, 16384, WrongByte(0, "host", 3, 7, 100, 1, 2)),
    makespan_ns=10,
    calibration={"compute_unit_ns": 1000},
)
SPREAD = Spread(3, 2, 4, 5)
PROBE = ProbeResult(
    device=DEVICE,
    started="2026-11-29T10:00:00+00:00",
    mode="quick",
    copies=(CopyCell("host", "dma_batch", "h2d", True, False, 4096, 16, SPREAD, SPREAD, SPREAD),),
    duplex=(DuplexCell("host", "dma_batch", 4096, 16, SPREAD, SPREAD, SPREAD, SPREAD),),
    overlap=(OverlapCell("host", "dma_batch", "d2h", "gemm", SPREAD, SPREAD, SPREAD, SPREAD),),
    registration=(RegistrationCell(1, 2, 3),),
    files=(FileCell("read", 1, 2, 3),),
    notes=("a",),
)


def test_round_trip(tmp_path: Path) -> None:
    """What is written is what is read."""
    write_run(tmp_path / "run.json", RUN)
    write_probe(tmp_path / "probe.json", PROBE)
    assert read_run(tmp_path / "run.json") == RUN
    assert read_probe(tmp_path / "probe.json") == PROBE
    assert format_of(tmp_path / "run.json") == "hwreplay-run"
    assert format_of(tmp_path / "probe.json") == "hwreplay-probe"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["probe.json", "run.json"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "hwreplay-probe"}, "format: expected hwreplay-run, found 'hwreplay-probe'"),
        ({"version": 2}, "version: expected 1, found 2"),
        ({"makespan_ns": 1.5}, "makespan_ns: expected a whole number, found 1.5"),
        ({"makespan_ns": True}, "makespan_ns: expected a whole number, found true"),
        ({"jobs": [{}]}, "jobs[0].job is missing"),
        ({"way": "dma"}, "way: expected one of dma_batch, dma_loop, kernel, pageable, found 'dma'"),
        ({"stepz": []}, "unknown key stepz, did you mean steps?"),
        ({"device": []}, "device: expected a mapping of keys, found a list"),
        ({"calibration": {"x": "y"}}, "calibration.x: expected a whole number, found 'y'"),
    ],
)
def test_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    """Each wrong value is named with its key and what was expected."""
    file = tmp_path / "run.json"
    write_run(file, RUN)
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(UserError) as error:
        read_run(file)
    assert str(error.value) == f"{file}: {message}"


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_no_json(tmp_path: Path, content: bytes) -> None:
    """A file that is no result is refused, whatever it is."""
    file = tmp_path / "run.json"
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"run\.json"):
        read_run(file)
    with pytest.raises(UserError, match="No such file"):
        read_run(tmp_path / "absent.json")


def test_spread() -> None:
    """Median between the two middle values, percentiles by nearest rank."""
    assert spread(range(11)) == Spread(5, 1, 9, 11)
    assert spread([4, 1]) == Spread(2, 1, 4, 2)
    with pytest.raises(ValueError, match="no measurement"):
        spread([])


def test_a_host_is_named_as_such() -> None:
    """A label never hides that there was no GPU."""
    assert DEVICE.label == "EPYC (host threads, no GPU)"
    assert replace(DEVICE, kind="cuda", device="NVIDIA H200").label == "NVIDIA H200"
