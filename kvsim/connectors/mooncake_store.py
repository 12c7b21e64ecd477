"""MooncakeStoreConnector, scheduler side: prefixes in a store that all instances share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kvsim.cache.block_pool import BlockPool
from kvsim.connectors.base import KVConnector, SchedulerOutput, WorkerOutput
from kvsim.connectors.store_lookup import StoreLookup
from kvsim.kv_events import KVCacheEvent, StoreEventLog
from kvsim.request import Request
from kvsim.store.master import Keys

Role = Literal["both", "producer", "consumer"]


@dataclass(eq=False, slots=True)
class SaveJob:
    """Blocks of one request up to ``last`` to be stored; those that this request has stored before are left out."""

    number: int
    request: Request
    last: int
    blocks: list[int]  # the whole table, referenced until the job is over
    tells: bool = field(init=False, default=False)  # its keys are wanted:
    stored: list[Any] = field(init=False, default_factory=list)  # those that it has written

    def keys(self, first: int) -> Keys:
        """Of the blocks from this one on."""
        return self.request.block_hashes[first : self.last]


@dataclass(eq=False, slots=True)
class LoadJob:
    """Blocks of one request to be loaded."""

    request: Request
    keys: Keys
    blocks: Sequence[Any]


@dataclass(slots=True)
class StoreMeta:
    """This step's work."""

    loads: list[LoadJob] = field(default_factory=list)
    saves: list[SaveJob] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    finished: list[Request] = field(default_factory=list)


@dataclass(slots=True)
class _LoadSpec:
    """What the last lookup has found; tokens."""

    local: int
    found: int
    can_load: bool = False


@dataclass(slots=True)
class Tracker:
    """How far a request has come; tokens."""

    known: int  # computed when this step is over
    saved: int
    prefill_end: int


