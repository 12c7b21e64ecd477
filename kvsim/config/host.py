"""The host's memory, as far as KV in it is concerned."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kvsim.checked import Component
from kvsim.units import Size


class HostConfig(Component):
    """Host memory that holds KV."""

    memory: Annotated[Size, Field(gt=0)] | None = Field(
        None, description="memory of the host; null = not known, then nothing is checked against it"
    )
    numa: Literal["local", "remote"] = Field(
        "local", description="whose memory holds the KV: the GPU's own socket's, or another's"
    )
    pinned: bool = Field(
        True, description="false = registering it with the driver fails (memory limit of a container, say)"
    )
    startup: bool = Field(False, description="requests wait until the memory is populated and pinned")
