"""Copies that wait for forward passes launched before them."""

from __future__ import annotations

from kvsim.clock import Clock
from kvsim.connectors.base import CopyJob
from kvsim.connectors.compute_fence import COPIES_WAIT, STORES_WAIT, FencedCopier, LaunchQueue


class Submissions:
    """A copier that writes down when it gets what, and is done at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.seen: list[tuple[int, int]] = []

    def submit(self, job: CopyJob) -> None:
        self.seen.append((self._clock.now, job.job_id))

    def flush(self, job: CopyJob) -> None:
        raise AssertionError("only what has been submitted can be flushed")

    def is_done(self, job: CopyJob) -> bool:
        return True

    def forget(self, job: CopyJob) -> None: ...


def job(number: int, direction: str = "store") -> CopyJob:
    """A copy of one block."""
    return CopyJob(number, "store" if direction == "store" else "load", [1], [2])


def test_forward_passes_follow_each_other() -> None:
    """One that is launched while another runs ends its own time after it; on an idle GPU it starts at once."""
    compute = LaunchQueue()
    assert [compute.launch(0, 10), compute.launch(3, 5), compute.launch(40, 1)] == [10, 15, 41]


def test_a_copy_starts_when_the_gpu_has_come_so_far() -> None:
    """It waits for what was launched before it, not for what is launched later, and keeps its place."""
    clock, compute = Clock(), LaunchQueue()
    inner = Submissions(clock)
    copier = FencedCopier(inner, clock, compute, COPIES_WAIT)
    copier.submit(job(0))
    compute.launch(0, 10)
    held = job(1)
    copier.submit(held)
    copier.flush(held)
    compute.launch(0, 10)
    copier.submit(job(2, "load"))
    assert not copier.is_done(held)
    clock.run(until=11)
    assert copier.is_done(held)
    clock.run()
    assert inner.seen == [(0, 0), (10, 1), (20, 2)]


def test_loads_of_simple_cpu_do_not_wait() -> None:
    """Only the directions named wait."""
    clock, compute = Clock(), LaunchQueue()
    inner = Submissions(clock)
    copier = FencedCopier(inner, clock, compute, STORES_WAIT)
    compute.launch(0, 10)
    copier.submit(job(0))
    copier.submit(job(1, "load"))
    clock.run()
    assert inner.seen == [(0, 1), (10, 0)]
