"""Whether a schedule holds together: every copy reads what it says it does, however fast everything else runs."""

from __future__ import annotations

from collections.abc import Mapping

from kvsim.errors import UserError
from kvsim.results.schedule.order import Contents, Hazards, Operation, Order, in_order
from kvsim.results.schedule.records import Job, Schedule, Side, Step
from kvsim.results.schedule.rules import BrokenRuleError, Rules


def check(schedule: Schedule) -> None:
    """Check everything that can be checked without running a schedule.

    - each record by itself: ids in range, equal lengths, numbers that rise (as when it is read);
    - nobody waits for what can only come later;
    - each source holds what ``contents`` says, in the order of the steps;
    - and in every other order that ``after`` and ``behind`` allow: whoever touches a block that another one writes is
      ordered behind it, or before it.

    Raises:
        UserError: the first thing that is wrong: step, job, field, value and what was expected.
    """
    rules = _rules(schedule)
    checker = _Checker(schedule)
    for step in schedule.steps:
        where = f"step {step.step}"
        try:
            rules.take(step)
            checker.take(step)
        except BrokenRuleError as error:
            raise UserError(f"{where}: {error}") from None


def _rules(schedule: Schedule) -> Rules:
    try:
        return Rules(schedule.header)
    except BrokenRuleError as error:
        raise UserError(f"header: {error}") from None


class _Checker:
    def __init__(self, schedule: Schedule) -> None:
        self._order, self._hazards = Order(), Hazards()
        self._contents = Contents(schedule.header.initial)
        self._operations: dict[int, Operation] = {}

    def take(self, step: Step) -> None:
        before = self._order.last_forward
        forward: Operation | None = None
        for job in in_order(step):
            operation = self._order.begin(job)
            if job is None:
                forward = operation
                self._wait(operation, step.after, "")
                found = self._hazards.write(operation, "gpu", [block for block, _ in step.writes])
                self._ordered(found, operation, "gpu", "")
                self._contents.run(step, None)
                continue
            name = f"job {job.job}: "
            behind = {"this": forward, "previous": before, None: None}[job.behind]
            if behind is not None:
                self._order.wait(operation, behind)
            self._wait(operation, job.after, name)
            self._operations[job.job] = operation
            found = self._hazards.read(operation, job.source_side, job.source)
            self._ordered(found, operation, job.source_side, name)
            self._reads(job, name)
            found = self._hazards.write(operation, job.destination_side, job.destination)
            self._ordered(found, operation, job.destination_side, name)
            self._contents.run(step, job)

    def _wait(self, operation: Operation, after: tuple[int, ...], name: str) -> None:
        for place, number in enumerate(after):
            first = self._operations.get(number)
            if first is None:
                raise BrokenRuleError(f"{name}after[{place}] is {number}, expected a job that need not wait for this")
            self._order.wait(operation, first)

    def _ordered(self, found: Mapping[Operation, int], second: Operation, side: Side, name: str) -> None:
        for first, block in found.items():
            if not self._order.is_before(first, second):
                who = "a forward pass" if first.job is None else f"job {first.job}"
                raise BrokenRuleError(
                    f"{name}after is without {who}, expected to wait for it: both touch {_what(side)} {block}"
                )

    def _reads(self, job: Job, name: str) -> None:
        held = self._contents.held[job.source_side]
        for place, (block, content) in enumerate(zip(job.source, job.contents, strict=True)):
            found = held.get(block)
            if found != content:
                holds = "nothing" if found is None else f"content {found}"
                raise BrokenRuleError(
                    f"{name}contents[{place}] is {content}, expected what {_what(job.source_side)} {block} holds:"
                    f" {holds}"
                )
        if job.destination_side == "files":
            self._same_files(job, name)

    def _same_files(self, job: Job, name: str) -> None:
        held = self._contents.held["files"]
        for place, (file, content) in enumerate(zip(job.destination, job.contents, strict=True)):
            if held.get(file, content) != content:
                raise BrokenRuleError(
                    f"{name}contents[{place}] is {content}, expected {held[file]}: file {file} never changes"
                )


def _what(side: Side) -> str:
    return {"gpu": "GPU block", "host": "host block", "files": "file"}[side]
