"""Measures a machine's copies within a time budget: the grid, both directions at once, beside computing, files.

Coarse cells come first, so that a probe that runs out of time has measured less finely, not less widely; what was left
out is in the notes. Within a round and a way the order is random: nothing that drifts looks like an effect of size.
"""

from __future__ import annotations

import datetime as dt
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Literal

import numpy as np

from hwreplay.backends.base import Backend, Copier, Direction
from hwreplay.bench import Bench, Shape, Sides, Times, batch_of
from hwreplay.contention import Contention
from hwreplay.file_tier import FileTier, Io
from hwreplay.host_machine import HostMemory
from hwreplay.layout import PagedMemory
from hwreplay.machine import Compute, Machine
from hwreplay.probe_plan import KIB, MIB, PLANS, Chosen, Plan
from hwreplay.region import Region
from hwreplay.result import (
    CopyCell,
    DuplexCell,
    FileCell,
    OverlapCell,
    ProbeResult,
    RegistrationCell,
    Spread,
    Way,
    spread,
)
from hwreplay.run import OpenMachine, machine_for

DIRECTIONS: tuple[Direction, ...] = ("h2d", "d2h")
KINDS: tuple[Compute, ...] = ("gemm", "memory")
IO: tuple[Io, ...] = ("write", "read")


_PARTS = {"registration": 0.05, "coarse": 0.2, "duplex": 0.14, "overlap": 0.16, "files": 0.12, "fine": 0.33}
"""Of the time; what a section leaves over goes to the next."""

_WAYS: tuple[Way, ...] = ("dma_batch", "kernel", "dma_loop", "pageable")
"""The most important first."""

_SECTION_BYTES = 64 * MIB  # of one batch of the duplex and overlap sections
_REPEATS = (3, 40)  # of a cell, at least and at most


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """What the user may choose. ``files``: folder in which the file tier is tried; None = it is not."""

    mode: Literal["quick", "full"] = "quick"
    seconds: float = 60
    files: Path | None = None
    plan: Plan | None = None  # another than the mode's


def probe(chosen: Chosen, options: ProbeOptions, open_machine: OpenMachine | None = None) -> ProbeResult:
    """Measure within the time that the options give."""
    started = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    with ExitStack() as stack:
        machine = stack.enter_context(closing((open_machine or machine_for)(chosen.backends[0])))
        made = _Probe(machine, options)
        for each in chosen.backends:
            with made.guarded(each):
                made.add(each, stack.enter_context(closing(each.open(machine))))
        contention = Contention()
        made.run()
        others = contention.note()
        return ProbeResult(
            device=machine.info,
            started=started,
            mode=options.mode,
            copies=tuple(made.copies),
            duplex=tuple(made.duplex),
            overlap=tuple(made.overlap),
            registration=tuple(made.registration),
            files=tuple(made.files),
            notes=(*chosen.notes, *machine.notes, *made.notes, *([others] if others else [])),
        )


@dataclass(slots=True)
class _Clock:
    """When a section has to end."""

    end_s: float

    @property
    def left_s(self) -> float:
        return self.end_s - time.monotonic()


@dataclass(frozen=True, slots=True)
class _Cell:
    backend: Backend
    bench: Bench
    direction: Direction
    shape: Shape
    scattered: bool = True
    pinned: bool = True

    @property
    def way(self) -> Way:
        """What it tells about."""
        return self.backend.way if self.pinned else "pageable"


