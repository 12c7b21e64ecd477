"""A GPU, through torch: its memory, streams and events, and compute work of calibrated units."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from hwreplay import pattern
from hwreplay.cuda_parts import Anchor, CudaEvent, CudaMemory, CudaStream, ns_between
from hwreplay.driver import ASYNC_ENGINES, CAN_USE_HOST_POINTER, CudaError, Driver, load_driver
from hwreplay.host_machine import HostMemory
from hwreplay.layout import PagedMemory
from hwreplay.machine import Compute, Memory, Stream, device_info
from hwreplay.region import Region
from kvsim.errors import UserError
from kvsim.units import format_size

_ANCHOR_NS = 10**9
_FILL_BYTES = 256 * 2**20  # written by one call of `fill_tensor`, which needs as much again
_WARM_NS = 200 * 10**6  # of compute work until clocks have settled
_MEASURED_NS = 20 * 10**6  # of compute work for one calibration
_LONGEST_GATE_NS = 200 * 10**6

UNITS: dict[Compute, tuple[int, ...]] = {"gemm": (8192, 2048), "memory": (1024, 64)}
"""Sizes of compute work, large first: order of a square bf16 product, MiB that are read and as many written."""


def missing() -> str | None:
    """Why there is no GPU to use, None if there is one."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if not torch.cuda.is_available():
        return "torch finds no CUDA device"
    try:
        load_driver()
    except CudaError as error:
        return str(error)
    return None


