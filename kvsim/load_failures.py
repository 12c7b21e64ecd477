"""What the scheduler does about KV that it counted as computed and that could not be loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Literal

from kvsim.cache.hybrid_kv_cache_manager import AnyKVCacheManager
from kvsim.cache.kv_cache_manager import KVCacheManager
from kvsim.connectors.base import WorkerOutput
from kvsim.request import Request, RequestStatus

LoadFailurePolicy = Literal["fail", "recompute"]


class LoadFailures:
    """Finds the requests behind blocks that were not loaded, and takes back what they counted on.

    A request is cut at its first invalid block: what lies before is valid, what lies behind depends on it. Under
    ``recompute`` it goes on from there; under ``fail`` it ends.
    Rules: vLLM 0.33.0 v1/core/sched/scheduler.py (_handle_invalid_blocks, _update_requests_with_invalid_blocks,
    _handle_failed_recving, _update_waiting_for_remote_kv).

    Args:
        policy: vLLM's kv_load_failure_policy.
    """

    def __init__(self, kv: AnyKVCacheManager, policy: LoadFailurePolicy = "fail") -> None:
        self._kv, self.block_size = kv, kv.block_size
        self.recompute = policy == "recompute"
        # vLLM collects those that fail in a set of ids, so their order depends on PYTHONHASHSEED.
        self.order_failed: Callable[[list[Request]], list[Request]] = list
        self._cut: set[Request] = set()  # parked, their load failed and has not been reported done; never iterated
        self.num_lost_tokens = 0  # counted as computed, then taken back
        self.num_requests = 0  # hit by a failure, once per failure

    def find(
        self,
        report: WorkerOutput | None,
        waiting: Iterable[Request],
        running: Iterable[Request],
        scheduled: Mapping[Request, int],
    ) -> list[Request]:
        """Cut everybody hit. Returns those whose part in this step is void; under ``fail`` they must end.

        Args:
            report: of the worker, after the step.
            waiting: requests in scan order; those that are parked count.
            running: in order.
            scheduled: tokens that this step computed.
        """
        if report is None or not (report.invalid_blocks or report.failed_recving):
            return []
        parked = [request for request in waiting if request.status is RequestStatus.WAITING_FOR_REMOTE_KVS]
        if not isinstance(self._kv, KVCacheManager):
            return self._start_over(parked, report)
        parked_hit = self._lose_all(parked, report.failed_recving)
        running_hit: list[Request] = []
        if report.invalid_blocks:
            hit, _ = self._cut_all(self._kv.tables, parked, report.invalid_blocks, {})
            parked_hit += [request for request in hit if request not in parked_hit]
            running_hit, doubtful = self._cut_all(self._kv.tables, running, report.invalid_blocks, scheduled)
            if not self.recompute:  # otherwise the blocks get their content in the next step, for all who share them
                self._kv.pool.evict_blocks(doubtful)
        if self.recompute:
            self._cut.update(parked_hit)
            return running_hit
        return self.order_failed(parked_hit + running_hit)

    def _start_over(self, parked: list[Request], report: WorkerOutput) -> list[Request]:
        """With several groups of blocks vLLM refuses lists of blocks: such loads fail as a whole (failed_recving)."""
        lost = [*report.failed_recving]
        if report.invalid_blocks:
            lost += [
                r for r in report.received if r not in lost and not report.invalid_blocks.isdisjoint(self._held(r))
            ]
        hit = self._lose_all(parked, lost)
        if not self.recompute:
            return self.order_failed(hit)
        self._cut.update(hit)
        return []

    def _held(self, request: Request) -> set[int]:
        """All blocks of a request, of whatever group."""
        held: set[int] = set()
        for entry in self._kv.tables.get(request, ()):
            held.update(entry if isinstance(entry, Sequence) else (entry,))
        return held

    def _lose_all(self, parked: list[Request], lost: list[Request]) -> list[Request]:
        """Loads that failed as a whole: nothing of the request is computed."""
        hit = [request for request in lost if request in parked]
        for request in hit:
            self.num_requests += 1
            self.num_lost_tokens += request.num_computed_tokens
            if self.recompute:
                request.num_computed_tokens = 0
        return hit

    def _cut_all(
        self,
        tables: Mapping[Request, list[int]],
        requests: Iterable[Request],
        invalid: AbstractSet[int],
        scheduled: Mapping[Request, int],
    ) -> tuple[list[Request], set[int]]:
        """Cut these requests; also the blocks from each cut on.

        A block that several running requests share is computed again by the first of them; the others count on it
        and only lose this step.
        """
        hit: list[Request] = []
        # vLLM evicts in the iteration order of a set of numbers; the same additions give the same order here.
        doubtful: set[int] = set()
        claimed: set[int] = set()
        for request in requests:
            table = tables[request]
            computed = request.num_computed_tokens - scheduled.get(request, 0)
            looked_at = table[: -(-computed // self._kv.block_size)]
            bad = [at for at, block in enumerate(looked_at) if block in invalid]
            if not bad:
                continue
            own = [at for at in bad if table[at] not in claimed]
            claimed.update(table[at] for at in own)
            request.num_computed_tokens = computed
            if own:
                request.num_computed_tokens = own[0] * self._kv.block_size
                doubtful.update(table[own[0] :])
            self.num_requests += 1
            self.num_lost_tokens += computed - request.num_computed_tokens
            hit.append(request)
        return hit, doubtful

    def settle(self, request: Request) -> None:
        """The request's load is over: hash what is valid; with nothing valid, give the blocks back (and look again)."""
        if request in self._cut and not request.num_computed_tokens:
            self._kv.free(request)
        else:
            self._kv.cache_blocks(request, request.num_computed_tokens)
        self._cut.discard(request)

    def forget(self, request: Request) -> None:
        """The request has ended."""
        self._cut.discard(request)
