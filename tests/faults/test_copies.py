"""FaultyCopier: what is lost, what stalls, and what that does to the stream."""

from __future__ import annotations

from typing import Any

import pytest

from kvsim.clock import Clock
from kvsim.connectors.base import CopyJob, Direction, WorkerDiedError, WorkerOutput
from kvsim.faults.copies import FaultyCopier
from kvsim.faults.hazard import Chance, Hazard
from kvsim.results.records import FaultTotals


class TenEach:
    """Every copy takes 10 ns from its submission."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.ready: dict[CopyJob, int] = {}

    def submit(self, job: CopyJob) -> None:
        self.ready[job] = self._clock.now + 10

    def flush(self, job: CopyJob) -> None:
        self.ready[job] = self._clock.now

    def is_done(self, job: CopyJob) -> bool:
        return self._clock.now >= self.ready[job]

    def forget(self, job: CopyJob) -> None:
        del self.ready[job]


def faulty(
    clock: Clock, *, losses: Chance | None = None, stalls: Chance | None = None, **options: Any
) -> tuple[FaultyCopier, TenEach, FaultTotals]:
    """A copier whose loads are at stake."""
    never, totals, inner = Chance(), FaultTotals(), TenEach(clock)

    def hazards(chance: Chance | None, name: str) -> dict[Direction, Hazard]:
        return {"load": Hazard(clock, chance or never, 0, name), "store": Hazard(clock, never, 0, name)}

    defaults: dict[str, Any] = {"deadline_ns": 0, "is_fatal": False, "wake": lambda: None}
    copier = FaultyCopier(
        clock, inner, losses=hazards(losses, "loss"), stalls=hazards(stalls, "stall"), totals=totals,
        **(defaults | options),
    )  # fmt: skip
    return copier, inner, totals


def load(number: int, blocks: list[int]) -> CopyJob:
    """A load into these GPU blocks."""
    return CopyJob(number, "load", list(range(len(blocks))), blocks)


def test_a_load_named_by_number_loses_all_its_blocks_in_its_usual_time() -> None:
    """The second load is lost; the first and the store are not."""
    clock = Clock()
    copier, _, totals = faulty(clock, losses=Chance(numbers=frozenset({1})))
    jobs = [load(0, [1, 2]), load(1, [3, 4]), CopyJob(2, "store", [5], [0])]
    for job in jobs:
        copier.submit(job)
    assert not copier.is_done(jobs[1])
    clock.run(until=10)
    output = WorkerOutput()
    for job in jobs:
        assert copier.is_done(job)
        copier.forget(job)
        output.take_failure(job)
    assert (output.invalid_blocks, output.failed_jobs) == ({3, 4}, set())
    assert totals.happened == {"failed_loads": 1, "failed_load_blocks": 2}


def test_a_rate_is_per_block_and_holds_in_its_windows_only() -> None:
    """Of 1,000 blocks at 10 % about a hundred are lost, from 100 ns on and up to 200 ns; the seed decides which."""
    clock = Clock()
    copier, _, _ = faulty(clock, losses=Chance(0.1, windows=[(100, 200)]))
    jobs = [load(number, list(range(1, 1001))) for number in range(3)]
    for job, moment in zip(jobs, (0, 100, 200), strict=True):
        if moment:
            clock.run(until=moment)
        copier.submit(job)
    assert [len(job.failed_blocks) for job in jobs] == [0, 103, 0]


def test_a_stalled_copy_holds_up_its_stream_until_its_deadline() -> None:
    """The load behind it starts at 50 ns; the store does not wait; the engine is woken at the deadline."""
    clock, woken = Clock(), []
    copier, inner, totals = faulty(
        clock, stalls=Chance(numbers=frozenset({0})), deadline_ns=50, wake=lambda: woken.append(clock.now)
    )
    stalled, behind, store = load(0, [1]), load(1, [2]), CopyJob(2, "store", [5], [0])
    for job in (stalled, behind, store):
        copier.submit(job)
    assert inner.ready == {store: 10}
    clock.run(until=51)
    assert woken == [50]
    assert copier.is_done(stalled)
    assert stalled.failed_blocks == {1}
    assert inner.ready == {store: 10, behind: 60}
    assert totals.happened == {"stalled_jobs": 1, "expired_jobs": 1}


def test_without_a_deadline_a_stalled_copy_is_never_done() -> None:
    """As in vLLM; both jobs of the stream count as stalled, and no event is left that would wake anybody."""
    clock = Clock()
    copier, _, _ = faulty(clock, stalls=Chance(numbers=frozenset({0})))
    stalled, behind = load(0, [1]), load(1, [2])
    copier.submit(stalled)
    copier.submit(behind)
    copier.flush(stalled)
    clock.run()
    assert not copier.is_done(stalled)
    assert not copier.is_done(behind)
    assert copier.num_stalled == 2


def test_memory_that_goes_takes_what_is_moving_with_it() -> None:
    """A finished copy is safe, a moving one is lost, and so is what is submitted meanwhile."""
    clock = Clock()
    copier, _, _ = faulty(clock)
    early, moving, later, after = (load(number, [number + 1]) for number in range(4))
    copier.submit(early)
    clock.run(until=15)
    copier.submit(moving)
    copier.lose_memory()
    copier.submit(later)
    copier.memory_is_gone = False
    copier.submit(after)
    assert [job.failed_blocks for job in (early, moving, later, after)] == [set(), {2}, {3}, set()]


def test_a_fatal_failure_ends_the_worker_when_it_is_reported() -> None:
    """VLLM 0.33.0 asserts that a finished transfer has succeeded."""
    clock = Clock()
    copier, _, _ = faulty(clock, losses=Chance(numbers=frozenset({0})), is_fatal=True)
    job = load(0, [1])
    copier.submit(job)
    clock.run(until=10)
    with pytest.raises(WorkerDiedError, match="load 0 has failed"):
        copier.forget(job)
