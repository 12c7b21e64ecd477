"""A Triton kernel on a few SMs that reads a list of addresses: vLLM's way for small host-to-device copies."""

from __future__ import annotations

from importlib.util import find_spec

from hwreplay import cuda_machine
from hwreplay.backends.base import Batch, Direction
from hwreplay.backends.kernels import PROGRAMS, descriptors_on_gpu
from hwreplay.cuda_machine import CudaMachine
from hwreplay.cuda_parts import CudaStream
from hwreplay.machine import Machine, Stream
from hwreplay.result import MachineKind, Way

WORDS = 4096  # of 64 bits that a program has in flight: 32 KiB
WARPS = 16


class TritonKernel:
    """Words of 64 bits, both directions; addresses must be multiples of 8."""

    key = "triton"
    description = "Triton kernel, an address list, few programs"
    machine: MachineKind = "cuda"
    way: Way = "kernel"

    def available(self) -> str | None:
        why = cuda_machine.missing()
        if why is not None:
            return why
        return None if find_spec("triton") is not None else "triton is not installed"

    def open(self, machine: Machine) -> TritonCopier:
        assert isinstance(machine, CudaMachine)
        return TritonCopier(machine)


class TritonCopier:
    """Compiles at its first copy."""

    def __init__(self, machine: CudaMachine) -> None:
        from hwreplay.backends.triton_source import copy_descriptors

        self._machine = machine
        self._kernel = copy_descriptors

    def copy(self, stream: Stream, direction: Direction, batch: Batch, *, ordered: bool = False) -> None:
        assert isinstance(stream, CudaStream)
        count = len(batch.sizes)
        if not count:
            return
        with self._machine.torch.cuda.stream(stream.stream):
            found = descriptors_on_gpu(self._machine, batch)
            grid = (min(PROGRAMS, count),)
            self._kernel[grid](found[0], found[1], found[2], count, WORDS=WORDS, num_warps=WARPS)

    def close(self) -> None:
        pass
