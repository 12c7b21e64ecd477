"""Writes down every copy of an engine with the blocks of both sides, and what each of them holds, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvsim.clock import Clock
from kvsim.connectors.base import Copier, CopyJob, SchedulerOutput, WorkerOutput
from kvsim.connectors.link_copier import LinkCopier
from kvsim.errors import UserError
from kvsim.observer import EngineObserver
from kvsim.request import Request
from kvsim.results.schedule.order import in_order, ordered
from kvsim.results.schedule.records import Behind, Direction, Job, Step


@dataclass(eq=False, slots=True)
class Copy:
    """A job being recorded. Times in ns; ``launched_ns`` = when it joined the queue of the link, or of a thread."""

    direction: Direction
    request: str | None
    behind: Behind | None
    submitted_ns: int
    source: list[int] = field(default_factory=list)
    destination: list[int] = field(default_factory=list)
    contents: list[int] = field(default_factory=list)
    launched_ns: int | None = None
    finished_ns: int | None = None


@dataclass(eq=False, slots=True)
class _Step:
    start_ns: int
    not_before_ns: int | None
    copies: list[Copy]
    end_ns: int = 0
    compute_ns: int = 0
    after: dict[Copy, None] = field(default_factory=dict)
    writes: list[tuple[int, int]] = field(default_factory=list)


class ScheduleRecorder(EngineObserver):
    """Stands before a copier, and hears of every step, when a run's schedule is to be exported.

    It follows the content of each block on both sides (as `kvsim.witness` does to check it): a forward pass leaves the
    block hash of what it has filled, a copy carries contents over. So what a job moves is known when it is submitted.

    What a forward pass waits for: loads of blocks that its requests read; copies that the engine waits for (vLLM's
    flush); and, as vLLM would find out when the step is decided, stores that still read blocks which it fills anew.
    The last are named even where the simulated store was over in time, since the real one may not be.

    Args:
        copier: what moves the bytes.
        timed: the same or one behind it, which knows when copies were moved.
        block_tokens: tokens of a GPU block.
        blocks_per_slot: GPU blocks in a CPU slot; host block ``slot * blocks_per_slot + i`` is its i-th.
        block_bytes: of a GPU block on one rank.
        tables: the scheduler's own block tables.
        behind: which forward pass copies of each direction wait for.
        has_requests: whether anybody is to be served.
    """

    def __init__(
        self,
        clock: Clock,
        copier: Copier,
        timed: LinkCopier,
        *,
        block_tokens: int,
        blocks_per_slot: int,
        block_bytes: int,
        tables: Mapping[Request, Sequence[int]],
        behind: Mapping[Direction, Behind],
        has_requests: Callable[[], bool],
    ) -> None:
        self.clock, self._copier, self._timed = clock, copier, timed
        self._size, self.blocks_per_slot, self._block_bytes = block_tokens, blocks_per_slot, block_bytes
        self._tables, self._behind, self._has_requests = tables, behind, has_requests
        self.gpu: dict[int, int] = {}  # block -> content
        self.host: dict[int, int] = {}
        self._copies: dict[CopyJob, Copy] = {}  # submitted and not reported
        self._steps: list[_Step] = []
        self._step = _Step(0, None, [])
        self._is_open = False  # that step
        self._next: list[Copy] = []  # submitted after the step's own work: for the next one
        self._output = SchedulerOutput()  # of this step
        self._loaded: dict[int, Copy] = {}  # GPU block -> load that no forward pass has waited for
        self._loads: list[Copy] = []  # those, in order
        self._stored: dict[int, Copy] = {}  # GPU block -> the last store that reads what it holds
        self._idle_since_ns: int | None = None
        self._not_before_ns: int | None = None  # for the next step that does something

    # -- copies between GPU and host
    def submit(self, job: CopyJob) -> None:
        """Write the copy down and pass it on."""
        copy = self._copies[job] = Copy(
            job.direction, _request_of(job), self._behind[job.direction], self.clock.now, *self._sides(job)
        )
        if job.direction == "load":
            copy.contents = [self.host[block] for block in copy.source]
            self.gpu.update(zip(copy.destination, copy.contents, strict=True))
            self._loaded.update(dict.fromkeys(copy.destination, copy))
            self._loads.append(copy)
            for block in copy.destination:
                self._stored.pop(block, None)
        else:
            copy.contents = [self.gpu[block] for block in copy.source]
            self.host.update(zip(copy.destination, copy.contents, strict=True))
            self._stored.update(dict.fromkeys(copy.source, copy))
        self._step.copies.append(copy)
        self._copier.submit(job)

    def _sides(self, job: CopyJob) -> tuple[list[int], list[int]]:
        if job.direction == "store":
            return list(job.source), self.host_blocks(job.destination)
        source = self.host_blocks(job.source)  # the GPU may have the head of the first slot already
        return source[len(source) - len(job.destination) :], list(job.destination)

    def host_blocks(self, slots: Sequence[int]) -> list[int]:
        """The host blocks of CPU slots."""
        count = self.blocks_per_slot
        return list(slots) if count == 1 else [slot * count + i for slot in slots for i in range(count)]

    def flush(self, job: CopyJob) -> None:
        """The engine is going to wait for this job before its forward pass."""
        self._step.after[self._copies[job]] = None
        self._copier.flush(job)

    def is_done(self, job: CopyJob) -> bool:
        """Passed on."""
        return self._copier.is_done(job)

    def forget(self, job: CopyJob) -> None:
        """The last moment to ask when it was moved."""
        self._time(job, self._copies.pop(job))
        self._copier.forget(job)

    def _time(self, job: CopyJob, copy: Copy) -> None:
        transfer = self._timed.transfer(job)
        if transfer is not None and transfer.is_done:
            copy.launched_ns, copy.finished_ns = transfer.submitted_ns, transfer.finished_ns

    # -- copies between host and files
    def add_in_decision(self, copy: Copy) -> None:
        """Submitted while this step was decided."""
        self._step.copies.append(copy)

    def add_after_step(self, copy: Copy) -> None:
        """Submitted when this step was over: the next one's work."""
        self._next.append(copy)

    # -- steps
    def on_step_start(self) -> None:
        now = self.clock.now
        if self._idle_since_ns is not None and self._has_requests():
            if now > self._idle_since_ns:
                self._not_before_ns = now
            self._idle_since_ns = None
        self._step, self._is_open = _Step(now, None, self._next), True
        self._next = []

    def on_step_scheduled(self, output: SchedulerOutput) -> None:
        self._output = output

    def on_forward(self, duration_ns: int) -> None:
        """Copies of this step are submitted, except for those that are behind its forward pass."""
        step, size, gpu = self._step, self._size, self.gpu
        step.compute_ns = duration_ns
        self._wait_for_loads()
        for request, tokens in self._output.num_scheduled_tokens.items():
            end = request.num_computed_tokens
            first, full = (end - tokens) // size, end // size
            table, hashes = self._tables[request], request.block_hashes
            for at in range(first, -(-end // size)):
                block = table[at]
                # Written again with what it holds: the last token of a prompt that was loaded as a whole.
                if at < len(hashes) and gpu.get(block) == hashes[at]:
                    continue
                store = self._stored.pop(block, None)
                if store is not None:
                    step.after[store] = None
                if at < full:
                    gpu[block] = hashes[at]
                    step.writes.append((block, hashes[at]))
                else:
                    gpu.pop(block, None)

    def _wait_for_loads(self) -> None:
        """Whoever joins the batch may read blocks that were loaded; nobody else has such blocks for the first time."""
        joining = self._output.tables if self._loaded else {}
        read = {copy for request in joining for block in self._tables[request] if (copy := self._loaded.get(block))}
        if not read:
            return
        last = max(place for place, copy in enumerate(self._loads) if copy in read)
        self._step.after[self._loads[last]] = None
        for copy in self._loads[: last + 1]:  # they run in order, so all of them are over then
            for block in copy.destination:
                if self._loaded.get(block) is copy:
                    del self._loaded[block]
        del self._loads[: last + 1]

    def on_step_done(self, output: SchedulerOutput, worker: WorkerOutput | None, ended: list[Request]) -> None:
        self._end_step()
        self._note_idle()

    def _end_step(self) -> None:
        step, self._is_open = self._step, False
        step.end_ns = self.clock.now
        if step.copies or step.compute_ns or step.after:
            step.not_before_ns, self._not_before_ns = self._not_before_ns, None
            self._steps.append(step)

    def on_abort(self, request: Request) -> None:
        self._note_idle()

    def _note_idle(self) -> None:
        if self._idle_since_ns is None and self._steps and not self._has_requests():
            self._idle_since_ns = self.clock.now

    # -- the end
    def steps(self) -> list[Step]:
        """Everything that has happened, with its dependencies.

        Raises:
            UserError: copies are still on their way, because the simulation was stopped.
        """
        for job, copy in self._copies.items():  # done, and nobody asked any more
            self._time(job, copy)
        if self._is_open:  # it waits for something that never came
            self._end_step()
        if self._next:
            self._step = _Step(self._next[0].submitted_ns, None, self._next)
            self._next = []
            self._end_step()
        self._check_complete()
        for step in self._steps:
            step.copies = [copy for copy in step.copies if copy.source]
        numbered, self._steps = self._numbered(), []  # each kind of record takes memory of its own
        return ordered(_needed_writes(numbered))

    def _check_complete(self) -> None:
        open_ = sum(copy.finished_ns is None for step in self._steps for copy in step.copies)
        if open_:
            raise UserError(
                f"--export-schedule: {open_} copies were on their way when the simulation was stopped: expected a run"
                " that ends (without the option, its report says what stopped it)"
            )

    def _numbered(self) -> list[Step]:
        numbers: dict[Copy, int] = {}
        last_ns: dict[Direction, int] = {}
        steps: list[Step] = []
        for number, step in enumerate(self._steps):
            for copy in step.copies:
                numbers[copy] = len(numbers)
            jobs = tuple(self._job(numbers[copy], copy, last_ns) for copy in step.copies)
            after = tuple(sorted(numbers[copy] for copy in step.after))
            steps.append(
                Step(
                    number, step.start_ns, step.not_before_ns, step.compute_ns, step.end_ns, after,
                    tuple(step.writes), jobs,
                )
            )  # fmt: skip
        return steps

    def _job(self, number: int, copy: Copy, last_ns: dict[Direction, int]) -> Job:
        """Numbered and timed; the link moves one copy after another in each direction."""
        assert copy.finished_ns is not None
        started_ns = copy.launched_ns
        if started_ns is not None and copy.direction in ("load", "store"):
            started_ns = max(started_ns, last_ns.get(copy.direction, 0))
            last_ns[copy.direction] = copy.finished_ns
        return Job(
            number,
            copy.direction,
            copy.request,
            tuple(copy.source),
            tuple(copy.destination),
            tuple(copy.contents),
            copy.behind,
            (),
            len(copy.source) * self._block_bytes,
            copy.submitted_ns,
            started_ns,
            copy.finished_ns,
        )


def _request_of(job: CopyJob) -> str | None:
    """The only request that a copy is for, if there is one."""
    request: Request | None = getattr(job, "request", None)
    if request is None:
        requests: Sequence[Request] = getattr(job, "requests", ())
        request = requests[0] if len(requests) == 1 else None
    return None if request is None else request.request_id


def _needed_writes(steps: Sequence[Step]) -> list[Step]:
    """Of what forward passes fill, only what a copy reads, or overwrites, before another pass does."""
    touched: set[int] = set()  # by a copy, before the next pass that fills the block; going backwards
    result: list[Step] = []
    for step in reversed(steps):
        writes = step.writes
        for job in reversed(list(in_order(step))) if writes or step.jobs else ():
            if job is not None:
                touched.update({"store": job.source, "load": job.destination}.get(job.direction, ()))
                continue
            writes = tuple(pair for pair in step.writes if pair[0] in touched)
            touched.difference_update(block for block, _ in writes)
        result.append(step if writes == step.writes else replace(step, writes=writes))
    return result[::-1]