class CudaMachine:
    """The current GPU of this process.

    Args:
        driver: a test may bring its own, and a `device` of torch that is none.
        device: of torch.
        units: sizes of compute work by kind.
    """

    head_bytes = sys.maxsize

    def __init__(
        self, driver: Driver | None = None, device: str = "cuda", units: dict[Compute, tuple[int, ...]] | None = None
    ) -> None:
        import torch

        self.torch: Any = torch
        self.device = device
        self._units = units or UNITS
        torch.zeros(1, device=device)  # makes torch's context current, in which the driver then acts
        self.driver = driver or load_driver()
        self.info = device_info(
            "cuda",
            str(torch.cuda.get_device_name()),
            driver=_driver_text(self.driver),
            cuda=str(torch.version.cuda),
            torch=str(torch.__version__),
            memory_bytes=int(torch.cuda.get_device_properties(0).total_memory),
        )
        self.notes = [f"{self.driver.attribute(ASYNC_ENGINES)} copy engines"]
        if not self.driver.attribute(CAN_USE_HOST_POINTER):
            self.notes.append("the GPU cannot use host addresses of registered memory: kernels and batches may fail")
        self._streams: dict[str, CudaStream] = {}
        self._host: list[HostMemory] = []
        self._device: list[CudaMemory] = []
        self._work: dict[Compute, list[tuple[Callable[[], None], int]]] = {}  # units and their ns, large first
        self._fill_bytes_per_s = 500 * 10**9
        self._gate_stream = torch.cuda.Stream()
        self._anchor_stream = torch.cuda.Stream()
        self._anchor = self._first_anchor()
        self._anchored_ns = self.now_ns()

    @property
    def architecture(self) -> str:
        """Of the GPU, as compilers name it: sm_90."""
        major, minor = self.torch.cuda.get_device_capability()
        return f"sm_{major}{minor}"

    # -- clock
    def now_ns(self) -> int:
        return time.perf_counter_ns()

    def _event(self) -> Any:
        return self.torch.cuda.Event(enable_timing=True)

    def _first_anchor(self) -> Anchor:
        """An event on an idle GPU: recorded and seen within some microseconds, of which the best try is taken."""
        best: tuple[int, Any, int] | None = None
        for _ in range(20):
            self.torch.cuda.synchronize()
            event, before = self._event(), self.now_ns()
            event.record(self._anchor_stream)
            event.synchronize()
            after = self.now_ns()
            if best is None or after - before < best[0]:
                best = (after - before, event, (before + after) // 2)
        assert best is not None
        return Anchor(best[1], ns=best[2])

    def record(self, stream: CudaStream) -> CudaEvent:
        """An event on a stream, with an anchor that is not too old. Nothing else runs on the anchors' stream."""
        now = self.now_ns()
        if now - self._anchored_ns > _ANCHOR_NS:
            event = self._event()
            event.record(self._anchor_stream)
            self._anchor = Anchor(event, before=self._anchor)
            self._anchored_ns = now
        event = self._event()
        event.record(stream.stream)
        return CudaEvent(event, self._anchor)

    # -- memory
    def device_memory(self, size: int) -> CudaMemory:
        try:
            tensor = self.torch.zeros(max(8, -(-size // 8) * 8), dtype=self.torch.uint8, device=self.device)
        except self.torch.OutOfMemoryError:
            raise UserError(
                f"{format_size(size)} do not fit into the GPU's memory: --max-bytes makes a schedule fit"
            ) from None
        memory = CudaMemory(tensor, size)
        self._device.append(memory)
        return memory

    def host_memory(self, size: int, row_bytes: int, *, pinned: bool = True) -> HostMemory:
        memory = HostMemory(Region(size))
        self._host.append(memory)
        if memory.region.note:
            self.notes.append(memory.region.note)
        if pinned:
            memory.region.register(self.driver, row_bytes)
        return memory

    def registration(self, size: int) -> tuple[int, int]:
        start = self.now_ns()
        region = Region(size)
        try:
            populated = self.now_ns()
            region.register(self.driver, 2 * 2**20)
            return populated - start, self.now_ns() - populated
        finally:
            region.close()

    def tensor(self, address: int, size: int) -> Any:
        """The bytes at an address of this machine's memory, as a tensor that shares them."""
        for device in self._device:
            if device.address <= address < device.address + device.bytes:
                return device.tensor[address - device.address : address - device.address + size]
        for host in self._host:
            if host.address <= address < host.address + host.bytes:
                return self.torch.from_numpy(host.read(address - host.address, size))
        raise ValueError(f"address {address:#x} is not in this machine's memory")

    # -- work
    def stream(self, name: str) -> CudaStream:
        if name not in self._streams:
            self._streams[name] = CudaStream(name, self.torch.cuda.Stream(), self.record)
        return self._streams[name]

    def calibrate(self, kind: Compute, memory: Memory, paged: PagedMemory) -> dict[str, int]:
        """Time of each unit in a row of them, once the GPU's clocks have settled under that load."""
        stream = self.stream("compute")
        self._work[kind] = []
        found: dict[str, int] = {}
        for size in self._units[kind]:
            unit = self._unit(kind, size)
            taken = self._timed(stream, unit, 3)
            if not found:
                self._timed(stream, unit, max(1, _WARM_NS // taken))
            taken = self._timed(stream, unit, max(3, _MEASURED_NS // taken))
            self._work[kind].append((unit, taken))
            found[f"{kind}_{size}_ns"] = taken
        blocks = min(paged.num_blocks, max(1, 64 * 2**20 // paged.block_bytes))
        if blocks:
            contents = dict.fromkeys(range(blocks), 0)
            taken = min(self._timed(stream, lambda: self._fill(memory, paged, contents, 0), 3) for _ in range(3))
            self._fill_bytes_per_s = blocks * paged.block_bytes * 10**9 // taken
            found["fill_bytes_per_s"] = self._fill_bytes_per_s
        return found

    def _unit(self, kind: Compute, size: int) -> Callable[[], None]:
        torch = self.torch
        if kind == "gemm":
            # Random numbers: a GPU computes with zeros faster than with anything else.
            left, right = (torch.randn(size, size, device=self.device, dtype=torch.bfloat16) for _ in range(2))
            product = torch.empty_like(left)
            return lambda: _ignore(torch.matmul(left, right, out=product))
        source = torch.zeros(size * 2**18, device=self.device, dtype=torch.float32)
        target = torch.empty_like(source)
        return lambda: _ignore(torch.add(source, 1.0, out=target))  # by the SMs, as attention reads; not a copy engine

    def _timed(self, stream: CudaStream, unit: Callable[[], None], number: int) -> int:
        """Mean ns of one of so many in a row."""
        start, end = self._event(), self._event()
        with self.torch.cuda.stream(stream.stream):
            start.record(stream.stream)
            for _ in range(number):
                unit()
            end.record(stream.stream)
        end.synchronize()
        return max(1, ns_between(start, end) // number)

    def occupy(self, stream: Stream, ns: int, kind: Compute = "gemm") -> None:
        assert isinstance(stream, CudaStream)
        if kind not in self._work:
            raise ValueError(f"{kind} work was not calibrated")
        times = [unit_ns for _, unit_ns in self._work[kind]]
        with self.torch.cuda.stream(stream.stream):
            for (unit, _), number in zip(self._work[kind], units_of(ns, times), strict=True):
                for _ in range(number):
                    unit()

    def fill(self, stream: Stream, memory: Memory, paged: PagedMemory, contents: dict[int, int], salt: int) -> None:
        assert isinstance(stream, CudaStream)
        with self.torch.cuda.stream(stream.stream):
            self._fill(memory, paged, contents, salt)

    def _fill(self, memory: Memory, paged: PagedMemory, contents: dict[int, int], salt: int) -> None:
        assert isinstance(memory, CudaMemory)
        word = pattern.WORD
        if paged.piece_bytes % word or paged.piece_stride % word or paged.block_stride % word or paged.start % word:
            self._fill_bytes(memory, paged, contents, salt)
            return
        strides = (paged.piece_stride // word, paged.block_stride // word, 1)
        shape = (paged.pieces, paged.num_blocks, paged.piece_bytes // word)
        view = memory.tensor.view(self.torch.int64).as_strided(shape, strides, paged.start // word)
        blocks, together = list(contents), max(1, _FILL_BYTES // paged.block_bytes)
        for start in range(0, len(blocks), together):
            some = blocks[start : start + together]
            ids = self.torch.tensor(some, dtype=self.torch.int64)
            if view.is_cuda:
                ids = ids.pin_memory().to(self.device, non_blocking=True)
            pattern.fill_tensor(view, ids, [contents[block] for block in some], salt)

    def _fill_bytes(self, memory: CudaMemory, paged: PagedMemory, contents: dict[int, int], salt: int) -> None:
        """Pieces that are no whole words: made on the host. Slow, and only for layouts that no model has."""
        for block, content in contents.items():
            data = pattern.block_bytes(content, paged.pieces, paged.piece_bytes, salt)
            for piece in range(paged.pieces):
                memory.write(paged.piece_offset(block, piece), data[piece])

    def fill_ns(self, size: int) -> int:
        return size * 10**9 // self._fill_bytes_per_s

    def gated(self, streams: Sequence[Stream], enqueue: Callable[[], None], guess_ns: int) -> bool:
        """The gate is a kernel that spins for a time: it always opens, even if queues are full before all is queued."""
        cycles = 2 * min(guess_ns, _LONGEST_GATE_NS)  # at 2 GHz or less
        with self.torch.cuda.stream(self._gate_stream):
            self.torch.cuda._sleep(cycles)  # noqa: SLF001 - torch's own spin kernel, as its tests use it
        gate = self._event()
        gate.record(self._gate_stream)
        for stream in streams:
            assert isinstance(stream, CudaStream)
            stream.stream.wait_event(gate)
        enqueue()
        return not gate.query()

    def synchronize(self) -> None:
        self.torch.cuda.synchronize()

    def close(self) -> None:
        """Everything is given back, also if the GPU has failed; then nothing more is said about that."""
        failed = False
        try:
            self.synchronize()
        except RuntimeError:
            failed = True
        self._work.clear()
        while self._device:
            self._device.pop().close()
        failure: Exception | None = None
        while self._host:
            try:
                self._host.pop().close()
            except CudaError as error:
                failure = failure or error
        if failure is not None and not failed:
            raise failure


def units_of(ns: int, times: Sequence[int]) -> list[int]:
    """How many units of each time add up to about ``ns``: as many large ones as fit, the rest in small ones."""
    numbers = []
    for place, unit_ns in enumerate(times):
        number = ns // unit_ns if place < len(times) - 1 else round(ns / unit_ns)
        numbers.append(number)
        ns -= number * unit_ns
    return numbers


def _ignore(_result: object) -> None:
    pass


def _driver_text(driver: Driver) -> str:
    """Version of the driver, as nvidia-smi says it; else the CUDA version that it supports."""
    version = driver.version
    cuda = f"CUDA {version // 1000}.{version % 1000 // 10}"
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return cuda
    return f"{found.split()[0]} ({cuda})" if found.split() else cuda
