"""DecodeBenchConnector: prompts need not be computed, to see how fast a server decodes."""

from __future__ import annotations

from kvsim.connectors.base import BlockTable, KVConnector, SchedulerOutput, WorkerOutput
from kvsim.connectors.waiting_worker import WaitingWorker
from kvsim.request import Request


class Nothing:
    """A step's metadata: the real one fills blocks with numbers, which takes next to no time."""


class DecodeBenchConnector(KVConnector):
    """All tokens of a request but the last are there when it is scheduled for the first time.

    Rules: vLLM 0.33.0 kv_connector/v1/decode_bench_connector.py: synchronous, once per request; one that was preempted
    computes its tokens. 0.23.0 decides alike.
    """

    def __init__(self) -> None:
        self._filled: set[Request] = set()  # never iterated

    def make_worker(self) -> WaitingWorker[Nothing]:
        return WaitingWorker(1, Nothing)

    def get_num_new_matched_tokens(self, request: Request, num_local_tokens: int) -> tuple[int | None, bool]:
        if request in self._filled:
            return 0, False
        return max(0, request.num_tokens - num_local_tokens - 1), False

    def update_state_after_alloc(self, request: Request, table: BlockTable, num_external_tokens: int) -> None:
        if num_external_tokens > 0:
            self._filled.add(request)

    def build_connector_meta(self, output: SchedulerOutput) -> Nothing:
        return Nothing()

    def request_finished(self, request: Request, table: BlockTable) -> bool:
        self._filled.discard(request)
        return False

    def update_connector_output(self, output: WorkerOutput) -> None:
        pass
