"""What of a schedule comes before what: forward passes and copies, and which of them must not change places.

The order that everybody keeps anyway: forward passes one after another; stores one after another; loads one after
another; a job behind the forward pass that it names. Everything else is said by ``after``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from kvsim.results.schedule.records import SIDES, Direction, Initial, Job, Side, Step

_COMPUTE, _LOAD, _STORE, _NONE = 0, 1, 2, 3
_STREAMS: dict[Direction, int] = {"load": _LOAD, "store": _STORE, "write": _NONE, "read": _NONE}
_NEVER = 1 << 62


class Operation:
    """A forward pass or a job, with what is known to be complete when it starts.

    ``clock[s]`` = how many operations of stream ``s`` (forward passes, loads, stores) come before it, itself included.
    Jobs of files have no stream, so each knows from which operation of each stream on it is known to be complete.
    """

    __slots__ = ("at", "clock", "file_jobs", "job", "known_from", "position", "stream")

    def __init__(self, job: int | None, stream: int, position: int, at: int, clock: list[int]) -> None:
        self.job, self.stream, self.position, self.at, self.clock = job, stream, position, at, clock
        self.known_from = [_NEVER, _NEVER, _NEVER] if stream == _NONE else None
        self.file_jobs: list[Operation] = []  # those that it waits for by name


class Order:
    """Which operations come before which, so far. Operations begin in an order in which they could run."""

    def __init__(self) -> None:
        self._clocks: tuple[list[int], ...] = ([0, 0, 0], [0, 0, 0], [0, 0, 0])  # after the last of each stream
        self._last: list[Operation | None] = [None, None, None]
        self._position = 0

    def begin(self, job: Job | None) -> Operation:
        """The next forward pass (None) or job, behind the last operation of its stream."""
        stream = _COMPUTE if job is None else _STREAMS[job.direction]
        clock, at = [0, 0, 0], 0
        if stream != _NONE:
            clock = self._clocks[stream]
            clock[stream] += 1
            at, clock = clock[stream], list(clock)
        self._position += 1
        operation = Operation(None if job is None else job.job, stream, self._position, at, clock)
        if stream != _NONE:
            self._last[stream] = operation
        return operation

    @property
    def last_forward(self) -> Operation | None:
        """The forward pass that began last."""
        return self._last[_COMPUTE]

    def is_before(self, first: Operation, second: Operation) -> bool:
        """Whether ``first`` is complete when ``second`` starts, whatever runs how fast."""
        if first.stream != _NONE:
            return second.clock[first.stream] >= first.at
        assert first.known_from is not None
        waiting = [second]
        while waiting:
            each = waiting.pop()
            if each is first or any(map(int.__ge__, each.clock, first.known_from)):
                return True
            waiting += [job for job in each.file_jobs if job.position >= first.position]
        return False

    def wait(self, operation: Operation, first: Operation) -> None:
        """``operation``, the last of its stream, waits for ``first``."""
        clock = operation.clock
        for stream, count in enumerate(first.clock):
            clock[stream] = max(clock[stream], count)
        if operation.stream != _NONE:
            self._clocks[operation.stream][:] = clock
        if first.stream == _NONE:
            operation.file_jobs.append(first)
            if operation.stream != _NONE:
                _mark_known(first, operation.stream, operation.at)


def _mark_known(job: Operation, stream: int, at: int) -> None:
    """A job of files is complete before operation ``at`` of a stream, and so are those that it waited for."""
    waiting = [job]
    while waiting:
        each = waiting.pop()
        assert each.known_from is not None
        if each.known_from[stream] > at:
            each.known_from[stream] = at
            waiting += each.file_jobs


class Hazards:
    """Who has to wait for whom because both touch the same block, and one of them writes it.

    A file always holds the same content and is replaced at once, so only its first write counts.
    """

    def __init__(self) -> None:
        self._writer: dict[Side, dict[int, Operation]] = {side: {} for side in SIDES}
        self._readers: dict[Side, dict[int, list[Operation]]] = {side: {} for side in SIDES}

    def read(self, operation: Operation, side: Side, ids: Iterable[int]) -> dict[Operation, int]:
        """It reads these; whom it has to wait for, each with one of the ids because of which."""
        found: dict[Operation, int] = {}
        writers, readers, stream = self._writer[side], self._readers[side], operation.stream
        for each in ids:
            writer = writers.get(each)
            if writer is not None:
                found.setdefault(writer, each)
            if side == "files":
                continue
            known = readers.get(each)
            if known is None:
                readers[each] = [operation]
            elif stream == _NONE:
                known.append(operation)
            else:  # a later one of the same stream stands for the earlier
                known[:] = [reader for reader in known if reader.stream != stream]
                known.append(operation)
        return found

    def write(self, operation: Operation, side: Side, ids: Iterable[int]) -> dict[Operation, int]:
        """It writes these; whom it has to wait for, each with one of the ids because of which."""
        found: dict[Operation, int] = {}
        writers, readers = self._writer[side], self._readers[side]
        for each in ids:
            if side == "files":
                writers.setdefault(each, operation)
                continue
            known = readers.pop(each, None)
            if known is not None:  # they have waited for the last writer
                for reader in known:
                    found.setdefault(reader, each)
            elif (writer := writers.get(each)) is not None:
                found.setdefault(writer, each)
            writers[each] = operation
        return found


def in_order(step: Step) -> Iterator[Job | None]:
    """Jobs and the forward pass (None) of a step in an order in which they can run.

    First the jobs that need not wait for the step's own forward pass, then the pass, then the others.
    """
    late: set[int] = set()
    late_directions: set[Direction] = set()
    behind: list[Job] = []
    for job in step.jobs:
        if job.behind == "this" or job.direction in late_directions or not late.isdisjoint(job.after):
            late.add(job.job)
            if _STREAMS[job.direction] != _NONE:
                late_directions.add(job.direction)
            behind.append(job)
        else:
            yield job
    yield None
    yield from behind


def ordered(steps: Sequence[Step]) -> list[Step]:
    """The same steps with as much in ``after`` as is needed, and no more.

    What stands there already is kept unless it is implied by the rest; jobs that are not among the steps are dropped.
    """
    order, hazards = Order(), Hazards()
    operations: dict[int, Operation] = {}
    result: list[Step] = []
    for step in steps:
        if not (step.jobs or step.after or step.writes):  # most steps only decode
            order.begin(None)
            result.append(step)
            continue
        before, jobs = order.last_forward, dict.fromkeys(job.job for job in step.jobs)
        new_jobs: dict[int, Job] = {}
        new_after: tuple[int, ...] = ()
        forward: Operation | None = None
        for job in in_order(step):
            operation = order.begin(job)
            wanted = [operations[number] for number in (step if job is None else job).after if number in operations]
            if job is None:
                forward = operation
                wanted += hazards.write(operation, "gpu", [block for block, _ in step.writes])
                new_after = _needed(order, operation, wanted)
                continue
            wanted += hazards.read(operation, job.source_side, job.source)
            wanted += hazards.write(operation, job.destination_side, job.destination)
            behind = job.behind
            if behind is None and any(first.stream == _COMPUTE for first in wanted):
                behind = "previous"  # no number can name a pass, but that one comes after all of them
            passed = {"this": forward, "previous": before, None: None}[behind]
            if passed is not None:
                order.wait(operation, passed)
            operations[job.job] = operation
            new_jobs[job.job] = replace(job, behind=behind, after=_needed(order, operation, wanted))
        result.append(replace(step, after=new_after, jobs=tuple(new_jobs[number] for number in jobs)))
    return result


def _needed(order: Order, operation: Operation, wanted: Iterable[Operation]) -> tuple[int, ...]:
    """Numbers of those jobs that have to be waited for by name: the latest first, since they imply others."""
    distinct = {first.position: first for first in wanted if first is not operation}
    named: list[int] = []
    for position in sorted(distinct, reverse=True):
        first = distinct[position]
        if not order.is_before(first, operation):
            assert first.job is not None, "a forward pass is waited for by the order of steps"
            order.wait(operation, first)
            named.append(first.job)
    return tuple(sorted(named))


class Contents:
    """What each block holds, in the order of the operations."""

    def __init__(self, initial: Initial | None = None) -> None:
        self.held: dict[Side, dict[int, int]] = {"gpu": {}, "host": {}, "files": {}}
        if initial is not None:
            for side, held in self.held.items():
                held.update(initial.of(side))

    def run(self, step: Step, job: Job | None) -> None:
        """A forward pass (None) or a job has happened."""
        if job is None:
            self.held["gpu"].update(step.writes)
        else:
            self.held[job.destination_side].update(zip(job.destination, job.contents, strict=True))
