"""What a shared store's config means: sizes of its objects, what they are on the GPUs, and what to tell the user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kvsim.config import Connector, MooncakeStoreConnectorConfig, MultiConnectorConfig, RunConfig, StoreConfig
from kvsim.errors import UserError
from kvsim.results.records import ASSUMED
from kvsim.steptime.spec import ModelSpec
from kvsim.storage import StorageProfile, load_storage


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """What one block is in the store and on the GPUs; instances that share a store have the same.

    Attributes:
        object_bytes: all shards of a block, each once.
        block_tokens: tokens of it.
        descriptors: pieces of a block on one rank.
        message_bytes: of such a piece.
        readers: ranks that hold the same bytes.
    """

    object_bytes: int
    block_tokens: int
    descriptors: int
    message_bytes: int
    readers: int


class BlockSizes(Protocol):
    """Sizes of a block (`kvsim.resolve.KVSizes`)."""

    @property
    def block_tokens(self) -> int:
        """Tokens of a block."""
        ...

    @property
    def block_bytes(self) -> int:
        """One block on one rank."""
        ...

    @property
    def ranks(self) -> int:
        """Of the engine."""
        ...


def store_connector(connector: Connector) -> MooncakeStoreConnectorConfig | None:
    """The part of a connector that uses a shared store, if there is one."""
    parts = connector.connectors if isinstance(connector, MultiConnectorConfig) else (connector,)
    return next((part for part in parts if isinstance(part, MooncakeStoreConnectorConfig)), None)


def store_layout(model: ModelSpec, sizes: BlockSizes, layers: int) -> StoreLayout:
    """How blocks lie in the store.

    vLLM 0.33.0 mooncake/store/worker.py: ranks that hold the same bytes (_spec_tp_replication_factor: all of them with
    MLA, else as many as share a head) take turns in storing them, and each loads all of them; a layer's part of a block
    is one piece (register_kv_caches). All shards of a block are one object here, with one place.
    """
    heads = 1 if model.mla else min(group.kv_heads for group in model.groups if group.kind != "linear")
    readers = max(1, sizes.ranks // heads)
    return StoreLayout(
        object_bytes=sizes.block_bytes * sizes.ranks // readers,
        block_tokens=sizes.block_tokens,
        descriptors=layers,
        message_bytes=max(1, sizes.block_bytes // layers),
        readers=readers,
    )


def check_store(config: RunConfig, layout: StoreLayout) -> None:
    """Refuse what is not simulated, and what does not fit together.

    Raises:
        UserError: a store is missing, too small, or used by a release that has another one.
    """
    store = config.cluster.store if config.cluster is not None else None
    if store is not None and store.memory_per_node < layout.object_bytes:
        raise UserError(
            f"cluster.store.memory_per_node: {store.memory_per_node} B: a block takes {layout.object_bytes} B,"
            " expected room for at least one"
        )
    if store is not None and 0 < store.disk_per_node < layout.object_bytes:
        raise UserError(
            f"cluster.store.disk_per_node: {store.disk_per_node} B: a block takes {layout.object_bytes} B,"
            " expected room for at least one, or 0"
        )
    if store is not None:
        disk_of(store)
        _check_quotas(store, layout)
    connector = store_connector(config.connector)
    if connector is None:
        return
    if store is None:
        raise UserError("connector.kind: mooncake_store: expected a store: cluster.store, with cluster.instances")
    if config.engine.vllm_version != "0.33.0":
        raise UserError(
            f"connector.kind: mooncake_store: expected engine.vllm_version 0.33.0, found {config.engine.vllm_version}:"
            " the connector of other releases is not simulated"
        )
    if connector.role == "consumer" and not connector.enable_lookup and not connector.save_decode_cache:
        raise UserError(
            "connector.role: consumer: it neither looks anything up nor saves anything: expected enable_lookup,"
            " save_decode_cache or another role"
        )


def _check_quotas(store: StoreConfig, layout: StoreLayout) -> None:
    """A quota is nothing at all, or room for a block with its copies; names are `check_tenants`'s business."""
    for name, size in store.quotas.items():
        if 0 < size < layout.object_bytes:
            raise UserError(
                f"cluster.store.quotas.{name}: {size} B: a block takes {layout.object_bytes} B, expected room for at"
                " least one, or 0 (keep nothing)"
            )


def disk_of(store: StoreConfig) -> StorageProfile | None:
    """The disks behind its memory, if it has some.

    Raises:
        UserError: there is no such profile.
    """
    if not store.disk_per_node:
        return None
    try:
        return load_storage(store.disk)
    except UserError as error:
        raise UserError(f"cluster.store.disk: {error}") from None


def store_notes(config: RunConfig, layout: StoreLayout) -> list[str]:
    """What a reader of the results has to know about the store."""
    store = config.cluster.store if config.cluster is not None else None
    if store is None or store_connector(config.connector) is None:
        return []
    objects, size = store.memory_per_node // layout.object_bytes, layout.object_bytes
    room = f"store: {objects:,} blocks of {layout.block_tokens} tokens ({size:,} B) per node"
    notes = [
        f"{room}; all shards of a block lie on one node",
        f"{ASSUMED}rpc_latency and key_time of the store's master, descriptor_time of the I/O threads",
    ]
    if store.quotas:
        quotas = ", ".join(f"{name} {size / 2**30:,.1f} GiB" for name, size in store.quotas.items())
        notes.append(f"store: quotas of {quotas}; Mooncake has them, vLLM's connector tells it no tenant so far")
    if layout.readers > 1:
        notes.append(f"store: {layout.readers} ranks hold the same KV: it is stored once, and each of them loads it")
    disk = disk_of(store)
    if disk is not None:
        notes += [f"{ASSUMED}store disk, {disk.name} {line}" for line in disk.assumptions()]
        notes.append(f"{ASSUMED}nodes begin to write to disk at once; Mooncake's clients look every few seconds")
    return notes


def check_one_layout(layouts: dict[str, StoreLayout]) -> None:
    """Instances that share a store must mean the same by a block.

    Args:
        layouts: of each group that uses it.

    Raises:
        UserError: they don't.
    """
    first, *others = layouts.items()
    for name, layout in others:
        for key in ("block_tokens", "object_bytes"):
            mine, theirs = getattr(first[1], key), getattr(layout, key)
            if mine != theirs:
                raise UserError(
                    f"cluster.store: groups {first[0]} and {name} have blocks of {mine:,} and {theirs:,}"
                    f" {'tokens' if key == 'block_tokens' else 'B'}, expected the same: they share their blocks"
                )
