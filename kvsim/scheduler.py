"""The vLLM V1 scheduler: which tokens of which requests the next forward pass computes."""

from __future__ import annotations

from collections.abc import Callable

from kvsim.cache.kv_cache_manager import KVCacheManager
from kvsim.connectors.base import KVConnector, SchedulerOutput, WorkerOutput
from kvsim.limits import SchedulerLimits
from kvsim.refusal import Refusal
from kvsim.request import Request, RequestStatus
from kvsim.waiting import RequestQueue, WaitingQueues

LookupLog = Callable[[Request, int, "int | None", "bool | None"], None]


class Scheduler:
    """Running requests first, in order; then, if nobody was preempted, waiting ones while budget and blocks last.

    Rules: vLLM 0.33.0 v1/core/sched/scheduler.py, one KV cache group; no step is in flight (but see AsyncScheduler).

    Args:
        limits: token budget and the like.
        kv: block tables over a pool.
        connector: scheduler side of a KV connector, if any.
        on_lookup: told of every prefix lookup (request, local tokens, external tokens or None, asynchronous).
        skip_hopeless: don't ask again for a request at the head of the queue while nothing has changed that could
            make it fit. Changes no decision; off, every lookup happens (recordings count them).
    """

    queues: type[WaitingQueues] = WaitingQueues
    lone_prefill_uncapped = True  # long_prefill_token_threshold does not apply to a request that is alone
    draft_slots = num_spec_slots = 0  # speculative decoding: of the budget per request; of KV behind its own tokens
    self_preemption_ends_pass = False  # PRIORITY: a request that preempted itself ends the running pass

    def __init__(
        self,
        limits: SchedulerLimits,
        kv: KVCacheManager,
        connector: KVConnector | None = None,
        *,
        on_lookup: LookupLog | None = None,
        skip_hopeless: bool = True,
    ) -> None:
        self.limits, self.kv, self.connector = limits, kv, connector
        self.waiting = self.queues(limits.scheduling_policy)
        self.running: list[Request] = []
        self.requests: dict[Request, None] = {}  # all that have arrived and not ended
        self._held: dict[Request, int] = {}  # ended, but so many reports of the worker are due before it is freed
        self.received: set[Request] = set()  # loads that are complete; never iterated
        self.num_preemptions = 0
        self._by_priority = limits.scheduling_policy == "priority"
        self._finished: list[Request] = []  # since the last schedule(), in finish order
        # vLLM iterates a set of ids here, so its order depends on PYTHONHASHSEED; ours is finish order.
        self.order_finished: Callable[[list[Request]], list[Request]] = list
        self._inflight_prefills: dict[Request, None] = {}
        self._threshold = 0
        self._on_lookup = on_lookup
        # A memory that changes no decision; without it, or when somebody counts lookups, every lookup happens.
        self._refusal = Refusal(kv.pool, connector, enabled=skip_hopeless and on_lookup is None)

    # -- requests in
    def add_request(self, request: Request) -> None:
        """A request arrives."""
        self.waiting.waiting.add(request)
        self.requests[request] = None
        if self.connector is not None:
            self.connector.on_new_request(request)

    def abort_request(self, request: Request) -> None:
        """Its client has gone. Between steps; nothing happens if the request is over already.

        Blocks that a load is still writing to are freed when it reports (vLLM 0.33.0 finish_requests).
        """
        if request not in self.requests:
            return
        keep_blocks = False
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
            if request.status is RequestStatus.WAITING_FOR_REMOTE_KVS:
                keep_blocks = request not in self.received
                self.received.discard(request)
        self._end(request, RequestStatus.ABORTED, keep_blocks=keep_blocks)

    def has_requests(self) -> bool:
        """Whether another step is due: requests, ends that nobody has been told of, or copies to wait for."""
        return bool(
            self.requests
            or self._finished
            or self._held
            or (self.connector is not None and self.connector.has_pending_work())
        )

    # -- one step
    def schedule(self) -> SchedulerOutput:
        """Decide one step. ``num_computed_tokens`` advances here, before the tokens are computed."""
        output, limits = SchedulerOutput(), self.limits
        lone = self.lone_prefill_uncapped and len(self.running) + len(self.waiting) <= 1
        self._threshold = 0 if lone else limits.long_prefill_token_threshold
        budget = self._schedule_running(output, limits.max_num_batched_tokens - self.draft_slots)
        if not output.preempted:
            self._schedule_waiting(output, budget)
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
            tokens = self._num_new_tokens(request, budget)
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
        self._inflight_prefills.pop(request, None)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.waiting.prepend(request)

    def _schedule_waiting(self, output: SchedulerOutput, budget: int) -> None:
        self.waiting.begin_scan()
        while budget > 0 and len(self.running) < self.limits.max_num_seqs:
            queue = self.waiting.select()
            if queue is None:
                break
            request = queue.head()
            is_loading = request.status is RequestStatus.WAITING_FOR_REMOTE_KVS and not self._try_promote(request)
            if is_loading or request.num_stale_output_tokens:  # or its last tokens are still on their way
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
        hits: list[int] = []
        external, is_async = 0, False
        computed = request.num_computed_tokens
        # (vLLM asks for computed == 0 alone and looks up again after loading a prompt of one token and one block.)
        looked_up = computed == 0 and request not in self.kv.tables
        if looked_up:
            hits = self.kv.get_computed_blocks(request)
            local = len(hits) * self.kv.block_size
            answer: tuple[int | None, bool | None] = (None, None)
            if self.connector is not None:
                answer = self.connector.get_num_new_matched_tokens(request, local)
            if self._on_lookup is not None:
                self._on_lookup(request, local, *answer)
            if self.connector is not None:
                if answer[0] is None:
                    self.waiting.skip(queue)
                    return 0
                external, is_async = answer[0], bool(answer[1])
            computed = local + external
        tokens = 0
        if not is_async:
            admitted = self._num_admitted_tokens(request, computed, output, budget)
            if admitted is None:
                return None
            tokens = admitted
        if self.limits.scheduler_reserve_full_isl and not self.kv.full_sequence_fits(request, hits):
            self._refusal.remember(request, len(hits))
            return None
        reserved = self._num_reserved_blocks() if is_async else 0
        blocks = self.kv.allocate_slots(
            request, tokens, hits, external, delay_cache_blocks=is_async, reserved_blocks=reserved
        )
        if blocks is None:
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
        request.status = RequestStatus.RUNNING
        if computed + tokens < request.num_tokens:
            self._inflight_prefills[request] = None
        return tokens

    def _num_admitted_tokens(self, request: Request, computed: int, output: SchedulerOutput, budget: int) -> int | None:
        """Tokens that a waiting request computes if it is admitted; None = it needs a step with more room."""
        wanted = self._cap(request.num_tokens - computed)
        if wanted > budget and not self.limits.enable_chunked_prefill:
            return None  # a prompt waits for a step that takes all of it
        return min(wanted, budget)

    def _num_reserved_blocks(self) -> int:
        """Blocks that a load must leave to those who are still computing their prompt or loading it."""
        return sum(map(self.kv.num_remaining_blocks, self._inflight_prefills))

    def _try_promote(self, request: Request) -> bool:
        """Its load is over: hash the blocks; after a full hit the last token is computed again."""
        if request not in self.received:
            return False
        self.received.remove(request)
        self.kv.cache_blocks(request, request.num_computed_tokens)
        request.num_computed_tokens = min(request.num_computed_tokens, request.num_tokens - 1)
        request.status = RequestStatus.PREEMPTED if request.num_preemptions else RequestStatus.WAITING
        return True

    # -- after the step
    def update_from_output(self, output: SchedulerOutput, worker_output: WorkerOutput | None) -> list[Request]:
        """Append the sampled tokens, end requests (in scheduling order), then apply the worker's reports."""
        ended = self._take_outputs(output)
        if ended:
            self.running = [request for request in self.running if not request.is_finished]
        if worker_output is not None and self.connector is not None:
            self.connector.update_connector_output(worker_output)
            for request in worker_output.received:
                if request.is_finished:  # aborted meanwhile
                    self._release(request)
                else:
                    self.received.add(request)
            for request in worker_output.sent:
                self._release(request)
        return ended

    def _take_outputs(self, output: SchedulerOutput) -> list[Request]:
        """One token for each request that has nothing left to compute; those that end with it."""
        ended: list[Request] = []
        longest = self.limits.max_model_len
        for request in output.num_scheduled_tokens:
            if request.num_computed_tokens < request.num_tokens:
                continue  # still prefilling: nothing was sampled
            request.append_output_token()
            if request.num_output_tokens >= request.max_tokens or request.num_tokens >= longest:
                ended.append(request)
                self._end(request, RequestStatus.FINISHED)
        return ended

    def _end(self, request: Request, status: RequestStatus, *, keep_blocks: bool = False) -> None:
        request.status = status
        self._inflight_prefills.pop(request, None)
        reports = int(keep_blocks)
        if self.connector is not None:
            reports += bool(self.connector.request_finished(request, self.kv.tables.get(request, [])))
        self._finished.append(request)
        del self.requests[request]
        if reports:
            self._held[request] = reports
        else:
            self._free_blocks(request)

    def _release(self, request: Request) -> None:
        """A report has come that an ended request's blocks waited for (vLLM 0.33.0: finished_sending, _free_blocks)."""
        reports = self._held.pop(request) - 1
        if reports:
            self._held[request] = reports
        else:
            self._free_blocks(request)

    def _free_blocks(self, request: Request) -> None:
        self.kv.free(request)

    def _held_blocks(self) -> list[list[int]]:
        """Blocks that are neither free nor in a request's table."""
        return [] if self.connector is None else self.connector.gpu_holds()

    def check(self, *, at_end: bool = False) -> None:
        """Raise AssertionError if blocks leak or the books disagree (see `BlockPool.check`)."""
        self.kv.pool.check([*self.kv.tables.values(), *self._held_blocks()])
        waiting = list(self.waiting)
        assert len(waiting) + len(self.running) == len(self.requests), "a request is in no queue, or in two"
        if self.connector is not None:
            self.connector.check(at_end=at_end)
        if at_end:
            assert not self.requests, "requests are left"
            assert not self._held, "blocks of ended requests are still held"
            assert not self.kv.tables, "block tables are left"
