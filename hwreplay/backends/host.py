"""Copies between two regions of host memory by a thread per direction: runs everywhere, measures no GPU."""

from __future__ import annotations

from hwreplay.backends.base import Batch, Direction
from hwreplay.host_machine import HostMachine, HostStream
from hwreplay.machine import Machine, Stream
from hwreplay.native import CopyLoop, copy_loop
from hwreplay.result import MachineKind, Way


class HostBackend:
    """One memcpy per descriptor, all of a batch in one call that does not hold Python's lock."""

    key = "host"
    description = "memcpy by a thread per direction, no GPU"
    machine: MachineKind = "host"
    way: Way = "dma_batch"

    def available(self) -> str | None:
        return None

    def open(self, machine: Machine) -> HostCopier:
        assert isinstance(machine, HostMachine)
        loop, word = copy_loop()
        if word == "python":
            machine.notes.append("no C compiler: copies are made by a loop in Python")
        return HostCopier(loop)


class HostCopier:
    """Queues the copy loop on a host stream."""

    def __init__(self, loop: CopyLoop) -> None:
        self._loop = loop

    def copy(self, stream: Stream, direction: Direction, batch: Batch, *, ordered: bool = False) -> None:
        assert isinstance(stream, HostStream)
        if len(batch.sizes):
            stream.enqueue(lambda: self._loop(batch.destinations, batch.sources, batch.sizes)[1])

    def close(self) -> None:
        pass
