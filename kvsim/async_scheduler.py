"""Asynchronous scheduling: the next step is decided while the last one is being computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Any

from kvsim.cache.kv_cache_manager import KVCacheManager
from kvsim.connectors.base import KVConnector, SchedulerOutput
from kvsim.gates.base import Gate
from kvsim.limits import SchedulerLimits
from kvsim.request import Request, RequestStatus
from kvsim.scheduler import Scheduler

MAX_CONCURRENT_BATCHES = 2  # vLLM 0.33.0 config/vllm.py: with asynchronous scheduling, without pipeline parallelism


class AsyncScheduler(Scheduler):
    """Decides a step before the tokens of the one in flight are known, counting placeholders for them.

    `schedule` and `update_from_output` are called in the order of steps, the latter one step behind. A request is not
    scheduled once its last token is surely in flight. Where a connector might fill freed blocks while a step in
    flight still writes to them, they return to the pool when that step's output arrives.
    Rules: vLLM 0.33.0 v1/core/sched/async_scheduler.py and, where it says "async scheduling", scheduler.py.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        kv: KVCacheManager,
        connector: KVConnector | None = None,
        gates: Gate | None = None,
        **options: Any,
    ) -> None:
        super().__init__(limits, kv, connector, gates, **options)
        # vLLM 0.33.0: defer_block_free, for connectors that load (all of ours do).
        self._defers_frees = connector is not None
        self._sched_seq = self._processed_seq = 0  # steps with tokens: decided, come back
        self._deferred_frees: deque[tuple[int, list[int]]] = deque()  # (step to wait for, blocks)

    # -- deciding
    def _num_new_tokens(self, request: Request, budget: int) -> int:
        placeholders, computed = request.num_output_placeholders, request.num_computed_tokens
        if placeholders and computed + 2 - placeholders >= request.num_prompt_tokens + request.max_tokens:
            return 0  # its last token is surely in flight
        wanted = self._cap(request.num_tokens + request.num_draft_tokens + placeholders - computed)
        return min(wanted, budget, self.limits.max_model_len - 1 - computed)

    def _update_after_schedule(self, output: SchedulerOutput) -> None:
        if self._defers_frees and output.num_scheduled_tokens:
            self._sched_seq += 1
        for request, tokens in output.num_scheduled_tokens.items():
            request.num_computed_tokens += tokens
            request.num_in_flight_tokens += tokens
            request.last_sched_seq = self._sched_seq
            if request.num_computed_tokens >= request.num_tokens + request.num_output_placeholders:
                self._inflight_prefills.pop(request, None)
                request.num_output_placeholders += 1
                output.sampling.add(request)

    def _preempt(self, request: Request) -> None:
        super()._preempt(request)
        # What is in flight will still deliver its token, but counts for nothing else.
        request.num_stale_output_tokens = request.num_in_flight_tokens
        request.num_output_placeholders = 0

    # -- a step has come back
    def _take_outputs(self, output: SchedulerOutput, void: Collection[Request]) -> list[Request]:
        if self._defers_frees and output.num_scheduled_tokens:
            self._processed_seq += 1
            self._drain_deferred_frees()
        ended: list[Request] = []
        for request, tokens in output.num_scheduled_tokens.items():
            request.num_in_flight_tokens -= tokens
            stale = request.num_stale_output_tokens > 0
            if stale:
                request.num_stale_output_tokens -= tokens
            if request.gated:
                self.gates.computed(request)
            if request in output.sampling and not request.is_finished and request not in void:
                is_running = request.status is RequestStatus.RUNNING
                if self._take_token(request, output, stale=stale):
                    if not is_running:  # preempted: its last token was in flight
                        self.waiting.remove(request)
                    ended.append(request)
                    self._end(request, RequestStatus.FINISHED)
        return ended

    def _take_token(self, request: Request, output: SchedulerOutput, *, stale: bool) -> bool:
        """Append the sampled token, hash what is full now; whether the request has ended."""
        is_running = request.status is RequestStatus.RUNNING
        request.append_output_token()
        if not stale and request.num_output_placeholders:
            request.num_output_placeholders -= 1
            if is_running:
                self.kv.cache_blocks(request, request.num_computed_tokens - request.num_in_flight_tokens)
        return request.num_output_tokens >= request.max_tokens or request.num_tokens >= self.limits.max_model_len

    # -- blocks that a step in flight may still write to
    def _can_free_now(self, request: Request) -> bool:
        return not self._defers_frees or request.last_sched_seq <= self._processed_seq

    def _free_blocks(self, request: Request) -> None:
        if self._can_free_now(request):
            super()._free_blocks(request)
        elif blocks := self.kv.pop_table(request):
            self._deferred_frees.append((self._sched_seq, blocks))

    def _drain_deferred_frees(self) -> None:
        while self._deferred_frees and self._deferred_frees[0][0] <= self._processed_seq:
            self.kv.pool.free_blocks(reversed(self._deferred_frees.popleft()[1]))

    def _held_blocks(self) -> list[list[int]]:
        return [*super()._held_blocks(), *(blocks for _, blocks in self._deferred_frees)]

    def check(self, *, at_end: bool = False) -> None:
        """See `Scheduler.check`; at the end no step is in flight."""
        super().check(at_end=at_end)
        if at_end:
            assert not self._deferred_frees, "blocks still wait to be freed"
