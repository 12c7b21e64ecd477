"""KV events: what a pool or tier tells routers about the blocks that it has gained and lost, as vLLM publishes them.

Names, fields and order are those of vLLM 0.33.0 distributed/kv_events.py. Each pool or tier keeps a log of its own;
after every step the engine takes the GPU's, then the connector's, and what there is becomes one batch.

A block hash is a number here, equal exactly where vLLM's hashes are equal. ``token_ids`` is null where vLLM lists the
tokens (a trace has none), and empty where vLLM leaves it empty.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, TextIO

NS = 10**9
GPU, CPU, STORAGE = "GPU", "CPU", "STORAGE"  # media
SHARED_STORE = "cpu"  # as vLLM's MooncakeStoreConnector spells the medium of what all instances can load
FULL_ATTENTION = "full_attention"


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Blocks that can be hit from now on, each behind the one before it, the first behind the parent."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int] | None
    block_size: int
    lora_id: int | None
    medium: str
    lora_name: str | None
    extra_keys: list[None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """Blocks that are lost there. Copies elsewhere are not: vLLM says so of each copy of a content that is evicted."""

    block_hashes: list[int]
    medium: str
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The prefix cache was reset."""


KVCacheEvent = BlockStored | BlockRemoved | AllBlocksCleared
_OPTIONAL = (
    "extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window", "locality", "ownership",
)  # fmt: skip


class KVEventLog:
    """Events of one pool or tier that nobody has taken yet.

    ``num_groups``: KV cache groups over the pool, whose contents are numbered ``hash * num_groups + group``.
    """

    def __init__(self, medium: str, evicted_locality: str | None = None, num_groups: int = 1) -> None:
        self.medium, self._evicted_locality, self._num_groups = medium, evicted_locality, num_groups
        self._events: list[KVCacheEvent] = []

    def cached(self, hashes: Sequence[int], first: int, last: int, block_size: int, group: int = 0) -> None:
        """A request's blocks ``first .. last-1`` got their hash (v1/core/block_pool.py, cache_full_blocks)."""
        new, parent = list(hashes[first:last]), hashes[first - 1] if first else None
        self._events.append(
            BlockStored(
                new, parent, None, block_size, None, self.medium, None, [None] * len(new), group, FULL_ATTENTION
            )
        )

    def cached_in_group(
        self, hashes: list[int], parent: int | None, block_size: int, group: int, kind: str, window: int | None
    ) -> None:
        """Those of a request's blocks in one of several groups that can be hit got their hash."""
        event = BlockStored(
            hashes, parent, None, block_size, None, self.medium, None, [None] * len(hashes), group, kind, window
        )
        self._events.append(event)

    def evicted(self, content: int) -> None:
        """A block of the pool was handed out again (v1/core/block_pool.py: one event per block)."""
        content, group = divmod(content, self._num_groups)
        self._events.append(BlockRemoved([content], self.medium, group, self._evicted_locality))

    def append(self, event: KVCacheEvent) -> None:
        """Any other event."""
        self._events.append(event)

    def take(self) -> list[KVCacheEvent]:
        """All events since the last call."""
        events, self._events = self._events, []
        return events


class OffloadEventLog(KVEventLog):
    """Of an offloading tier: chunks by the hash of their last block, without parent, tokens or size.

    vLLM names chunks that are stored together in the order of a Python set, here they stand in the request's order.
    Rules: vLLM 0.33.0 v1/offloading/events.py without ``self_describing_kv_events``: one event per stored chunk, one
    for all chunks that are evicted together.
    """

    def stored(self, keys: Sequence[int]) -> None:
        """Chunks are readable."""
        for key in keys:
            self.append(BlockStored([key], None, [], 0, None, self.medium, None, group_idx=0))

    def removed(self, keys: Sequence[int]) -> None:
        """Chunks were evicted to make room."""
        if keys:
            self.append(BlockRemoved(list(keys), self.medium, group_idx=0))


class OffloadEventLog023(OffloadEventLog):
    """0.23.0: chunks that are stored together are one event, and no group is named."""

    def stored(self, keys: Sequence[int]) -> None:
        """Chunks are readable."""
        if keys:
            self.append(BlockStored(list(keys), None, [], 0, None, self.medium, None))

    def removed(self, keys: Sequence[int]) -> None:
        """Chunks were evicted to make room."""
        if keys:
            self.append(BlockRemoved(list(keys), self.medium))


class StoreEventLog(KVEventLog):
    """Of a store that instances share: what this instance has written there, block by block.

    Rules: vLLM 0.33.0 mooncake/store/worker.py (KVCacheStoreSendingThread._handle_request): an event for each block
    when all of its shards are there, in a medium spelt ``cpu``; what the store drops is never told.
    """

    def __init__(self) -> None:
        super().__init__(SHARED_STORE)

    def stored(self, hashes: Sequence[int], places: Sequence[int], block_size: int) -> None:
        """These of a request's blocks have been written."""
        for place in places:
            parent = hashes[place - 1] if place else None
            self.append(BlockStored([hashes[place]], parent, None, block_size, None, self.medium, None, group_idx=0))


KVEventListener = Callable[[int, Sequence[KVCacheEvent]], None]
"""Is told of the events of a step: when (ns), and which, in order."""


class KVEventPublisher:
    """Takes the events of an engine after each step, and tells them to all who listen.

    Args:
        sources: what to take after a step, in this order.
        listeners: to be told, if there is anything.
    """

    def __init__(
        self, sources: Sequence[Callable[[], Sequence[KVCacheEvent]]], listeners: Sequence[KVEventListener]
    ) -> None:
        self._sources, self._listeners = sources, listeners

    def publish(self, now_ns: int) -> None:
        """Tell what has happened in the step that ends now, if anything (vLLM: at the end of update_from_output)."""
        events = [event for source in self._sources for event in source()]
        if events:
            for listener in self._listeners:
                listener(now_ns, events)


class KVEventWriter:
    """Batches as JSON lines, in the fields of vLLM's KVEventBatch; ``ts`` is simulated time in seconds.

    Args:
        rank: data-parallel rank that publishes.
        instance: of a cluster, that publishes; vLLM tells instances apart by their sockets.
    """

    def __init__(self, file: TextIO, rank: int = 0, instance: str = "") -> None:
        self._file, self._rank, self._instance = file, rank, instance

    def __call__(self, now_ns: int, events: Sequence[KVCacheEvent]) -> None:
        """See `KVEventListener`."""
        batch: dict[str, Any] = {"ts": now_ns / NS, "events": [as_dict(event) for event in events]}
        batch["data_parallel_rank"] = self._rank
        if self._instance:
            batch["instance"] = self._instance
        self._file.write(json.dumps(batch, separators=(",", ":")) + "\n")


def as_dict(event: KVCacheEvent) -> dict[str, Any]:
    """As vLLM's JSON has it: the class in ``type``, optional fields only where they say something."""
    values = {field.name: getattr(event, field.name) for field in fields(event)}
    said = {name: value for name, value in values.items() if value is not None or name not in _OPTIONAL}
    return {"type": type(event).__name__, **said}
