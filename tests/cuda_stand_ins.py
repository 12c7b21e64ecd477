"""What stands in for a GPU: a driver in C, a driver in Python, and streams of torch that do everything at once."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hwreplay.driver import Driver

LIBCUDA = r"""
#include <stdint.h>
#include <string.h>
typedef struct { int type, id; } Location;
typedef struct { unsigned order; Location src, dst; unsigned flags; } Attributes;
typedef struct {
    uint64_t dsts[4], srcs[4], sizes[4], count, first, num_attrs, fail_before, stream;
    uint64_t order, src_type, dst_type, flags, calls, version, get_flags;
    uint64_t registered, register_flags, launched[12], attribute;
} Seen;
Seen seen;
int fail_with = 0;
int cuInit(unsigned flags) { return flags; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal + 7; return 0; }
int cuDeviceGetAttribute(int *found, int attribute, int device) {
    seen.attribute = attribute; *found = device; return 0;
}
int cuGetErrorName(int error, const char **name) {
    if (error != 700) return 1;
    *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; return 0;
}
static int batch(uint64_t *dsts, uint64_t *srcs, size_t *sizes, size_t count, Attributes *attrs, size_t *first,
                 size_t num_attrs, size_t *failed, void *stream) {
    seen.calls++;
    memcpy(seen.dsts, dsts, 8 * count); memcpy(seen.srcs, srcs, 8 * count); memcpy(seen.sizes, sizes, 8 * count);
    seen.count = count; seen.first = *first; seen.num_attrs = num_attrs; seen.fail_before = *failed;
    seen.stream = (uint64_t)stream;
    seen.order = attrs->order; seen.src_type = attrs->src.type; seen.dst_type = attrs->dst.type;
    seen.flags = attrs->flags;
    if (fail_with) { *failed = 1; return fail_with; }
    return 0;
}
int cuGetProcAddress_v2(const char *symbol, void **found, int version, uint64_t flags, int *status) {
    seen.version = version; seen.get_flags = flags; *status = 0;
    *found = strcmp(symbol, "cuMemcpyBatchAsync") ? 0 : (void *)batch;
    return *found ? 0 : 500;
}
int cuMemcpyAsync(uint64_t dst, uint64_t src, size_t size, void *stream) {
    if (fail_with) return fail_with;
    memcpy((void *)dst, (void *)src, size); seen.stream = (uint64_t)stream; return 0;
}
int cuMemHostRegister_v2(void *address, size_t size, unsigned flags) {
    seen.registered += size; seen.register_flags = flags; return fail_with;
}
int cuMemHostUnregister(void *address) { seen.registered = 0; return 0; }
int cuModuleLoadData(void **module, const void *image) {
    *module = (void *)0x10; return memcmp(image, "\x7f" "ELF", 4);
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
    *function = (char *)module + strlen(name); return 0;
}
int cuModuleUnload(void *module) { return module != (void *)0x10; }
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **parameters, void **extra) {
    uint64_t all[12] = {(uint64_t)function, gx, gy, gz, bx, by, bz, shared, (uint64_t)stream,
                        *(uint64_t *)parameters[0], *(uint64_t *)parameters[1], (uint64_t)extra};
    memcpy(seen.launched, all, sizeof all);
    return 0;
}
"""


class HostDriver(Driver):
    """Copies by the processor; remembers orders of access and what is registered."""

    def __init__(self) -> None:
        self.orders: list[str] = []
        self.registered: dict[int, int] = {}
        self.modules = 0

    version = 13000  # type: ignore[assignment]  # a constant here

    def attribute(self, attribute: int, ordinal: int = 0) -> int:
        return 3

    def memcpy_async(self, destination: int, source: int, size: int, stream: int) -> None:
        ctypes.memmove(destination, source, size)

    def memcpy_batch(self, destinations: Any, sources: Any, sizes: Any, order: Any, stream: int) -> None:
        assert stream
        self.orders.append(order)
        for destination, source, size in zip(destinations.tolist(), sources.tolist(), sizes.tolist(), strict=True):
            ctypes.memmove(destination, source, size)

    def register(self, address: int, size: int) -> None:
        self.registered[address] = size

    def unregister(self, address: int) -> None:
        del self.registered[address]

    def load_kernel(self, image: bytes, name: str) -> tuple[int, int]:
        assert image[:4] == b"\x7fELF"
        self.modules += 1
        return 1, 2

    def unload(self, module: int) -> None:
        self.modules -= 1

    def launch(self, function: int, blocks: int, threads: int, stream: int, *arguments: int) -> None:
        *pointers, count = arguments
        rows = [np.ctypeslib.as_array((ctypes.c_uint64 * count).from_address(each)) for each in pointers]
        for source, destination, size in zip(*(row.tolist() for row in rows), strict=True):
            ctypes.memmove(destination, source, size)


class _Event:
    def __init__(self, enable_timing: bool = False) -> None:
        self._ns = 0

    def record(self, stream: Any = None) -> None:
        self._ns = time.perf_counter_ns()

    def query(self) -> bool:
        return bool(self._ns)

    def synchronize(self) -> None:
        assert self._ns

    def elapsed_time(self, other: _Event) -> float:
        assert self._ns
        assert other._ns
        return (other._ns - self._ns) / 10**6


class _Stream:
    cuda_stream = 0x5000

    def wait_event(self, event: _Event) -> None:
        assert event.query()


@contextlib.contextmanager
def _current(_stream: Any) -> Iterator[None]:
    yield


def instant_streams(monkeypatch: pytest.MonkeyPatch, torch: Any) -> None:
    """Let torch.cuda be streams on which everything is done when it is queued."""
    stand_ins = {
        "Event": _Event,
        "Stream": _Stream,
        "stream": _current,
        "synchronize": lambda: None,
        "_sleep": lambda _cycles: None,
        "get_device_name": lambda: "Stand-in",
        "get_device_properties": lambda _: SimpleNamespace(total_memory=1),
        "get_device_capability": lambda: (9, 0),
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
