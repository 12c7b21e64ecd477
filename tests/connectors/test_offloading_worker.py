"""OffloadingConnector, worker side: when copies are submitted, what is waited for, what is reported."""

from __future__ import annotations

import pytest
from engine_builder import ids, make_request

from kvsim.connectors.base import Direction
from kvsim.connectors.offloading import Job, OffloadingMeta
from kvsim.connectors.offloading_worker import OffloadingWorker, OffloadingWorker023

BOTH = pytest.mark.parametrize("release", [OffloadingWorker, OffloadingWorker023])


class HandCopier:
    """Copies are done when the test says so."""

    def __init__(self) -> None:
        self.log: list[tuple[str, int]] = []
        self.done: set[int] = set()

    def submit(self, job: Job) -> None:
        self.log.append((job.direction, job.job_id))

    def flush(self, job: Job) -> None:
        self.log.append(("wait", job.job_id))

    def is_done(self, job: Job) -> bool:
        return job.job_id in self.done

    def forget(self, job: Job) -> None:
        self.log.append(("forget", job.job_id))

    def said(self) -> list[tuple[str, int]]:
        log, self.log = self.log, []
        return log


def _meta(loads: str = "", stores: str = "", flush: str = "") -> OffloadingMeta:
    """Job ids are digits; job n belongs to request ``rn``."""

    def jobs(numbers: str, direction: Direction) -> dict[int, Job]:
        return {int(n): Job(int(n), direction, [], [], make_request(f"r{n}"), []) for n in numbers}

    return OffloadingMeta(jobs(loads, "load"), jobs(stores, "store"), set(map(int, flush)))


def _step(worker: OffloadingWorker, meta: OffloadingMeta) -> list[int]:
    """The start of a step: which jobs does it wait for?"""
    waiting = worker.handle_preemptions(meta)
    worker.start_load_kv(meta)
    return [job.job_id for job in waiting]


@BOTH
def test_stores_are_submitted_a_step_later(release: type[OffloadingWorker]) -> None:
    """Stores wait for the start of the next step, loads start in their own; deferred stores come first."""
    copier = HandCopier()
    worker = release(copier)
    _step(worker, _meta(loads="0", stores="12"))
    assert copier.said() == [("load", 0)]
    _step(worker, _meta(loads="3", stores="4"))
    assert copier.said() == [("store", 1), ("store", 2), ("load", 3)]
    _step(worker, _meta())
    assert copier.said() == [("store", 4)]
    _step(worker, _meta())
    assert copier.said() == []


@BOTH
def test_deferred_stores_are_submitted_before_anything_is_waited_for(release: type[OffloadingWorker]) -> None:
    """A store may be flushed in the step after it was planned: submitted, waited for, and then the loads."""
    copier = HandCopier()
    worker = release(copier)
    _step(worker, _meta(stores="0"))
    assert _step(worker, _meta(loads="1", flush="0")) == [0]
    assert copier.said() == [("store", 0), ("wait", 0), ("load", 1)]


@BOTH
def test_waiting_ignores_what_is_not_in_flight(release: type[OffloadingWorker]) -> None:
    """Jobs that were reported already, or are unknown, are not waited for; the others in ascending order."""
    copier = HandCopier()
    worker = release(copier)
    _step(worker, _meta(loads="12", stores="0"))
    copier.done = {1}
    worker.get_finished()
    assert _step(worker, _meta(flush="9210")) == [0, 2]
    assert [entry for entry in copier.said() if entry[0] == "wait"] == [("wait", 0), ("wait", 2)]


def test_own_stores_that_must_be_flushed_are_submitted_at_once() -> None:
    """0.33.0: a store planned and flushed in the same step goes behind the deferred ones; the rest waits."""
    copier = HandCopier()
    worker = OffloadingWorker(copier)
    _step(worker, _meta(stores="0"))
    assert _step(worker, _meta(stores="12", flush="2")) == [2]
    assert copier.said() == [("store", 0), ("store", 2), ("wait", 2)]
    _step(worker, _meta())
    assert copier.said() == [("store", 1)]


def test_023_own_stores_are_always_deferred() -> None:
    """0.23.0: a store is not submitted in the step that plans it."""
    copier = HandCopier()
    worker = OffloadingWorker023(copier)
    _step(worker, _meta(stores="0"))
    assert _step(worker, _meta(stores="12", flush="02")) == [0]
    assert copier.said() == [("store", 0), ("wait", 0)]
    _step(worker, _meta())
    assert copier.said() == [("store", 1), ("store", 2)]


@BOTH
def test_finished_jobs_are_reported_once_in_the_order_of_submission(release: type[OffloadingWorker]) -> None:
    """Jobs of both directions; of loads also the request, which may run now."""
    copier = HandCopier()
    worker = release(copier)
    _step(worker, _meta(loads="1", stores="0"))
    _step(worker, _meta(loads="2"))
    assert (worker.has_finished(), worker.get_finished().jobs) == (False, [])
    copier.said()
    copier.done = {0, 1, 2}
    assert worker.has_finished()
    report = worker.get_finished()
    assert (report.jobs, ids(report.received)) == ([1, 0, 2], ["r1", "r2"])
    assert copier.said() == [("forget", 1), ("forget", 0), ("forget", 2)]
    assert (worker.get_finished().jobs, worker.has_finished()) == ([], False)


@BOTH
def test_is_done(release: type[OffloadingWorker]) -> None:
    """A job that is waited for is done when its copy is."""
    copier = HandCopier()
    worker = release(copier)
    _step(worker, _meta(loads="0"))
    (job,) = worker.handle_preemptions(_meta(flush="0"))
    assert not worker.is_done(job)
    copier.done = {0}
    assert worker.is_done(job)
