"""One step of a scheduler whose decoding requests are taken together: it looks only at who matters."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from kvsim.cohort_members import CohortMembers
from kvsim.connectors.base import SchedulerOutput, WorkerOutput
from kvsim.request import Request, RequestStatus
from kvsim.waiting import RequestQueue


class CohortSteps(CohortMembers):
    """Decides as `Scheduler` does.

    Admission, queues and preemption are the reference's own code. Whenever the cohort as a whole cannot go on (too few
    blocks, not enough budget for those between its members), it is dissolved, and the step is decided one by one.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._num_admitted = 0
        self._looked_up: list[Sequence[int]] = []  # in this step: segments of each local hit
        self._effects_before = 0  # what the connector's lookups had changed before this step's decisions
        self._num_refusals = 0  # in this step's decisions
        self._is_blocked = False  # the scan of waiting requests has ended at one that does not fit
        self._blocked_by: Request | None = None  # the request that is known to end the scan
        self._no_room = False  # for the request that is being admitted, whatever is left of the budget
        self._no_room_for_all = False  # for all tokens of the last one that was looked up, at which the scan has ended
        self._chunk: tuple[Request, int] | None = None  # what is scheduled in every step of a stretch beside the cohort

    def schedule(self) -> SchedulerOutput:
        for request in self._contested:
            if request in self.cohort:
                self._leave(request)
        self._contested, self._looked_up = {}, []
        connector = self.connector
        if connector is None:
            return super().schedule()
        if self.store is not None:
            self.store.lookup.asked = []
        self._effects_before, refusals = connector.num_lookup_effects, connector.num_refusals
        output = super().schedule()
        self._num_refusals = connector.num_refusals - refusals
        return output

    def _schedule_running(self, output: SchedulerOutput, budget: int) -> int:
        members = len(self.cohort)
        if not members:
            return super()._schedule_running(output, budget)
        need = self.cohort.demand(1)
        if not self._goes_through(need, budget - members):
            self.dissolve()
            return super()._schedule_running(output, budget)
        self.kv.pool.take(need)
        if self._offering:
            output.offering, output.order = list(self._offering), self._order
        if self.store is not None and self.store.saves_decoded and (filling := self.cohort.filling(1)):
            output.filling, output.order = filling, self._order
        output.num_decoding = members
        self._is_under_way = True
        output.decode_contexts = self.cohort.num_computed_tokens + members
        if not self._individuals:
            return budget - members
        everybody, self.running = self.running, list(self._individuals)
        budget = super()._schedule_running(output, budget - members)
        self.running = everybody
        return budget

    def _goes_through(self, need: int, budget: int) -> bool:
        """Whether each member gets its token and each individual what it would get in its place, without preemption."""
        free = self.kv.pool.num_free - need
        if free < 0 or budget < 0:
            return False
        wanted, left = 0, budget
        for request in self._individuals:
            computed = request.num_computed_tokens
            wanted += self._num_new_tokens(request, self.limits.max_num_batched_tokens)
            tokens = self._num_new_tokens(request, left) if left > 0 else 0
            left -= tokens
            if tokens:
                free -= self.kv.num_blocks_to_allocate(request, computed + tokens)
        if free < 0:
            return False
        # With budget for all, the order does not matter; else those who stand behind the whole cohort share the rest.
        count = len(self._individuals)
        return wanted <= budget or self.running[-count:] == list(self._individuals)

    def _schedule_waiting(self, output: SchedulerOutput, budget: int) -> None:
        memory, running = self._memory, self.running
        if budget <= 0 or len(running) >= self.limits.max_num_seqs or not self.waiting:
            self._is_blocked = self._no_room_for_all = False
            return
        if memory is not None and not self.received and (known := memory.known_outcome()) is not None:
            self._looked_up = known
            return
        before, self._is_blocked, self._no_room_for_all = len(running), False, False
        if memory is None:
            super()._schedule_waiting(output, budget)
        else:
            self._blocked_by = None
            memory.begin_scan()
            super()._schedule_waiting(output, budget)
            memory.end_scan(self._looked_up, self._blocked_by)
        for request in running[before:]:
            self._num_admitted += 1
            self._order[request] = self._num_admitted
            self._individuals[request] = None
            self._come_back.pop(request, None)

    def _admit(self, request: Request, queue: RequestQueue, output: SchedulerOutput, budget: int) -> int | None:
        memory = self._memory
        if memory is None:
            tokens = super()._admit(request, queue, output, budget)
            self._is_blocked = tokens is None
            return tokens
        looked_up = self._looked_up
        if hits := memory.deferrals(queue.requests):
            looked_up += hits
            self.waiting.skip_many(queue, len(hits))
            return 0
        if memory.is_refused(request):
            if (hit := memory.refused_hit) is not None:
                looked_up.append(hit)
                self._no_room_for_all = memory.refused_as_a_whole
            self._is_blocked, self._blocked_by = True, request
            return None
        memory.begin_lookup()
        self._no_room, before = False, len(looked_up)
        tokens = super()._admit(request, queue, output, budget)
        hit = looked_up[before] if len(looked_up) > before else None
        self._is_blocked = tokens is None
        if tokens == 0 and hit is not None and request.status is not RequestStatus.WAITING_FOR_REMOTE_KVS:
            memory.defer(request, hit)
        elif tokens is None and self._no_room:
            self._no_room_for_all = hit is not None and self._no_room_for_all
            memory.refuse(request, hit, as_a_whole=self._no_room_for_all)
            self._blocked_by = request
        else:
            memory.forget(request)
        return tokens

    def _allocate(self, request: Request, tokens: int, hits: Any, external: int, is_async: bool) -> bool:
        is_done = super()._allocate(request, tokens, hits, external, is_async)
        if not is_done:
            reserves = self.limits.scheduler_reserve_full_isl
            self._no_room = is_async or reserves
            self._no_room_for_all = reserves and not self.kv.full_sequence_fits(request, hits, external)
        return is_done

    def _look_outside(self, request: Request, local: int) -> tuple[int, bool] | None:
        self._looked_up.append(_local_segments(request, local // self.kv.block_size))
        return super()._look_outside(request, local)

    def update_from_output(self, output: SchedulerOutput, worker_output: WorkerOutput | None) -> list[Request]:
        self._is_under_way, self._chunk = False, None
        if output.num_decoding:
            due = self.cohort.due()
            for request in due:
                self._leave(request, scheduled=1)
                output.num_scheduled_tokens[request] = 1
            if due:  # they end in scheduling order
                order = self._order
                in_order = sorted(output.num_scheduled_tokens.items(), key=lambda item: order[item[0]])
                output.num_scheduled_tokens = dict(in_order)
            self.cohort.advance(1)
        ended = super().update_from_output(output, worker_output)
        for request in list(self._offering):
            if self.connector is None or not self.connector.follows_decoding(request):
                del self._offering[request]
        for request in list(self._individuals):
            if request.num_computed_tokens + 1 == request.num_tokens:
                self._join_if_ready(request)
        return ended


def _local_segments(request: Request, blocks: int) -> Sequence[int]:
    """Segments of the request's first so many blocks."""
    path = request.block_hashes.path  # type: ignore[attr-defined]
    segments: Sequence[int] = path.segments[: bisect_left(path.ends, blocks) + 1] if blocks else ()
    return segments
