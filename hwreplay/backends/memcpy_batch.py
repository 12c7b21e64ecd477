"""One cuMemcpyBatchAsync per job: vLLM's way since 0.19 with CUDA 12.8."""

from __future__ import annotations

from typing import Literal

from hwreplay import cuda_machine
from hwreplay.backends.base import Batch, Direction
from hwreplay.cuda_machine import CudaMachine
from hwreplay.cuda_parts import CudaStream
from hwreplay.driver import Driver, load_driver
from hwreplay.machine import Machine, Stream
from hwreplay.result import MachineKind, Way


class MemcpyBatch:
    """Sources of stores are read in stream order, those of loads at any time: nobody writes them meanwhile."""

    key = "memcpy_batch"
    description = "cuMemcpyBatchAsync, one call per job"
    machine: MachineKind = "cuda"
    way: Way = "dma_batch"

    def available(self) -> str | None:
        why = cuda_machine.missing()
        if why is not None:
            return why
        return None if load_driver().has_batch() else "the driver is older than CUDA 12.8"

    def open(self, machine: Machine) -> MemcpyBatchCopier:
        assert isinstance(machine, CudaMachine)
        return MemcpyBatchCopier(machine.driver)


class MemcpyBatchCopier:
    """One call; the driver has read its arrays when that returns."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def copy(self, stream: Stream, direction: Direction, batch: Batch, *, ordered: bool = False) -> None:
        assert isinstance(stream, CudaStream)
        order: Literal["stream", "any"] = "stream" if direction == "d2h" or ordered else "any"
        self._driver.memcpy_batch(batch.destinations, batch.sources, batch.sizes, order, stream.handle)

    def close(self) -> None:
        pass
