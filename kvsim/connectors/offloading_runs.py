"""OffloadingConnector over runs: the same plans, with keys and blocks by the run instead of one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from kvsim.connectors.base import BlockTable, SchedulerOutput
from kvsim.connectors.offloading import (
    Job,
    KeySet,
    OffloadingConnector,
    OffloadingMeta,
    RequestState,
    num_computed_at_end,
)
from kvsim.connectors.offloading_023 import OffloadingConnector023
from kvsim.extents.changes import Changes
from kvsim.extents.context import RunContext
from kvsim.extents.extent_pool import ExtentPool
from kvsim.extents.ledger import RunOffloadingManager
from kvsim.extents.path import Key, Path, Run, Runs
from kvsim.extents.pool_pieces import Table
from kvsim.extents.run_set import RunSet
from kvsim.extents.store_use import RunStoreUse
from kvsim.extents.tiering import RunTieringManager
from kvsim.offload.ledger import Ledger, StorePlan
from kvsim.request import Request


class LoadedBlock(NamedTuple):
    """A GPU block that is being loaded: block ``position`` of this request's table."""

    request: Request
    position: int


class _LoadingRuns:
    """`KeySet` of runs."""

    def __init__(self) -> None:
        self._keys = RunSet()
        self.changes = Changes()

    def update(self, keys: Runs) -> None:
        self._keys.add(keys.runs)
        self._tell(keys)

    def difference_update(self, keys: Runs) -> None:
        self._keys.discard(keys.runs)
        self._tell(keys)

    def _tell(self, keys: Runs) -> None:
        for run in keys.runs:
            self.changes.note(run[0])

    def isdisjoint(self, keys: Runs) -> bool:
        return self._keys.isdisjoint(keys.runs)

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: Key) -> bool:
        return key in self._keys


