"""What `check` finds in schedules, and that dependencies are enough in every order."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from schedule_world import WrongContentError, canonical, dropped, execute, header, job, small, step

from kvsim.errors import UserError
from kvsim.results.schedule import Initial, Schedule, check, ordered


def test_a_sound_schedule_passes_and_ends_alike_in_every_order() -> None:
    """A schedule that `check` passes leaves the same contents however its operations are shuffled."""
    check(small())
    expected = canonical(small())
    assert expected == {
        "gpu": {1: 12, 2: 13, 3: 10, 4: 11, 5: 13},
        "host": {0: 13, 1: 13, 2: 12},
        "files": {0: 12, 1: 13},
    }
    for seed in range(200):
        assert execute(small(), random.Random(seed).randrange) == expected


def test_nothing_in_after_is_superfluous() -> None:
    """`ordered` finds exactly the dependencies that were written by hand."""
    assert ordered(small().steps) == list(small().steps)
    bare = [replace(each, after=(), jobs=tuple(replace(one, after=()) for one in each.jobs)) for each in small().steps]
    assert ordered(bare) == list(small().steps)


@pytest.mark.parametrize(("number", "name"), [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4)])
def test_every_missing_dependency_is_noticed(number: int, name: int) -> None:
    """Without any one of its dependencies `check` objects, and names who should have waited for whom."""
    broken = dropped(small(), number, name)
    with pytest.raises(UserError, match=rf"^step \d: job {number}: after is without job {name}, expected to wait"):
        check(broken)


@pytest.mark.parametrize(("number", "name"), [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4)])
def test_a_missing_dependency_shows_in_some_order(number: int, name: int) -> None:
    """Run in a random order, a schedule without a dependency soon reads or leaves something wrong."""
    broken, expected = dropped(small(), number, name), canonical(small())

    def goes_wrong(seed: int) -> bool:
        try:
            return execute(broken, random.Random(seed).randrange) != expected
        except WrongContentError:
            return True

    assert any(map(goes_wrong, range(200)))


def test_a_pass_that_overwrites_what_is_stored_must_wait() -> None:
    """A forward pass that writes a block waits for the store that reads it."""
    steps = [
        step(0, writes=[(1, 10)]),
        step(1, job(0, "store", [1], [0], contents=[10], behind="previous")),
        step(2, writes=[(1, 11)]),
    ]
    with pytest.raises(
        UserError, match="step 2: after is without job 0, expected to wait for it: both touch GPU block 1"
    ):
        check(Schedule(header(), steps))
    assert ordered(steps)[2].after == (0,)
    check(Schedule(header(), ordered(steps)))


def test_a_load_over_computed_blocks_follows_the_pass() -> None:
    """A load that waits for nothing may not overwrite what an earlier pass writes; `ordered` puts it behind."""
    steps = [
        step(0, writes=[(1, 10)]),
        step(1, job(0, "load", [3], [1], contents=[20])),
    ]
    there = header(initial=Initial(host=((3, 20),)))
    with pytest.raises(UserError, match="step 1: job 0: after is without a forward pass"):
        check(Schedule(there, steps))
    assert ordered(steps)[1].jobs[0].behind == "previous"
    check(Schedule(there, ordered(steps)))


def test_files_are_waited_for_through_other_files() -> None:
    """A dependency that goes through a chain of file jobs need not be named again."""
    steps = [
        step(0, writes=[(1, 10)]),
        step(1, job(0, "store", [1], [0], contents=[10], behind="previous")),
        step(2, job(1, "write", [0], [7], contents=[10], after=[0])),
        step(3, job(2, "read", [7], [1], contents=[10], after=[1])),
        step(4, job(3, "load", [1], [2], contents=[10], after=[2])),
        step(5, job(4, "store", [1], [0], contents=[10], behind="previous", after=[3])),
    ]
    check(Schedule(header(), steps))
    assert ordered(steps) == steps
    with pytest.raises(
        UserError, match="job 4: after is without job 1, expected to wait for it: both touch host block 0"
    ):
        check(dropped(Schedule(header(), steps), 4, 3))


def test_jobs_of_a_step_may_not_wait_for_its_own_end() -> None:
    """A forward pass cannot wait for a copy that is behind it."""
    steps = [
        step(0, writes=[(1, 10)]),
        step(1, job(0, "store", [1], [0], contents=[10], behind="this"), after=[0]),
    ]
    with pytest.raises(UserError, match=r"step 1: after\[0\] is 0, expected a job that need not wait for this"):
        check(Schedule(header(), steps))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"contents": (10, 12)}, r"step 1: job 0: contents\[1\] is 12, expected what GPU block 2 holds: content 11"),
        ({"source": (1, 7)}, r"step 1: job 0: contents\[1\] is 11, expected what GPU block 7 holds: nothing"),
        ({"source": (1, 8)}, r"step 1: job 0: source\[1\] is 8, expected 0 to 7"),
        ({"destination": (0, -1)}, r"step 1: job 0: destination\[1\] is -1, expected 0 to 3"),
        ({"destination": (0, 0)}, "step 1: job 0: destination is 0 twice, expected distinct ids"),
        ({"destination": (0,)}, "step 1: job 0: destination is of length 1, expected 2 as in source"),
        ({"contents": ()}, "step 1: job 0: contents is of length 0, expected 2 as in source"),
        ({"bytes": 255}, r"step 1: job 0: bytes is 255, expected 256 \(2 blocks of 128 bytes\)"),
        ({"after": (0,)}, r"step 1: job 0: after\[0\] is 0, expected the number of an earlier job"),
        ({"job": -1}, "step 1: job -1: job is -1, expected a number above -1"),
        ({"finished_ns": -1}, "step 1: job 0: finished_ns is -1, expected 0 to"),
        ({"started_ns": 9}, r"step 1: job 0: finished_ns is 5, expected 9 to \d+ \(not before it was started\)"),
    ],
)
def test_a_wrong_job_is_named(changed: dict, message: str) -> None:
    """Whatever is wrong with a job is said with step, job, field, value and what was expected."""
    steps = list(small().steps)
    steps[1] = replace(steps[1], jobs=(replace(steps[1].jobs[0], **changed),))
    with pytest.raises(UserError, match=message):
        check(Schedule(header(), steps))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"step": 0}, "step 0: step is 0, expected a number above 0"),
        ({"start_ns": -1}, r"start_ns is -1, expected 0 to \d+ \(steps start one after another\)"),
        ({"end_ns": 9}, r"end_ns is 9, expected 10 to \d+ \(not before start_ns\)"),
        ({"not_before_ns": 11}, r"not_before_ns is 11, expected 0 to 10 \(not later than start_ns\)"),
        ({"compute_ns": -3}, "compute_ns is -3, expected 0 to"),
        ({"writes": ((9, 1),)}, r"writes\[0\] is 9, expected 0 to 7"),
        ({"writes": ((3, 1), (3, 2))}, "writes is 3 twice, expected distinct ids"),
        ({"after": (5,)}, r"after\[0\] is 5, expected the number of an earlier job"),
    ],
)
def test_a_wrong_step_is_named(changed: dict, message: str) -> None:
    """Whatever is wrong with a step is said with field, value and what was expected."""
    steps = list(small().steps)
    steps[1] = replace(steps[1], **changed)
    with pytest.raises(UserError, match=message):
        check(Schedule(header(), steps))
