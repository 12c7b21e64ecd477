"""The vLLM V1 scheduler: which tokens of which requests the next forward pass computes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from kvsim.connectors.base import SchedulerOutput, WorkerOutput
from kvsim.request import Request, RequestStatus
from kvsim.scheduler_state import SchedulerState
from kvsim.waiting import RequestQueue


class Scheduler(SchedulerState):
    """Running requests first, in order; then, if nobody was preempted, waiting ones while budget and blocks last.

    Rules: vLLM 0.33.0 v1/core/sched/scheduler.py; no step is in flight (but see AsyncScheduler).
    """

    lone_prefill_uncapped = True  # long_prefill_token_threshold does not apply to a request that is alone
    draft_slots = num_spec_slots = 0  # speculative decoding: of the budget per request; of KV behind its own tokens
    self_preemption_ends_pass = False  # PRIORITY: a request that preempted itself ends the running pass
    counts_idle_adapters = True  # adapters of running requests without tokens in this step count for max_loras
    sessions_keep_slots = True  # streaming sessions between two parts of their input count for max_num_seqs
    closed_gate_ends_scan = False  # a waiting request whose tokens a gate limits to none ends the scan

    # -- one step
    def schedule(self) -> SchedulerOutput:
        """Decide one step. ``num_computed_tokens`` advances here, before the tokens are computed."""
        output, limits = SchedulerOutput(), self.limits
        threshold = limits.long_prefill_token_threshold
        lone = threshold and self.lone_prefill_uncapped and len(self.running) + len(self.waiting) <= 1
        self._threshold = 0 if lone else threshold
        self.kv.new_step_starts()
        self.gates.begin_step(output)
        budget = self._schedule_running(output, limits.max_num_batched_tokens - self.draft_slots)
        if not output.preempted:
            self._schedule_waiting(output, budget)
        output.boundary_states = self.kv.take_boundary_states()
        if self._finished:
            output.finished, self._finished = self.order_finished(self._finished), []
        if self.connector is not None:
            output.connector_meta = self.connector.build_connector_meta(output)
        self._update_after_schedule(output)
        return output

    def _update_after_schedule(self, output: SchedulerOutput) -> None:
        for request, tokens in output.num_scheduled_tokens.items():
            request.num_computed_tokens += tokens
            if request.num_computed_tokens >= request.num_tokens:
                self._inflight_prefills.pop(request, None)

    def _cap(self, tokens: int) -> int:
        return self._threshold if 0 < self._threshold < tokens else tokens

    def _schedule_running(self, output: SchedulerOutput, budget: int) -> int:
        running, scheduled = self.running, output.num_scheduled_tokens
        i = 0
        while i < len(running) and budget > 0:
            request = running[i]
            tokens = self._split(request, request.num_computed_tokens, self._num_new_tokens(request, budget))
            if request.gated:
                tokens = self.gates.limit(request, request.num_computed_tokens, tokens)
            if tokens == 0:
                i += 1
                continue
            while (blocks := self.kv.allocate_slots(request, tokens)) is None:
                victim, at = self._preemption_victim()
                if not self._can_free_now(victim):
                    break
                del running[at]
                if at < i:
                    i -= 1
                    if (freed := scheduled.pop(victim, 0)) > 0:
                        budget += freed + self.draft_slots
                    output.new_blocks.pop(victim, None)
                    self.gates.unscheduled(victim)
                self._preempt(victim)
                output.preempted.append(victim)
                if victim is request:
                    break
            if blocks is None:
                goes_on = self._by_priority and not self.self_preemption_ends_pass
                if goes_on and request.status is RequestStatus.PREEMPTED:
                    continue  # with the next request, which is at this index now
                break
            if blocks:
                output.new_blocks[request] = blocks
            scheduled[request] = tokens
            if request.gated:
                self.gates.scheduled(request)
            budget -= tokens + self.draft_slots
            i += 1
        return budget

    def _num_new_tokens(self, request: Request, budget: int) -> int:
        """Tokens that a running request can compute in this step; 0 = it waits, those behind it may go on."""
        computed = request.num_computed_tokens
        return min(self._cap(request.num_tokens - computed), budget, self.limits.max_model_len - 1 - computed)

    def _can_free_now(self, request: Request) -> bool:
        return True

    def _preemption_victim(self) -> tuple[Request, int]:
        """FCFS: the last one. PRIORITY: the largest (priority, arrival), the first of equals."""
        at = len(self.running) - 1
        if self._by_priority:
            victim = max(self.running, key=lambda request: (request.priority, request.arrival))
            at = self.running.index(victim)
        return self.running[at], at

    def _preempt(self, request: Request) -> None:
        self._free_blocks(request)
        self.gates.released(request)
        self._inflight_prefills.pop(request, None)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.waiting.prepend(request)

    def _schedule_waiting(self, output: SchedulerOutput, budget: int) -> None:
        self.waiting.begin_scan()
        self.gates.begin_scan(self.running if self.counts_idle_adapters else output.num_scheduled_tokens)
        slots = self.limits.max_num_seqs - (len(self.parked) if self.sessions_keep_slots else 0)
        while budget > 0 and len(self.running) < slots:
            queue = self.waiting.select()
            if queue is None:
                break
            request = queue.head()
            is_loading = request.status is RequestStatus.WAITING_FOR_REMOTE_KVS and not self._try_promote(request)
            is_late = is_loading or request.num_stale_output_tokens  # or its last tokens are still on their way
            if is_late or (request.gated and self.gates.blocks(request)):
                self.waiting.skip(queue)
                continue
            if self._refusal.still_holds(request):
                break
            tokens = self._admit(request, queue, output, budget)
            if tokens is None:
                break
            budget -= tokens + self.draft_slots if tokens else 0
        self.waiting.end_scan()

    def _admit(self, request: Request, queue: RequestQueue, output: SchedulerOutput, budget: int) -> int | None:
        """Look up, allocate and schedule the head of ``queue``, or skip it.

        Returns:
            Tokens scheduled (0 = skipped, perhaps parked for its load); None = it does not fit, the scan ends.
        """
        hits: Any = self.kv.no_hits  # what the KV cache manager calls a hit
        external, is_async, computed = 0, False, request.num_computed_tokens
        # (vLLM asks for computed == 0 alone and looks up again after loading a prompt of one token and one block.)
        looked_up = computed == 0 and request not in self.kv.tables
        if looked_up:
            hits = self.kv.get_computed_blocks(request)
            local = self.kv.num_hit_tokens(hits)
            answer = self._look_outside(request, local)
            if answer is None:
                self.waiting.skip(queue)
                return 0
            external, is_async = answer
            computed = local + external
        tokens = 0
        if not is_async:
            admitted = self._num_admitted_tokens(request, computed, output, budget)
            if admitted is None or (admitted := self._split(request, computed, admitted)) == 0:
                return None
            tokens = self.gates.limit(request, computed, admitted) if request.gated else admitted
            if not tokens:
                if self.closed_gate_ends_scan:
                    return None
                self.waiting.skip(queue)
                return 0
        if not self._allocate(request, tokens, hits, external, is_async):
            self.gates.released(request)
            return None
        table = self.kv.tables[request]
        if looked_up:
            output.hits[request] = (computed - external, external)
        if self.connector is not None:
            self.connector.update_state_after_alloc(request, table, external)
        request.num_computed_tokens = computed
        if is_async:
            request.status = RequestStatus.WAITING_FOR_REMOTE_KVS
            self.waiting.skip(queue)
            self._inflight_prefills[request] = None
            return 0
        queue.pop_head()
        self.running.append(request)
        (output.resumed if request.status is RequestStatus.PREEMPTED else output.new).append(request)
        output.tables[request] = table
        output.num_scheduled_tokens[request] = tokens
        if request.gated:
            self.gates.scheduled(request)
        request.status = RequestStatus.RUNNING
        if computed + tokens < request.num_tokens:
            self._inflight_prefills[request] = None
        return tokens

    def _look_outside(self, request: Request, local: int) -> tuple[int, bool] | None:
        """(tokens that the connector adds to so many local ones, asynchronously?); None = ask again next step."""
        answer: tuple[int | None, bool | None] = (None, None)
        if self.connector is not None:
            answer = self.connector.get_num_new_matched_tokens(request, local)
        if self._on_lookup is not None:
            self._on_lookup(request, local, *answer)
        if self.connector is None:
            return 0, False
        return None if answer[0] is None else (answer[0], bool(answer[1]))

    def _allocate(self, request: Request, tokens: int, hits: Any, external: int, is_async: bool) -> bool:
        if self.limits.scheduler_reserve_full_isl and not self.kv.full_sequence_fits(request, hits, external):
            self._refusal.remember(request, len(hits))
            return False
        reserved = self.num_reserved_blocks() if is_async else 0
        blocks = self.kv.allocate_slots(
            request, tokens, hits, external, delay_cache_blocks=is_async, reserved_blocks=reserved
        )
        return blocks is not None

    def _num_admitted_tokens(self, request: Request, computed: int, output: SchedulerOutput, budget: int) -> int | None:
        """Tokens that a waiting request computes if it is admitted; None = it needs a step with more room."""
        wanted = self._cap(request.num_tokens - computed)
        if wanted > budget and not self.limits.enable_chunked_prefill:
            return None  # a prompt waits for a step that takes all of it
        return min(wanted, budget)

    def num_reserved_blocks(self) -> int:
        """Blocks that a load must leave to those who still compute or load their prompt, or whose load has failed."""
        return sum(map(self.kv.num_remaining_blocks, self._inflight_prefills))

    def _try_promote(self, request: Request) -> bool:
        """Its load is over: hash what was loaded; after a full hit the last token is computed again."""
        if request not in self.received:
            return False
        self.received.remove(request)
        self.load_failures.settle(request)
        request.num_computed_tokens = min(request.num_computed_tokens, request.num_tokens - 1)
        request.status = RequestStatus.PREEMPTED if request.num_preemptions else RequestStatus.WAITING
        return True

    # -- after the step
    def update_from_output(self, output: SchedulerOutput, worker_output: WorkerOutput | None) -> list[Request]:
        """Append the sampled tokens, end requests (in scheduling order), then apply the worker's reports."""
        void = self.load_failures.find(worker_output, self.waiting, self.running, output.num_scheduled_tokens)
        ended = self._take_outputs(output, void)
        for request in ended:
            if request in self.running:
                self.running.remove(request)
        for request in () if self.load_failures.recompute else void:
            self.abort_request(request, RequestStatus.FAILED)
            ended.append(request)
        if worker_output is not None and self.connector is not None:
            self.connector.update_connector_output(worker_output)
            for request in worker_output.received:
                if request.is_finished:  # aborted meanwhile
                    self._held.reported(request)
                else:
                    self.received.add(request)
            for request in worker_output.sent:
                self._held.reported(request)
        return ended

    def _take_outputs(self, output: SchedulerOutput, void: Collection[Request]) -> list[Request]:
        """One token for each request that has nothing left to compute; those that end with it. ``void``: see above."""
        ended: list[Request] = []
        longest = self.limits.max_model_len
        for request in output.num_scheduled_tokens:
            if request.gated:
                self.gates.computed(request)
            if request.num_computed_tokens < request.num_tokens or request in void:
                continue  # still prefilling, or computed on KV that is not there: nothing was sampled
            request.append_output_token()
            if request.num_output_tokens >= request.max_tokens or request.num_tokens >= longest:
                ended.append(request)
                if request.demands.resumable:
                    self._park(request)
                else:
                    self._end(request, RequestStatus.FINISHED)
        return ended
