"""Calls of the driver, argument by argument, against a library in C that writes down what it is given."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_stand_ins import LIBCUDA

from hwreplay.driver import CopyAttributes, CudaError, Driver

CUDA_HEADERS = Path("/usr/local/cuda/include"), Path("/usr/local/cuda-13.0/include")


class Seen(ctypes.Structure):
    """The library's record of its last calls."""

    _fields_ = [
        *((name, ctypes.c_uint64 * 4) for name in ("dsts", "srcs", "sizes")),
        *(
            (name, ctypes.c_uint64)
            for name in ("count", "first", "num_attrs", "fail_before", "stream", "order", "src_type", "dst_type",
                         "flags", "calls", "version", "get_flags", "registered", "register_flags")
        ),
        ("launched", ctypes.c_uint64 * 12),
        ("attribute", ctypes.c_uint64),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The library, compiled."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("libcuda")
    source, target = folder / "cuda.c", folder / "libcuda.so"
    source.write_text(LIBCUDA)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(target), str(source)], check=True)
    return ctypes.CDLL(str(target))


@pytest.fixture
def seen(library: Any) -> Seen:
    """The record, cleared."""
    record = Seen.in_dll(library, "seen")
    ctypes.memset(ctypes.addressof(record), 0, ctypes.sizeof(record))
    return record


def words(*values: int) -> Any:
    """An array as batches have them."""
    return np.array(values, dtype=np.uint64)


@pytest.mark.parametrize(("order", "code"), [("stream", 1), ("any", 3)])
def test_a_batch(library: Any, seen: Seen, order: Any, code: int) -> None:
    """Nine arguments in their order, one attribute from descriptor 0 on, no location hints, no flags."""
    driver = Driver(library)
    assert driver.has_batch()
    driver.memcpy_batch(words(2**63, 20), words(30, 40), words(5, 6), order, 0xABC0)
    assert (seen.version, seen.get_flags) == (12080, 0)
    assert (list(seen.dsts)[:2], list(seen.srcs)[:2], list(seen.sizes)[:2]) == ([2**63, 20], [30, 40], [5, 6])
    assert (seen.count, seen.num_attrs, seen.first, seen.stream) == (2, 1, 0, 0xABC0)
    assert (seen.order, seen.src_type, seen.dst_type, seen.flags) == (code, 0, 0, 0)
    assert seen.fail_before == 2**64 - 1


def test_batches_that_are_refused(library: Any, seen: Seen) -> None:
    """Nothing is called for no descriptors, on the NULL stream, or with arrays that do not fit."""
    driver = Driver(library)
    driver.memcpy_batch(words(), words(), words(), "any", 1)
    with pytest.raises(ValueError, match="NULL stream"):
        driver.memcpy_batch(words(1), words(1), words(1), "any", 0)
    with pytest.raises(ValueError, match="arrays of 2 words"):
        driver.memcpy_batch(words(1), words(1, 2), words(1, 2), "any", 1)
    with pytest.raises(ValueError, match="contiguous"):
        driver.memcpy_batch(words(1, 2, 3, 4)[::2], words(1, 2), words(1, 2), "any", 1)
    assert seen.calls == 0


@pytest.mark.usefixtures("seen")
def test_errors_have_names(library: Any) -> None:
    """The call, the descriptor if the driver says which, and the error."""
    driver = Driver(library)
    fail = ctypes.c_int.in_dll(library, "fail_with")
    try:
        fail.value = 700
        with pytest.raises(CudaError) as error:
            driver.memcpy_batch(words(1, 2), words(3, 4), words(5, 6), "any", 1)
        assert str(error.value) == "cuMemcpyBatchAsync at descriptor 1 of 2: CUDA_ERROR_ILLEGAL_ADDRESS (700)"
        fail.value = 1
        with pytest.raises(CudaError, match=r"cuMemcpyAsync: error \(1\)"):
            driver.memcpy_async(1, 2, 3, 4)
        with pytest.raises(CudaError, match=r"cuMemHostRegister_v2: error \(1\)"):
            driver.register(4096, 1)
    finally:
        fail.value = 0


def test_other_calls(library: Any, seen: Seen) -> None:
    """Version, attributes, single copies, registration, kernels."""
    driver = Driver(library)
    assert driver.version == 13000
    assert (driver.attribute(40), seen.attribute) == (7, 40)
    source, target = np.arange(10, dtype=np.uint8), np.zeros(10, dtype=np.uint8)
    driver.memcpy_async(target.ctypes.data + 1, source.ctypes.data, 4, 9)
    assert target.tolist() == [0, 0, 1, 2, 3, 0, 0, 0, 0, 0]
    assert seen.stream == 9
    driver.register(4096, 8192)
    assert (seen.registered, seen.register_flags) == (8192, 3)
    driver.unregister(4096)
    assert seen.registered == 0
    module, function = driver.load_kernel(b"\x7fELF...", "copy")
    assert (module, function) == (0x10, 0x14)
    driver.launch(function, 12, 512, 77, 2**63, 5)
    assert list(seen.launched) == [0x14, 12, 1, 1, 512, 1, 1, 0, 77, 2**63, 5, 0]
    driver.unload(module)


def test_a_driver_without_batches(library: Any) -> None:
    """It is asked for, not assumed."""

    class Old:
        def __getattr__(self, name: str) -> Any:
            if name in ("cuGetProcAddress_v2", "cuGetErrorName"):
                raise AttributeError(name)
            return getattr(library, name)

    driver = Driver(Old())
    assert not driver.has_batch()
    with pytest.raises(CudaError, match=r"older than CUDA 12\.8"):
        driver.memcpy_batch(words(1), words(1), words(1), "any", 1)


def test_the_structure_is_the_headers(tmp_path: Path) -> None:
    """Offsets and values are those of cuda.h, where it is installed."""
    include = next((folder for folder in CUDA_HEADERS if (folder / "cuda.h").is_file()), None)
    compiler = shutil.which("gcc")
    if include is None or compiler is None:
        pytest.skip("no cuda.h, or no compiler")
    source, program = tmp_path / "offsets.c", tmp_path / "offsets"
    source.write_text(
        "#include <stddef.h>\n#include <stdio.h>\n#include <cuda.h>\n#include <cudaTypedefs.h>\n"
        "static int batch(PFN_cuMemcpyBatchAsync_v12080 f) { size_t n = 0; void *p = 0; return !f ? 0 :"
        " f(p, p, p, n, p, p, n, p, p); }\n"
        'int main(void) { printf("%zu %zu %zu %zu %zu %d %d %d %d %d", sizeof(CUmemcpyAttributes),'
        " offsetof(CUmemcpyAttributes, srcAccessOrder), offsetof(CUmemcpyAttributes, srcLocHint),"
        " offsetof(CUmemcpyAttributes, dstLocHint), offsetof(CUmemcpyAttributes, flags),"
        " CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, CU_MEMCPY_SRC_ACCESS_ORDER_ANY,"
        " CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT,"
        " CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP); return batch(0); }\n"
    )
    subprocess.run([compiler, f"-I{include}", "-o", str(program), str(source)], check=True)
    found = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    fields = (CopyAttributes.src_access_order, CopyAttributes.src_location, CopyAttributes.dst_location)
    offsets = [field.offset for field in (*fields, CopyAttributes.flags)]  # type: ignore[attr-defined]
    assert found == " ".join(map(str, [ctypes.sizeof(CopyAttributes), *offsets, 1, 3, 91, 40, 3]))
