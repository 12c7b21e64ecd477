"""SimpleCPUOffloadConnector, scheduler side: a second block pool in CPU memory, filled eagerly or lazily."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvsim.cache.block_pool import BlockPool
from kvsim.connectors.base import KVConnector, SchedulerOutput, WorkerOutput
from kvsim.kv_events import CPU, FULL_ATTENTION, GPU, BlockStored, KVCacheEvent, KVEventLog
from kvsim.offload.store_use import StoreUse
from kvsim.request import Request

Pairs = tuple[list[int], list[int]]  # blocks to read, blocks to write


@dataclass(slots=True)
class SimpleCPUMeta:
    """Work of one step: at most one load event and one store event, each a concatenation over requests."""

    need_flush: bool  # everything in flight must be complete before the forward pass
    load_event: int = -1
    load: Pairs = ([], [])  # (CPU blocks, GPU blocks)
    load_requests: list[Request] = field(default_factory=list)
    store_event: int = -1
    store: Pairs = ([], [])  # (GPU blocks, CPU blocks)


@dataclass(slots=True)
class _Stores:
    """What has been stored of one request (eager mode)."""

    request: Request
    table: list[int] = field(default_factory=list)
    num_stored: int = 0  # blocks before this one have been looked at
    events: set[int] = field(default_factory=set)
    finished: bool = False


@dataclass(slots=True)
class _Event:
    """A store in flight."""

    gpu: list[int]
    cpu: list[int]
    requests: list[Request]


class SimpleCPUOffloadConnector(KVConnector):
    """Eager: copy every block once it is computed. Lazy: copy what is about to be evicted from the GPU.

    CPU blocks get their content when the copy is complete, so two requests may store (or load) the same content
    twice. Rules: vLLM 0.33.0 v1/simple_kv_offload/manager.py.

    Args:
        gpu: the engine's pool.
        cpu: pool of the CPU side; its block 0 is a null block, too.
        lazy: see above.
        blocks_per_step: lazy mode looks at so many free GPU blocks per step (vLLM: twice the token budget's blocks).
        enable_caching: the engine's prefix cache is on; without it nothing is stored and nothing has to be flushed.
    """

    lookups_are_pure = False  # each one moves the pin of the last

    def __init__(
        self, gpu: BlockPool, cpu: BlockPool, *, block_size: int, lazy: bool, blocks_per_step: int, enable_caching: bool
    ) -> None:
        self.gpu, self.cpu, self.block_size, self.lazy = gpu, cpu, block_size, lazy
        self.enable_caching = enable_caching
        # With less room than the GPU holds content, what is copied pushes out what was copied before: round and round.
        self.restless = lazy
        self.num_load_jobs = self.num_store_jobs = 0
        self.store_use: StoreUse = StoreUse()
        self._blocks_per_step = blocks_per_step
        self._pins: dict[Request, list[int]] = {}  # CPU blocks pinned between lookup and allocation
        self._loads: dict[Request, Pairs] = {}
        self._new_loads: list[Request] = []  # of this step
        self._stores: dict[Request, _Stores] = {}
        self._events: dict[int, _Event] = {}
        self._in_flight: set[int] = set()  # GPU blocks being stored (eager)
        self._finish_stores: list[Pairs] = []  # of requests that ended, for the next store event
        self._parents: dict[int, int] = {}  # GPU block being stored -> hash before its own, if any; for KV events
        self._cursor: int | None = None  # lazy: the free GPU block looked at last

    # -- looking
    def get_num_new_matched_tokens(self, request: Request, num_local_tokens: int) -> tuple[int | None, bool]:
        self._unpin(request)
        first = num_local_tokens // self.block_size
        limit = max(request.num_tokens - 1 - num_local_tokens, 0) // self.block_size
        hits = self.cpu.longest_prefix(request.block_hashes[first : first + limit], limit)
        if hits:
            self.cpu.touch(hits)
            self._pins[request] = hits
        return len(hits) * self.block_size, bool(hits)

    def _unpin(self, request: Request) -> None:
        self.cpu.free_blocks(self._pins.pop(request, []))

    def may_defer(self) -> bool:
        return False

    @property
    def num_offloaded_chunks(self) -> int:
        return len(self.cpu.cached)

    @property
    def num_evicted_chunks(self) -> int:
        return self.cpu.evicted_blocks

    # -- planning
    def update_state_after_alloc(self, request: Request, table: list[int], num_external_tokens: int) -> None:
        if not self.lazy and request not in self._stores:
            self._stores[request] = _Stores(request)
        if num_external_tokens == 0:
            return
        cpu = self._pins[request][: num_external_tokens // self.block_size]
        hashes = self.gpu.hashes
        first = sum(hashes[block] >= 0 for block in table)  # behind the local hit: nothing else is hashed yet
        gpu = table[first : first + len(cpu)]
        self.cpu.touch(cpu)
        self._unpin(request)
        self.gpu.touch(gpu)
        self._loads[request] = (cpu, gpu)
        self.store_use.loaded([self.cpu.hashes[block] for block in cpu])
        self._new_loads.append(request)

    def build_connector_meta(self, output: SchedulerOutput) -> SimpleCPUMeta:
        """Stores first, then loads; each direction numbers its own events."""
        meta = SimpleCPUMeta(need_flush=self.enable_caching and bool(output.preempted))
        gpu, cpu, requests = self._plan_stores(output)
        if gpu:
            meta.store_event, meta.store = self.num_store_jobs, (gpu, cpu)
            self._events[self.num_store_jobs] = _Event(gpu, cpu, requests)
            for request in requests:
                self._stores[request].events.add(self.num_store_jobs)
            self.num_store_jobs += 1
        if self._new_loads:
            pairs = [self._loads[request] for request in self._new_loads]
            meta.load_event, meta.load_requests = self.num_load_jobs, self._new_loads
            meta.load = ([b for c, _ in pairs for b in c], [b for _, g in pairs for b in g])
            self.num_load_jobs += 1
            self._new_loads = []
        return meta

    def _plan_stores(self, output: SchedulerOutput) -> tuple[list[int], list[int], list[Request]]:
        for request in output.preempted:  # may come back in this very step
            if (stores := self._stores.get(request)) is not None:
                stores.table, stores.num_stored = [], 0
        gpu, cpu, requests = self._lazy_stores() if self.lazy else self._eager_stores(output)
        for more_gpu, more_cpu in self._finish_stores:
            gpu, cpu = gpu + more_gpu, cpu + more_cpu
        self._finish_stores = []
        return gpu, cpu, requests

    def _eager_stores(self, output: SchedulerOutput) -> tuple[list[int], list[int], list[Request]]:
        all_gpu: list[int] = []
        all_cpu: list[int] = []
        requests: list[Request] = []
        for request in self._in_connector_order(output):
            stores = self._stores.get(request)
            if stores is None or stores.finished:
                continue
            table = output.tables.get(request)
            if table is not None:
                if request.num_preemptions and request in output.resumed:
                    stores.num_stored = 0
                stores.table = table
            gpu = self._select(stores, stores.table)
            if gpu:
                all_cpu += self._allocate_cpu(gpu)
                all_gpu += gpu
                self._in_flight.update(gpu)
                requests.append(request)
        return all_gpu, all_cpu, requests

    @staticmethod
    def _in_connector_order(output: SchedulerOutput) -> list[Request]:
        """New, then running, then resumed requests (vLLM 0.33.0 kv_connector/utils.py, model runner V1)."""
        admitted = output.tables
        running = [request for request in output.num_scheduled_tokens if request not in admitted]
        return [*output.new, *running, *output.resumed]

    def _select(self, stores: _Stores, table: Sequence[int]) -> list[int]:
        """Blocks computed before this step that are worth a copy, as far as the CPU has room; moves the cursor."""
        if not self.cpu.num_free:
            return []  # and the cursor stays: what another request is storing now is looked at again
        return self._scan(stores, table)

    def _scan(self, stores: _Stores, table: Sequence[int]) -> list[int]:
        gpu: list[int] = []
        request = stores.request
        # vLLM 0.33.0 simple_kv_offload/manager.py: tokens still being sampled are not confirmed.
        computed = (request.num_computed_tokens - request.num_output_placeholders) // self.block_size
        for block in table[stores.num_stored : computed]:
            if block not in self._in_flight and self._is_wanted(block):
                if len(gpu) >= self.cpu.num_free:
                    break
                gpu.append(block)
                if stores.num_stored and self.cpu.kv_events is not None:
                    self._parents[block] = stores.request.block_hashes[stores.num_stored - 1]
            stores.num_stored += 1
        return gpu

    def _lazy_stores(self) -> tuple[list[int], list[int], list[Request]]:
        """Walk the GPU's free list from the cursor, for so many blocks or until the CPU is full."""
        if self._cursor is not None and self.gpu.ref_counts[self._cursor] > 0:
            self._cursor = None  # it was taken: from the head again
        gpu: list[int] = []
        visited = 0
        block = self.gpu.next_free(self._cursor)
        while block is not None and visited < self._blocks_per_step and len(gpu) < self.cpu.num_free:
            self._cursor = block
            if self._is_wanted(block):
                gpu.append(block)
            visited += 1
            block = self.gpu.next_free(block)
        return gpu, self._allocate_cpu(gpu), []

    def _is_wanted(self, block: int) -> bool:
        content = self.gpu.hashes[block]
        return content >= 0 and content not in self.cpu.cached

    def _allocate_cpu(self, gpu: list[int]) -> list[int]:
        """Destinations of a store; both sides are pinned until it is complete."""
        cpu = self.cpu.get_new_blocks(len(gpu))
        self.gpu.touch(gpu)
        return cpu

    # -- ending
    def request_finished(self, request: Request, table: list[int]) -> bool:
        """Before the blocks are freed: select and pin what is still worth a copy."""
        stores = self._stores.get(request)
        if stores is not None:
            gpu = self._select(stores, table)
            if gpu:
                self._finish_stores.append((gpu, self._allocate_cpu(gpu)))
                self._in_flight.update(gpu)
        self._forget(request, stores)
        return False

    def _forget(self, request: Request, stores: _Stores | None) -> None:
        self._unpin(request)
        if stores is not None:
            stores.finished = True
            if not stores.events:
                del self._stores[request]

    def update_connector_output(self, output: WorkerOutput) -> None:
        for request in output.received:
            cpu, gpu = self._loads.pop(request)
            self.cpu.free_blocks(cpu)
            self.gpu.free_blocks(gpu)
        for number in output.jobs:
            event = self._events.pop(number)
            self._in_flight.difference_update(event.gpu)
            if number not in output.failed_jobs:
                hashes = [self.gpu.hashes[block] for block in event.gpu]
                self.cpu.cache_full_blocks(event.cpu, hashes, 0, len(hashes))
                self._tell_stored(event.gpu, hashes)
                self.store_use.stored(hashes)
            self.cpu.free_blocks(event.cpu)
            self.gpu.free_blocks(event.gpu)
            for request in event.requests:
                stores = self._stores[request]
                stores.events.discard(number)
                if stores.finished and not stores.events:
                    del self._stores[request]

    def _tell_stored(self, gpu: list[int], hashes: list[int]) -> None:
        """One event per block; lazy stores know neither parent nor tokens."""
        if self.cpu.kv_events is None:
            return
        for block, content in zip(gpu, hashes, strict=True):
            parent = self._parents.pop(block, None)
            tokens: list[int] | None = [] if self.lazy else None
            self.cpu.kv_events.append(
                BlockStored(
                    [content], parent, tokens, self.block_size, None, CPU, None, group_idx=0,
                    kv_cache_spec_kind=FULL_ATTENTION, locality="LOCAL",
                )
            )  # fmt: skip

    def enable_kv_events(self) -> None:
        self.cpu.kv_events = KVEventLog(CPU, evicted_locality="LOCAL")

    def take_events(self) -> Sequence[KVCacheEvent]:
        return () if self.cpu.kv_events is None else self.cpu.kv_events.take()

    def has_pending_work(self) -> bool:
        return bool(self._finish_stores or self._events)

    # -- checking
    def gpu_holds(self) -> list[list[int]]:
        """GPU blocks that the connector references beside the requests."""
        return [
            *(gpu for _, gpu in self._loads.values()),
            *(event.gpu for event in self._events.values()),
            *(gpu for gpu, _ in self._finish_stores),
        ]

    def check(self, *, at_end: bool) -> None:
        self.cpu.check(
            [
                *self._pins.values(),
                *(cpu for cpu, _ in self._loads.values()),
                *(event.cpu for event in self._events.values()),
                *(cpu for _, cpu in self._finish_stores),
            ]
        )
        if at_end:
            assert not self._loads, "loads are still in flight"
            assert not self.has_pending_work(), "stores are still in flight"
            assert not self._pins, "CPU blocks are still pinned"


class SimpleCPUOffloadConnector023(SimpleCPUOffloadConnector):
    """0.23.0: nothing is stored at a request's end, nothing keeps the engine stepping, a full CPU is scanned for."""

    def _select(self, stores: _Stores, table: Sequence[int]) -> list[int]:
        return self._scan(stores, table)

    def request_finished(self, request: Request, table: list[int]) -> bool:
        self._forget(request, self._stores.get(request))
        return False

    def enable_kv_events(self) -> None:
        """0.23.0 publishes what the CPU loses as if the GPU had lost it, and not what it gains."""
        self.cpu.kv_events = KVEventLog(GPU)

    def _tell_stored(self, gpu: list[int], hashes: list[int]) -> None:
        """See `enable_kv_events`."""

    def has_pending_work(self) -> bool:
        return False

    def check(self, *, at_end: bool) -> None:
        """Stores that are in flight when the last request has ended stay so: nobody polls any more."""
        super().check(at_end=False)
