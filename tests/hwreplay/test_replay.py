"""Schedules replayed with real threads and real bytes: nothing moves too early, and every fault is found."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from replay_worlds import Faulty, QuickMachine, random_schedule
from schedule_world import header, small
from schedule_world import job as a_job
from schedule_world import step as a_step

from hwreplay.backends.base import Backend, Batch
from hwreplay.backends.host import HostBackend
from hwreplay.host_machine import HostMachine, HostStream
from hwreplay.machine import Compute, Stream
from hwreplay.result import RunResult, ScheduleRef
from hwreplay.run import Options, Prepared, prepare, replays
from kvsim.errors import UserError
from kvsim.results.schedule import Initial, Schedule, check, cut, in_order, write_schedule

REF = ScheduleRef("s.jsonl", "0", "run", "link")


def replayed(schedule: Schedule, tmp_path: Path, backend: Backend | None = None, repeat: int = 1) -> list[RunResult]:
    """Replay on threads, with passes that take no time."""
    check(schedule)
    options = Options(repeat=repeat, beside=tmp_path)
    made = replays(Prepared(schedule, REF), backend or HostBackend(), options, lambda _: QuickMachine())
    return list(made)


def assert_in_order(schedule: Schedule, result: RunResult) -> None:
    """No job and no pass began before what it has to wait for was done."""
    jobs = {job.job: job for job in result.jobs}
    steps = {step.step: step for step in result.steps}
    last: dict[str, int] = {}
    previous = 0
    for step in schedule.steps:
        for job in in_order(step):
            if job is None:
                assert all(jobs[number].finished_ns <= steps[step.step].start_ns for number in step.after)
                continue
            waited = [jobs[number].finished_ns for number in job.after]
            waited += {"this": [steps[step.step].end_ns], "previous": [previous], None: []}[job.behind]
            if job.direction in ("store", "load"):
                waited.append(last.get(job.direction, 0))
                last[job.direction] = jobs[job.job].finished_ns
            assert max(waited, default=0) <= jobs[job.job].started_ns, f"job {job.job}"
        if steps[step.step].compute_ns:
            previous = steps[step.step].end_ns


def test_a_small_schedule(tmp_path: Path) -> None:
    """Every job runs once, in order, and every block that was written is right."""
    (result,) = replayed(small(), tmp_path)
    assert_in_order(small(), result)
    assert [(job.job, job.direction, job.descriptors, job.descriptor_bytes, job.bytes) for job in result.jobs] == [
        (0, "store", 4, 64, 256),
        (1, "load", 4, 64, 256),
        (2, "store", 4, 64, 256),
        (3, "write", 2, 128, 256),
        (4, "read", 1, 128, 128),
        (5, "load", 2, 64, 128),
    ]
    assert result.integrity.first_wrong is None
    assert result.integrity.verified_blocks == 5 + 3 + 2  # GPU blocks 1 to 5, host blocks 0 to 2, files 0 and 1
    assert result.integrity.verified_bytes == 10 * 128
    assert result.integrity.witnessed_words == 2 + 2 + 2 + 1  # one of each block that was stored or loaded
    assert [step.compute_ns for step in result.steps] == [10] * 8
    assert result.makespan_ns == max(job.finished_ns for job in result.jobs)
    assert all(0 <= job.submitted_ns <= job.started_ns <= job.finished_ns <= job.noticed_ns for job in result.jobs)


@pytest.mark.parametrize("seed", range(12))
def test_random_schedules(seed: int, tmp_path: Path) -> None:
    """Whatever depends on what: the order is kept and every byte is right, in every replay."""
    schedule = random_schedule(seed)
    for result in replayed(schedule, tmp_path, repeat=2):
        assert_in_order(schedule, result)
        assert result.integrity.first_wrong is None
        assert len(result.jobs) == schedule.num_jobs > 10


def test_a_part_of_a_schedule(tmp_path: Path) -> None:
    """What was there before a part's first step is put there first."""
    schedule = cut(random_schedule(3), start_ns=100)
    assert schedule.header.initial is not None
    (result,) = replayed(schedule, tmp_path)
    assert result.integrity.first_wrong is None


