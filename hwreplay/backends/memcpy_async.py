"""One cuMemcpyAsync per descriptor: what vLLM does where the driver has no batches."""

from __future__ import annotations

from hwreplay import cuda_machine
from hwreplay.backends.base import Batch, Direction
from hwreplay.cuda_machine import CudaMachine
from hwreplay.cuda_parts import CudaStream
from hwreplay.driver import Driver
from hwreplay.machine import Machine, Stream
from hwreplay.result import MachineKind, Way


class MemcpyAsync:
    """A loop of driver calls."""

    key = "memcpy_async"
    description = "cuMemcpyAsync, one call per descriptor"
    machine: MachineKind = "cuda"
    way: Way = "dma_loop"

    def available(self) -> str | None:
        return cuda_machine.missing()

    def open(self, machine: Machine) -> MemcpyAsyncCopier:
        assert isinstance(machine, CudaMachine)
        return MemcpyAsyncCopier(machine.driver)


class MemcpyAsyncCopier:
    """Calls in the order of the batch."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def copy(self, stream: Stream, direction: Direction, batch: Batch, *, ordered: bool = False) -> None:
        assert isinstance(stream, CudaStream)
        copy, handle = self._driver.memcpy_async, stream.handle
        for source, destination, size in zip(*(array.tolist() for array in batch), strict=True):
            copy(destination, source, size, handle)

    def close(self) -> None:
        pass
