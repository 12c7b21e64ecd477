"""Secondary tiers: storage behind the CPU memory of an OffloadingConnector."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, Tag, model_validator

from kvsim.checked import Component, Misfit
from kvsim.config.custom import BY_KIND, CUSTOM, CustomTier
from kvsim.config.fields import Count, Name, Text
from kvsim.units import Duration, Rate, Size

Speed = Annotated[Rate, Field(gt=0)]


class _StorageTier(Component):
    """What a file system and an object store have in common."""

    name: Name | None = Field(None, description="name in results; null = its kind")
    read_bandwidth: Speed | None = Field(None, description="of the whole device; null = the storage profile's")
    write_bandwidth: Speed | None = Field(None, description="of the whole device; null = the storage profile's")
    latency: Duration | None = Field(None, description="before each chunk, both ways; null = the storage profile's")
    capacity: Annotated[Size, Field(gt=0)] | None = Field(None, description="space for KV; null = no limit")
    enable_kv_events: bool = Field(False, description="vLLM's enable_kv_events: publish what is stored here")
    eviction: Literal["none", "lru"] = Field(
        "none", description="what a full tier does: none = refuse, as vLLM, which never deletes a file; lru"
    )

    @model_validator(mode="after")
    def _fits(self) -> _StorageTier:
        if self.eviction != "none" and self.capacity is None:
            raise Misfit("eviction", f"expected a capacity with eviction {self.eviction}: without one nothing is full")
        return self


class FsTierConfig(_StorageTier):
    """vLLM's file system tier: a file per chunk, written and read by a pool of threads."""

    kind: Literal["fs"] = Field("fs", description="vLLM's file system tier")
    storage: Text = Field("nvme-gen4", description="storage profile: a preset's name or a path")
    n_read_threads: Count = Field(16, description="vLLM's n_read_threads: they take reads first")
    n_write_threads: Count = Field(16, description="vLLM's n_write_threads: they take writes first")


class ObjTierConfig(_StorageTier):
    """vLLM's object store tier: an object per chunk, moved by NIXL."""

    kind: Literal["obj"] = Field("obj", description="vLLM's object store tier")
    storage: Text = Field("s3", description="storage profile: a preset's name or a path")
    io_threads: Count = Field(4, description="vLLM's io_threads: objects that are moved at the same time")


class ExampleTierConfig(Component):
    """vLLM's example tier: unbounded, and every move is complete at once."""

    kind: Literal["example"] = Field("example", description="vLLM's example tier")
    name: Name | None = Field(None, description="name in results; null = its kind")


Tier = Annotated[
    Annotated[FsTierConfig, Tag("fs")]
    | Annotated[ObjTierConfig, Tag("obj")]
    | Annotated[ExampleTierConfig, Tag("example")]
    | Annotated[CustomTier, Tag(CUSTOM)],
    BY_KIND,
]


def _tier_list(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


Tiers = Annotated[tuple[Tier, ...], BeforeValidator(_tier_list)]


def tier_names(tiers: tuple[Tier, ...]) -> list[str]:
    """Their names in results: given, or the kind; numbered where several would be alike."""
    names: list[str] = []
    for tier in tiers:
        wanted = name = tier.name or tier.kind.rpartition(":")[2]
        number = 1
        while name in names or name in ("gpu", "cpu"):
            number += 1
            name = f"{wanted}{number}"
        names.append(name)
    return names
