"""What a scheduler keeps: requests in their queues, and what becomes of those that end."""

from __future__ import annotations

from collections.abc import Callable

from kvsim.aligned_split import split_for
from kvsim.cache.hybrid_kv_cache_manager import AnyKVCacheManager
from kvsim.connectors.base import KVConnector
from kvsim.gates.base import Gate
from kvsim.held_blocks import HeldBlocks
from kvsim.limits import SchedulerLimits
from kvsim.load_failures import LoadFailurePolicy, LoadFailures
from kvsim.refusal import Refusal
from kvsim.request import Request, RequestStatus
from kvsim.waiting import WaitingQueues

LookupLog = Callable[[Request, int, "int | None", "bool | None"], None]


class SchedulerState:
    """Requests arrive, leave, and end; who is scheduled when is decided by `Scheduler`.

    Args:
        limits: token budget and the like.
        kv: block tables over a pool.
        connector: scheduler side of a KV connector, if any.
        gates: may let requests wait or limit their tokens.
        on_lookup: told of every prefix lookup (request, local tokens, external tokens or None, asynchronous).
        skip_hopeless: don't ask again for a request at the head of the queue while nothing has changed that could
            make it fit. Changes no decision; off, every lookup happens (recordings count them).
        kv_load_failure_policy: what becomes of requests whose KV could not be loaded.
    """

    queues: type[WaitingQueues] = WaitingQueues

    def __init__(
        self,
        limits: SchedulerLimits,
        kv: AnyKVCacheManager,
        connector: KVConnector | None = None,
        gates: Gate | None = None,
        *,
        on_lookup: LookupLog | None = None,
        skip_hopeless: bool = True,
        kv_load_failure_policy: LoadFailurePolicy = "fail",
    ) -> None:
        self.limits, self.kv, self.connector, self.gates = limits, kv, connector, gates or Gate()
        self.waiting = self.queues(limits.scheduling_policy)
        self.running: list[Request] = []
        self.requests: dict[Request, None] = {}  # all that have arrived and not ended
        self._held = HeldBlocks(self._free_blocks)  # of requests that have ended
        self.parked: dict[Request, None] = {}  # streaming sessions without input: queued, but not to be served
        self.received: set[Request] = set()  # loads that are complete; never iterated
        self.load_failures = LoadFailures(kv, kv_load_failure_policy)
        self._by_priority = limits.scheduling_policy == "priority"
        self._finished: list[Request] = []  # since the last schedule(), in finish order
        # vLLM iterates a set of ids here, so its order depends on PYTHONHASHSEED; ours is finish order.
        self.order_finished: Callable[[list[Request]], list[Request]] = list
        self._inflight_prefills: dict[Request, None] = {}
        self.num_preemptions, self._threshold, self._on_lookup = 0, 0, on_lookup
        # A memory that changes no decision; without it, or when somebody counts lookups, every lookup happens.
        self._refusal = Refusal(kv.pool, connector, enabled=skip_hopeless and not on_lookup and kv.hits_are_prefixes)
        self._split = split_for(kv.aligned_states, limits.max_num_batched_tokens, limits.long_prefill_token_threshold)

    # -- requests in
    def add_request(self, request: Request) -> None:
        """A request arrives."""
        self.gates.arrived(request)
        self.waiting.add(request)
        self.requests[request] = None
        if self.connector is not None:
            self.connector.on_new_request(request)

    def abort_request(self, request: Request, status: RequestStatus = RequestStatus.ABORTED) -> None:
        """Its client has gone, or it has failed. Between steps; nothing happens if the request is over already.

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
                self.load_failures.forget(request)
        self._end(request, status, keep_blocks=keep_blocks)

    def has_unfinished(self) -> bool:
        """Whether a request is to be served; streaming sessions without input are not."""
        return len(self.requests) > len(self.parked)

    def num_open_output_tokens(self) -> int:
        """Tokens that requests have generated that have not ended."""
        return sum(request.num_output_tokens for request in self.requests)

    def num_cached_blocks(self) -> int:
        """Different contents that a lookup would find on the GPU."""
        return len(self.kv.pool.cached)

    def settle(self) -> None:
        """Bring the numbers of all requests up to date: somebody is going to look at them who was never told."""

    def has_requests(self) -> bool:
        """Whether another step is due: requests, ends that nobody has been told of, or copies to wait for."""
        return bool(
            self.has_unfinished()
            or self._finished
            or self._held
            or (self.connector is not None and self.connector.has_pending_work())
        )

    # -- requests out
    def _park(self, request: Request) -> None:
        """Its output is complete and its client may go on: it waits, with its blocks (_handle_stopped_request)."""
        request.status = RequestStatus.WAITING_FOR_STREAMING_REQ
        self.parked[request] = None
        self.waiting.add(request)

    def _end(self, request: Request, status: RequestStatus, *, keep_blocks: bool = False) -> None:
        request.status = status
        self._inflight_prefills.pop(request, None)
        self.parked.pop(request, None)
        reports = int(keep_blocks)
        if self.connector is not None:
            self.kv.remove_skipped_blocks(request, request.num_computed_tokens)
            reports += bool(self.connector.request_finished(request, self.kv.tables.get(request, [])))
        self.gates.released(request)
        self._finished.append(request)
        del self.requests[request]
        self._held.free(request, after_reports=reports)

    def _free_blocks(self, request: Request) -> None:
        self.kv.free(request)

    def _held_blocks(self) -> list[list[int]]:
        """Blocks that are neither free nor in a request's table."""
        return [] if self.connector is None else self.connector.gpu_holds()

    def check(self, *, at_end: bool = False) -> None:
        """Raise AssertionError if blocks leak or the books disagree (see `BlockPool.check`)."""
        self.kv.pool.check([*self.kv.holders(), *self._held_blocks()])
        waiting = list(self.waiting)
        assert len(waiting) + len(self.running) == len(self.requests), "a request is in no queue, or in two"
        if self.connector is not None:
            self.connector.check(at_end=at_end)
        if at_end:
            assert not self.requests, "requests are left"
            assert not self._held, "blocks of ended requests are still held"
            assert not self.kv.tables, "block tables are left"
