"""Failed loads where blocks have no numbers: a block is named by whose load it belongs to, and its place there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kvsim.connectors.base import WorkerOutput
from kvsim.connectors.offloading_runs import LoadedBlock
from kvsim.load_failures import LoadFailures
from kvsim.request import Request, RequestStatus


class RunLoadFailures(LoadFailures):
    """Decides as `LoadFailures` does. Nobody shares a block before its load is over, so only its request is hit."""

    def find(
        self,
        report: WorkerOutput | None,
        waiting: Iterable[Request],
        running: Iterable[Request],
        scheduled: Mapping[Request, int],
    ) -> list[Request]:
        """See `LoadFailures`; the invalid blocks are `LoadedBlock`."""
        if report is None or not (report.invalid_blocks or report.failed_recving):
            return []
        parked = [request for request in waiting if request.status is RequestStatus.WAITING_FOR_REMOTE_KVS]
        hit = self._lose_all(parked, report.failed_recving)
        firsts: dict[Request, int] = {}
        invalid: Any = report.invalid_blocks
        for block in invalid:
            assert isinstance(block, LoadedBlock)
            firsts[block.request] = min(block.position, firsts.get(block.request, block.position))
        for request in parked:
            first = firsts.get(request)
            if first is None or first * self.block_size >= request.num_computed_tokens:
                continue
            self.num_requests += 1
            self.num_lost_tokens += request.num_computed_tokens - first * self.block_size
            request.num_computed_tokens = first * self.block_size
            if request not in hit:
                hit.append(request)
        if self.recompute:
            self._cut.update(hit)
            return []
        return self.order_failed(hit)
