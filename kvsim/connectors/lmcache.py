"""LMCacheConnectorV1, scheduler side: whole chunks of tokens, found by prefix, loaded and saved inside the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvsim.connectors.base import KVConnector, SchedulerOutput, WorkerOutput
from kvsim.offload.chunk_store import CPU, ChunkStore
from kvsim.request import Request

ChunkRead = tuple[int, int]  # (tier, chunks)


@dataclass(slots=True)
class LMCacheMeta:
    """This step's work, request by request."""

    loads: list[list[ChunkRead]] = field(default_factory=list)
    stores: list[int] = field(default_factory=list)  # chunks


@dataclass(slots=True)
class _LoadSpec:
    """What a lookup found, until the request is scheduled."""

    local_tokens: int
    cached_tokens: int
    can_load: bool = False


@dataclass(slots=True)
class _Tracker:
    """How far a request has come, in LMCache's books."""

    tokens: int
    saved_tokens: int
    is_decoding: bool = False


class LMCacheConnector(KVConnector):
    """Synchronous: what is found is loaded in the step that admits the request.

    - Only whole chunks; found from the prompt's start on, whatever the GPU holds already; a chunk that the GPU holds
      in part is loaded whole. After a full hit the last token is computed again.
    - A lookup is remembered, and its chunks are pinned, until the request is scheduled.
    - A prompt is stored as it is computed, from the first chunk that LMCache did not have; generated tokens are with
      `save_decode_cache`. A chunk of a prompt that has a single token ends the storing as decoding does.
    - Hashes are of tokens alone: `cache_salt` separates requests on the GPU, not here.

    Rules: LMCache 0.5.6 integration/vllm/vllm_v1_adapter.py, which vLLM 0.33.0 uses unless `use_native` is set.

    Args:
        store: the chunks.
        blocks_per_chunk: chunk_size in GPU blocks.
        block_size: tokens of a GPU block.
        min_retrieve_tokens: smaller loads are not worth it; 0 = all are.
        save_decode_cache: store generated tokens.
        layerwise: what is in the store is not copied again.
        num_salts: tenants whose block hashes are interleaved (see `kvsim.request.Salted`).
    """

    def __init__(
        self,
        store: ChunkStore,
        *,
        blocks_per_chunk: int,
        block_size: int,
        min_retrieve_tokens: int = 0,
        save_decode_cache: bool = False,
        layerwise: bool = False,
        num_salts: int = 1,
    ) -> None:
        self._store, self._per_chunk, self._chunk = store, blocks_per_chunk, blocks_per_chunk * block_size
        self._min_retrieve, self._save_decode, self._layerwise = min_retrieve_tokens, save_decode_cache, layerwise
        self._num_salts = num_salts
        self._found: dict[Request, int] = {}  # remembered lookups, tokens
        self._load_specs: dict[Request, _LoadSpec] = {}
        self._trackers: dict[Request, _Tracker] = {}
        self.num_load_jobs = self.num_store_jobs = 0
        self.num_broken_resumes = 0

    def _keys(self, request: Request, first_token: int, last_token: int) -> list[int]:
        """Chunks that lie whole in these tokens; a chunk is named by its last block."""
        first, last, per_chunk = -(-first_token // self._chunk), last_token // self._chunk, self._per_chunk
        hashes, salts = request.block_hashes, self._num_salts
        return [hashes[(chunk + 1) * per_chunk - 1] // salts for chunk in range(first, last)]

    # -- looking
    def get_num_new_matched_tokens(self, request: Request, num_local_tokens: int) -> tuple[int | None, bool]:
        found = self._found.get(request)
        if found is None:
            keys = self._keys(request, 0, request.num_tokens)
            found = self._found[request] = self._store.lookup(keys, request) * self._chunk
        need = found - num_local_tokens
        if found == request.num_tokens:
            need -= 1
        self._load_specs[request] = _LoadSpec(num_local_tokens, found)
        if need <= 0 or need < self._min_retrieve:
            return 0, False
        return need, False

    def may_defer(self) -> bool:
        return False

    @property
    def num_offloaded_chunks(self) -> int:
        return len(self._store)

    @property
    def num_evicted_chunks(self) -> int:
        return self._store.num_evicted

    @property
    def num_refusals(self) -> int:
        return self._store.num_refused

    # -- planning
    def update_state_after_alloc(self, request: Request, table: list[int], num_external_tokens: int) -> None:
        self._found.pop(request, None)
        self._load_specs[request].can_load = num_external_tokens > 0

    def build_connector_meta(self, output: SchedulerOutput) -> LMCacheMeta:
        """Loads and saves of the step.

        The store's books are brought up to the step's end here, in LMCache's order: nothing is looked up before it.
        """
        for request in output.finished:
            self._trackers.pop(request, None)
        meta, store = LMCacheMeta(), self._store
        plans = [self._plan(request, output) for request in _in_connector_order(output)]
        for request, spec, _ in plans:
            if spec is not None and spec.can_load:
                self._load(meta, request, spec)
                if not self._layerwise:
                    store.unpin(request)
        for request, _, tokens in plans:
            if not self._layerwise:
                store.unpin(request)
            keys = self._keys(request, *tokens)
            if keys and (chunks := store.store(keys, skip_present=self._layerwise)):
                meta.stores.append(chunks)
        for request, _, _ in plans:
            store.unpin(request)
        self.num_load_jobs += len(meta.loads)
        self.num_store_jobs += len(meta.stores)
        return meta

    def _plan(self, request: Request, output: SchedulerOutput) -> tuple[Request, _LoadSpec | None, tuple[int, int]]:
        """(request, its lookup if it has just been admitted, first and last token to save)."""
        spec = self._load_specs.pop(request, None)
        tracker, new_tokens = self._trackers.get(request), output.num_scheduled_tokens[request]
        if tracker is not None and spec is None:
            tracker.tokens += new_tokens
            tracker.is_decoding |= new_tokens == 1
            return request, None, self._to_save(tracker)
        assert spec is not None, "a request was admitted without a lookup"
        if tracker is None:
            self._trackers[request] = tracker = _Tracker(request.num_computed_tokens + new_tokens, spec.cached_tokens)
            return request, spec, self._to_save(tracker)
        computed = max(spec.cached_tokens, spec.local_tokens)
        last_again = spec.cached_tokens == request.num_tokens > spec.local_tokens
        self.num_broken_resumes += computed - last_again != request.num_computed_tokens
        tracker.tokens = min(computed + new_tokens, request.num_tokens)
        tracker.saved_tokens = spec.cached_tokens
        tracker.is_decoding |= new_tokens == 1  # and stays so, whatever was preempted
        return request, spec, self._to_save(tracker)

    def _to_save(self, tracker: _Tracker) -> tuple[int, int]:
        saved, chunk = tracker.saved_tokens, self._chunk
        if saved and tracker.tokens < (saved // chunk + 1) * chunk:
            return 0, 0
        if tracker.is_decoding and not self._save_decode:
            return 0, 0
        tracker.saved_tokens = tracker.tokens // chunk * chunk
        return saved, tracker.saved_tokens

    def _load(self, meta: LMCacheMeta, request: Request, spec: _LoadSpec) -> None:
        first = spec.local_tokens // self._chunk * self._chunk
        sources = self._store.sources(self._keys(request, first, spec.cached_tokens))
        for tier, keys in sources:
            if tier != CPU:
                self._store.fetched(keys)
        meta.loads.append([(tier, len(keys)) for tier, keys in sources])

    # -- ending
    def request_finished(self, request: Request, table: list[int]) -> bool:
        """A request that was looked up and never scheduled gives its pins back (LMCache: after a timeout)."""
        self._found.pop(request, None)
        self._load_specs.pop(request, None)
        self._store.unpin(request)
        return False

    def update_connector_output(self, output: WorkerOutput) -> None:
        """Everything was done inside the step."""

    def cautions(self) -> list[str]:
        if not self.num_broken_resumes:
            return []
        found = f"{self.num_broken_resumes} preempted requests came back with fewer tokens than LMCache had for them"
        return [f"{found} (min_retrieve_tokens): LMCache 0.5.6 would have raised an error and ended the engine."]

    def check(self, *, at_end: bool) -> None:
        self._store.check(at_end=at_end)
        assert not at_end or not self._load_specs, "a lookup was never used"


def _in_connector_order(output: SchedulerOutput) -> Sequence[Request]:
    """New, then running, then resumed requests (vLLM 0.33.0 model runner V1's CachedRequestData)."""
    running = [request for request in output.num_scheduled_tokens if request not in output.tables]
    return [*output.new, *running, *output.resumed]
