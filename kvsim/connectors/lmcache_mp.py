"""LMCacheMPConnector, scheduler side: chunks in a server of their own, asked, loaded and stored in the background."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from kvsim.connectors.base import KVConnector, SchedulerOutput, WorkerOutput
from kvsim.connectors.lmcache_client import LMCacheClient, Lookup
from kvsim.request import Request, RequestStatus


@dataclass(eq=False, slots=True)
class ChunkJob:
    """Chunks of one request to be copied, and their GPU blocks."""

    request: Request
    keys: list[int]
    blocks: list[int]


@dataclass(slots=True)
class LMCacheMPMeta:
    """This step's work."""

    loads: list[ChunkJob] = field(default_factory=list)
    stores: list[ChunkJob] = field(default_factory=list)
    finished: list[Request] = field(default_factory=list)  # told to the worker, which says when their stores are over
    flush: bool = False  # blocks of preempted requests are handed out again: stores first


class _State(Enum):
    PREFETCHING = auto()  # its lookup has not been used
    WAITING_FOR_LOAD = auto()
    READY = auto()


@dataclass(slots=True)
class _Tracker:
    """How far a request has come, in LMCache's books; tokens."""

    scheduled: int = 0
    stored: int = 0
    local_hit: int = 0
    server_hit: int = 0
    state: _State = _State.PREFETCHING


