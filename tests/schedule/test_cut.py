"""Parts of schedules, smaller blocks and fewer of them: what stays, and that what stays can be run."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from schedule_world import canonical, execute, header, job, small, step

from kvsim.errors import UserError
from kvsim.results.schedule import Initial, Layout, Schedule, check, compacted, cut, scaled


def _jobs(schedule: Schedule) -> list[int]:
    return [one.job for each in schedule.steps for one in each.jobs]


def test_a_window_says_what_was_there_before() -> None:
    """Of a window in time the steps stay as they are; what they read from before stands in the header."""
    part = cut(small(), 20, 50)
    assert [each.step for each in part.steps] == [2, 3, 4]
    assert part.header.initial == Initial(host=((0, 10), (1, 11)))
    assert part.header.filter == {
        "start_ns": 20, "end_ns": 50, "steps_left_out": 5, "jobs_left_out": 4, "bytes_left_out": 768
    }  # fmt: skip
    assert part.steps[0].jobs[0].after == ()
    assert part.steps[1].after == ()
    assert part.steps[2].jobs[0].after == (1,)
    check(part)


def test_a_window_of_files_says_which_are_there() -> None:
    """What is read from files that were written before stands in the header too."""
    part = cut(small(), start_ns=60)
    assert part.header.initial == Initial(files=((1, 13),))
    check(part)


def test_a_request_brings_along_what_it_reads() -> None:
    """Jobs of a request are kept with those that write what they read, and theirs; the rest is left out."""
    part = cut(small(), requests=["a"])
    assert _jobs(part) == [0, 2, 3, 4, 5]
    assert [each.step for each in part.steps] == [1, 2, 3, 4, 5, 6, 7]
    assert part.header.initial == Initial(gpu=((1, 10), (2, 11)))
    check(part)
    part = cut(small(), end_ns=50, requests=["b"])
    assert _jobs(part) == [0, 1, 2]


def test_dependencies_through_what_is_left_out_are_kept() -> None:
    """Two jobs that were ordered by a third one only are ordered by name when it is gone."""
    steps = [
        step(0, job(0, "load", [0], [1], contents=[5], request="a")),
        step(1, job(1, "store", [6], [1], contents=[9], request="b", after=[0])),
        step(2, job(2, "store", [5], [0], contents=[7], request="a")),
    ]
    whole = Schedule(header(initial=Initial(((6, 9), (5, 7)), ((0, 5),))), steps)
    check(whole)
    part = cut(whole, requests=["a"])
    assert [one.after for each in part.steps for one in each.jobs] == [(), (0,)]
    check(part)


def test_bytes_limit_the_number_of_steps() -> None:
    """Steps are taken from the first on while their copies stay within the limit."""
    part = cut(small(), max_bytes=600)
    assert _jobs(part) == [0, 1]
    assert part.bytes == 512
    assert [each.step for each in part.steps] == [0, 1, 2, 3]


def test_a_part_of_a_part_adds_up() -> None:
    """What was left out twice is counted twice."""
    part = cut(cut(small(), start_ns=20), max_bytes=600)
    assert part.header.filter == {
        "start_ns": 20, "max_bytes": 600, "steps_left_out": 5, "jobs_left_out": 4, "bytes_left_out": 768
    }  # fmt: skip
    check(part)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"start_ns": 99}, "no job of 6 is left by start 99 ns to the end"),
        ({"end_ns": 5}, "no job of 6 is left by start 0 ns to 5 ns"),
        ({"max_bytes": 3}, "no job of 6 is left by start 0 ns to the end and at most 3 bytes"),
        ({"requests": ["c"]}, "request 'c' has no job, expected one of 2 that have"),
    ],
)
def test_nothing_left_is_an_error(wanted: dict, message: str) -> None:
    """A part without a single copy is told as such."""
    with pytest.raises(UserError, match=message):
        cut(small(), **wanted)


def test_the_first_step_of_a_part_waits_for_nobody() -> None:
    """The idle time before a part is not part of it."""
    steps = [replace(each, not_before_ns=each.start_ns) for each in small().steps]
    assert [each.not_before_ns for each in cut(Schedule(header(), steps), 20, 50).steps] == [None, 30, 40]


def test_blocks_shrink_until_the_pools_fit() -> None:
    """Layers are halved first, then heads, head size and tokens; ids and dependencies stay."""
    part = scaled(small(), 12 * 64)
    assert part.header.layout == Layout("per_layer_kv", 1, 1, 4, "bfloat16", 4, 1, 64)
    assert part.header.filter == {"scaled_from": {"block_bytes": 128}}
    assert part.bytes == small().bytes // 2
    check(part)
    assert canonical(part) == canonical(small())
    smallest = scaled(small(), 12 * 4)
    assert smallest.header.layout == Layout("per_layer_kv", 1, 1, 1, "bfloat16", 1, 1, 4)
    check(smallest)
    assert scaled(small(), 12 * 128) == small()


def test_blocks_cannot_vanish() -> None:
    """Where not even the smallest blocks fit, compacting is what is left."""
    with pytest.raises(UserError, match="12 blocks take 48 bytes at least, expected 47 at most"):
        scaled(small(), 47)


@pytest.mark.parametrize(
    ("layout", "halved"),
    [
        (Layout("cross_layer", 4, 2, 8, "fp8", 16, 1, 2048), Layout("cross_layer", 2, 2, 8, "fp8", 16, 1, 1024)),
        (Layout("per_layer", 4, 2, 8, "fp8", 16, 8, 256), Layout("per_layer", 2, 2, 8, "fp8", 16, 4, 256)),
        (Layout("mla", 4, 1, 656, "uint8", 64, 4, 41984), Layout("mla", 2, 1, 656, "uint8", 64, 2, 41984)),
        (Layout("mla", 4, 1, 576, "bfloat16", 64, 1, 294912), Layout("mla", 2, 1, 576, "bfloat16", 64, 1, 147456)),
    ],
)
def test_every_layout_can_shrink(layout: Layout, halved: Layout) -> None:
    """Of any kind half of the layers are half of the bytes."""
    blocks = [replace(each, jobs=()) for each in small().steps]
    part = scaled(Schedule(header(layout=layout), blocks), 12 * layout.block_bytes - 1)
    assert part.header.layout == halved


def test_compacting_leaves_no_holes() -> None:
    """Ids are dense afterwards, in the same order; contents stay."""
    steps = [
        step(0, writes=[(2, 10), (5, 11)]),
        step(1, job(0, "store", [2, 5], [3, 1], contents=[10, 11], behind="previous")),
        step(2, job(1, "write", [3], [70], contents=[10], after=[0])),
    ]
    whole = Schedule(header(initial=Initial(gpu=((7, 3),))), steps)
    part = compacted(whole)
    assert (part.header.gpu_blocks, part.header.host_blocks) == (3, 2)
    assert part.header.filter == {"compacted_from": {"gpu_blocks": 8, "host_blocks": 4}}
    assert part.header.initial == Initial(gpu=((2, 3),))
    assert part.steps[0].writes == ((0, 10), (1, 11))
    assert (part.steps[1].jobs[0].source, part.steps[1].jobs[0].destination) == ((0, 1), (1, 0))
    assert part.steps[2].jobs[0].destination == (0,)
    check(part)
    final = canonical(part)
    assert all(execute(part, random.Random(seed).randrange) == final for seed in range(50))
