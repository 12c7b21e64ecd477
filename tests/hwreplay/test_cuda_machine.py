"""The GPU's machine and its backends, with streams of torch that do everything at once and a driver that copies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cuda_stand_ins import HostDriver, instant_streams
from replay_worlds import random_schedule
from schedule_world import small

from hwreplay import nvrtc
from hwreplay.backends import backend
from hwreplay.cuda_machine import CudaMachine, units_of
from hwreplay.cuda_parts import Anchor, CudaEvent
from hwreplay.driver import CudaError
from hwreplay.probe import ProbeOptions, probe
from hwreplay.probe_plan import Chosen, Plan
from hwreplay.result import ScheduleRef
from hwreplay.run import Options, Prepared, replays

REF = ScheduleRef("s.jsonl", "0", "run", "link")
PLAN = Plan((64, 256), (64, 256), (1, 4), (64,), 256, 8192, (4096,), (4096,), (1,), 8192)
KEYS = ["torch", "memcpy_async", "memcpy_batch", "triton", "cuda"]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> HostDriver:
    """With torch's streams replaced; without torch the test is skipped."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    instant_streams(monkeypatch, pytest.importorskip("torch"))
    return HostDriver()


def machine(driver: HostDriver) -> CudaMachine:
    """A small one on the processor."""
    return CudaMachine(driver, "cpu", {"gemm": (32, 8), "memory": (1,)})


def chosen(key: str) -> Any:
    """A backend, if what it needs is here."""
    if key == "cuda" and nvrtc.library() is None:
        pytest.skip("NVRTC is not installed")
    if key == "triton":
        pytest.importorskip("triton")
    return backend(key)


@pytest.mark.parametrize("key", KEYS)
def test_every_backend_replays(key: str, driver: HostDriver, tmp_path: Path) -> None:
    """All bytes are right, and memory that was registered is given back."""
    for schedule in (small(), random_schedule(2, 12)):
        options = Options(repeat=2, beside=tmp_path)
        for result in replays(Prepared(schedule, REF), chosen(key), options, lambda _: machine(driver)):
            assert result.integrity.first_wrong is None
            assert result.device.kind == "cuda"
            assert result.device.label == "Stand-in"
            assert (result.backend, result.way) == (key, backend(key).way)
            assert all(0 <= job.submitted_ns <= job.finished_ns for job in result.jobs)
            assert "3 copy engines" in result.notes
    assert driver.registered == {}
    assert driver.modules == 0
    if key == "memcpy_batch":
        assert set(driver.orders) == {"stream", "any"}


def test_loads_may_be_read_at_any_time_stores_only_in_order(driver: HostDriver, tmp_path: Path) -> None:
    """Stores read what a forward pass writes, so never before it; the order of the schedule's copies is kept."""
    list(replays(Prepared(small(), REF), backend("memcpy_batch"), Options(beside=tmp_path), lambda _: machine(driver)))
    # The first two warm up; behind each job follows what is kept of it, which the job has just written.
    assert driver.orders[2:] == ["stream", "stream", "any", "stream", "stream", "stream", "any", "stream"]


def test_every_backend_is_probed(driver: HostDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells of all of them, pageable ones only where the host makes each copy."""
    monkeypatch.setattr("hwreplay.probe._REPEATS", (1, 2))
    keys = [key for key in KEYS if key not in ("cuda", "triton")]
    options = ProbeOptions("quick", 60, tmp_path, PLAN)
    result = probe(Chosen([backend(key) for key in keys]), options, lambda _: machine(driver))
    assert {(cell.backend, cell.way) for cell in result.copies if cell.pinned} == {
        ("torch", "dma_loop"), ("memcpy_async", "dma_loop"), ("memcpy_batch", "dma_batch"),
    }  # fmt: skip
    assert {(cell.backend, cell.way) for cell in result.copies if not cell.pinned} == {
        ("torch", "pageable"), ("memcpy_async", "pageable"),
    }  # fmt: skip
    assert result.registration[0].register_ns > 0
    assert driver.registered == {}


def test_a_backend_that_fails_does_not_stop_the_probe(
    driver: HostDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named with its error; the others are measured."""
    monkeypatch.setattr("hwreplay.probe._REPEATS", (1, 2))

    def refuse(*_: object) -> None:
        raise CudaError("cuMemcpyBatchAsync at descriptor 1 of 4: CUDA_ERROR_INVALID_VALUE (1)")

    monkeypatch.setattr(driver, "memcpy_batch", refuse)
    options = ProbeOptions("quick", 60, tmp_path, PLAN)
    found = probe(Chosen([backend("memcpy_batch"), backend("memcpy_async")]), options, lambda _: machine(driver))
    assert {cell.backend for cell in found.copies} == {"memcpy_async"} == {cell.backend for cell in found.duplex}
    assert "memcpy_batch failed and was not measured further: cuMemcpyBatchAsync at descriptor 1" in found.notes[1]


def test_units_add_up() -> None:
    """As many large units as fit, the rest in small ones, rounded."""
    assert units_of(10_000, [3_000, 100]) == [3, 10]
    assert units_of(149, [3_000, 100]) == [0, 1]
    assert units_of(49, [3_000, 100]) == [0, 0]
    assert units_of(9_990, [3_000]) == [3]


def test_times_are_counted_from_anchors() -> None:
    """An event's time is its anchor's and what lies between; an anchor's that of the one before."""

    class At:
        def __init__(self, ms: float) -> None:
            self.ms = ms

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, other: At) -> float:
            return other.ms - self.ms

    first = Anchor(At(5.0), ns=1_000)
    second = Anchor(At(1005.0), before=first)
    assert second.ns == 1_000 + 10**9
    assert CudaEvent(At(1005.25), second).ns() == 1_000 + 10**9 + 250_000
    assert CudaEvent(At(4.5), first).ns() == 1_000 - 500_000
