"""OffloadingConnector, scheduler side, as release 0.23.0 has it."""

from __future__ import annotations

from collections.abc import Iterable

from kvsim.connectors.base import SchedulerOutput
from kvsim.connectors.offloading import Job, OffloadingConnector, OffloadingMeta, RequestState
from kvsim.request import Request


class OffloadingConnector023(OffloadingConnector):
    """0.23.0: touches at every lookup, one store offer per chunk, no store after the end, a flush when all is over."""

    def get_num_new_matched_tokens(self, request: Request, num_local_tokens: int) -> tuple[int | None, bool]:
        state = self._states[request]
        state.table = []
        self._extend_keys(state)
        state.local_tokens = num_local_tokens
        tokens = self._lookup(state)
        self.manager.touch(state.context)  # all keys of the request, whatever the answer
        return tokens, bool(tokens)

    def build_connector_meta(self, output: SchedulerOutput) -> OffloadingMeta:
        """In order: block updates, end of the step for the manager, flush set, stores (never flushed at once)."""
        self._take_block_updates(output)
        self.manager.on_schedule_end()
        flush: set[int] = set()
        for request in output.preempted:
            flush |= self._states[request].jobs
        flush |= self._jobs_in_the_way()
        if self._states and all(s.request.is_finished for s in self._states.values()):
            flush |= self._jobs.keys()
        meta = OffloadingMeta(self._loads, self._plan_stores(output, flush), flush)
        self._loads, self._allocated = {}, []
        return meta

    def _store_candidates(self, output: SchedulerOutput) -> Iterable[tuple[Request, int]]:
        return self._scheduled(output)

    def _advance(self, state: RequestState, last: int) -> None:
        state.next_stored = last  # may go back: a preempted request computes its prefix again

    def _on_store_planned(self, state: RequestState, job: Job, flush: set[int]) -> None:
        self.manager.touch(state.context)

    def request_finished(self, request: Request, table: list[int]) -> bool:
        state = self._states[request]
        state.signaled = True
        self._forget_if_over(state)
        self._watch(state)
        return False

    def has_pending_work(self) -> bool:
        return False
