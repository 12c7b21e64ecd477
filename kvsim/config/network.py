"""The network between the instances of a cluster."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from kvsim.checked import Component
from kvsim.config.fields import Count, Text
from kvsim.units import Duration, Rate


class NetworkConfig(Component):
    """NICs of the instances and the fabric between them."""

    nic: Text = Field("cx7-400g", description="NIC profile: a preset's name or a path")
    nics_per_gpu: Count = Field(1, description="NICs for each GPU of an instance")
    oversubscription: Annotated[float, Field(ge=1)] = Field(
        1.0, description="bandwidth of all instances together, as a multiple of that of the fabric's core; 1 = no core"
    )
    latency: Duration | None = Field(None, description="one way through the fabric; null = the NIC profile's")
    setup: Duration | None = Field(None, description="before the first byte of a transfer; null = the NIC profile's")
    bandwidth: Annotated[Rate, Field(gt=0)] | None = Field(
        None, description="line rate of a NIC, each way; null = the NIC profile's"
    )
