"""Remembers what every block really holds, and objects when somebody reads what is not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from kvsim.connectors.base import ConnectorWorker, Copier, CopyJob, SchedulerOutput, WorkerOutput
from kvsim.observer import EngineObserver
from kvsim.request import Request


class Witness(EngineObserver):
    """Stands before a copier, and hears of every forward pass, in debug mode.

    A GPU block holds the content of one full block (its hash), or nothing that could be read: never written, half
    written, being loaded, or lost in a load that failed. A forward pass writes the blocks of its tokens and reads all
    blocks before them; a store reads at its end, so what it reads must have stayed; a load writes from its start on.

    Raises AssertionError, like the other invariants, at the first read of a block whose content is not what the reader
    counts on.

    Args:
        tables: the scheduler's own block tables.
    """

    def __init__(self, copier: Copier, block_tokens: int, tables: Mapping[Request, Sequence[int]]) -> None:
        self._copier, self._size, self._tables = copier, block_tokens, tables
        self._gpu: dict[int, int] = {}  # block -> content
        self._cpu: dict[int, int] = {}  # slot -> content of its last block, which stands for all before it
        self._open: dict[CopyJob, None] = {}
        self._output = SchedulerOutput()  # of the step being executed

    # -- copies
    def submit(self, job: CopyJob) -> None:
        """A load's destination is not readable from now on."""
        self._open[job] = None
        if job.direction == "load":
            for block in job.destination:
                self._gpu.pop(block, None)
        self._copier.submit(job)
        self.settle()

    def flush(self, job: CopyJob) -> None:
        """Passed on."""
        self._copier.flush(job)

    def is_done(self, job: CopyJob) -> bool:
        """Passed on."""
        return self._copier.is_done(job)

    def forget(self, job: CopyJob) -> None:
        """The last moment to see what the job has done."""
        self.settle()
        assert job not in self._open, "a job is reported that is not done"
        self._copier.forget(job)

    def settle(self) -> None:
        """Something may have finished just now."""
        for job in [job for job in self._open if self._copier.is_done(job)]:
            del self._open[job]
            (self._loaded if job.direction == "load" else self._stored)(job)

    def _stored(self, job: CopyJob) -> None:
        if job.failed_blocks:
            for slot in job.destination:
                self._cpu.pop(slot, None)
            return
        factor = len(job.source) // len(job.destination)
        keys: Sequence[int] | None = getattr(job, "keys", None)
        for number, slot in enumerate(job.destination):
            blocks = job.source[number * factor : (number + 1) * factor]
            for block in blocks:
                assert block in self._gpu, f"store {job.job_id} has read GPU block {block}, which holds nothing"
            content = self._gpu[blocks[-1]]
            assert keys is None or content == keys[number], (
                f"store {job.job_id} has read GPU block {blocks[-1]} too late"
            )
            self._cpu[slot] = content

    def _loaded(self, job: CopyJob) -> None:
        keys: Sequence[int] | None = getattr(job, "keys", None)
        for number, slot in enumerate(job.source):
            if job.failed_blocks.issuperset(job.destination):
                break  # nobody will look at it
            assert slot in self._cpu, f"load {job.job_id} has read CPU slot {slot}, which holds nothing"
            assert keys is None or self._cpu[slot] == keys[number], f"load {job.job_id} has read something else"
        if keys is None:
            contents = [self._cpu.get(slot, -1) for slot in job.source]
        else:
            request: Request = job.request  # type: ignore[attr-defined]
            last = request.block_hashes.index(keys[-1]) + 1
            contents = request.block_hashes[last - len(job.destination) : last]
        for block, content in zip(job.destination, contents, strict=True):
            if block not in job.failed_blocks:
                self._gpu[block] = content

    def on_promoted(self, key: int, slot: int) -> None:
        """A secondary tier has written this chunk."""
        self._cpu[slot] = key

    # -- forward passes
    def on_step_scheduled(self, output: SchedulerOutput) -> None:
        self._output = output

    def on_forward(self, duration_ns: int) -> None:
        """The blocks of the step's tokens are being written."""
        for request, tokens in self._output.num_scheduled_tokens.items():
            first = (request.num_computed_tokens - tokens) // self._size
            for at, block in enumerate(self._tables[request][first:], first):
                # Written again with what it holds: the last token of a prompt that was found as a whole.
                if not (at < len(request.block_hashes) and self._gpu.get(block) == request.block_hashes[at]):
                    self._gpu.pop(block, None)

    def end_forward(self) -> None:
        """They are written."""
        for request, tokens in self._output.num_scheduled_tokens.items():
            table, end = self._tables[request], request.num_computed_tokens
            for at in range((end - tokens) // self._size, end // self._size):
                self._gpu[table[at]] = request.block_hashes[at]

    def check_reads(self, invalid: AbstractSet[int]) -> None:
        """What the forward pass has read. Whoever counts on blocks that are reported as invalid loses the step."""
        for request, tokens in self._output.num_scheduled_tokens.items():
            table, before = self._tables[request], (request.num_computed_tokens - tokens) // self._size
            if not invalid.isdisjoint(table[:before]):
                continue
            for at in range(before):
                assert self._gpu.get(table[at]) == request.block_hashes[at], (
                    f"{request.request_id} has read GPU block {table[at]}, which does not hold its block {at}"
                )
        self._output = SchedulerOutput()


class WitnessedWorker:
    """A worker whose forward passes a witness sees end."""

    def __init__(self, worker: ConnectorWorker, witness: Witness) -> None:
        self._worker, self._witness = worker, witness
        self.handle_preemptions, self.start_load_kv = worker.handle_preemptions, worker.start_load_kv
        self.is_done, self.has_finished = worker.is_done, worker.has_finished

    def get_finished(self) -> WorkerOutput:
        """The forward pass is over; stores of this very step may start behind it."""
        self._witness.end_forward()
        output = self._worker.get_finished()
        self._witness.check_reads(output.invalid_blocks)
        return output
