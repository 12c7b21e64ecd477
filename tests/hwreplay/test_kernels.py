"""Kernels without a GPU: ours compiles for every architecture, Triton's copies right in its interpreter."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hwreplay import nvrtc
from hwreplay.backends.cuda_kernel import NAME, SOURCE

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nvrtc_compiles_our_kernel(architecture: str) -> None:
    """To machine code that holds the kernel by its name."""
    if nvrtc.library() is None:
        pytest.skip("NVRTC is not installed")
    image = nvrtc.compile_cubin(SOURCE.read_text(), SOURCE.name, architecture)
    assert image[:4] == b"\x7fELF"
    assert NAME.encode() in image


def test_nvrtc_says_what_is_wrong() -> None:
    """The compiler's message, with file and line."""
    if nvrtc.library() is None:
        pytest.skip("NVRTC is not installed")
    with pytest.raises(nvrtc.CompileError, match=r"bad\.cu\(1\): error"):
        nvrtc.compile_cubin("extern broken", "bad.cu", "sm_90")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nvcc_compiles_our_kernel(architecture: str, tmp_path: Path) -> None:
    """So does the toolkit's compiler, where there is one."""
    compiler = shutil.which("nvcc")
    if compiler is None:
        pytest.skip("nvcc is not installed")
    target = tmp_path / "kernel.cubin"
    command = [compiler, f"-arch={architecture}", "-cubin", "-Werror", "all-warnings", "-o", str(target), str(SOURCE)]
    subprocess.run(command, check=True)
    assert NAME.encode() in target.read_bytes()


@pytest.mark.parametrize(
    "sizes",
    [[64], [8, 8, 8], [4096, 24, 7, 0, 1, 65, 32776], list(range(1, 40))],
    ids=["one", "words", "mixed", "many"],
)
def test_triton_copies_in_its_interpreter(sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every byte of every descriptor, and none beside."""
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    pytest.importorskip("triton")
    from hwreplay.backends.triton_source import copy_descriptors

    if type(copy_descriptors).__name__ != "InterpretedFunction":
        pytest.skip("triton was imported for a GPU already")
    rng = np.random.default_rng(0)
    starts = np.cumsum([0, *(-(-size // 8) * 8 + 8 for size in sizes)])
    source = rng.integers(256, size=int(starts[-1]) or 8, dtype=np.uint8)
    target = np.zeros_like(source)
    expected = np.zeros_like(source)
    order = rng.permutation(len(sizes))
    for start, size in zip(starts, sizes, strict=False):
        expected[start : start + size] = source[start : start + size]
    descriptors = torch.tensor(
        [
            [source.ctypes.data + int(starts[each]) for each in order],
            [target.ctypes.data + int(starts[each]) for each in order],
            [sizes[each] for each in order],
        ]
    )
    copy_descriptors[(min(12, len(sizes)),)](*descriptors, len(sizes), WORDS=64, num_warps=4)
    assert np.array_equal(target, expected)


COMPILE = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from hwreplay.backends.triton_kernel import WARPS, WORDS
from hwreplay.backends.triton_source import copy_descriptors
pointers = dict.fromkeys(("sources", "destinations", "sizes"), "*i64")
source = ASTSource(copy_descriptors, {**pointers, "count": "i32", "WORDS": "constexpr"}, {(4,): WORDS})
for capability in (80, 90, 100):
    made = compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": WARPS})
    assert made.asm["cubin"][:4] == bytes([0x7F]) + b"ELF"
print("compiled")
"""


def test_triton_compiles_for_every_architecture() -> None:
    """To machine code, without a GPU; in a process of its own, where it is not interpreted."""
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COMPILE]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.stdout == "compiled\n", done.stderr