def test_no_step_begins_early(tmp_path: Path) -> None:
    """A step waits for the moment that the schedule names, counted from the first step's start."""
    schedule = small()
    steps = [replace(step, start_ns=step.start_ns + 10**6, end_ns=step.end_ns + 10**6) for step in schedule.steps]
    steps[5:] = [
        replace(step, start_ns=step.start_ns + 10**7, end_ns=step.end_ns + 10**7, not_before_ns=10**7 + 10**6)
        for step in steps[5:]
    ]
    (result,) = replayed(Schedule(schedule.header, steps), tmp_path)
    assert [step.start_ns >= 10**7 for step in result.steps] == [False] * 5 + [True] * 3


def test_a_step_that_was_decided_during_a_pass_does_not_wait_for_it(tmp_path: Path) -> None:
    """Asynchronous scheduling: the next step's load runs while the pass before it is still computing."""
    loaded = threading.Event()

    class Machine(QuickMachine):
        def occupy(self, stream: Stream, ns: int, kind: Compute = "gemm") -> None:
            assert isinstance(stream, HostStream)
            stream.enqueue(lambda: None if loaded.wait(60) else pytest.fail("the step waited for the pass"))

    def fault(count: int, batch: Batch, copy: Callable[[Batch], None]) -> None:
        copy(batch)
        if count == 0:
            loaded.set()

    steps = [
        a_step(0, writes=[(1, 10)], end_ns=10**9, compute_ns=10**9),
        a_step(1, a_job(0, "load", [0], [3], contents=[7])),
    ]
    schedule = Schedule(header(initial=Initial(host=((0, 7),))), steps)
    check(schedule)
    made = replays(Prepared(schedule, REF), Faulty(fault), Options(beside=tmp_path), lambda _: Machine())
    assert [result.integrity.first_wrong for result in made] == [None]


@pytest.mark.parametrize("number", range(4))  # stores and loads; what is dropped is what comes to the copier
def test_a_dropped_job_is_found(number: int, tmp_path: Path) -> None:
    """A job that did nothing leaves wrong bytes where it, or one that read them, should have written."""

    def fault(count: int, batch: Batch, copy: Callable[[Batch], None]) -> None:
        if count != number:
            copy(batch)

    (result,) = replayed(small(), tmp_path, Faulty(fault))
    assert result.integrity.first_wrong is not None


def test_a_job_dropped_in_the_second_replay_is_found(tmp_path: Path) -> None:
    """What the first replay left in memory is not taken for what the second should have written."""

    def fault(count: int, batch: Batch, copy: Callable[[Batch], None]) -> None:
        if count != 4 + 3:
            copy(batch)

    first, second = replayed(small(), tmp_path, Faulty(fault), repeat=2)
    assert first.integrity.first_wrong is None
    assert second.integrity.first_wrong is not None


def test_a_job_whose_blocks_are_overwritten_is_verified_too(tmp_path: Path) -> None:
    """A store that did nothing, whose block another one takes before anybody loads it."""
    steps = [
        a_step(0, writes=[(1, 10), (2, 11)]),
        a_step(1, a_job(0, "store", [1], [0], contents=[10], behind="previous")),
        a_step(2, a_job(1, "store", [2], [0], contents=[11], behind="previous")),
    ]

    def fault(count: int, batch: Batch, copy: Callable[[Batch], None]) -> None:
        if count != 0:
            copy(batch)

    (result,) = replayed(Schedule(header(), steps), tmp_path, Faulty(fault))
    wrong = result.integrity.first_wrong
    assert wrong is not None
    assert (wrong.job, wrong.side, wrong.block, wrong.content) == (0, "host", 0, 10)


