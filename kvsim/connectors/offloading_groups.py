"""OffloadingConnector, scheduler side, over several KV cache groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kvsim.cache.block_pool import NULL_BLOCK
from kvsim.cache.hybrid_kv_cache_manager import HybridKVCacheManager
from kvsim.connectors.base import BlockTable, SchedulerOutput
from kvsim.connectors.group_lookup import GroupLookup, loaded_numbers
from kvsim.connectors.group_plan import GroupPlan, group_plans
from kvsim.connectors.offloading import Job, OffloadingConnector, RequestState
from kvsim.offload.group_context import GroupContext
from kvsim.offload.ledger import Ledger
from kvsim.request import Request


@dataclass(eq=False, slots=True)
class _GroupState(RequestState):
    """What the connector knows of one request, per group.

    ``blocks`` are copies of the tables that grow with them; what a window has let go stays in them until it is handed
    out again. ``next_chunk``: chunks before this one have been offered.
    """

    blocks: list[list[int]] = field(default_factory=list)
    next_chunk: list[int] = field(default_factory=list)

    @property
    def chunks(self) -> GroupContext:
        """Its context, which has chunks per group."""
        assert isinstance(self.context, GroupContext)
        return self.context


class GroupedOffloadingConnector(OffloadingConnector):
    """Keys, lookups and stores per group; one job moves the blocks of all of them.

    Chunks that no load can need are not stored: what a window has left behind, or what lies further from an aligned
    end than its window. Recurrent states are stored when they are hashed, each by a job of its own.
    Rules: vLLM 0.33.0 distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py.
    """

    def __init__(
        self,
        manager: Ledger,
        kv: HybridKVCacheManager,
        *,
        block_size_factor: int = 1,
        offload_prompt_only: bool = True,
        enable_caching: bool = True,
    ) -> None:
        super().__init__(
            manager,
            block_size=kv.block_size,
            block_size_factor=block_size_factor,
            offload_prompt_only=offload_prompt_only,
            enable_caching=enable_caching,
        )
        self._pool = kv.pool
        self._plans = group_plans(kv.specs, block_size_factor, kv.block_size, kv.retention_tokens)
        self._group_lookup = GroupLookup(manager, self._plans)
        self._tracked: dict[Request, _GroupState] = {}  # the same states as `_states`
        self._fenced: dict[int, list[int]] = {}  # job -> blocks that may be freed while the request runs
        self._late_fenced: dict[int, list[int]] = {}  # job -> blocks that are freed with the request

    # -- looking
    def on_new_request(self, request: Request) -> None:
        context, count = GroupContext(request.request_id, len(self._plans)), len(self._plans)
        state = _GroupState(request, context, blocks=[[] for _ in range(count)], next_chunk=[0] * count)
        self._states[request] = self._tracked[request] = state

    def get_num_new_matched_tokens(self, request: Request, num_local_tokens: int) -> tuple[int | None, bool]:
        state = self._tracked[request]
        state.blocks, state.next_chunk = [[] for _ in self._plans], [0] * len(self._plans)
        if state.jobs:
            return None, False
        self._extend(state)
        state.local_tokens = num_local_tokens
        tokens = self._group_lookup.tokens(state.chunks, request.num_tokens, num_local_tokens)
        if tokens and self._loading and self._is_being_loaded(state, num_local_tokens + tokens):
            tokens = None
        return tokens, bool(tokens)

    def _extend(self, state: _GroupState) -> None:
        hashes = state.request.block_hashes
        for plan in self._plans:
            step, known = plan.hashes_per_chunk, len(state.chunks.numbers[plan.group])
            if len(hashes) // step > known:
                state.chunks.extend_group(plan.group, hashes[known * step + step - 1 :: step], plan.chunk_tokens)

    def _is_being_loaded(self, state: _GroupState, end_tokens: int) -> bool:
        keys, loading = state.context.keys, self._loading or set()
        return any(
            keys[number] in loading
            for plan in self._plans
            for number in loaded_numbers(state.chunks, plan, state.local_tokens, end_tokens)
        )

    # -- planning
    def update_state_after_alloc(self, request: Request, table: BlockTable, num_external_tokens: int) -> None:
        self._allocated += table
        if num_external_tokens == 0:
            return
        state = self._tracked[request]
        end_tokens = state.local_tokens + num_external_tokens
        numbers: list[int] = []
        blocks: list[int] = []
        for plan, group_blocks in zip(self._plans, table, strict=True):
            first, last = self._to_load(plan, group_blocks, state.local_tokens, end_tokens)
            chunks = -(-end_tokens // plan.chunk_tokens)
            if last > first:
                numbers += state.chunks.numbers[plan.group][first // plan.chunk_blocks : chunks]
                blocks += group_blocks[first:last]
            state.next_chunk[plan.group] = chunks
        slots = self.manager.prepare_load_of(state.context, numbers)
        keys = [state.context.keys[number] for number in numbers]
        self.store_use.loaded(keys)
        job = self._new_job(state, "load", keys, slots, blocks)
        self._loads[job.job_id] = job
        self.num_load_jobs += 1
        if self._loading is not None:
            self._loading.update(keys)

    def _to_load(self, plan: GroupPlan, blocks: Sequence[int], local_tokens: int, end_tokens: int) -> tuple[int, int]:
        """The blocks that wait for the load: behind the local hit, from the first that is there and has no content."""
        last, hashes = -(-end_tokens // plan.block_tokens), self._pool.hashes
        for i in range(-(-local_tokens // plan.block_tokens), last):
            if blocks[i] != NULL_BLOCK and hashes[blocks[i]] < 0:
                return i, last
        return last, last

    def _take_block_updates(self, output: SchedulerOutput) -> None:
        known: dict[Request, list[int]] = {}  # lengths before this step's blocks
        for request, gained in {**output.tables, **output.new_blocks}.items():
            state = self._tracked[request]
            if request in output.tables:
                state.blocks = [[] for _ in self._plans]
            known[request] = [len(blocks) for blocks in state.blocks]
            for blocks, new in zip(state.blocks, gained, strict=True):
                blocks.extend(new)
            self._allocated += [list(new) for new in gained]
        for request in output.num_scheduled_tokens:
            self._extend(self._tracked[request])
        self._allocated = [[block for block in blocks if block != NULL_BLOCK] for blocks in self._allocated]
        self._forget_reused(known)

    def _forget_reused(self, known: dict[Request, list[int]]) -> None:
        """Blocks that a window has let go and that somebody has got in this step cannot be stored any more."""
        handed_out = set().union(*self._allocated)
        windows = [plan for plan in self._plans if plan.window_chunks is not None]
        if not handed_out or not windows:
            return
        for request, state in self._tracked.items():
            for plan in windows:
                blocks = state.blocks[plan.group]
                end = known[request][plan.group] if request in known else len(blocks)
                for i in range(state.next_chunk[plan.group] * plan.chunk_blocks, end):
                    if blocks[i] in handed_out:
                        blocks[i] = NULL_BLOCK

    def _plan_stores(self, output: SchedulerOutput, flush: set[int]) -> dict[int, Job]:
        stores: dict[int, Job] = {}
        self._plan_states(output, stores)
        for request, computed in self._store_candidates(output):
            state = self._tracked[request]
            limit = min(computed, request.num_tokens)
            if self.offload_prompt_only:
                limit = min(limit, request.num_prompt_tokens)
            ranges = [self._range(plan, state, limit) for plan in self._plans]
            offered = [
                state.chunks.numbers[plan.group][chunk]
                for plan, (first, last) in zip(self._plans, ranges, strict=True)
                if not plan.keeps_states
                for chunk in self._worth_storing(plan, state, first, last)
            ]
            if offered:
                stored = self.manager.prepare_store_of(state.context, offered)
                if stored is None:  # no room: the same chunks are offered again next step
                    continue
                if stored.positions:
                    job = self._store_job(state, ranges, stored.positions, stored.slot_ids, flush)
                    stores[job.job_id] = job
            for group, (_, last) in enumerate(ranges):
                state.next_chunk[group] = max(state.next_chunk[group], last)
        return stores

    def _plan_states(self, output: SchedulerOutput, stores: dict[int, Job]) -> None:
        """A job for each recurrent state that was hashed in this step at the end of a chunk."""
        by_request: dict[Request, list[tuple[int, int, int]]] = {}
        for state in output.boundary_states:
            by_request.setdefault(state.request, []).append((state.group, state.block, state.num_tokens))
        for request, entries in by_request.items():
            known = self._tracked.get(request)
            if known is None:
                continue
            limit = request.num_prompt_tokens if self.offload_prompt_only else request.num_tokens
            for group, block, tokens in entries:
                size = self._plans[group].chunk_tokens
                if tokens > limit or tokens % size:
                    continue
                number = known.chunks.numbers[group][tokens // size - 1]
                stored = self.manager.prepare_store_of(known.context, [number])
                if stored is not None and stored.positions:
                    job = self._new_job(known, "store", [known.context.keys[number]], [block], stored.slot_ids)
                    stores[job.job_id] = job
                    self.num_store_jobs += 1
                    self._fence(job.job_id, [block])

    def _range(self, plan: GroupPlan, state: _GroupState, limit: int) -> tuple[int, int]:
        """Chunks that are complete and not offered yet."""
        there = len(state.blocks[plan.group]) // plan.chunk_blocks
        last = min(limit // plan.chunk_tokens, there, len(state.chunks.numbers[plan.group]))
        first = state.next_chunk[plan.group]
        if self._is_tail_final(plan, state, last):
            blocks, stretch = last * plan.chunk_blocks, plan.tail_blocks or 1
            first = min(first, (blocks - blocks % stretch) // plan.chunk_blocks)
        return first, last

    def _is_tail_final(self, plan: GroupPlan, state: _GroupState, last: int) -> bool:
        """A finished request ends elsewhere than its prompt did: its last window is of use, too."""
        return (
            state.request.is_finished
            and plan.retention_tokens is None
            and last != state.request.num_prompt_tokens // plan.chunk_tokens
            and plan.tail_blocks is not None
        )

    def _worth_storing(self, plan: GroupPlan, state: _GroupState, first: int, last: int) -> Iterator[int]:
        """Chunks of ``first .. last-1`` whose blocks are there and that a load could need."""
        if last <= first:
            return
        size, blocks = plan.chunk_blocks, state.blocks[plan.group]
        prompt_chunks = state.request.num_prompt_tokens // plan.chunk_tokens
        end = last if state.request.is_finished else prompt_chunks if last <= prompt_chunks else None
        end_block = None if end is None or plan.retention_tokens is not None else end * size
        boundaries = [state.request.num_prompt_tokens - 1, state.request.shared_prefix_boundary]
        mask = plan.reachable_blocks(first * size, last * size, end_block, boundaries)
        again = self._is_tail_final(plan, state, last)
        before = plan.reachable_blocks(first * size, last * size, prompt_chunks * size, ()) if again else None
        for chunk in range(first, last):
            places = range((chunk - first) * size, (chunk - first + 1) * size)
            if blocks[(chunk + 1) * size - 1] == NULL_BLOCK:
                continue
            if again and chunk < state.next_chunk[plan.group] and (before is None or any(before[i] for i in places)):
                continue  # it was offered while the prompt's end counted
            if mask is not None and not any(mask[i] for i in places):
                continue
            if any(blocks[first * size + i] == NULL_BLOCK and (mask is None or mask[i]) for i in places):
                continue
            yield chunk

    def _store_job(
        self,
        state: _GroupState,
        ranges: Sequence[tuple[int, int]],
        numbers: Sequence[int],
        slots: list[int],
        flush: set[int],
    ) -> Job:
        wanted = set(numbers)
        source: list[int] = []
        fenced: list[int] = []
        late: list[int] = []
        for plan, (first, last) in zip(self._plans, ranges, strict=True):
            size, blocks = plan.chunk_blocks, state.blocks[plan.group]
            for chunk in range(first, last):
                if state.chunks.numbers[plan.group][chunk] in wanted:
                    there = [block for block in blocks[chunk * size : (chunk + 1) * size] if block != NULL_BLOCK]
                    source += there
                    (late if plan.window_chunks is None else fenced).extend(there)
        keys = [state.context.keys[number] for number in numbers]
        job = self._new_job(state, "store", keys, source, slots)
        self.num_store_jobs += 1
        self._fence(job.job_id, fenced)
        self._late_fenced[job.job_id] = late
        if state.request.is_finished:
            self._watch_blocks(job.job_id, late)
            if not set(late).isdisjoint(set().union(*self._allocated)):
                flush.add(job.job_id)
        return job

    # -- blocks that are freed while their store is pending
    def _fence(self, job_id: int, blocks: list[int]) -> None:
        self._fenced[job_id] = blocks
        self._watch_blocks(job_id, blocks)

    def _watch_blocks(self, job_id: int, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._watched.setdefault(block, set()).add(job_id)

    def _watch(self, state: RequestState) -> None:
        for job_id in state.jobs:
            self._watch_blocks(job_id, self._late_fenced.get(job_id, ()))

    def _unwatch(self, job: Job) -> None:
        blocks = self._fenced.pop(job.job_id, [])
        late = self._late_fenced.pop(job.job_id, [])
        for block in [*blocks, *late] if job.request.is_finished else blocks:
            waiting = self._watched[block]
            waiting.discard(job.job_id)
            if not waiting:
                del self._watched[block]

    # -- ending
    def request_finished(self, request: Request, table: BlockTable) -> bool:
        state = self._tracked[request]
        self._extend(state)
        self._watch(state)
        return False

    def _forget_if_over(self, state: RequestState) -> None:
        super()._forget_if_over(state)
        if state.request not in self._states:
            self._tracked.pop(state.request, None)
