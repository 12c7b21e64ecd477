"""Our own CUDA C++ kernel (copy_kernel.cu), compiled for this GPU when the backend is opened."""

from __future__ import annotations

from pathlib import Path

from hwreplay import cuda_machine, nvrtc
from hwreplay.backends.base import Batch, Direction
from hwreplay.backends.kernels import PROGRAMS, descriptors_on_gpu
from hwreplay.cuda_machine import CudaMachine
from hwreplay.cuda_parts import CudaStream
from hwreplay.machine import Machine, Stream
from hwreplay.result import MachineKind, Way

SOURCE = Path(__file__).with_name("copy_kernel.cu")
NAME = "hwreplay_copy"
THREADS = 512


class CudaKernel:
    """Words of 16 bytes where both addresses allow it, tails of any size."""

    key = "cuda"
    description = "own CUDA C++ kernel, 16-byte words, compiled at run time"
    machine: MachineKind = "cuda"
    way: Way = "kernel"

    def available(self) -> str | None:
        why = cuda_machine.missing()
        if why is not None:
            return why
        return None if nvrtc.library() is not None else "NVRTC is not installed"

    def open(self, machine: Machine) -> CudaKernelCopier:
        assert isinstance(machine, CudaMachine)
        return CudaKernelCopier(machine)


class CudaKernelCopier:
    """Launches on the driver's stream."""

    def __init__(self, machine: CudaMachine) -> None:
        self._machine = machine
        image = nvrtc.compile_cubin(SOURCE.read_text(encoding="utf-8"), SOURCE.name, machine.architecture)
        self._module, self._function = machine.driver.load_kernel(image, NAME)

    def copy(self, stream: Stream, direction: Direction, batch: Batch, *, ordered: bool = False) -> None:
        assert isinstance(stream, CudaStream)
        count = len(batch.sizes)
        if not count:
            return
        with self._machine.torch.cuda.stream(stream.stream):
            found = descriptors_on_gpu(self._machine, batch)
            pointers = [int(found[row].data_ptr()) for row in range(3)]
            self._machine.driver.launch(self._function, min(PROGRAMS, count), THREADS, stream.handle, *pointers, count)

    def close(self) -> None:
        self._machine.synchronize()
        self._machine.driver.unload(self._module)
