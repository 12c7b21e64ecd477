"""Storage profiles: how fast a device is that keeps KV behind CPU memory, and where each number comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from kvsim.checked import Component, check, closest
from kvsim.errors import UserError
from kvsim.profile import Figure, IsoDate, RateFigure, TimeFigure, assumed_figures
from kvsim.units import Size
from kvsim.yamlfile import is_path, read_yaml

PRESETS = Path(__file__).parent / "presets" / "storage"
SUFFIX = ".storage.yaml"

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


def load_storage(name_or_path: str | Path) -> StorageProfile:
    """A shipped profile by its name, or any profile by its path.

    Raises:
        UserError: there is no such profile, or the file is not one.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or is_path(text):
        return check(StorageProfile, read_yaml(Path(text).expanduser()))
    if text not in storage_names():
        guess = closest(text, storage_names())
        hint = f", did you mean {guess}?" if guess else ""
        raise UserError(
            f"storage {text!r}: no such profile{hint} (expected a path ending in {SUFFIX} or one of "
            f"{', '.join(storage_names())})"
        )
    return check(StorageProfile, read_yaml(PRESETS / f"{text}{SUFFIX}"))


def storage_names() -> tuple[str, ...]:
    """Names of the shipped profiles, sorted."""
    return tuple(sorted(path.name.removesuffix(SUFFIX) for path in PRESETS.glob(f"*{SUFFIX}")))
