"""OffloadingConnector, scheduler side: KV offload to CPU memory, chunk by chunk, through a ledger."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvsim.connectors.base import BlockTable, CopyJob, Direction, KVConnector, SchedulerOutput, WorkerOutput
from kvsim.kv_events import KVCacheEvent
from kvsim.offload.context import RequestContext
from kvsim.offload.ledger import Keys, Ledger, StorePlan
from kvsim.offload.store_use import StoreUse
from kvsim.request import Request, RequestStatus


class KeySet(Protocol):
    """A set of keys, told of many at a time; of sets of hashes the methods of the same names."""

    def update(self, keys: Keys) -> None:
        """These are in it now."""
        ...

    def difference_update(self, keys: Keys) -> None:
        """These are not."""
        ...

    def isdisjoint(self, keys: Keys) -> bool:
        """Whether none of them is in it."""
        ...

    def __len__(self) -> int: ...

    def __contains__(self, key: Any) -> bool: ...


@dataclass(eq=False, slots=True)
class Job(CopyJob):
    """A copy of one request. ``keys`` are its chunks; a load may skip the head of its first one."""

    request: Request
    keys: Keys


@dataclass(slots=True)
class OffloadingMeta:
    """Work of one step. ``flush`` = jobs that must be complete before the step's forward pass."""

    loads: dict[int, Job]
    stores: dict[int, Job]
    flush: set[int]


@dataclass(eq=False, slots=True)
class RequestState:
    """What the connector knows of one request."""

    request: Request
    context: Any  # what the ledger knows it by
    table: BlockTable = field(default_factory=list)  # the scheduler's own list while the request has blocks
    jobs: set[int] = field(default_factory=set)
    next_stored: int = 0  # chunks before this one have been offered
    local_tokens: int = 0  # local hit at the last lookup
    refused: bool = False  # its last offer found no room
    signaled: bool = False  # its end has been told to the manager
    tier_tokens: dict[int, int] = field(default_factory=dict)  # of the last load: secondary tier -> tokens


NOTHING_NEW = StorePlan([], [])


