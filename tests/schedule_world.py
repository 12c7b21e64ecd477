"""A small schedule by hand, and a machine that runs schedules in any order that they allow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from kvsim.results.schedule import Header, Initial, Job, Layout, Schedule, Side, Step, Way

BLOCK_BYTES = 128

LAYOUT = Layout("per_layer_kv", 2, 1, 4, "bfloat16", 4, 2, 64)


def header(**changes: Any) -> Header:
    """Of pools of 8 and 4 blocks."""
    found = Header(
        run="small",
        kvsim="0.0.1",
        digest="d1",
        model="tiny",
        vllm_version="0.33.0",
        gpu="h100-sxm",
        link="pcie5-h100",
        rank=0,
        tensor_parallel_size=1,
        layout=LAYOUT,
        gpu_blocks=8,
        host_blocks=4,
        way=Way("dma_batch", "dma_batch"),
    )
    return replace(found, **changes)


def job(number: int, direction: Any, source: Sequence[int], destination: Sequence[int], **more: Any) -> Job:
    """A job without a request that takes 5 ns; ``contents`` must be given."""
    values: dict[str, Any] = {
        "request": None, "behind": None, "after": (), "submitted_ns": 0, "started_ns": None, "finished_ns": 5,
    } | more  # fmt: skip
    values |= {"contents": tuple(values["contents"]), "after": tuple(values["after"])}
    return Job(
        job=number,
        direction=direction,
        source=tuple(source),
        destination=tuple(destination),
        bytes=len(source) * BLOCK_BYTES,
        **values,
    )


def step(
    number: int, *jobs: Job, writes: Sequence[tuple[int, int]] = (), after: Sequence[int] = (), **more: Any
) -> Step:
    """A step of 10 ns, one after the other."""
    values: dict[str, Any] = {
        "start_ns": 10 * number, "not_before_ns": None, "compute_ns": 10, "end_ns": 10 * number + 10,
    } | more  # fmt: skip
    return Step(step=number, after=tuple(after), writes=tuple(writes), jobs=jobs, **values)


def small() -> Schedule:
    """Two blocks are computed, stored, loaded elsewhere, and their first places computed anew and stored again."""
    return Schedule(
        header(),
        [
            step(0, writes=[(1, 10), (2, 11)]),
            step(1, job(0, "store", [1, 2], [0, 1], contents=[10, 11], behind="previous", request="a")),
            step(2, job(1, "load", [0, 1], [3, 4], contents=[10, 11], behind="this", after=[0], request="b")),
            step(3, writes=[(1, 12), (2, 13)], after=[0]),
            step(4, job(2, "store", [1, 2], [2, 0], contents=[12, 13], behind="previous", after=[1], request="b")),
            step(5, job(3, "write", [2, 0], [0, 1], contents=[12, 13], after=[2])),
            step(6, job(4, "read", [1], [1], contents=[13], after=[3])),
            step(7, job(5, "load", [1], [5], contents=[13], behind="this", after=[4], request="a")),
        ],
    )


def dropped(schedule: Schedule, number: int, name: int) -> Schedule:
    """The same, but for job ``number`` (or step -number-1), which does not wait for ``name`` any more."""

    def without(after: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(each for each in after if each != name)

    steps = []
    for each in schedule.steps:
        jobs = tuple(replace(one, after=without(one.after)) if one.job == number else one for one in each.jobs)
        after = without(each.after) if each.step == -number - 1 else each.after
        steps.append(replace(each, jobs=jobs, after=after))
    return Schedule(schedule.header, steps)


class WrongContentError(Exception):
    """A copy has found something else than it should."""


def execute(schedule: Schedule, choose: Callable[[int], int]) -> dict[Side, dict[int, int]]:
    """Run it in an order that it allows; what each side holds at the end.

    Args:
        schedule: what to run.
        choose: one of so many operations that could be next.

    Raises:
        WrongContentError: a job reads something else than ``contents`` says.
    """
    held: dict[Side, dict[int, int]] = {"gpu": {}, "host": {}, "files": {}}
    initial = schedule.header.initial or Initial()
    for side, blocks in held.items():
        blocks.update(initial.of(side))
    waits = _waits(schedule)
    followers: dict[Any, list[Any]] = {each: [] for each in waits}
    left = {each: len(before) for each, before in waits.items()}
    for each, before in waits.items():
        for one in before:
            followers[one].append(each)
    jobs = {one.job: one for each in schedule.steps for one in each.jobs}
    writes = {each.step: each.writes for each in schedule.steps}
    ready = [each for each, count in left.items() if not count]
    done = 0
    while ready:
        kind, number = ready.pop(choose(len(ready)))
        done += 1
        if kind == "forward":
            held["gpu"].update(writes[number])
        else:
            _copy(jobs[number], held)
        for each in followers[kind, number]:
            left[each] -= 1
            if not left[each]:
                ready.append(each)
    assert done == len(waits), "some wait for each other"
    return held


def _waits(schedule: Schedule) -> dict[tuple[str, int], set[tuple[str, int]]]:
    """For each forward pass and job those that it waits for, by the letter of the format."""
    waits: dict[tuple[str, int], set[tuple[str, int]]] = {}
    last: dict[str, tuple[str, int]] = {}
    for each in schedule.steps:
        forward = ("forward", each.step)
        before = last.get("forward")
        waits[forward] = {("job", number) for number in each.after} | ({before} if before else set())
        last["forward"] = forward
        for one in each.jobs:
            mine = {("job", number) for number in one.after}
            if one.direction in ("store", "load") and one.direction in last:
                mine.add(last[one.direction])
            if one.behind == "this":
                mine.add(forward)
            elif one.behind == "previous" and before:
                mine.add(before)
            waits["job", one.job] = mine
            last[one.direction] = ("job", one.job)
    return waits


def _copy(one: Job, held: dict[Side, dict[int, int]]) -> None:
    for source, destination, content in zip(one.source, one.destination, one.contents, strict=True):
        found = held[one.source_side].get(source)
        if found != content:
            raise WrongContentError(f"job {one.job} finds {found} in {one.source_side} {source}, not {content}")
        held[one.destination_side][destination] = found


def canonical(schedule: Schedule) -> dict[Side, dict[int, int]]:
    """What each side holds at the end if everything happens in the order of the steps."""
    return execute(schedule, lambda _count: 0)
