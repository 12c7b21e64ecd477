"""NIC profiles: how fast RDMA between servers is by message size, and where each number comes from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from kvsim.checked import Component, Misfit
from kvsim.profile import IsoDate, RateFigure, TimeFigure, assumed_figures
from kvsim.profile.figures import Source
from kvsim.profile.presets import Shelf
from kvsim.units import Size

Part = Annotated[float, Field(gt=0, le=1)]


class Efficiency(Component):
    """Part of the line rate that messages reach, by their size; linear in the logarithm of the size between two."""

    parts: dict[Size, Part] = Field(min_length=1, description="bytes of a message: part of the line rate; sizes rising")
    assumed: bool = Field(False, description="true if measured on other hardware, or not at all")
    source: Source = Field(description="where the numbers come from, or why they were assumed")

    @model_validator(mode="after")
    def _rising(self) -> Efficiency:
        sizes = list(self.parts)
        if sizes != sorted(sizes) or sizes[0] == 0:
            raise Misfit("parts", "expected rising sizes above 0")
        return self


class NicProfile(Component):
    """A NIC with the software that drives it."""

    name: str = Field(min_length=1, description="name of the profile")
    kind: Literal["shipped", "measured"] = Field(
        description="shipped = from public sources; measured = on this very machine"
    )
    device: str = Field(min_length=1, description="what it is")
    date: IsoDate = Field(description="when measured or collected, such as 2026-11-29")
    method: str = Field(min_length=1, description="how the numbers were got")
    bandwidth: RateFigure = Field(description="line rate of one NIC, in each direction")
    setup: TimeFigure = Field(description="from the submission of a transfer to its first byte, once per transfer")
    latency: TimeFigure = Field(description="one way through the fabric, of any message")
    efficiency: Efficiency = Field(description="part of the line rate that is reached, by message size")
    notes: list[str] = Field(default_factory=list, description="anything else worth knowing")

    def assumptions(self) -> list[str]:
        """One line for each number that nobody measured: its key and why it was assumed."""
        lines = [f"{key}: {source}" for key, source in assumed_figures(self)]
        return lines + ([f"efficiency: {self.efficiency.source}"] if self.efficiency.assumed else [])


NICS = Shelf("nic", NicProfile, "networks", ".nic.yaml")
load_nic, nic_names = NICS.load, NICS.names
