"""The same scheduler with decoding requests taken together: it decides the same, and looks only at who matters."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kvsim.cohort import Cohort
from kvsim.connectors.base import SchedulerOutput, WorkerOutput
from kvsim.connectors.mooncake_store_runs import RunMooncakeStoreConnector
from kvsim.connectors.offloading_023 import OffloadingConnector023
from kvsim.connectors.offloading_runs import RunOffloadingConnector
from kvsim.extents.kv_cache_manager import RunKVCacheManager
from kvsim.extents.path import Path
from kvsim.refusal import Refusal
from kvsim.request import Request, RequestStatus
from kvsim.run_load_failures import RunLoadFailures
from kvsim.scheduler import Scheduler
from kvsim.scheduler_023 import Scheduler023
from kvsim.waiting import RequestQueue
from kvsim.waiting_memory import WaitingMemory


class InexactError(Exception):
    """Something has happened after which only the reference engine would decide as vLLM does."""


class CohortScheduler(Scheduler):
    """Running requests are either in the cohort, or scheduled one by one as in the reference ("individuals").

    In the cohort are those of whom nothing is left but to decode, whose connector need not hear of it, and whose
    future blocks nobody else can look for meanwhile: their blocks are counted, and hashed when they leave. Admission,
    queues and preemption are the reference's own code. Whenever the cohort as a whole cannot go on (too few blocks,
    not enough budget for those between its members), it is dissolved, and the step is decided one by one.
    """

    kv: RunKVCacheManager  # type: ignore[assignment]  # the same methods, in runs

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.load_failures = RunLoadFailures(self.kv, "recompute" if self.load_failures.recompute else "fail")  # type: ignore[arg-type]
        self.cohort = Cohort(self.kv.block_size)
        self._individuals: dict[Request, None] = {}  # running, in order, not in the cohort
        self._order: dict[Request, int] = {}  # of running requests
        self._num_admitted = 0
        self._is_under_way = False  # a step of the cohort has been decided and its output not been taken
        self._num_hashed = 0  # blocks of the cohort that carry their hash
        self._users: dict[int, int] = {}  # segment that may be shared -> unfinished requests with blocks in it
        self._growing: dict[int, Request] = {}  # such a segment that a member is going to fill -> the member
        self._contested: dict[Request, None] = {}  # members whose future blocks somebody else has asked for
        self._come_back: dict[Request, None] = {}  # preempted and not running again
        self._offering: dict[Request, None] = {}  # members whose last offer to the connector found no room
        self._looked_up: list[Sequence[int]] = []  # in this step: segments of each local hit
        self._effects_before = 0  # what the connector's lookups had changed before this step's decisions
        self._is_blocked = False  # the scan of waiting requests has ended at one that does not fit
        self._num_refusals = 0  # in this step's decisions
        self._chunk: tuple[Request, int] | None = None  # what is scheduled in every step of a stretch beside the cohort
        self._memory: WaitingMemory | None = None
        self._no_room = False  # for the request that is being admitted, whatever is left of the budget
        self._no_room_for_all = False  # for all tokens of the last one that was looked up, at which the scan has ended
        self._blocked_by: Request | None = None  # the request that is known to end the scan
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

    # -- one step
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

    # -- many steps
    def num_quiet_steps(self, output: SchedulerOutput) -> int:
        """How many steps, this one included, will be decided alike if nothing happens meanwhile; at least 1."""
        pool = self.kv.pool
        if not output.num_decoding or self._individuals or output.preempted or output.hits:
            return 1
        if self.connector is not None and self.connector.num_lookup_effects != self._effects_before:
            return 1
        if output.finished and self._num_refusals:  # an ended request makes its last offer only once
            return 1
        lookup = None if self.store is None else self.store.lookup
        if lookup is not None and lookup.asked and not (self._is_blocked and lookup.may_repeat()):
            return 1
        room = pool.num_free
        if self.connector is not None:
            sensitive: set[int] = set().union(*self._looked_up_for_something())
            if sensitive or pool.watchers:
                room = pool.blocks_before(sensitive, room)
        cohort = self.cohort
        taken = cohort.demand(1)  # the blocks of this step
        return max(cohort.most_steps(cohort.steps_to_end(), taken + room), 1)

    def _looked_up_for_something(self) -> list[Sequence[int]]:
        """Of this step's local hits those that matter.

        Who had no room for all of its tokens has none as long as nobody gives blocks back, even if it hits less: a hit
        that is handed out is a block less to take and one more to compute. But its lookup must not do anything else.
        """
        blocked_by, connector = self._blocked_by, self.connector
        if blocked_by is not None and self._no_room_for_all and isinstance(connector, RunOffloadingConnector):
            return self._looked_up[:-1] if connector.can_load_local_hit(blocked_by) else self._looked_up
        return self._looked_up

    def num_alike_chunks(self, output: SchedulerOutput) -> int:
        """How many steps, this one included, give the whole budget to the cohort and the same prompt; at least 1.

        In none of them is the prompt complete, and with the budget used up nobody looks at those who wait. Only without
        a connector: it would have to hear of each chunk.
        """
        limits, pool, cohort = self.limits, self.kv.pool, self.cohort
        (request, tokens), *others = output.num_scheduled_tokens.items()
        spent = tokens + output.num_decoding == limits.max_num_batched_tokens
        if others or not spent or limits.long_prefill_token_threshold:
            return 1
        if output.num_decoding != len(cohort) or len(self._individuals) != 1 or tokens == 1:
            return 1
        computed, size = request.num_computed_tokens, self.kv.block_size  # this chunk counts already
        most = 1 + (min(request.num_tokens, limits.max_model_len - 1) - computed - 1) // tokens
        if len(cohort):
            most = min(most, cohort.steps_to_end())
        steps, held, taken = 1, self.kv.num_held_blocks(request), cohort.demand(1)
        while steps < most:
            blocks = -(-(computed + steps * tokens) // size) - held
            if blocks + cohort.demand(steps + 1) - taken > pool.num_free:
                break
            steps += 1
        if steps > 1:
            self._chunk = request, tokens
        return steps

    def arrivals_matter(self) -> bool:
        """Whether a request that arrives during quiet steps could be admitted: not behind one that does not fit."""
        if self._chunk is not None:
            return False
        # Whoever blocked the queue may have given up since: then nobody waits any more.
        is_blocked = bool(self.waiting) and (self._is_blocked or self._refusal.is_held)
        is_blocked = is_blocked or len(self.running) >= self.limits.max_num_seqs
        return self._by_priority or not is_blocked

    def stores_matter(self) -> bool:
        """Whether the end of a store to CPU memory during quiet steps changes anything before their end.

        It makes chunks readable and evictable: that is of use to who is looked up or offers chunks, and to the tiers.
        """
        if self._looked_up_for_something() or self._offering:
            return True
        return self.connector is not None and not self.connector.stores_end_quietly

    def writes_matter(self) -> bool:
        """The same of the end of a write to a tier behind it, which makes chunks evictable.

        That is of no use to who is looked up, hears the same again, and would bring nothing in.
        """
        return not self.hears_the_same() or (self.connector is not None and not self.connector.writes_end_quietly)

    def hears_the_same(self) -> bool:
        """Whether the next step's lookups have the answers of this one's, and nothing is offered."""
        is_known = not self._looked_up or (self._memory is not None and self._memory.is_settled())
        return is_known and not self._offering

    def takes_reports(self) -> bool:
        """Whether quiet steps may go on when a store's end has been reported, if they still hear the same."""
        connector = self.connector
        return connector is not None and (connector.stores_end_quietly or connector.writes_end_quietly)

    def report(self, output: WorkerOutput) -> None:
        """The worker's report at the end of a quiet step: stores have ended."""
        assert self.connector is not None
        self.connector.update_connector_output(output)

    def go_on(self, steps: int, decided_ns: int) -> None:
        """The step under way and those behind it are over, and so many steps later one like it is under way.

        ``decided_ns``: when that one was decided.
        """
        cohort = self.cohort
        if self.store is not None:
            self.store.lookup.repeat(steps, decided_ns)
        if self._chunk is not None:
            for _ in range(steps):
                cohort.advance(1)
                self._take_next()
            return
        self.kv.pool.take(cohort.demand(steps + 1) - cohort.demand(1))
        cohort.advance(steps)
        self._repeat_refusals(steps)

    @contextmanager
    def step_over(self) -> Iterator[None]:
        """Inside, the step under way is over; behind, it is under way again, as if nothing had happened."""
        self.cohort.advance(1)
        self._is_under_way = False
        yield
        self.cohort.advance(-1)
        self._is_under_way = True

    def _take_next(self) -> None:
        """Blocks for the next step of a stretch."""
        self.kv.pool.take(self.cohort.demand(1))
        if self._chunk is not None:
            request, tokens = self._chunk
            self.kv.allocate_slots(request, tokens)
            request.num_computed_tokens += tokens

    def _repeat_refusals(self, steps: int) -> None:
        if self._num_refusals and self.connector is not None:
            self.connector.repeat_refusals(steps * self._num_refusals)

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


class CohortScheduler023(CohortScheduler, Scheduler023):
    """Of release 0.23.0."""


def _local_segments(request: Request, blocks: int) -> Sequence[int]:
    """Segments of the request's first so many blocks."""
    path = request.block_hashes.path  # type: ignore[attr-defined]
    segments: Sequence[int] = path.segments[: bisect_left(path.ends, blocks) + 1] if blocks else ()
    return segments


def _shared_segments(request: Request, first: int) -> Sequence[int]:
    """Segments of the request's blocks from ``first`` on that other requests may have too."""
    path: Path = request.block_hashes.path  # type: ignore[attr-defined]
    return path.shared_segments(first)
