"""The inner loop of the host backend: compiled C where there is a compiler, else a loop in Python.

A Python loop costs about 0.7 µs per descriptor more, and its threads take Python's lock between two descriptors; with
the compiled one, threads meet only before and after a batch.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from hwreplay.layout import Addresses

SOURCE = Path(__file__).with_name("native.c")

CopyLoop = Callable[[Addresses, Addresses, Addresses], tuple[int, int]]
"""(destinations, sources, sizes) to the moments of the first and the last byte, on the clock of perf_counter_ns."""


def python_loop(destinations: Addresses, sources: Addresses, sizes: Addresses) -> tuple[int, int]:
    """Copy descriptor by descriptor; each releases the GIL."""
    triples = list(zip(destinations.tolist(), sources.tolist(), sizes.tolist(), strict=True))
    move = ctypes.memmove
    start = time.perf_counter_ns()
    for destination, source, size in triples:
        move(destination, source, size)
    return start, time.perf_counter_ns()


@lru_cache(maxsize=1)
def copy_loop() -> tuple[CopyLoop, str]:
    """The fastest loop that this machine has, and a word for it: ``compiled`` or ``python``."""
    library = _compiled()
    if library is None:
        return python_loop, "python"
    function = library.hwreplay_copy_batch
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
    function.restype = None

    def compiled_loop(destinations: Addresses, sources: Addresses, sizes: Addresses) -> tuple[int, int]:
        times = (ctypes.c_int64 * 2)()
        function(destinations.ctypes.data, sources.ctypes.data, sizes.ctypes.data, len(sizes), times)
        return times[0], times[1]

    return compiled_loop, "compiled"


def _compiled() -> ctypes.CDLL | None:
    compiler = next((found for name in (os.environ.get("CC"), "cc", "gcc", "clang") if (found := _which(name))), None)
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory(prefix="hwreplay-") as folder:
        library = Path(folder) / "native.so"
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE)]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=60)  # noqa: S603 - our own source
            return ctypes.CDLL(str(library))  # stays loaded when its file is gone
        except (OSError, subprocess.SubprocessError):  # no headers, or a folder that nothing may run from
            return None


def _which(name: str | None) -> str | None:
    return shutil.which(name) if name else None