class MooncakeStoreConnector(KVConnector):
    """A lookup asks the store for all full blocks, from the first on; what it finds behind the local hit is loaded.

    - Lookups hold the scheduler up, and are made again whenever it asks again; with ``lookup_async`` they are made in
      the background, one after the other, and answered later.
    - Loads are asynchronous. Saves follow each step that has filled blocks of the prompt (or, with
      ``save_decode_cache``, any blocks), behind its forward pass. A save references all blocks of the request's table
      until it is over, so that a request that ends never waits for it.
    - A producer saves and a consumer does not, but for decoded blocks if it is told to; both load.

    Rules: vLLM 0.33.0 mooncake/store/scheduler.py and data.py (ReqMeta.from_request_tracker), for one group of full
    attention, with load_async.

    Args:
        lookup: asks the store.
        pool: the GPU's blocks.
    """

    def __init__(
        self,
        lookup: StoreLookup,
        pool: BlockPool,
        *,
        block_size: int,
        role: Role = "both",
        save_decode_cache: bool = False,
        enable_lookup: bool = True,
    ) -> None:
        self.lookup, self._pool, self._block_size = lookup, pool, block_size
        self._is_consumer, self._save_decode, self._looks = role == "consumer", save_decode_cache, enable_lookup
        self._specs: dict[Request, _LoadSpec] = {}
        self._trackers: dict[Request, Tracker] = {}
        self._tables: dict[Request, list[int]] = {}  # vLLM: _unfinished_requests
        self._pinned: dict[int, list[int]] = {}  # blocks referenced by a save
        self._num_saves = 0
        self._loaded: dict[Request, int] = {}  # tokens of its last load
        self._events: StoreEventLog | None = None  # if KV events are wanted
        self._told: dict[int, SaveJob] = {}  # then: those that are not over
        self.num_load_jobs = self.num_store_jobs = 0

    # -- looking
    def get_num_new_matched_tokens(self, request: Request, num_local_tokens: int) -> tuple[int | None, bool]:
        if not self._looks or request.num_tokens < self._block_size:
            return 0, False
        found = self.lookup.ask(request)
        if found is None:
            return None, False
        need = found - num_local_tokens
        if need <= 0:
            return 0, False
        self._specs[request] = _LoadSpec(num_local_tokens, found)
        return need, True

    def shorten_load(self, request: Request, num_tokens: int) -> None:
        """Of what was found for it, only so many tokens are going to be asked for: somebody else brings the others."""
        spec = self._specs[request]
        spec.found = spec.local + num_tokens

    # -- planning
    def update_state_after_alloc(self, request: Request, table: list[int], num_external_tokens: int) -> None:
        self._tables[request] = table
        spec = self._specs.get(request)
        if spec is None:
            return
        spec.can_load = num_external_tokens > 0
        if num_external_tokens:
            self._loaded[request] = num_external_tokens
        assert not spec.can_load or num_external_tokens == spec.found - spec.local, "loads something else than it found"

    def build_connector_meta(self, output: SchedulerOutput) -> StoreMeta:
        """Saves of new, running and resumed requests, then loads of those that wait for them."""
        for request in output.finished:
            self.lookup.discard(request)
            self._forget(request)
        for request in output.preempted:
            self._specs.pop(request, None)
            self._trackers.pop(request, None)
            self._tables.pop(request, None)
        meta = StoreMeta(preempted=output.preempted, finished=output.finished)
        scheduled = output.num_scheduled_tokens
        for request in output.new:
            self._save_prefill(request, scheduled[request], meta)
        if not self._is_consumer or self._save_decode:
            self._save_all_running(output, meta)
            for request in output.resumed:
                self._save_prefill(request, scheduled[request], meta)
        if any(spec.can_load for spec in self._specs.values()):
            for request in self._tables:
                if request not in scheduled:
                    self._load(request, meta)
        self.num_load_jobs += len(meta.loads)
        self.num_store_jobs += len(meta.saves)
        return meta

    def _save_prefill(self, request: Request, new_tokens: int, meta: StoreMeta) -> None:
        """A request that begins, or begins again: all that it has so far is its prefill."""
        self._specs.pop(request, None)
        tracker = Tracker(request.num_computed_tokens + new_tokens, 0, request.num_tokens)
        self._trackers[request] = tracker
        if not self._is_consumer:
            self._save(request, tracker, meta)

    def _save_all_running(self, output: SchedulerOutput, meta: StoreMeta) -> None:
        for request, tokens in output.num_scheduled_tokens.items():
            if request not in output.tables:
                self._save_running(request, tokens, meta)

    def _save_running(self, request: Request, new_tokens: int, meta: StoreMeta) -> None:
        tracker = self._trackers[request]
        is_decode = request.num_computed_tokens >= tracker.prefill_end
        if is_decode and not self._save_decode:
            return
        tracker.known += min(new_tokens, request.num_tokens - tracker.known)
        if not self._is_consumer or is_decode:
            self._save(request, tracker, meta)

    def _save(self, request: Request, tracker: Tracker, meta: StoreMeta) -> None:
        """A job if a block has been filled since the last one."""
        size = self._block_size
        last = tracker.known // size
        if last <= tracker.saved // size:
            return
        tracker.saved = last * size
        blocks = list(self._tables[request])
        job = SaveJob(self._num_saves, request, last, blocks)
        self._num_saves += 1
        self._pinned[job.number] = blocks
        self._pool.touch(blocks)
        if self._events is not None:
            self._told[job.number], job.tells = job, True
        meta.saves.append(job)

    def _load(self, request: Request, meta: StoreMeta) -> None:
        spec = self._specs.pop(request, None)
        if spec is None or not spec.can_load:
            return
        first, last = spec.local // self._block_size, spec.found // self._block_size
        self._trackers[request] = Tracker(spec.found, 0, 0)
        meta.loads.append(self._load_job(request, first, last))

    def _load_job(self, request: Request, first: int, last: int) -> LoadJob:
        return LoadJob(request, request.block_hashes[first:last], self._tables[request][first:last])

    def follows_decoding(self, request: Request) -> bool:
        return self._save_decode

    # -- ending
    def request_finished(self, request: Request, table: list[int]) -> bool:
        """Blocks that a save reads are referenced by it."""
        return False

    def update_connector_output(self, output: WorkerOutput) -> None:
        """Saves that are over let go of their blocks, the last one first."""
        for number in output.meta or ():
            self._pool.free_blocks(reversed(self._pinned.pop(number)))
            if self._events is not None:
                self._tell(self._told.pop(number), self._events)

    def _tell(self, job: SaveJob, events: StoreEventLog) -> None:
        hashes = job.request.block_hashes
        place = {key: at for at, key in enumerate(hashes[: job.last])}
        events.stored(hashes, [place[key] for key in job.stored], self._block_size)

    def enable_kv_events(self) -> None:
        self._events = StoreEventLog()

    def take_events(self) -> Sequence[KVCacheEvent]:
        return () if self._events is None else self._events.take()

    def has_pending_work(self) -> bool:
        """Saves that are over are reported in a step only."""
        return bool(self._pinned)

    def _forget(self, request: Request) -> None:
        self._specs.pop(request, None)
        self._trackers.pop(request, None)
        self._tables.pop(request, None)
        self._loaded.pop(request, None)

    # -- telling
    def hit_tokens_by_tier(self, request: Request) -> dict[int, int]:
        return {0: self._loaded[request]} if request in self._loaded else {}

    def explain_wait(self, request: Request) -> str:
        return "waits for the store's answer" if self.lookup.is_asked(request) else ""

    def cautions(self) -> list[str]:
        return self.lookup.cautions()

    def gpu_holds(self) -> list[list[int]]:
        return list(self._pinned.values())

    def check(self, *, at_end: bool) -> None:
        assert not at_end or not (self._pinned or self._tables or self._trackers), "a request was not forgotten"
