"""Parts of a schedule, and the same schedule with smaller blocks or fewer of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvsim.errors import UserError
from kvsim.results.schedule.order import in_order, ordered
from kvsim.results.schedule.records import (
    SIDES,
    Header,
    Initial,
    Job,
    Layout,
    Pairs,
    Schedule,
    Side,
    Step,
)
from kvsim.results.schedule.rules import layout_bytes

Place = tuple[Side, int]


def cut(
    schedule: Schedule,
    start_ns: int | None = None,
    end_ns: int | None = None,
    requests: Collection[str] | None = None,
    max_bytes: int | None = None,
) -> Schedule:
    """A part of a schedule that can be run by itself.

    What its jobs read and nobody in it has written is in ``header.initial``. Dependencies are found anew, so those that
    went through what was left out are still there. Numbers of steps and jobs stay.

    Args:
        schedule: the whole, or a part already.
        start_ns: no step that starts before.
        end_ns: no step that starts then or later.
        requests: jobs of these, and whatever writes what they read; steps before the first and behind the last of
            these jobs are left out.
        max_bytes: as many steps from the first on as copy no more than this together.

    Raises:
        UserError: no job is left, or there is no request of this name.
    """
    steps: Sequence[Step] = [
        step
        for step in schedule.steps
        if (start_ns is None or step.start_ns >= start_ns) and (end_ns is None or step.start_ns < end_ns)
    ]
    if requests is not None:
        steps = _of_requests(schedule, steps, requests)
    if max_bytes is not None:
        steps = _first_bytes(steps, max_bytes)
    kept = Schedule(schedule.header, steps)
    if not kept.num_jobs:
        raise UserError(f"schedule: no job of {schedule.num_jobs:,} is left by {_wanted(start_ns, end_ns, max_bytes)}")
    if steps[0].not_before_ns is not None:
        steps = [replace(steps[0], not_before_ns=None), *steps[1:]]
    left_out = {
        **({} if start_ns is None else {"start_ns": start_ns}),
        **({} if end_ns is None else {"end_ns": end_ns}),
        **({} if requests is None else {"requests": sorted(requests)}),
        **({} if max_bytes is None else {"max_bytes": max_bytes}),
        "steps_left_out": len(schedule.steps) - len(steps),
        "jobs_left_out": schedule.num_jobs - kept.num_jobs,
        "bytes_left_out": schedule.bytes - kept.bytes,
    }
    header = replace(
        schedule.header,
        filter=_added(schedule.header, left_out),
        initial=_initial(steps),
    )
    return Schedule(header, ordered(steps))


def _wanted(start_ns: int | None, end_ns: int | None, max_bytes: int | None) -> str:
    window = f"start {start_ns or 0} ns to {'the end' if end_ns is None else f'{end_ns} ns'}"
    return window + ("" if max_bytes is None else f" and at most {max_bytes} bytes")


def _of_requests(schedule: Schedule, steps: Sequence[Step], requests: Collection[str]) -> list[Step]:
    known = {job.request for step in schedule.steps for job in step.jobs}
    for request in requests:
        if request not in known:
            raise UserError(
                f"schedule: request {request!r} has no job, expected one of {len(known - {None})} that have"
            )
    kept: set[int] = set()
    wanted: set[Place] = set()  # what the jobs kept so far read; going backwards, whoever wrote it last is kept too
    for step in reversed(steps):
        for job in reversed(list(in_order(step))):
            if job is None:
                wanted.difference_update(("gpu", block) for block, _ in step.writes)
                continue
            writes = [(job.destination_side, each) for each in job.destination]
            if job.request in requests or not wanted.isdisjoint(writes):
                kept.add(job.job)
                wanted.difference_update(writes)
                wanted.update((job.source_side, each) for each in job.source)
    found = [replace(step, jobs=tuple(job for job in step.jobs if job.job in kept)) for step in steps]
    with_jobs = [place for place, step in enumerate(found) if step.jobs]
    return found[with_jobs[0] : with_jobs[-1] + 1] if with_jobs else []


def _first_bytes(steps: Sequence[Step], max_bytes: int) -> list[Step]:
    found: list[Step] = []
    left = max_bytes
    for step in steps:
        left -= sum(job.bytes for job in step.jobs)
        if left < 0:
            break
        found.append(step)
    return found


def _initial(steps: Sequence[Step]) -> Initial | None:
    """What is read in these steps before anybody in them writes it."""
    initial: dict[Side, dict[int, int]] = {side: {} for side in SIDES}
    written: dict[Side, set[int]] = {side: set() for side in SIDES}
    for step in steps:
        for job in in_order(step):
            if job is None:
                written["gpu"].update(block for block, _ in step.writes)
                continue
            for block, content in zip(job.source, job.contents, strict=True):
                if block not in written[job.source_side]:
                    initial[job.source_side].setdefault(block, content)
            written[job.destination_side].update(job.destination)
    found = Initial(*(tuple(sorted(initial[side].items())) for side in SIDES))
    return found if found != Initial() else None


def scaled(schedule: Schedule, max_bytes: int) -> Schedule:
    """The same copies of smaller blocks: both pools together take at most ``max_bytes``.

    Layers go first, then KV heads, then the size of a head, then tokens of a block, each halved as often as needed;
    numbers of blocks, their ids and all dependencies stay. Predicted times and the time of forward passes stay as they
    were: they are those of the whole blocks. A pool too large for the smallest blocks may be smaller when `compacted`.

    Raises:
        UserError: not even blocks of one token of one layer fit.
    """
    blocks = schedule.header.gpu_blocks + schedule.header.host_blocks
    layout = schedule.header.layout
    while layout.block_bytes * blocks > max_bytes:
        smaller = _smaller(layout)
        if smaller is None:
            raise UserError(
                f"schedule: {blocks:,} blocks take {layout.block_bytes * blocks:,} bytes at least, expected"
                f" {max_bytes:,} at most: fewer blocks would fit (compacted)"
            )
        layout = smaller
    if layout == schedule.header.layout:
        return schedule
    filtered = _added(schedule.header, {"scaled_from": {"block_bytes": schedule.header.layout.block_bytes}})
    steps = [
        replace(step, jobs=tuple(replace(job, bytes=len(job.source) * layout.block_bytes) for job in step.jobs))
        for step in schedule.steps
    ]
    return Schedule(replace(schedule.header, layout=layout, filter=filtered), steps)


def _smaller(layout: Layout) -> Layout | None:
    for name in ("layers", "kv_heads", "head_size", "block_tokens"):
        value = getattr(layout, name)
        if value > 1:
            changed: Layout = replace(layout, **{name: value // 2})
            pieces, piece_bytes = layout_bytes(changed)
            return replace(changed, pieces=pieces, piece_bytes=piece_bytes)
    return None


def compacted(schedule: Schedule) -> Schedule:
    """The same with blocks renumbered from 0, without those that nobody copies.

    The order of ids stays, so neighbours stay neighbours; blocks that were apart may become neighbours.
    """
    used: dict[Side, set[int]] = {side: set() for side in SIDES}
    for step in schedule.steps:
        used["gpu"].update(block for block, _ in step.writes)
        for job in step.jobs:
            used[job.source_side].update(job.source)
            used[job.destination_side].update(job.destination)
    if schedule.header.initial is not None:
        for side in SIDES:
            used[side].update(block for block, _ in schedule.header.initial.of(side))
    new: dict[Side, dict[int, int]] = {
        side: {block: number for number, block in enumerate(sorted(blocks))} for side, blocks in used.items()
    }
    header, initial = schedule.header, schedule.header.initial
    pools = {"gpu_blocks": header.gpu_blocks, "host_blocks": header.host_blocks}
    header = replace(
        header,
        gpu_blocks=max(len(used["gpu"]), 1),
        host_blocks=len(used["host"]),
        filter=_added(header, {"compacted_from": pools}),
        initial=None if initial is None else Initial(*(_renumbered(initial.of(side), new[side]) for side in SIDES)),
    )
    return Schedule(header, [_renumber(step, new) for step in schedule.steps])


def _renumber(step: Step, new: Mapping[Side, Mapping[int, int]]) -> Step:
    return replace(
        step,
        writes=_renumbered(step.writes, new["gpu"]),
        jobs=tuple(_renumber_job(job, new) for job in step.jobs),
    )


def _renumber_job(job: Job, new: Mapping[Side, Mapping[int, int]]) -> Job:
    source, destination = new[job.source_side], new[job.destination_side]
    return replace(
        job,
        source=tuple(map(source.__getitem__, job.source)),
        destination=tuple(map(destination.__getitem__, job.destination)),
    )


def _renumbered(pairs: Pairs, new: Mapping[int, int]) -> Pairs:
    return tuple((new[block], content) for block, content in pairs)


def _added(header: Header, more: Mapping[str, Any]) -> dict[str, Any]:
    """What was left out so far, and this; of what was left out twice the sum, of limits the latest."""
    found = dict(header.filter or {})
    for name, value in more.items():
        before = found.get(name)
        found[name] = before + value if name.endswith("_left_out") and isinstance(before, int) else value
    return found
