"""The network between the instances of a cluster."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from kvsim.checked import Component
from kvsim.config.fields import Text
from kvsim.units import Duration, Rate


class NetworkConfig(Component):
    """NICs of each instance and the fabric between them."""

    nic: Text = Field("cx7-400g", description="NIC profile: a preset's name or a path")
    nics_per_gpu: Annotated[float, Field(gt=0)] = Field(
        1.0, description="NICs per GPU of an instance; at least one NIC"
    )
    oversubscription: Annotated[float, Field(ge=1)] = Field(
        1.0, description="bandwidth of all NICs over that of the fabric's core; 1 = the core never limits"
    )
    bandwidth: Annotated[Rate, Field(gt=0)] | None = Field(None, description="of a NIC, each way; null = the profile's")
    setup: Duration | None = Field(None, description="before the first byte of a transfer; null = the profile's")
    latency: Duration | None = Field(None, description="one way through the fabric; null = the profile's")
