"""LMCache as a server of its own."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from kvsim.checked import Component, Misfit
from kvsim.config.fields import GIB, ON_LOAD_FAILURE, SECOND_NS, Count, KVLoadFailurePolicy, Text
from kvsim.config.synchronous import GB, US_NS
from kvsim.units import Duration, Rate, Size

Part = Annotated[float, Field(gt=0, le=1)]


class QuotaChange(Component):
    """A quota that is set while the server runs."""

    at: Duration = Field(description="when, from the start of the run")
    tenant: Text = Field(description="whose, one of trace.tenants")
    size: Size = Field(description="the new quota; 0 = keep nothing")


class LMCacheL2(Component):
    """The medium below the server's memory. Rates: a PCIe 4 NVMe disk in BLIS `defaults.yaml` (nvme_gen4)."""

    eviction_policy: Literal["noop", "LRU", "IsolatedLRU"] = Field(
        "noop",
        description="noop = nothing is evicted; LRU = beyond a part of max_size; IsolatedLRU = by tenant and quota",
    )
    max_size: Annotated[Size, Field(gt=0)] | None = Field(None, description="room, all ranks; null = unbounded")
    eviction_trigger_watermark: Part = Field(0.8, description="part of max_size, or of a quota, that triggers eviction")
    eviction_ratio: Part = Field(0.2, description="part of the chunks that is then evicted")
    quotas: dict[str, Size] = Field(
        default_factory=dict, description="IsolatedLRU: bytes of each tenant; a tenant without one keeps nothing"
    )
    quota_changes: list[QuotaChange] = Field(default_factory=list, description="IsolatedLRU: quotas set later")
    read_bandwidth: Annotated[Rate, Field(gt=0)] = Field(7 * GB, description="all ranks")
    write_bandwidth: Annotated[Rate, Field(gt=0)] = Field(5 * GB, description="all ranks")
    latency: Duration = Field(80 * US_NS, description="of each access")

    @model_validator(mode="after")
    def _fits(self) -> LMCacheL2:
        if self.eviction_policy == "LRU" and self.max_size is None:
            raise Misfit("max_size", "expected a size with eviction_policy LRU, found none")
        if self.eviction_policy != "IsolatedLRU" and (self.quotas or self.quota_changes):
            key = "quotas" if self.quotas else "quota_changes"
            raise Misfit(key, f"expected none with eviction_policy {self.eviction_policy}: only IsolatedLRU has quotas")
        times = [change.at for change in self.quota_changes]
        if times != sorted(times):
            raise Misfit("quota_changes", "expected changes in order of time")
        return self


class ServerRestart(Component):
    """The LMCache server ends and is started again."""

    at: Duration = Field(description="when it ends, from the start of the run")
    downtime: Annotated[Duration, Field(gt=0)] = Field(description="until it answers again")
    keep_cache: bool = Field(False, description="what it held (in memory and below) is still there")


class LMCacheMPConnectorConfig(Component):
    """LMCacheMPConnector with its server (`lmcache server`): the engine's own, or that of a node with several."""

    kind: Literal["lmcache_mp"] = Field("lmcache_mp", description="vLLM's LMCacheMPConnector")
    chunk_size: Count = Field(256, description="tokens of a chunk; a multiple of the GPU's block size")
    l1_size: Annotated[Size, Field(gt=0)] = Field(64 * GIB, description="the server's memory, all ranks (--l1-size-gb)")
    eviction_trigger_watermark: Part = Field(0.8, description="part of l1_size that triggers eviction")
    eviction_ratio: Part = Field(0.2, description="part of the chunks that is then evicted, once per second")
    kv_load_failure_policy: KVLoadFailurePolicy = Field("fail", description=ON_LOAD_FAILURE)
    save_decode_cache: bool = Field(False, description="keep generated tokens too")
    lookup_latency: Duration = Field(1_000 * US_NS, description="from asking the server to its answer (assumed)")
    heartbeat_interval: Annotated[Duration, Field(gt=0)] = Field(
        10 * SECOND_NS, description="pause between pings, and patience with each"
    )
    l2: LMCacheL2 | None = Field(None, description="a medium below the server's memory; null = none")
    restarts: list[ServerRestart] = Field(default_factory=list, description="when the server is restarted")

    @model_validator(mode="after")
    def _fits(self) -> LMCacheMPConnectorConfig:
        end = 0
        for restart in self.restarts:
            if restart.at < end:
                raise Misfit("restarts", "expected restarts in order of time, each after the end of the one before")
            end = restart.at + restart.downtime
        return self
