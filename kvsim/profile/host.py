"""What it takes to make host memory ready for copies: figures of a Linux host, each with its source."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pydantic import Field

from kvsim.checked import Component, check
from kvsim.profile.figures import PartFigure, RateFigure, SizeFigure, TimeFigure
from kvsim.yamlfile import read_yaml

PRESET = Path(__file__).parents[1] / "presets" / "host.yaml"


class HostProfile(Component):
    """A host. There is one, shipped: nobody has published how hosts differ."""

    pin: TimeFigure = Field(description="time to register a GB (10**9 bytes) of populated memory with the driver")
    populate: RateFigure = Field(description="rate at which one thread faults pages in")
    populate_one_file: RateFigure = Field(description="rate of any number of threads on one file of shared memory")
    largest_registration: SizeFigure = Field(description="a single registration of so much or more fails")
    shm_part: PartFigure = Field(description="part of memory that /dev/shm may fill")


@cache
def load_host() -> HostProfile:
    """The shipped figures."""
    return check(HostProfile, read_yaml(PRESET))