class LMCacheMPConnector(KVConnector):
    """Asynchronous: a lookup is answered later (None until then), what it finds is loaded while the request is parked.

    Tenants do not see each other's chunks (`cache_salt` is part of the key). Stores follow the step that computed the
    chunk; a request's blocks stay until its last store is over, whether it had one or not.
    Rules: LMCache 0.5.6 integration/vllm/lmcache_mp_connector.py and lmcache_mp_metadata.py, which vLLM 0.33.0 prefers
    over its own copy, without lazy_offload and eager prefetch.

    Args:
        tells_of_server: what the server holds and has lost is told here; of the engines that share it, one does.
    """

    def __init__(
        self,
        client: LMCacheClient,
        *,
        blocks_per_chunk: int,
        block_size: int,
        save_decode_cache: bool = False,
        tells_of_server: bool = True,
    ) -> None:
        self.client, self._tells = client, tells_of_server
        self._per_chunk, self._block_size = blocks_per_chunk, block_size
        self._chunk, self._save_decode = blocks_per_chunk * block_size, save_decode_cache
        self._lookups: dict[Request, Lookup] = {}
        self._trackers: dict[Request, _Tracker] = {}
        self._tables: dict[Request, list[int]] = {}
        self.num_load_jobs = self.num_store_jobs = 0

    # -- looking
    def get_num_new_matched_tokens(self, request: Request, num_local_tokens: int) -> tuple[int | None, bool]:
        tracker = self._tracker(request)
        if tracker.state is _State.READY and tracker.server_hit:
            # It was loaded, and vLLM asks again: the load has failed. Not a second time.
            tracker.stored = tracker.local_hit = tracker.server_hit = 0
        if tracker.state is _State.READY:
            return 0, False
        lookup = self._lookups.get(request)
        if lookup is None:
            hashes, per_chunk = request.block_hashes, self._per_chunk
            chunks = request.num_tokens // self._chunk
            keys = [hashes[(chunk + 1) * per_chunk - 1] for chunk in range(chunks)]
            lookup = self._lookups[request] = self.client.lookup(keys, request)
        if not self.client.is_ready(lookup):
            return None, True
        found = lookup.chunks * self._chunk
        tracker.local_hit = num_local_tokens
        tracker.stored = tracker.server_hit = found
        need = max(found - num_local_tokens, 0)
        if found == request.num_tokens:
            need = max(need - 1, 0)
        return need, need > 0

    def _tracker(self, request: Request) -> _Tracker:
        tracker = self._trackers.get(request)
        if request.status is RequestStatus.PREEMPTED and tracker and tracker.state is not _State.PREFETCHING:
            tracker = None  # of the time before it was preempted
        if tracker is None:
            tracker = self._trackers[request] = _Tracker()
        return tracker

    @property
    def num_offloaded_chunks(self) -> int:
        return len(self.client.server.memory) if self._tells else 0

    @property
    def num_evicted_chunks(self) -> int:
        return self.client.server.memory.num_evicted if self._tells else 0

    @property
    def num_refusals(self) -> int:
        return self.client.server.num_refused if self._tells else 0

    # -- planning
    def update_state_after_alloc(self, request: Request, table: list[int], num_external_tokens: int) -> None:
        self._tables[request] = table
        tracker = self._trackers[request]
        if tracker.state is not _State.PREFETCHING:
            return
        self._lookups.pop(request, None)
        if num_external_tokens > 0 and tracker.server_hit > tracker.local_hit:
            tracker.state = _State.WAITING_FOR_LOAD
        else:
            tracker.state = _State.READY
            self.client.unlock(request)

    def build_connector_meta(self, output: SchedulerOutput) -> LMCacheMPMeta:
        """Loads of parked requests; stores of new, then running, then resumed ones."""
        meta = LMCacheMPMeta(finished=output.finished, flush=bool(output.preempted))
        for request, tracker in self._trackers.items():
            if tracker.state is _State.WAITING_FOR_LOAD:
                tracker.state = _State.READY
                first = tracker.local_hit // self._chunk * self._chunk
                meta.loads.append(self._job(request, first, tracker.server_hit))
        running = [request for request in output.num_scheduled_tokens if request not in output.tables]
        for request in (*output.new, *running, *output.resumed):
            job = self._store(request, output.num_scheduled_tokens[request])
            if job is not None:
                meta.stores.append(job)
        self.num_load_jobs += len(meta.loads)
        self.num_store_jobs += len(meta.stores)
        return meta

    def _store(self, request: Request, new_tokens: int) -> ChunkJob | None:
        tracker = self._trackers[request]
        tracker.scheduled += new_tokens
        computed = tracker.scheduled + max(tracker.local_hit, tracker.server_hit)
        available = min(request.num_tokens, len(self._tables[request]) * self._block_size, computed)
        if not self._save_decode:
            available = min(available, request.num_prompt_tokens)
        first = tracker.stored
        chunks = (available - first) // self._chunk
        if chunks < 1:
            return None
        tracker.stored += chunks * self._chunk
        return self._job(request, first, tracker.stored)

    def _job(self, request: Request, first_token: int, last_token: int) -> ChunkJob:
        per_chunk, size = self._per_chunk, self._block_size
        chunks = range(first_token // self._chunk, last_token // self._chunk)
        keys = [request.block_hashes[(chunk + 1) * per_chunk - 1] for chunk in chunks]
        return ChunkJob(request, keys, self._tables[request][first_token // size : last_token // size])

    # -- ending
    def request_finished(self, request: Request, table: list[int]) -> bool:
        """Blocks are freed when the worker says that the request's stores are over."""
        self._trackers.pop(request, None)
        self._tables.pop(request, None)
        self._lookups.pop(request, None)
        self.client.unlock(request)
        return True

    def update_connector_output(self, output: WorkerOutput) -> None:
        for request in output.received:
            self.client.unlock(request)

    def explain_wait(self, request: Request) -> str:
        if request in self._lookups:
            return "waits for the LMCache server's answer"
        return ""

    def cautions(self) -> list[str]:
        client = self.client
        if not self._tells:
            return []
        found = [f"{client.num_lost} loads and stores were lost when the LMCache server restarted."] * bool(
            client.num_lost
        )
        outage = client.outage(client.sync())
        if outage is not None and outage.noticed_ns is None:
            found.append(
                "The LMCache server restarted between two heartbeats: nobody noticed, its client never registered its"
                " KV caches again, and from then on it found and stored nothing (as LMCache 0.5.6 does)."
            )
        return found

    def check(self, *, at_end: bool) -> None:
        self.client.server.check(at_end=at_end)
        assert not at_end or not (self._trackers or self._tables or self._lookups), "a request was not forgotten"
