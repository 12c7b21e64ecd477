"""Storage profiles: how fast a device is that keeps KV behind CPU memory, and where each number comes from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kvsim.checked import Component
from kvsim.profile import Figure, IsoDate, RateFigure, TimeFigure, assumed_figures
from kvsim.profile.presets import Shelf
from kvsim.units import Size

CountFigure = Figure[Annotated[int, Field(ge=1)]]


class StoragePath(Component):
    """One direction of a device. Reads and writes share it: the time that one takes is missing to the other."""

    bandwidth: RateFigure = Field(description="of the whole device")
    stream: RateFigure | None = Field(None, description="that one thread or connection can reach; null = all of it")
    latency: TimeFigure = Field(description="before the first byte of every chunk")
    iops: CountFigure | None = Field(None, description="operations per second of the whole device; null = no limit")


class StorageProfile(Component):
    """A device, or a service on the network."""

    name: str = Field(min_length=1, description="name of the profile")
    kind: Literal["shipped", "measured"] = Field(
        description="shipped = from public sources; measured = on this very machine"
    )
    device: str = Field(min_length=1, description="what it is")
    date: IsoDate = Field(description="when measured or collected, such as 2026-11-29")
    method: str = Field(min_length=1, description="how the numbers were got")
    locality: Literal["local", "remote"] = Field(description="in the server, or behind its network")
    read: StoragePath = Field(description="from the device")
    write: StoragePath = Field(description="to the device")
    operation: Size = Field(128 * 1024, gt=0, description="bytes of one operation, where iops limit")
    exists: TimeFigure = Field(description="time to find out whether one chunk is there")
    parallel_exists: bool = Field(False, description="whether all of a batch are asked at once")
    notes: list[str] = Field(default_factory=list, description="anything else worth knowing")

    def lookup_ns(self, chunks: int) -> int:
        """Time of a batch of existence checks."""
        return self.exists.used * (1 if self.parallel_exists else chunks)

    def assumptions(self) -> list[str]:
        """One line for each number that nobody measured: its key and why it was assumed."""
        return [f"{key}: {source}" for key, source in assumed_figures(self)]


STORAGE = Shelf("storage", StorageProfile, "storage", ".storage.yaml")
load_storage, storage_names = STORAGE.load, STORAGE.names
