"""Connectors that load and save inside the forward pass."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from kvsim.checked import Component, Misfit
from kvsim.config.fields import GIB, Count
from kvsim.units import Duration, Rate, Size

GB = 10**9
US_NS = 1_000


class ExampleConnectorConfig(Component):
    """vLLM's ExampleConnector: whole prompts as files on shared storage, loaded and saved while the GPU waits.

    The defaults are those of a PCIe 4 NVMe disk in BLIS `defaults.yaml` (nvme_gen4), assumed for a file system.
    """

    kind: Literal["example"] = Field("example", description="vLLM's ExampleConnector (SharedStorageConnector)")
    read_bandwidth: Annotated[Rate, Field(gt=0)] = Field(7 * GB, description="of the shared storage, all ranks")
    write_bandwidth: Annotated[Rate, Field(gt=0)] = Field(5 * GB, description="of the shared storage, all ranks")
    latency: Duration = Field(80 * US_NS, description="of each file; there is one per prompt and layer")


class LMCacheDisk(Component):
    """LMCache's LocalDiskBackend. Rates: a PCIe 4 NVMe disk in BLIS `defaults.yaml` (nvme_gen4)."""

    max_local_disk_size: Annotated[Size, Field(gt=0)] = Field(description="room on the disk, for each rank")
    read_bandwidth: Annotated[Rate, Field(gt=0)] = Field(7 * GB, description="of the disk, shared by all ranks")
    write_bandwidth: Annotated[Rate, Field(gt=0)] = Field(5 * GB, description="of the disk, shared by all ranks")
    latency: Duration = Field(80 * US_NS, description="of each access")


class LMCacheRemote(Component):
    """LMCache's RemoteBackend: unbounded. Rates: an S3 store in BLIS `defaults.yaml` (s3)."""

    read_bandwidth: Annotated[Rate, Field(gt=0)] = Field(1 * GB, description="of the store, all ranks")
    write_bandwidth: Annotated[Rate, Field(gt=0)] = Field(1 * GB, description="of the store, all ranks")
    latency: Duration = Field(30_000 * US_NS, description="of each access")


class LMCacheConnectorConfig(Component):
    """LMCacheConnectorV1: LMCache inside the engine. Names are LMCache's."""

    kind: Literal["lmcache"] = Field("lmcache", description="vLLM's LMCacheConnectorV1")
    chunk_size: Count = Field(256, description="tokens of a chunk; a multiple of the GPU's block size")
    max_local_cpu_size: Annotated[Size, Field(gt=0)] = Field(5 * GIB, description="CPU memory for KV of each rank")
    local_disk: LMCacheDisk | None = Field(None, description="a second copy on a disk; null = none")
    remote: LMCacheRemote | None = Field(None, description="a further copy in a remote store; null = none")
    use_layerwise: bool = Field(False, description="load and save layer by layer; needs piecewise CUDA graphs")
    # 4.7 us: vllm#51167, H200, 58 layers: 274 us between full and piecewise CUDA graphs, per decode step.
    piecewise_launch: Duration = Field(
        4_700, description="with use_layerwise, what each layer adds to a step that only decodes"
    )
    save_decode_cache: bool = Field(False, description="keep generated tokens too")
    min_retrieve_tokens: int = Field(0, ge=0, description="smaller loads are not made; 0 = no limit")

    @model_validator(mode="after")
    def _fits(self) -> LMCacheConnectorConfig:
        if self.use_layerwise and (self.local_disk or self.remote):
            raise Misfit("use_layerwise", "expected false with local_disk or remote: chunks must be in one place")
        return self
