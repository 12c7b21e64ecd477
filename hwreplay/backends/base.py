"""What a backend is: a key, what it measures, whether it can run here, and copies of a batch on a stream."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

from hwreplay.layout import Addresses
from hwreplay.machine import Machine, Stream
from hwreplay.result import MachineKind, Way

Direction = Literal["h2d", "d2h"]
"""Host to device (loads) or device to host (stores)."""


class Batch(NamedTuple):
    """Descriptors of one job, uint64 arrays of the same length. No two may overlap."""

    sources: Addresses
    destinations: Addresses
    sizes: Addresses


class Copier(Protocol):
    """A backend at work on one machine."""

    def copy(self, stream: Stream, direction: Direction, batch: Batch, *, ordered: bool = False) -> None:
        """Queue all copies of a batch on a stream; returns before they are done. An empty batch queues nothing.

        ``ordered``: what comes before on the stream writes the sources (of stores that is always so).
        """

    def close(self) -> None:
        """Give back what it holds."""


class Backend(Protocol):
    """One way to copy."""

    key: str
    description: str
    machine: MachineKind
    way: Way

    def available(self) -> str | None:
        """None if it can run here, else why not, in a few words."""

    def open(self, machine: Machine) -> Copier:
        """Get ready to copy on a machine of the right kind."""
