"""A store of KV blocks that all instances of a cluster share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kvsim.checked import Component
from kvsim.config.fields import ON_LOAD_FAILURE, SECOND_NS, Count, KVLoadFailurePolicy, Text
from kvsim.config.synchronous import US_NS
from kvsim.units import Duration, Size

Part = Annotated[float, Field(gt=0, le=1)]


class StoreConfig(Component):
    """Mooncake Store: a master, and memory and disks of the instances' nodes; an instance is one node."""

    kind: Literal["mooncake"] = Field("mooncake", description="Mooncake Store")
    memory_per_node: Annotated[Size, Field(gt=0)] = Field(
        description="memory that each instance's node lends (global_segment_size of all its ranks)"
    )
    disk_per_node: Size = Field(0, description="disk that each node lends behind its memory; 0 = none (enable_offload)")
    disk: Text = Field("nvme-gen4", description="storage profile of those disks: a preset's name or a path")
    disk_path: Literal["local", "shared"] = Field(
        "local",
        description="local = a disk for each node, read through its owner's staging buffer (LOCAL_DISK);"
        " shared = one file system of all nodes, as fast as a whole as the profile says, read into the loading"
        " instance's memory and copied up from there (DISK)",
    )
    placement: Literal["random", "local"] = Field(
        "random", description="where new blocks go: any node, or the writer's first (preferred_segment)"
    )
    replicas: Count = Field(1, description="copies of each block in memory, on different nodes (replica_num)")
    lease_ttl: Annotated[Duration, Field(gt=0)] = Field(
        5 * SECOND_NS, description="how long a block that was looked up is kept (--default_kv_lease_ttl)"
    )
    eviction_high_watermark_ratio: Part = Field(0.95, description="part of all memory that triggers eviction")
    eviction_ratio: Part = Field(0.05, description="part of the blocks that is then evicted")
    client_ttl: Annotated[Duration, Field(gt=0)] = Field(
        10 * SECOND_NS, description="after that a node that has failed is given up (--client_ttl)"
    )
    quotas: dict[Text, Size] = Field(
        default_factory=dict,
        description="memory of all nodes that a tenant's KV may take, such as alice: 100GiB; a tenant over its quota"
        " drops its own KV only, one without shares what is left (Mooncake's tenant quotas)",
    )
    rpc_latency: Duration = Field(100 * US_NS, description="a question to the master and its answer (assumed)")
    key_time: Duration = Field(1 * US_NS, description="of each block that is asked for (assumed)")


class MooncakeStoreConnectorConfig(Component):
    """vLLM's MooncakeStoreConnector; the store itself is cluster.store."""

    kind: Literal["mooncake_store"] = Field("mooncake_store", description="vLLM's MooncakeStoreConnector")
    role: Literal["both", "producer", "consumer"] = Field("both", description="kv_role: a consumer saves no prompts")
    save_decode_cache: bool = Field(False, description="save generated tokens too")
    enable_lookup: bool = Field(True, description="look for prefixes in the store, and load them")
    lookup_async: bool = Field(False, description="look in the background, instead of holding the scheduler up")
    load_recv_threads: Count = Field(1, description="vLLM's VLLM_MOONCAKE_LOAD_RECV_THREADS: loads at the same time")
    descriptor_time: Duration = Field(
        1 * US_NS, description="of the I/O thread for each piece of a block it moves, before the bytes (assumed)"
    )
    kv_load_failure_policy: KVLoadFailurePolicy = Field("fail", description=ON_LOAD_FAILURE)