class RunOffloadingConnector(OffloadingConnector):
    """Watches pieces of the pool where the reference watches block ids; the ledger must be one over runs, too.

    An ended request may still have chunks to offer in the next step. Who gets its blocks until then decides whether
    their copy is urgent, so they are watched from its end on, at first under a (negative) number of the request's.

    Args:
        pool: the GPU's.
        names_blocks: copies may fail, so that loaded blocks need names.
        is_sound: neither copies nor engines fail.
    """

    def __init__(
        self, manager: Ledger, pool: ExtentPool, *, names_blocks: bool = False, is_sound: bool = True, **options: Any
    ) -> None:
        super().__init__(manager, **options)
        self._pool, self._names_blocks = pool, names_blocks
        # Without tiers that wait for them, and without failures and deaths before which somebody has to hear of them.
        self.stores_end_quietly = isinstance(manager, RunOffloadingManager) and is_sound
        self.writes_end_quietly = isinstance(manager, RunTieringManager) and is_sound
        self.store_use = RunStoreUse()
        self._touched: dict[int, list[Run]] = {}  # watcher -> what of it was handed out in this step
        self._last_offers: dict[Request, tuple[int, list[Run]]] = {}  # of ended requests: watcher, blocks
        self._num_last_offers = 0

    @property
    def num_lookup_effects(self) -> int:
        """See `KVConnector`; the ledger knows."""
        effects: int = self.manager.num_changes  # type: ignore[attr-defined]
        return effects

    @property
    def lookup_version(self) -> int:
        """Grows with everything that a lookup could notice and `lookup_changes` do not tell."""
        version: int = self.manager.lookup_version  # type: ignore[attr-defined]
        return version

    @property
    def lookup_changes(self) -> tuple[Changes, ...]:
        """What a lookup could notice, by the segment of chunks: in ledger and tiers, and of what is being loaded."""
        changes: tuple[Changes, ...] = self.manager.lookup_changes  # type: ignore[attr-defined]
        return changes if self._loading is None else (*changes, self._loading.changes)  # type: ignore[attr-defined]

    def chunk_segments(self, request: Request) -> Sequence[int]:
        """Segments of all chunks that a lookup of the request could ask for."""
        path: Path = self._states[request].context.path
        return path.segments

    def refresh(self) -> None:
        """What every lookup in the ledger does before it looks."""
        self.manager.refresh()  # type: ignore[attr-defined]

    def is_busy(self, request: Request) -> bool:
        """Whether the request is not looked up because copies of an earlier life are in flight."""
        return bool(self._states[request].jobs)

    def may_hit_less(self, request: Request) -> bool:
        """Whether lookups that hit less of the request's local hit start nothing, and are not told to wait.

        Nor for a store of what is not hit any more: as long as one is under way, the blocks that it reads are held or
        watched (see `ExtentPool.blocks_before`), and of a prefix the deeper ones are handed out first.
        """
        if self._loading:
            return False  # perhaps of this
        if self.lookups_are_pure:
            return True
        state, size = self._states[request], self.chunk_tokens
        chunks, known = state.local_tokens // size, len(state.context.keys)
        if known * size - state.local_tokens < size:  # nothing was asked for behind it, which may be otherwise then
            chunks = known
        # What is here to be loaded, nobody asks a tier for.
        found = self.manager.primary.lookup_prefix(state.context, 0, chunks)  # type: ignore[attr-defined]
        return bool(found.chunks == chunks) and not found.pending

    def repeats_offer(self, request: Request) -> bool:
        return self.offload_prompt_only and self._states[request].refused

    def left_cohort(self, request: Request, num_tokens: int) -> None:
        """A member has become one of those of whom the connector hears; it had so many tokens in its last step."""
        self._states[request].context.extend_to(num_tokens // self.chunk_tokens)

    def repeat_refusals(self, count: int) -> None:
        self.manager.repeat_refusals(count)  # type: ignore[attr-defined]

    def _scheduled(self, output: SchedulerOutput) -> Iterable[tuple[Request, int]]:
        scheduled, requests = output.num_scheduled_tokens, [*output.num_scheduled_tokens]
        if output.offering:
            requests = sorted(requests + output.offering, key=output.order.__getitem__)
        return [(request, request.num_computed_tokens + scheduled.get(request, 0)) for request in requests]

    # -- keys
    def _new_context(self, request: Request) -> RunContext:
        content: Any = request.content
        return RunContext(
            request.request_id, content.path if self.factor == 1 else content.in_blocks_of(self.chunk_tokens)
        )

    def _extend_keys(self, state: RequestState) -> None:
        hashes: Any = state.request.block_hashes
        keys, known = state.context.keys, hashes.num_keys // self.factor
        keys.num_keys = max(keys.num_keys, known)

    def _no_keys(self) -> KeySet:
        return _LoadingRuns()

    # -- blocks, of which only the number matters to a copy
    def _blocks_to_load(self, state: RequestState, table: BlockTable, first: int, last: int) -> Sequence[Any]:
        if self._names_blocks:
            return [LoadedBlock(state.request, position) for position in range(first, last)]
        return range(last - first)

    def _chunks_to_store(self, state: RequestState, plan: StorePlan) -> tuple[Runs, range]:
        keys: Any = plan.positions  # a ledger over runs answers in runs
        return keys, range(len(keys) * self.factor)

    def _tokens_by_tier(self, state: RequestState, first: int, last: int) -> dict[int, int]:
        count = getattr(self.manager, "chunks_by_source", None)  # a ledger without tiers has none
        if count is None:
            return {}
        chunks: dict[int, int] = count(state.context, first, last)
        return {tier: count * self.chunk_tokens for tier, count in chunks.items()}

    def _block_runs(self, request: Request, chunks: Iterable[Run]) -> list[Run]:
        hashes: Any = request.block_hashes
        path: Path = hashes.path
        factor = self.factor
        return [run for _, first, last in chunks for run in path.runs(first * factor, last * factor)]

    # -- blocks that a pending store reads
    def _take_block_updates(self, output: SchedulerOutput) -> None:
        for request, table in output.tables.items():
            self._states[request].table = table
            self._allocated.append(table)
        for request in output.num_scheduled_tokens:
            self._extend_keys(self._states[request])

    def _jobs_in_the_way(self) -> set[int]:
        pool = self._pool
        touched, pool.touched_jobs = pool.touched_jobs, {}
        if pool.watchers:
            for table in self._allocated:
                for piece in table.held():
                    for watcher in piece.watch:
                        touched.setdefault(watcher, []).append(Run(piece.segment, piece.first, piece.last))
        self._touched = touched
        return {watcher for watcher in touched if watcher >= 0}

    def _watch(self, state: RequestState) -> None:
        table: Table = state.table
        for job_id in state.jobs:
            job = self._jobs[job_id]
            if job.direction == "store" and table:
                self._pool.watch(table, self._block_runs(state.request, job.keys.runs), job_id)

    def _unwatch(self, job: Job) -> None:
        if job.request.is_finished:
            self._pool.unwatch(self._block_runs(job.request, job.keys.runs), job.job_id)

    def request_finished(self, request: Request, table: BlockTable) -> bool:
        state = self._states[request]
        super().request_finished(request, table)
        first, last = state.next_stored, self._num_offered(request, num_computed_at_end(request))
        if last > first and state.table:
            self._num_last_offers += 1
            blocks = self._block_runs(request, [Run(0, first, last)])
            self._last_offers[request] = -self._num_last_offers, blocks
            self._pool.watch(state.table, blocks, -self._num_last_offers)
        return False

    def build_connector_meta(self, output: SchedulerOutput) -> OffloadingMeta:
        """See `OffloadingConnector`."""
        meta = super().build_connector_meta(output)
        if self._last_offers:
            for watcher, blocks in self._last_offers.values():
                self._pool.unwatch(blocks, watcher)
            self._last_offers = {}
        return meta

    def _on_store_planned(self, state: RequestState, job: Job, flush: set[int]) -> None:
        if state.request.is_finished:
            watcher, _ = self._last_offers[state.request]
            source = self._block_runs(state.request, job.keys.runs)
            if any(_overlap(a, b) for a in self._touched.get(watcher, ()) for b in source):
                flush.add(job.job_id)
            self._pool.rewatch(source, watcher, job.job_id)


class RunOffloadingConnector023(OffloadingConnector023, RunOffloadingConnector):
    """Of release 0.23.0, which offers nothing after a request's end: there its own methods come first."""

    def repeats_offer(self, request: Request) -> bool:
        """Never: it touches all keys that a request has by then, those of what it has decoded, too."""
        return False


def _overlap(one: Run, other: Run) -> bool:
    return one.segment == other.segment and one.first < other.last and other.first < one.last
