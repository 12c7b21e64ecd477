"""Who is in the cohort, and who is looked at one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvsim.cohort import Cohort
from kvsim.connectors.base import SchedulerOutput
from kvsim.connectors.mooncake_store_runs import RunMooncakeStoreConnector
from kvsim.connectors.offloading_023 import OffloadingConnector023
from kvsim.connectors.offloading_runs import RunOffloadingConnector
from kvsim.extents.kv_cache_manager import RunKVCacheManager
from kvsim.extents.path import Path
from kvsim.refusal import Refusal
from kvsim.request import Request, RequestStatus
from kvsim.run_load_failures import RunLoadFailures
from kvsim.scheduler import Scheduler
from kvsim.waiting_memory import WaitingMemory


class InexactError(Exception):
    """Something has happened after which only the reference engine would decide as vLLM does."""


class CohortMembers(Scheduler):
    """Running requests are either in the cohort, or scheduled one by one as in the reference ("individuals").

    In the cohort are those of whom nothing is left but to decode, whose connector need not hear of it, and whose
    future blocks nobody else can look for meanwhile: their blocks are counted, and hashed when they leave.
    """

    kv: RunKVCacheManager  # type: ignore[assignment]  # the same methods, in runs

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.load_failures = RunLoadFailures(self.kv, "recompute" if self.load_failures.recompute else "fail")  # type: ignore[arg-type]
        self.cohort = Cohort(self.kv.block_size)
        self._individuals: dict[Request, None] = {}  # running, in order, not in the cohort
        self._order: dict[Request, int] = {}  # of running requests
        self._is_under_way = False  # a step of the cohort has been decided and its output not been taken
        self._num_hashed = 0  # blocks of the cohort that carry their hash
        self._users: dict[int, int] = {}  # segment that may be shared -> unfinished requests with blocks in it
        self._growing: dict[int, Request] = {}  # such a segment that a member is going to fill -> the member
        self._contested: dict[Request, None] = {}  # members whose future blocks somebody else has asked for
        self._come_back: dict[Request, None] = {}  # preempted and not running again
        self._offering: dict[Request, None] = {}  # members whose last offer to the connector found no room
        self._memory: WaitingMemory | None = None
        connector = self.connector
        if isinstance(connector, RunOffloadingConnector) and not isinstance(connector, OffloadingConnector023):
            # (0.23.0's lookups touch what they find, so leaving one out changes what the next one leaves behind.)
            self._memory = WaitingMemory(self.kv.pool, connector)
            self._refusal = Refusal(self.kv.pool, connector, enabled=False)  # type: ignore[arg-type]
        self.store = connector if isinstance(connector, RunMooncakeStoreConnector) else None

    # -- requests in and out
    def add_request(self, request: Request) -> None:
        super().add_request(request)
        if self._memory is not None:
            self._memory.disturb()
        users, growing = self._users, self._growing
        for segment in _shared_segments(request, 0):
            users[segment] = users.get(segment, 0) + 1
            if segment in growing:  # from the next decision on, its blocks can be looked for
                self._contested[growing[segment]] = None

    def abort_request(self, request: Request, status: RequestStatus = RequestStatus.ABORTED) -> None:
        if request in self.cohort:
            self._leave(request)
        super().abort_request(request, status)

    def _end(self, request: Request, status: RequestStatus, *, keep_blocks: bool = False) -> None:
        self._individuals.pop(request, None)
        self._order.pop(request, None)
        self._come_back.pop(request, None)
        self._forget(request)
        users = self._users
        for segment in _shared_segments(request, 0):
            users[segment] -= 1
            if not users[segment]:
                del users[segment]
        super()._end(request, status, keep_blocks=keep_blocks)

    def _free_blocks(self, request: Request) -> None:
        if self.store is not None:
            self.store.free_blocks(request)
        else:
            super()._free_blocks(request)

    def _preempt(self, request: Request) -> None:
        if self._by_priority and self.kv.pool.touched_jobs:
            raise InexactError(
                "under engine.scheduling_policy priority a request was preempted in a step that handed out blocks which"
                " a store still reads: only with physical blocks it is known whether the store is urgent"
            )
        self._individuals.pop(request, None)
        del self._order[request]
        self._come_back[request] = None
        self._forget(request)
        super()._preempt(request)

    def _forget(self, request: Request) -> None:
        """It is not what it was: running, loading or waiting."""
        if self._memory is not None:
            self._memory.forget(request)
            if request in self._inflight_prefills:  # nothing is reserved for it any more
                self._memory.make_room()

    # -- in and out of the cohort
    def _join_if_ready(self, request: Request) -> None:
        """All but its last token are computed. It joins unless something else is to be done for it."""
        if request.status is not RequestStatus.RUNNING:
            return
        if not request.num_output_tokens or request in self._inflight_prefills:
            return  # the one token that is left is a prompt's
        is_offering = self.connector is not None and self.connector.follows_decoding(request)
        if is_offering and self.connector is not None and not self.connector.repeats_offer(request):
            return
        hashed = self.kv.num_hashed_blocks(request)
        future = _shared_segments(request, hashed)
        if any(self._users[segment] > 1 or self._is_cached_behind(segment, hashed) for segment in future):
            return
        for segment in future:
            self._growing[segment] = request
        if is_offering:
            self._offering[request] = None
        del self._individuals[request]
        self._num_hashed += hashed
        left = min(request.max_tokens - request.num_output_tokens, self.limits.max_model_len - request.num_tokens)
        self.cohort.join(request, self._order[request], left)

    def _is_cached_behind(self, segment: int, position: int) -> bool:
        """Whether somebody has computed before what a request is about to: its blocks would be duplicates."""
        return self.kv.pool.last_cached(segment) > position

    def _leave(self, request: Request, *, scheduled: int = 0) -> None:
        """From now on one by one. Blocks that the cohort has taken become the request's."""
        self.cohort.leave(request, scheduled=scheduled)
        hashed = self.kv.num_hashed_blocks(request)
        self._num_hashed -= hashed
        self._offering.pop(request, None)
        for segment in _shared_segments(request, hashed):
            self._growing.pop(segment, None)
        table, computed = self.kv.tables[request], request.num_computed_tokens
        table.gain(-(-computed // self.kv.block_size) - len(table))
        self.kv.cache_blocks(request, computed)
        if self.store is not None:
            self.store.left_cohort(request)
        elif isinstance(self.connector, RunOffloadingConnector):
            self.connector.left_cohort(request, request.num_tokens - 1 + scheduled)
        individuals, order = self._individuals, self._order
        late = bool(individuals) and order[next(reversed(individuals))] > order[request]
        individuals[request] = None
        if late:
            self._individuals = dict(sorted(individuals.items(), key=lambda item: order[item[0]]))

    def dissolve(self) -> None:
        """Everybody leaves the cohort, between two steps."""
        for request in list(self.cohort):
            self._leave(request)

    # -- what others want to know
    def decode_contexts(self, output: SchedulerOutput) -> list[int]:
        """Contexts of all requests with one token in this step, in scheduling order."""
        order, cohort = self._order, self.cohort
        contexts = {
            request: request.num_computed_tokens for request, n in output.num_scheduled_tokens.items() if n == 1
        }
        contexts |= {request: computed + 1 for request, computed in cohort.computed_tokens().items()}
        return [contexts[request] for request in sorted(contexts, key=order.__getitem__)]

    def num_open_output_tokens(self) -> int:
        """See `SchedulerState`; members have generated more than their own numbers say."""
        cohort = self.cohort
        others = sum(request.num_output_tokens for group in (self._individuals, self._come_back) for request in group)
        return others + cohort.num_computed_tokens + len(cohort) - cohort.num_prompt_tokens

    def num_cached_blocks(self) -> int:
        """See `SchedulerState`; what members have filled since they joined is theirs alone.

        A step that is under way counts: a block gets its hash when it is decided that it will be full.
        """
        if not self.kv.enable_caching:
            return 0
        return super().num_cached_blocks() + self.cohort.full_blocks(ahead=self._is_under_way) - self._num_hashed

    def settle(self) -> None:
        """See `SchedulerState`; perhaps a step is under way that never ended."""
        for request in list(self.cohort):
            self._leave(request, scheduled=int(self._is_under_way))

    def check(self, *, at_end: bool = False) -> None:
        """See `SchedulerState`."""
        self.dissolve()
        super().check(at_end=at_end)


def _shared_segments(request: Request, first: int) -> Sequence[int]:
    """Segments of the request's blocks from ``first`` on that other requests may have too."""
    path: Path = request.block_hashes.path  # type: ignore[attr-defined]
    return path.shared_segments(first)
