"""The few calls of the CUDA driver that torch does not have: batched copies, registration of host memory, own kernels.

Through ctypes, which gives up the GIL during a call. `cuMemcpyBatchAsync` has two signatures; asking
``cuGetProcAddress`` for version 12080 always gives the one of CUDA 12.8, with nine arguments, also from a driver of
CUDA 13 (calling the other one with nine arguments crashes: sgl-project/sglang#21869).
"""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any, Literal

from hwreplay.layout import Addresses

LIBRARY = "libcuda.so.1"
BATCH_VERSION = 12080

ACCESS_ORDER: dict[str, int] = {"stream": 1, "any": 3}
"""CUmemcpySrcAccessOrder. ``stream``: sources are read in the order of the stream, which stores need, because a forward
pass before them writes their sources; ``any``: at any time, allowed for loads, whose sources nobody changes."""

CAN_USE_HOST_POINTER = 91  # CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
ASYNC_ENGINES = 40  # CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT
_REGISTER_FLAGS = 0x01 | 0x02  # CU_MEMHOSTREGISTER_PORTABLE, _DEVICEMAP
_NOWHERE = 2**64 - 1  # a failing index that the driver did not set


class CudaError(RuntimeError):
    """A call of the driver failed; the message names it and the error."""


class _Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = [("type", c_int), ("id", c_int)]


class CopyAttributes(ctypes.Structure):
    """CUmemcpyAttributes: 24 bytes."""

    _fields_ = [
        ("src_access_order", c_uint),
        ("src_location", _Location),
        ("dst_location", _Location),
        ("flags", c_uint),
    ]


_Batch = ctypes.CFUNCTYPE(
    c_int,  # CUresult
    c_void_p,  # CUdeviceptr *dsts
    c_void_p,  # CUdeviceptr *srcs
    c_void_p,  # size_t *sizes
    c_size_t,  # count
    c_void_p,  # CUmemcpyAttributes *attrs
    c_void_p,  # size_t *attrsIdxs
    c_size_t,  # numAttrs
    c_void_p,  # size_t *failIdx
    c_void_p,  # CUstream
)

_SIGNATURES: dict[str, list[Any]] = {
    "cuInit": [c_uint],
    "cuDriverGetVersion": [c_void_p],
    "cuDeviceGet": [c_void_p, c_int],
    "cuDeviceGetAttribute": [c_void_p, c_int, c_int],
    "cuGetErrorName": [c_int, c_void_p],
    "cuGetProcAddress_v2": [c_char_p, c_void_p, c_int, c_uint64, c_void_p],
    "cuMemcpyAsync": [c_uint64, c_uint64, c_size_t, c_void_p],
    "cuMemHostRegister_v2": [c_void_p, c_size_t, c_uint],
    "cuMemHostUnregister": [c_void_p],
    "cuModuleLoadData": [c_void_p, c_char_p],
    "cuModuleUnload": [c_void_p],
    "cuModuleGetFunction": [c_void_p, c_void_p, c_char_p],
    "cuLaunchKernel": [c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p],
}


def load_driver() -> Driver:
    """The driver of this machine.

    Raises:
        CudaError: there is none, or it finds no device.
    """
    try:
        return Driver(ctypes.CDLL(LIBRARY))
    except OSError:
        raise CudaError(f"{LIBRARY} is not there: no NVIDIA driver") from None


