"""NVIDIA's run-time compiler through ctypes: CUDA C++ to machine code of one architecture. Needs no GPU."""

from __future__ import annotations

import ctypes
import ctypes.util
import sys
from collections.abc import Iterator
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from functools import lru_cache
from pathlib import Path
from typing import Any

_NAMES = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")


class CompileError(RuntimeError):
    """The source could not be compiled; the message is the compiler's."""


@lru_cache(maxsize=1)
def library() -> Any:
    """The compiler, None if this machine has none: beside torch's packages, a toolkit's, or the system's."""
    for name in _candidates():
        try:
            found = ctypes.CDLL(name)
        except OSError:
            continue
        found.nvrtcGetErrorString.restype = c_char_p
        return found
    return None


def _candidates() -> Iterator[str]:
    yield from _NAMES  # loaded by torch already, or where the linker looks
    for folder in sys.path:
        for pattern in ("nvidia/cu1[0-9]/lib/libnvrtc.so.1*", "nvidia/cuda_nvrtc/lib/libnvrtc.so.1*"):
            yield from sorted(map(str, Path(folder or ".").glob(pattern)), reverse=True)
    yield from sorted(map(str, Path("/usr/local").glob("cuda*/lib64/libnvrtc.so*")), reverse=True)
    if (found := ctypes.util.find_library("nvrtc")) is not None:
        yield found


def compile_cubin(source: str, name: str, architecture: str) -> bytes:
    """Machine code.

    Args:
        source: CUDA C++ that includes nothing.
        name: of the file, for messages.
        architecture: such as sm_90.

    Raises:
        CompileError: there is no compiler, or it did not like the source.
    """
    nvrtc = library()
    if nvrtc is None:
        raise CompileError("NVRTC is not installed")
    program = c_void_p()
    _check(nvrtc, nvrtc.nvrtcCreateProgram(byref(program), source.encode(), name.encode(), 0, None, None))
    try:
        options = [f"--gpu-architecture={architecture}".encode(), b"--std=c++17"]
        result = nvrtc.nvrtcCompileProgram(program, len(options), (c_char_p * len(options))(*options))
        if result:
            raise CompileError(f"{name}: {_log(nvrtc, program)}")
        size = c_size_t()
        _check(nvrtc, nvrtc.nvrtcGetCUBINSize(program, byref(size)))
        image = ctypes.create_string_buffer(size.value)
        _check(nvrtc, nvrtc.nvrtcGetCUBIN(program, image))
        return image.raw
    finally:
        nvrtc.nvrtcDestroyProgram(byref(program))


def _log(nvrtc: Any, program: c_void_p) -> str:
    size = c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, byref(size))
    log = ctypes.create_string_buffer(max(1, size.value))
    nvrtc.nvrtcGetProgramLog(program, log)
    return log.value.decode(errors="replace").strip()


def _check(nvrtc: Any, result: int) -> None:
    if result:
        raise CompileError(f"NVRTC: {nvrtc.nvrtcGetErrorString(c_int(result)).decode()}")