class OffloadingConnector(KVConnector):
    """One full-attention group, asynchronous loads, stores deferred by a step.

    Rules: vLLM 0.33.0 distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py.
    """

    def __init__(
        self,
        manager: Ledger,
        *,
        block_size: int,
        block_size_factor: int = 1,
        offload_prompt_only: bool = True,
        enable_caching: bool = True,
    ) -> None:
        self.manager, self.block_size, self.factor = manager, block_size, block_size_factor
        self.chunk_tokens = block_size * block_size_factor
        self.offload_prompt_only = offload_prompt_only
        self.lookups_are_pure = manager.lookups_are_pure
        self.num_load_jobs = self.num_store_jobs = 0
        self.store_use: StoreUse = StoreUse()
        self._states: dict[Request, RequestState] = {}
        self._jobs: dict[int, Job] = {}
        self._next_job_id = 0
        self._loads: dict[int, Job] = {}  # planned in this step
        self._loading: KeySet | None = self._no_keys() if enable_caching else None  # on their way to the GPU
        self._allocated: list[BlockTable] = []  # GPU blocks handed out in this step
        self._watched: dict[int, set[int]] = {}  # GPU block of a finished request -> its pending stores

    @property
    def epoch(self) -> int:
        """Lookups depend on the manager's contents and on what is being loaded, which changes it too."""
        return self.manager.epoch

    @property
    def num_offloaded_chunks(self) -> int:
        return self.manager.num_chunks

    @property
    def num_evicted_chunks(self) -> int:
        return self.manager.num_evicted

    @property
    def num_refusals(self) -> int:
        return self.manager.num_refusals

    # -- looking
    def on_new_request(self, request: Request) -> None:
        self._states[request] = RequestState(request, self._new_context(request))

    def _new_context(self, request: Request) -> Any:
        return RequestContext(request.request_id)

    def get_num_new_matched_tokens(self, request: Request, num_local_tokens: int) -> tuple[int | None, bool]:
        state = self._states[request]
        state.table, state.next_stored = [], 0  # after a preemption everything is offered again
        if state.jobs:  # transfers of an earlier life are in flight
            return None, False
        self._extend_keys(state)
        state.local_tokens = num_local_tokens
        tokens = self._lookup(state)
        return tokens, bool(tokens)

    def _extend_keys(self, state: RequestState) -> None:
        """A chunk's key is the hash of its last block."""
        factor, known = self.factor, len(state.context.keys)
        hashes = state.request.block_hashes
        if len(hashes) // factor > known:
            state.context.extend(hashes[known * factor + factor - 1 :: factor])

    def _lookup(self, state: RequestState) -> int | None:
        """Loadable tokens after the local hit; None = ask again next step."""
        chunk, context, local = self.chunk_tokens, state.context, state.local_tokens
        first, last = local // chunk, len(context.keys)
        if last * chunk - local < chunk:
            return 0
        hit = self.manager.lookup_prefix(context, first, last)
        if hit.pending:
            return None
        if hit.chunks == 0:
            return 0
        tokens = (first + hit.chunks) * chunk - local
        if tokens < chunk:
            return 0
        if self._loading and not self._loading.isdisjoint(context.keys[first : first + hit.chunks]):
            return None  # somebody is loading these blocks: wait, and hit them on the GPU
        return tokens

    # -- planning
    def update_state_after_alloc(self, request: Request, table: list[int], num_external_tokens: int) -> None:
        if num_external_tokens == 0:
            return
        self._allocated.append(table)
        state = self._states[request]
        end_tokens = state.local_tokens + num_external_tokens
        first, last = state.local_tokens // self.chunk_tokens, end_tokens // self.chunk_tokens
        state.next_stored = last  # the loaded prefix needs no store
        slots = self.manager.prepare_load(state.context, first, last)
        state.tier_tokens = self._tokens_by_tier(state, first, last)
        blocks = self._blocks_to_load(
            state, table, state.local_tokens // self.block_size, end_tokens // self.block_size
        )
        keys = state.context.keys[first:last]  # a chunk that is only partly local is pinned whole
        self.store_use.loaded(keys)
        job = self._new_job(state, "load", keys, slots, blocks)
        self._loads[job.job_id] = job
        self.num_load_jobs += 1
        if self._loading is not None:
            self._loading.update(keys)

    def _blocks_to_load(self, state: RequestState, table: BlockTable, first: int, last: int) -> Sequence[Any]:
        """The GPU blocks ``first .. last - 1`` of a table."""
        blocks: Sequence[Any] = table[first:last]
        return blocks

    def _tokens_by_tier(self, state: RequestState, first: int, last: int) -> dict[int, int]:
        tokens: dict[int, int] = {}
        for tier in self.manager.sources(state.context, first, last):
            tokens[tier] = tokens.get(tier, 0) + self.chunk_tokens
        return tokens

    def hit_tokens_by_tier(self, request: Request) -> dict[int, int]:
        return self._states[request].tier_tokens

    def _new_job(self, state: RequestState, direction: Direction, keys: Keys, source: Keys, destination: Keys) -> Job:
        job = Job(self._next_job_id, direction, source, destination, state.request, keys)
        self._next_job_id += 1
        self._jobs[job.job_id] = job
        state.jobs.add(job.job_id)
        return job

    def build_connector_meta(self, output: SchedulerOutput) -> OffloadingMeta:
        """In order: block updates, flush set, stores, end of the requests that finished, end of the step."""
        self._take_block_updates(output)
        flush: set[int] = set()
        for request in output.preempted:
            flush.update(self._states[request].jobs - self._loads.keys())
        flush |= self._jobs_in_the_way()
        meta = OffloadingMeta(self._loads, self._plan_stores(output, flush), flush)
        for request in output.finished:
            state = self._states[request]
            state.signaled = True
            self.manager.on_request_finished(state.context)
            self._forget_if_over(state)
        self._loads, self._allocated = {}, []
        self.manager.on_schedule_end()
        return meta

    def _jobs_in_the_way(self) -> set[int]:
        """Pending stores of blocks that have been handed out again in this step: copy them first."""
        found: set[int] = set()
        if self._watched:
            for block in set().union(*self._allocated) & self._watched.keys():
                found |= self._watched[block]
        return found

    def _take_block_updates(self, output: SchedulerOutput) -> None:
        for request, table in output.tables.items():
            self._states[request].table = table
            self._allocated.append(table)
        self._allocated += output.new_blocks.values()
        for request in output.num_scheduled_tokens:
            self._extend_keys(self._states[request])

    def _store_candidates(self, output: SchedulerOutput) -> Iterable[tuple[Request, int]]:
        """Requests and how many of their tokens are computed after this step, in the order of planning."""
        return [*self._scheduled(output), *[(request, num_computed_at_end(request)) for request in output.finished]]

    def _scheduled(self, output: SchedulerOutput) -> Iterable[tuple[Request, int]]:
        return [(request, request.num_computed_tokens + n) for request, n in output.num_scheduled_tokens.items()]

    def _plan_stores(self, output: SchedulerOutput, flush: set[int]) -> dict[int, Job]:
        stores: dict[int, Job] = {}
        for request, computed in self._store_candidates(output):
            state = self._states[request]
            first, last = state.next_stored, self._num_offered(request, computed)
            plan = self.manager.prepare_store(state.context, first, last) if last > first else NOTHING_NEW
            state.refused = plan is None
            if plan is None:  # no room: the same chunks are offered again next step
                continue
            self._advance(state, last)
            if not plan.positions:
                continue
            keys, source = self._chunks_to_store(state, plan)
            job = self._new_job(state, "store", keys, source, plan.slot_ids)
            stores[job.job_id] = job
            self.num_store_jobs += 1
            self._on_store_planned(state, job, flush)
        return stores

    def _num_offered(self, request: Request, computed: int) -> int:
        """Chunks of a request that are to be stored when so many tokens are computed."""
        limit = min(computed, request.num_tokens)
        if self.offload_prompt_only:
            limit = min(limit, request.num_prompt_tokens)
        return limit // self.chunk_tokens

    def _chunks_to_store(self, state: RequestState, plan: StorePlan) -> tuple[Keys, Sequence[int]]:
        """The planned chunks, and the GPU blocks that they lie in."""
        table, keys, factor = state.table, state.context.keys, self.factor
        source = [block for i in plan.positions for block in table[i * factor : (i + 1) * factor]]
        return [keys[i] for i in plan.positions], source

    def _advance(self, state: RequestState, last: int) -> None:
        state.next_stored = max(state.next_stored, last)

    def _on_store_planned(self, state: RequestState, job: Job, flush: set[int]) -> None:
        """A finished request's blocks are free already: watch them, and copy at once what this step hands out."""
        if state.request.is_finished:
            handed_out = set().union(*self._allocated)
            for block in job.source:
                self._watched.setdefault(block, set()).add(job.job_id)
                if block in handed_out:
                    flush.add(job.job_id)

    # -- ending
    def request_finished(self, request: Request, table: list[int]) -> bool:
        state = self._states[request]
        self._extend_keys(state)
        self._watch(state)
        return False

    def _watch(self, state: RequestState) -> None:
        for job_id in state.jobs:
            job = self._jobs[job_id]
            if job.direction == "store":  # a load keeps its blocks until it is complete
                for block in job.source:
                    self._watched.setdefault(block, set()).add(job_id)

    def update_connector_output(self, output: WorkerOutput) -> None:
        for job_id in output.jobs:
            job = self._jobs.pop(job_id)
            state = self._states[job.request]
            if job.direction == "store":
                success = job_id not in output.failed_jobs
                self.manager.complete_store(job.keys, state.context, success=success)
                if success:
                    self.store_use.stored(job.keys)
                self._unwatch(job)
            else:
                self.manager.complete_load(job.keys)
                if self._loading is not None:
                    self._loading.difference_update(job.keys)
            state.jobs.remove(job_id)
            self._forget_if_over(state)

    def _unwatch(self, job: Job) -> None:
        for block in job.source if job.request.is_finished else ():
            waiting = self._watched[block]
            waiting.discard(job.job_id)
            if not waiting:
                del self._watched[block]

    def _forget_if_over(self, state: RequestState) -> None:
        if state.signaled and not state.jobs:
            del self._states[state.request]

    def enable_kv_events(self) -> None:
        self.manager.enable_kv_events()

    def take_events(self) -> Sequence[KVCacheEvent]:
        return self.manager.take_events()

    def _no_keys(self) -> KeySet:
        return set()

    def follows_decoding(self, request: Request) -> bool:
        state = self._states[request]
        return not self.offload_prompt_only or state.next_stored < request.num_prompt_tokens // self.chunk_tokens

    def may_defer(self) -> bool:
        return bool(self._jobs)  # nothing being written, nothing being loaded

    def has_pending_work(self) -> bool:
        return bool(self._jobs) or self.manager.has_pending_work()

    def explain_wait(self, request: Request) -> str:
        """Only a tier behind the CPU can keep a request waiting for ever: see `TieringManager`."""
        state = self._states.get(request)
        if state is None or self._jobs:
            return "" if state is None else "a copy is on its way"
        keys, room = len(state.context.keys), self.manager.capacity_chunks
        return (
            f"its prefix has {keys} chunks, which must all be in the CPU tier ({room} chunks) at once to be loaded"
            " (a larger cpu_bytes_to_use would help)"
        )

    def check(self, *, at_end: bool) -> None:
        self.manager.check(at_end=at_end)
        if at_end:
            assert not self._jobs, "copies are still in flight"
            assert not self._watched, "blocks are still watched"
            assert not self._loading, "keys are still being loaded"


def num_computed_at_end(request: Request) -> int:
    """Tokens of an ended request that are computed, as the last offer of its chunks counts them."""
    # (0.33.0 counts a failed request's prompt as computed and dies of it; its worker lets it not come to that.)
    if request.status is not RequestStatus.FINISHED:
        return request.num_computed_tokens
    return max(request.num_prompt_tokens, request.num_tokens - 1)  # the last sampled token has no KV