class Driver:
    """Calls that raise when they fail. They act on the context that is current in the calling thread (torch's).

    Args:
        library: libcuda, or what a test puts in its place.
    """

    def __init__(self, library: Any) -> None:
        self._functions = {}
        for name, arguments in _SIGNATURES.items():
            try:
                function = getattr(library, name)
            except AttributeError:
                continue  # an old driver; whoever calls it hears so
            function.argtypes, function.restype = arguments, c_int
            self._functions[name] = function
        self._batch: Any = None
        self._call("cuInit", 0)

    @property
    def version(self) -> int:
        """Of CUDA, such as 13000."""
        found = c_int()
        self._call("cuDriverGetVersion", ctypes.byref(found))
        return found.value

    def attribute(self, attribute: int, ordinal: int = 0) -> int:
        """A CUdevice_attribute of a device."""
        device, found = c_int(), c_int()
        self._call("cuDeviceGet", ctypes.byref(device), ordinal)
        self._call("cuDeviceGetAttribute", ctypes.byref(found), attribute, device)
        return found.value

    # -- copies
    def memcpy_async(self, destination: int, source: int, size: int, stream: int) -> None:
        """Queue one copy."""
        result = self._functions["cuMemcpyAsync"](destination, source, size, stream)
        if result:
            raise self._error("cuMemcpyAsync", result)

    def has_batch(self) -> bool:
        """Whether the driver has cuMemcpyBatchAsync."""
        return self._batch_function() is not None

    def memcpy_batch(
        self,
        destinations: Addresses,
        sources: Addresses,
        sizes: Addresses,
        order: Literal["stream", "any"],
        stream: int,
    ) -> None:
        """Queue a batch of copies in one call.

        Args:
            destinations: uint64, contiguous, of the same length as the next two.
            sources: where each is.
            sizes: bytes of each.
            order: when sources may be read, see `ACCESS_ORDER`.
            stream: never the NULL stream, which the driver refuses.

        Raises:
            CudaError: the call failed; names the descriptor if the driver did.
        """
        count = len(sizes)
        if not count:
            return
        if not stream:
            raise ValueError("cuMemcpyBatchAsync does not take the NULL stream")
        for array in (destinations, sources, sizes):
            if len(array) != count or array.dtype.itemsize != 8 or not array.flags.c_contiguous:
                raise ValueError(f"expected contiguous arrays of {count} words of 64 bits")
        batch = self._batch_function()
        if batch is None:
            raise CudaError("cuMemcpyBatchAsync: the driver is older than CUDA 12.8")
        # One attribute for all: it is valid from descriptor 0 on.
        attributes, first, failed = CopyAttributes(ACCESS_ORDER[order]), c_size_t(0), c_size_t(_NOWHERE)
        result = batch(
            destinations.ctypes.data,
            sources.ctypes.data,
            sizes.ctypes.data,
            count,
            ctypes.addressof(attributes),
            ctypes.addressof(first),
            1,
            ctypes.addressof(failed),
            stream,
        )
        if result:
            place = "" if failed.value >= count else f" at descriptor {failed.value} of {count}"
            raise self._error(f"cuMemcpyBatchAsync{place}", result)

    def _batch_function(self) -> Any:
        if self._batch is None and "cuGetProcAddress_v2" in self._functions:
            found, status = c_void_p(), c_int()
            result = self._functions["cuGetProcAddress_v2"](
                b"cuMemcpyBatchAsync", ctypes.byref(found), BATCH_VERSION, 0, ctypes.byref(status)
            )
            if result == 0 and found.value:
                self._batch = _Batch(found.value)
        return self._batch

    # -- host memory
    def register(self, address: int, size: int) -> None:
        """Page-lock host memory and map it into the device's address space."""
        self._call("cuMemHostRegister_v2", address, size, _REGISTER_FLAGS)

    def unregister(self, address: int) -> None:
        """Undo `register`."""
        self._call("cuMemHostUnregister", address)

    # -- kernels
    def load_kernel(self, image: bytes, name: str) -> tuple[int, int]:
        """A kernel of a cubin: (module, function)."""
        module, function = c_void_p(), c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), image)
        self._call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        return int(module.value or 0), int(function.value or 0)

    def unload(self, module: int) -> None:
        """Give a module back."""
        self._call("cuModuleUnload", module)

    def launch(self, function: int, blocks: int, threads: int, stream: int, *arguments: int) -> None:
        """Launch a kernel whose parameters are all 64 bits wide."""
        values = [c_uint64(value) for value in arguments]
        pointers = (c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        self._call("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, stream, pointers, None)

    def _call(self, name: str, *arguments: object) -> None:
        if name not in self._functions:
            raise CudaError(f"{name}: this driver does not have it")
        result = self._functions[name](*arguments)
        if result:
            raise self._error(name, result)

    def _error(self, what: str, result: int) -> CudaError:
        text = c_char_p()
        if "cuGetErrorName" in self._functions:
            self._functions["cuGetErrorName"](result, ctypes.byref(text))
        return CudaError(f"{what}: {text.value.decode() if text.value else 'error'} ({result})")