def test_a_flipped_byte_is_found(tmp_path: Path) -> None:
    """One bit of one copied byte, and it is named: side, block, content, offset and job."""

    def fault(count: int, batch: Batch, copy: Callable[[Batch], None]) -> None:
        copy(batch)
        if count == 3:  # the last load, of host block 1 into GPU block 5: flip byte 3 of its second piece
            place = np.array([batch.destinations[1] + 3], dtype=np.uint64)
            other = np.array([batch.destinations[1] + 4], dtype=np.uint64)
            copy(Batch(other, place, np.ones(1, dtype=np.uint64)))

    (result,) = replayed(small(), tmp_path, Faulty(fault))
    wrong = result.integrity.first_wrong
    assert wrong is not None
    assert (wrong.job, wrong.side, wrong.block, wrong.content, wrong.offset) == (5, "gpu", 5, 13, 64 + 3)
    assert wrong.found != wrong.expected


def test_a_reordered_dependency_is_found(tmp_path: Path) -> None:
    """A load that runs before the store that it waits for brings what was there before."""
    later: list[Batch] = []

    def fault(count: int, batch: Batch, copy: Callable[[Batch], None]) -> None:
        if count == 0:
            later.append(batch)
            return
        copy(batch)
        if count == 1:  # on the same stream, so certainly behind it
            copy(later.pop())

    (result,) = replayed(small(), tmp_path, Faulty(fault))
    wrong = result.integrity.first_wrong
    assert wrong is not None
    assert (wrong.job, wrong.side, wrong.block) == (0, "host", 0)  # what was kept of it, before it ran


def test_a_permuted_batch_is_found(tmp_path: Path) -> None:
    """Pieces of a block that change places are as wrong as blocks that do."""

    def fault(count: int, batch: Batch, copy: Callable[[Batch], None]) -> None:
        copy(batch if count else Batch(batch.sources, batch.destinations[::-1].copy(), batch.sizes))

    (result,) = replayed(small(), tmp_path, Faulty(fault))
    assert result.integrity.first_wrong is not None


def test_an_error_on_a_stream_ends_the_replay(tmp_path: Path) -> None:
    """It is raised as it was, and nothing waits for ever."""

    def fault(count: int, batch: Batch, copy: Callable[[Batch], None]) -> None:
        copy(batch if count else batch._replace(sizes=None))  # type: ignore[arg-type]  # the loop stumbles on it

    with pytest.raises((TypeError, AttributeError)):
        replayed(small(), tmp_path, Faulty(fault))


def test_a_schedule_that_does_not_hold_together_is_refused(tmp_path: Path) -> None:
    """Without a dependency that it needs, a schedule is not replayed at all."""
    schedule = small()
    steps = list(schedule.steps)
    steps[2] = replace(steps[2], jobs=(replace(steps[2].jobs[0], after=()),))
    file = tmp_path / "s.jsonl"
    write_schedule(file, Schedule(schedule.header, steps))
    with pytest.raises(UserError, match=r"s\.jsonl: step 2: job 1: after is without job 0"):
        prepare(file)


def test_a_schedule_is_made_to_fit(tmp_path: Path) -> None:
    """Smaller blocks, the same jobs, and the result says by how much."""
    file = tmp_path / "s.jsonl.gz"
    write_schedule(file, random_schedule(1))
    whole = prepare(file)
    assert whole.ref.scaled == 1.0
    assert whole.ref.run == "small"
    assert len(whole.ref.sha256) == 64
    fitted = prepare(file, max_bytes=22 * 1100)
    assert fitted.ref.scaled == 0.25
    assert fitted.schedule.num_jobs == whole.schedule.num_jobs
    made = replays(fitted, HostBackend(), Options(beside=tmp_path), lambda _: QuickMachine())
    assert [result.integrity.first_wrong for result in made] == [None]
    with pytest.raises(UserError, match="blocks take"):
        prepare(file, max_bytes=10)


def test_calibrated_work(tmp_path: Path) -> None:
    """The real machine measures its units and says what it found."""
    for kind in ("gemm", "memory"):
        options = Options(compute=kind, beside=tmp_path)  # type: ignore[arg-type]  # one of both
        (result,) = replays(Prepared(small(), REF), HostBackend(), options, lambda _: HostMachine())
        assert result.calibration.keys() >= {"compute_round_ps", "fill_bytes_per_s"}
        assert all(value > 0 for value in result.calibration.values())
        assert result.integrity.first_wrong is None
