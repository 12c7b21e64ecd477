"""Where KV goes that leaves the GPU, and how long its copies take."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, Tag, model_validator

from kvsim.checked import Component, Misfit
from kvsim.config.admission import Admission, AlwaysAdmission
from kvsim.config.custom import BY_KIND, CUSTOM, ClassOptions, CustomConnector, name_or_class
from kvsim.config.fields import GIB, ON_LOAD_FAILURE, Count, KVLoadFailurePolicy, as_tuple
from kvsim.config.lmcache_mp import LMCacheMPConnectorConfig
from kvsim.config.remote import (
    DecodeBenchConnectorConfig,
    MooncakeConnectorConfig,
    NixlConnectorConfig,
    P2pNcclConnectorConfig,
)
from kvsim.config.store import MooncakeStoreConnectorConfig
from kvsim.config.synchronous import ExampleConnectorConfig, LMCacheConnectorConfig
from kvsim.config.tiers import Tiers
from kvsim.registry import POLICIES
from kvsim.units import Size


class NoConnector(Component):
    """No KV offloading."""

    kind: Literal["none"] = Field("none", description="no connector")


class OffloadingConnectorConfig(Component):
    """vLLM's OffloadingConnector: CPU memory, and perhaps storage behind it."""

    kind: Literal["offloading"] = Field("offloading", description="vLLM's OffloadingConnector")
    cpu_bytes_to_use: Annotated[Size, Field(gt=0)] = Field(
        description="CPU memory for KV, in total over all ranks of the engine, such as 64GiB"
    )
    eviction_policy: Annotated[str, name_or_class(*POLICIES.names())] = Field(
        "lru", description="which blocks leave CPU memory first: a name, or module_path:Class of your own"
    )
    eviction_policy_options: ClassOptions = Field(description="what the policy gets, see kvsim list policies")
    block_size_factor: Count = Field(1, description="GPU blocks in one offloaded block (vLLM: blocks_per_chunk)")
    block_size: Count | None = Field(
        None, description="the same in tokens, as in vLLM's connector config; null = by block_size_factor"
    )
    offload_prompt_only: bool = Field(True, description="keep generated tokens out of CPU memory")
    store_threshold: int = Field(
        0, ge=0, description="store a block only when it was offered so many times (2 or more); 0 = always"
    )
    admission: Admission = Field(
        AlwaysAdmission(), description="which blocks are stored at all: always, second_touch or min_length"
    )
    kv_layout: Literal["auto", "cross_layer", "per_layer_kv", "per_layer"] = Field(
        "auto",
        description="cross_layer = one copy per block (all layers together); per_layer_kv = one per block and layer;"
        " per_layer = one per block, layer and K or V; auto = as the release allocates KV",
    )
    kv_load_failure_policy: KVLoadFailurePolicy = Field("fail", description=ON_LOAD_FAILURE)

    tiers: Tiers = Field((), description="storage behind CPU memory, in the order in which it is asked")

    @model_validator(mode="after")
    def _fits(self) -> OffloadingConnectorConfig:
        if self.block_size is not None and self.block_size_factor != 1:
            raise Misfit("block_size", "expected block_size or block_size_factor, found both")
        if self.tiers and self.store_threshold:
            raise Misfit("store_threshold", f"expected 0 with tiers (vLLM refuses it), found {self.store_threshold}")
        if self.admission != AlwaysAdmission() and (self.tiers or self.store_threshold):
            other = "tiers" if self.tiers else "a store_threshold"
            raise Misfit("admission", f"expected always with {other}, found {self.admission.kind}")
        if self.store_threshold == 1:
            raise Misfit("store_threshold", "expected 0 (store always) or 2 and more, found 1, which filters nothing")
        return self


class SimpleCPUConnectorConfig(Component):
    """vLLM's SimpleCPUOffloadConnector: a second block pool in CPU memory."""

    kind: Literal["simple_cpu"] = Field("simple_cpu", description="vLLM's SimpleCPUOffloadConnector")
    cpu_bytes_to_use: Annotated[Size, Field(gt=0)] = Field(
        8 * GIB, description="CPU memory for KV, in total over all ranks of the server"
    )
    cpu_bytes_to_use_per_rank: Annotated[Size, Field(gt=0)] | None = Field(
        None, description="CPU memory for KV of each rank; wins over cpu_bytes_to_use"
    )
    lazy_offload: bool = Field(
        False, description="copy only what is about to be evicted from the GPU, instead of all that is computed"
    )
    coalesce: bool = Field(
        False, description="join blocks that are neighbours on both sides into one copy; no release does on CUDA"
    )
    max_batch_descriptors: int = Field(
        0, ge=0, description="vLLM's VLLM_KV_OFFLOAD_MAX_BATCH_DESCRIPTORS: copies in one call; 0 = no limit"
    )
    kv_load_failure_policy: KVLoadFailurePolicy = Field("fail", description=ON_LOAD_FAILURE)