class _Probe:
    def __init__(self, machine: Machine, options: ProbeOptions) -> None:
        self._machine = machine
        self._options = options
        self._plan = options.plan or PLANS[options.mode]
        self._end_s = time.monotonic() + 0.97 * options.seconds  # ending takes a moment too
        self._rng = np.random.default_rng(0)
        self._benches: list[tuple[Backend, Bench]] = []
        self._failed: set[str] = set()
        size = self._plan.region_bytes
        self._sides = Sides(machine.device_memory(size), machine.host_memory(size, 4 * MIB))
        self.copies: list[CopyCell] = []
        self.duplex: list[DuplexCell] = []
        self.overlap: list[OverlapCell] = []
        self.registration: list[RegistrationCell] = []
        self.files: list[FileCell] = []
        self.notes: list[str] = []

    def add(self, each: Backend, copier: Copier) -> None:
        """Another backend to measure."""
        self._benches.append((each, Bench(self._machine, copier)))

    @contextmanager
    def guarded(self, each: Backend) -> Iterator[None]:
        """A backend that fails on a GPU is not measured further, the others are."""
        try:
            yield
        except RuntimeError as error:  # also what the driver, the compilers and torch raise
            if self._machine.info.kind == "host":
                raise
            self._failed.add(each.key)
            self.notes.append(f"{each.key} failed and was not measured further: {' '.join(str(error).split())[:300]}")

    def run(self) -> None:
        """All sections."""
        paged = PagedMemory(self._plan.region_bytes // (2 * MIB), 1, 2 * MIB, 2 * MIB, 2 * MIB)
        for kind in KINDS:
            self._machine.calibrate(kind, self._sides.device, paged)
        coarse, fine = self._rounds()
        self._registrations(self._section("registration"))
        self._copy_cells(coarse, self._section("coarse"))
        self._duplex_cells(self._section("duplex"))
        self._overlap_cells(self._section("overlap"))
        self._file_cells(self._section("files"))
        self._copy_cells(fine, self._section("fine"))
        self.copies.sort(key=lambda cell: (cell.backend, cell.direction, not cell.pinned, not cell.scattered))
        for each, bench in self._benches:
            if bench.ungated:
                self.notes.append(f"{each.key}: {bench.ungated} times include submitting: no gate could hold so much")

    def _section(self, name: str) -> _Clock:
        """Its part of the time that is left for it and those after it."""
        names = list(_PARTS)
        share = _PARTS[name] / sum(_PARTS[each] for each in names[names.index(name) :])
        now_s = time.monotonic()
        return _Clock(now_s + share * max(0.0, self._end_s - now_s))

    # -- the grid
    def _copy_cells(self, cells: Sequence[_Cell], clock: _Clock) -> None:
        """Cells in random order, until time runs out; first those of the way that vLLM takes."""
        luck = self._rng.random(len(cells))
        order = sorted(range(len(cells)), key=lambda place: (_WAYS.index(cells[place].way), luck[place]))
        for done, place in enumerate(order):
            if clock.left_s <= 0:
                self.notes.append(f"{len(cells) - done} cells of the grid were left out for lack of time")
                break
            cell = cells[place]
            if cell.backend.key not in self._failed:
                with self.guarded(cell.backend):
                    self.copies.append(self._copy_cell(cell, self._measured(cell, clock.left_s / (len(cells) - done))))

    def _rounds(self) -> tuple[list[_Cell], list[_Cell]]:
        """Coarse cells, and all others."""
        plan = self._plan
        coarse = list(product(plan.coarse_sizes, plan.counts[::2]))
        fine = [pair for pair in product(plan.sizes, plan.counts) if pair not in coarse]
        return list(self._cells(coarse)), [
            *self._cells(fine),
            *self._cells(coarse, scattered=False),
            *self._cells(coarse, pinned=False),
        ]

    def _cells(
        self, shapes: Iterable[tuple[int, int]], *, scattered: bool = True, pinned: bool = True
    ) -> Iterator[_Cell]:
        for size, count in shapes:
            if size * count > self._plan.region_bytes // 2:
                continue
            for each, bench in self._benches:
                if pinned or (each.machine == "cuda" and each.way == "dma_loop"):
                    for direction in DIRECTIONS:
                        yield _Cell(each, bench, direction, Shape(size, count), scattered, pinned)

    def _measured(self, cell: _Cell, seconds: float) -> list[Times]:
        """Warm up, then repeat for about so long, but at least as often as `_REPEATS` says."""
        sides = self._sides if cell.pinned else self._pageable()
        least, most = _REPEATS
        end_s = time.monotonic() + seconds
        times: list[Times] = []
        for number in range(most + 1):
            if len(times) >= least and time.monotonic() > end_s:
                break
            batches = [
                batch_of(sides, cell.direction, cell.shape, self._rng, scattered=cell.scattered) for _ in range(2)
            ]
            found = cell.bench.times(cell.direction, batches[0], batches[1], gated=cell.pinned)
            if number:  # the first one warms up
                times.append(found)
        return times

    def _pageable(self) -> Sides:
        if self._pageable_sides is None:
            host = self._machine.host_memory(self._plan.region_bytes, 4 * MIB, pinned=False)
            self._pageable_sides = Sides(self._sides.device, host)
        return self._pageable_sides

    _pageable_sides: Sides | None = None

    @staticmethod
    def _copy_cell(cell: _Cell, times: list[Times]) -> CopyCell:
        return CopyCell(
            backend=cell.backend.key,
            way=cell.way,
            direction=cell.direction,
            pinned=cell.pinned,
            scattered=cell.scattered,
            descriptor_bytes=cell.shape.descriptor_bytes,
            count=cell.shape.number,
            link_ns=spread(each.link for each in times),
            job_ns=spread(each.job for each in times),
            submit_ns=spread(each.submit for each in times),
        )

    # -- both directions, and computing beside
    def _shape(self, size: int) -> Shape:
        return Shape(size, max(1, min(_SECTION_BYTES, self._plan.region_bytes // 2) // size))

    def _duplex_cells(self, clock: _Clock) -> None:
        cells = list(product(self._plan.duplex_sizes, self._benches))
        for place, (size, (each, bench)) in enumerate(cells):
            shape, share = self._shape(size), clock.left_s / (len(cells) - place)
            what = f"both directions at once, {size // KIB} KiB"
            found = self._repeated(each, what, share, partial(self._duplex_once, bench, shape))
            if found is not None:
                self.duplex.append(DuplexCell(each.key, each.way, *shape, *found))

    def _duplex_once(self, bench: Bench, shape: Shape) -> list[int]:
        """Each direction alone, then with the other one busy from before its start until after its end."""
        batch = {each: batch_of(self._sides, each, shape, self._rng, scattered=True) for each in DIRECTIONS}
        h2d, d2h = bench.link("h2d", batch["h2d"]), bench.link("d2h", batch["d2h"])
        both = []
        for direction, other in zip(DIRECTIONS, reversed(DIRECTIONS), strict=True):
            alone, against = (h2d, d2h) if direction == "h2d" else (d2h, h2d)
            number = 1 + -(-2 * alone // against)  # slowed down to half or less, it still meets the last of so many
            both.append(bench.beside(direction, batch[direction], [batch[other]] * number))
        return [h2d, d2h, *both]

    def _overlap_cells(self, clock: _Clock) -> None:
        cells = list(product(self._benches, DIRECTIONS, KINDS))
        shape = self._shape(self._plan.overlap_size)
        for place, ((each, bench), direction, kind) in enumerate(cells):
            found = self._repeated(
                each,
                f"{direction} beside {kind} work",
                clock.left_s / (len(cells) - place),
                partial(self._overlap_once, bench, direction, kind, shape),
            )
            if found is not None:
                self.overlap.append(OverlapCell(each.key, each.way, direction, kind, *found))

    def _overlap_once(self, bench: Bench, direction: Direction, kind: Compute, shape: Shape) -> list[int]:
        """Work as long as a batch: alone, with batches until after its end, and a batch with work until after its."""
        batch = batch_of(self._sides, direction, shape, self._rng, scattered=True)
        copy_alone = bench.link(direction, batch)
        compute_alone = bench.compute(copy_alone, kind)
        compute_both = bench.overlapped(copy_alone, kind, direction, [batch] * 4)
        copy_both = bench.overlapped(4 * copy_alone, kind, direction, [batch])
        return [compute_alone, compute_both[0], copy_alone, copy_both[1]]

    def _repeated(self, each: Backend, what: str, seconds: float, once: Callable[[], list[int]]) -> list[Spread] | None:
        """Spreads of the times that `once` returns; the first call warms up. None if there is nothing to tell."""
        end_s = time.monotonic() + seconds
        found: list[list[int]] = []
        if each.key in self._failed:
            return None
        with self.guarded(each):
            for number in range(_REPEATS[1] + 1):
                if seconds <= 0 or (len(found) >= _REPEATS[0] and time.monotonic() > end_s):
                    break
                times = once()
                if number:
                    found.append(times)
        if not found:
            self.notes.append(f"{each.key}: {what} was left out")
            return None
        return [spread(column) for column in zip(*found, strict=True)]

    # -- memory and files
    def _registrations(self, clock: _Clock) -> None:
        for size in self._plan.registrations:
            if clock.left_s <= 0:
                self.notes.append(f"registration of {size // MIB} MiB was left out for lack of time")
                continue
            self.registration.append(RegistrationCell(size, *self._machine.registration(size)))

    def _file_cells(self, clock: _Clock) -> None:
        if self._options.files is None:
            return
        self._options.files.mkdir(parents=True, exist_ok=True)
        for size, threads in product(self._plan.file_sizes, self._plan.file_threads):
            if clock.left_s <= 0:
                self.notes.append(f"files of {size // KIB} KiB by {threads} threads were left out for lack of time")
                continue
            with tempfile.TemporaryDirectory(prefix=".hwreplay-probe-", dir=self._options.files) as folder:
                self.files += self._file_cell(Path(folder), size, threads)

    def _file_cell(self, folder: Path, size: int, threads: int) -> list[FileCell]:
        blocks = max(1, self._plan.file_total // size)
        memory = HostMemory(Region(blocks * size))
        memory.region.array[:] = self._rng.integers(256, size=memory.bytes, dtype=np.uint8)  # no drive can pack it
        found = []
        with closing(memory), closing(FileTier(folder, PagedMemory(blocks, 1, size, size, size), threads, 0)) as tier:
            for direction in IO:
                start, end = tier.submit(direction, memory, range(blocks), range(blocks))
                end.wait()
                rate = blocks * size * 10**9 // max(1, end.ns() - start.ns())
                found.append(FileCell(direction, size, threads, rate))
            if tier.note and tier.note not in self.notes:
                self.notes.append(tier.note)
        return found
