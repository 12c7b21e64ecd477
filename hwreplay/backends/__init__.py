"""Ways to copy a batch of descriptors, one file each; all behind the same few lines.

To add one: a class with `Backend`'s fields and methods in a module of its own, and its place in `REGISTRY`.
"""

from __future__ import annotations

from importlib import import_module

from hwreplay.backends.base import Backend
from kvsim.checked import closest
from kvsim.errors import UserError

REGISTRY: dict[str, str] = {
    "host": "hwreplay.backends.host:HostBackend",
    "torch": "hwreplay.backends.torch_copies:TorchCopies",
    "memcpy_async": "hwreplay.backends.memcpy_async:MemcpyAsync",
    "memcpy_batch": "hwreplay.backends.memcpy_batch:MemcpyBatch",
    "triton": "hwreplay.backends.triton_kernel:TritonKernel",
    "cuda": "hwreplay.backends.cuda_kernel:CudaKernel",
}
"""Key to ``module:Class``; a module is imported when its backend is asked for."""


def backend(key: str) -> Backend:
    """The backend of a key.

    Raises:
        UserError: there is none.
    """
    if key not in REGISTRY:
        guess = closest(key, REGISTRY)
        tail = f", did you mean {guess}?" if guess else ""
        raise UserError(f"--backend: expected one of {', '.join(REGISTRY)}, found {key!r:.40}{tail}")
    module, _, name = REGISTRY[key].partition(":")
    made: Backend = getattr(import_module(module), name)()
    return made


def all_backends() -> list[Backend]:
    """One of each, in the registry's order."""
    return [backend(key) for key in REGISTRY]
