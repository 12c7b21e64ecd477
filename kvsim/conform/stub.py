"""A connector that loads synchronously from a store without end; only its loads may fail.

It is no connector of vLLM's: those that load synchronously need a model. The recorder has the same one
(`kvsim/conform/live/stub_connector.py`), so that what vLLM's scheduler does about failed loads can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvsim.connectors.base import Copier, CopyJob, KVConnector, SchedulerOutput, WorkerOutput
from kvsim.request import Request, RequestStatus


@dataclass(slots=True)
class StubMeta:
    """Loads of one step."""

    loads: list[CopyJob] = field(default_factory=list)


class StubConnector(KVConnector):
    """Keeps the hashes of requests that have ended well; a load is complete before its forward pass."""

    lookups_are_pure = True

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._stored: set[int] = set()
        self._local: dict[Request, int] = {}  # tokens found in the GPU's cache at the last lookup
        self._loads: list[CopyJob] = []

    def get_num_new_matched_tokens(self, request: Request, num_local_tokens: int) -> tuple[int | None, bool]:
        self._local[request] = num_local_tokens
        blocks = 0
        for content in request.block_hashes[: (request.num_tokens - 1) // self._block_size]:
            if content not in self._stored:
                break
            blocks += 1
        return max(blocks * self._block_size - num_local_tokens, 0), False

    def update_state_after_alloc(self, request: Request, table: list[int], num_external_tokens: int) -> None:
        if num_external_tokens:
            first = self._local[request] // self._block_size
            blocks = table[first : first + num_external_tokens // self._block_size]
            self._loads.append(CopyJob(self.num_load_jobs, "load", [], blocks))
            self.num_load_jobs += 1

    def build_connector_meta(self, output: SchedulerOutput) -> StubMeta:
        loads, self._loads = self._loads, []
        return StubMeta(loads)

    def request_finished(self, request: Request, table: list[int]) -> bool:
        self._local.pop(request, None)
        if request.status is RequestStatus.FINISHED:
            self._stored.update(request.block_hashes[: (request.num_tokens - 1) // self._block_size])
        return False

    def update_connector_output(self, output: WorkerOutput) -> None:
        """Nothing is in flight between steps."""

    def may_defer(self) -> bool:
        return False


class StubWorker:
    """Submits a step's loads and reports which blocks did not arrive."""

    def __init__(self, copier: Copier) -> None:
        self._copier = copier
        self._loads: list[CopyJob] = []

    def handle_preemptions(self, meta: StubMeta) -> Sequence[CopyJob]:
        """Nothing to wait for."""
        return ()

    def start_load_kv(self, meta: StubMeta) -> None:
        """Submit this step's loads."""
        self._loads = meta.loads
        for job in self._loads:
            self._copier.submit(job)

    def is_done(self, job: CopyJob) -> bool:
        """Whether the copy is complete."""
        return self._copier.is_done(job)

    def has_finished(self) -> bool:
        """Whether there is something to report."""
        return bool(self._loads)

    def get_finished(self) -> WorkerOutput:
        """What did not arrive."""
        output = WorkerOutput()
        for job in self._loads:
            output.take_failure(job)
            self._copier.forget(job)
        self._loads = []
        return output