class ProfileTransfer(Component):
    """KV copies take the time that the link profile says."""

    kind: Literal["profile"] = Field("profile", description="timed by the link profile")
    path: Literal["auto", "dma_batch", "dma_loop", "kernel"] = Field(
        "auto",
        description="dma_batch = one call per transfer; dma_loop = one call per descriptor (before CUDA 12.8);"
        " kernel = by SMs; auto = as the connector chooses for each transfer",
    )


class InstantTransfer(Component):
    """KV copies take no time: the upper bound of what offloading can give."""

    kind: Literal["instant"] = Field("instant", description="copies take no time")


Part = Annotated[
    Annotated[OffloadingConnectorConfig, Tag("offloading")]
    | Annotated[SimpleCPUConnectorConfig, Tag("simple_cpu")]
    | Annotated[ExampleConnectorConfig, Tag("example")]
    | Annotated[LMCacheConnectorConfig, Tag("lmcache")]
    | Annotated[LMCacheMPConnectorConfig, Tag("lmcache_mp")]
    | Annotated[MooncakeStoreConnectorConfig, Tag("mooncake_store")]
    | Annotated[NixlConnectorConfig, Tag("nixl")]
    | Annotated[MooncakeConnectorConfig, Tag("mooncake")],
    BY_KIND,
]


class MultiConnectorConfig(Component):
    """vLLM's MultiConnector: several connectors as one."""

    kind: Literal["multi"] = Field("multi", description="vLLM's MultiConnector")
    connectors: Annotated[tuple[Part, ...], BeforeValidator(as_tuple), Field(min_length=1)] = Field(
        description="in the order in which they are asked: the first that has tokens loads them, all of them store"
    )
    split: bool = Field(
        False,
        description="nixl and mooncake_store: a prefix that both have comes over both paths at once; vLLM does not",
    )
    kv_load_failure_policy: KVLoadFailurePolicy = Field("fail", description=ON_LOAD_FAILURE)

    @model_validator(mode="after")
    def _fits(self) -> MultiConnectorConfig:
        kinds = [part.kind for part in self.connectors]
        if self.split:
            nixl = next((part for part in self.connectors if isinstance(part, NixlConnectorConfig)), None)
            if sorted(kinds) != ["mooncake_store", "nixl"] or nixl is None:
                raise Misfit("split", f"expected the connectors nixl and mooncake_store, found {', '.join(kinds)}")
            if nixl.mode != "pull" or nixl.kv_buffer_device != "cuda":
                raise Misfit("split", "expected nixl with mode pull and kv_buffer_device cuda")
        twice = [kind for kind in kinds if kinds.count(kind) > 1]
        if twice:
            raise Misfit("connectors", f"expected each kind once, found {twice[0]} {kinds.count(twice[0])} times")
        for part in self.connectors:
            if getattr(part, "kv_load_failure_policy", "fail") != "fail":
                raise Misfit(
                    "connectors", f"{part.kind} has a kv_load_failure_policy, expected it beside connectors, for all"
                )
        return self


Connector = Annotated[
    Annotated[NoConnector, Tag("none")]
    | Annotated[OffloadingConnectorConfig, Tag("offloading")]
    | Annotated[SimpleCPUConnectorConfig, Tag("simple_cpu")]
    | Annotated[ExampleConnectorConfig, Tag("example")]
    | Annotated[LMCacheConnectorConfig, Tag("lmcache")]
    | Annotated[LMCacheMPConnectorConfig, Tag("lmcache_mp")]
    | Annotated[MooncakeStoreConnectorConfig, Tag("mooncake_store")]
    | Annotated[MultiConnectorConfig, Tag("multi")]
    | Annotated[NixlConnectorConfig, Tag("nixl")]
    | Annotated[MooncakeConnectorConfig, Tag("mooncake")]
    | Annotated[P2pNcclConnectorConfig, Tag("p2p_nccl")]
    | Annotated[DecodeBenchConnectorConfig, Tag("decode_bench")]
    | Annotated[CustomConnector, Tag(CUSTOM)],
    BY_KIND,
]
Transfer = Annotated[ProfileTransfer | InstantTransfer, Field(discriminator="kind")]
