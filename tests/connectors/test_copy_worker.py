"""The ready-made worker side: when it submits, what it waits for, what it reports."""

from __future__ import annotations

from engine_builder import make_request

from kvsim.connectors.base import CopyJob, WorkerOutput
from kvsim.connectors.copy_worker import CopyPlan, CopyWorker
from kvsim.request import Request


class ByHand:
    """Copies that are done when the test says so."""

    def __init__(self) -> None:
        self.submitted: list[str] = []
        self.done: set[int] = set()

    def submit(self, job: CopyJob) -> None:
        """See `Copier`."""
        self.submitted.append(f"{job.direction} {job.job_id}")

    def flush(self, job: CopyJob) -> None:
        """See `Copier`."""

    def is_done(self, job: CopyJob) -> bool:
        """See `Copier`."""
        return job.job_id in self.done

    def forget(self, job: CopyJob) -> None:
        """See `Copier`."""


def step(worker: CopyWorker, plan: CopyPlan) -> tuple[list[int], WorkerOutput]:
    """(jobs waited for, report) of one step."""
    waited = [job.job_id for job in worker.handle_preemptions(plan)]
    worker.start_load_kv(plan)
    return waited, worker.get_finished()


def plan(*, load: Request | None = None, store: Request | None = None, **told: list[Request]) -> CopyPlan:
    """A plan with at most one copy of each kind."""
    made = CopyPlan(**told)
    if load is not None:
        made.load(load, [100], [1])
    if store is not None:
        made.store(store, [2], [200])
    return made


def test_loads_go_first_and_stores_after_the_forward_pass() -> None:
    """A step's store is submitted by get_finished, behind the loads; both are reported once, when they are done."""
    copier, a, b = ByHand(), make_request("a"), make_request("b")
    worker = CopyWorker(copier)
    work = plan(load=a, store=b)
    assert worker.handle_preemptions(work) == []
    worker.start_load_kv(work)
    assert copier.submitted == ["load 0"]
    assert worker.has_finished()  # the store might be instant
    assert worker.get_finished() == WorkerOutput(meta=[])
    assert copier.submitted == ["load 0", "store 1"]
    assert not worker.has_finished()
    copier.done = {0, 1}
    assert worker.has_finished()
    _, report = step(worker, plan())
    assert (report.received, report.jobs, report.sent) == ([a], [0, 1], [])
    assert [copy.direction for copy in report.meta] == ["load", "store"]
    assert step(worker, plan()) == ([], WorkerOutput(meta=[]))


def test_stores_of_preempted_requests_are_waited_for() -> None:
    """Their blocks are about to be overwritten; loads and other requests are not waited for."""
    copier, a, b = ByHand(), make_request("a"), make_request("b")
    worker = CopyWorker(copier)
    step(worker, plan(load=a, store=a))
    step(worker, plan(store=b))
    waited, _ = step(worker, plan(preempted=[a]))
    assert waited == [1]


def test_an_ended_request_is_sent_when_its_copies_are_done() -> None:
    """``sent`` comes once, with the report of the last copy, or at once if there is none."""
    copier, a, b = ByHand(), make_request("a"), make_request("b")
    worker = CopyWorker(copier)
    step(worker, plan(store=a))
    assert step(worker, plan(sending=[a, b]))[1].sent == [b]
    copier.done = {0}
    assert step(worker, plan())[1].sent == [a]
    assert step(worker, plan())[1].sent == []
