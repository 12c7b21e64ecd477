"""One non-blocking copy of torch per descriptor: cudaMemcpyAsync with all that torch does around it."""

from __future__ import annotations

from hwreplay import cuda_machine
from hwreplay.backends.base import Batch, Direction
from hwreplay.cuda_machine import CudaMachine
from hwreplay.cuda_parts import CudaStream
from hwreplay.machine import Machine, Stream
from hwreplay.result import MachineKind, Way


class TorchCopies:
    """What one gets without leaving torch."""

    key = "torch"
    description = "non-blocking copies of torch, one per descriptor"
    machine: MachineKind = "cuda"
    way: Way = "dma_loop"

    def available(self) -> str | None:
        return cuda_machine.missing()

    def open(self, machine: Machine) -> TorchCopier:
        assert isinstance(machine, CudaMachine)
        return TorchCopier(machine)


class TorchCopier:
    """Looks the tensors up by address. Registered memory is as good as pinned to cudaMemcpyAsync."""

    def __init__(self, machine: CudaMachine) -> None:
        self._machine = machine

    def copy(self, stream: Stream, direction: Direction, batch: Batch, *, ordered: bool = False) -> None:
        assert isinstance(stream, CudaStream)
        tensor = self._machine.tensor
        with self._machine.torch.cuda.stream(stream.stream):
            for source, destination, size in zip(*(array.tolist() for array in batch), strict=True):
                tensor(destination, size).copy_(tensor(source, size), non_blocking=True)

    def close(self) -> None:
        pass
