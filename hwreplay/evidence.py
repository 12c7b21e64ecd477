"""The results that one profile is fitted to: of one device, intact, and each way of copying by one backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from hwreplay.cells import DIRECTION_OF, Cell, Direction, Group, probe_cells, run_cells
from hwreplay.result import (
    PROBE_FORMAT,
    RUN_FORMAT,
    DeviceInfo,
    ProbeResult,
    RunResult,
    Way,
    format_of,
    read_probe,
    read_run,
)
from kvsim.errors import UserError

PREFERRED = ("memcpy_batch", "memcpy_async", "triton", "torch", "cuda", "host")
"""Where several backends measured one way of copying, the first of these: what vLLM itself does comes first."""


class Probe(NamedTuple):
    """A probe and its file's name."""

    file: str
    result: ProbeResult


class Run(NamedTuple):
    """A replay and its file's name."""

    file: str
    result: RunResult


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that was measured on one device.

    Attributes:
        device: of the newest result.
        probes, runs: the results.
        backends: way of copying: the backend that stands for it.
        notes: what was left aside, and why.
    """

    device: DeviceInfo
    probes: tuple[Probe, ...]
    runs: tuple[Run, ...]
    backends: dict[Way, str]
    notes: tuple[str, ...]

    @property
    def files(self) -> list[str]:
        """Names of all files."""
        return [probe.file for probe in self.probes] + [run.file for run in self.runs]

    def cells(self, way: Way, direction: Direction) -> list[Cell]:
        """Cells of a way: from probes if they measured it, else from jobs."""
        group = Group(self.backends.get(way, ""), way, direction)
        found = [cell for cell in probe_cells(probe.result for probe in self.probes) if cell.group == group]
        if not found:
            found = [cell for cell in run_cells([run.result for run in self.runs]) if cell.group == group]
        return found

    def runs_of(self, way: Way) -> list[Run]:
        """Replays by the backend that stands for a way."""
        return [run for run in self.runs if run.result.way == way and run.result.backend == self.backends.get(way)]

    def without(self, left_out: Run) -> Evidence:
        """The same without one replay."""
        return replace(self, runs=tuple(run for run in self.runs if run is not left_out))


def read_evidence(paths: Sequence[Path], backends: Sequence[str] = ()) -> Evidence:
    """Read results and choose a backend for each way of copying.

    Args:
        paths: files of `hwreplay probe` and `hwreplay run`.
        backends: use these only; without any, the first of `PREFERRED` that was measured.

    Raises:
        UserError: no file is given or one cannot be read; devices differ; a replay copied wrong bytes; a time is not
            above zero; there are no copies, or none by a backend that was asked for.
    """
    if not paths:
        raise UserError("fit: no results given, expected files of hwreplay probe or hwreplay run")
    probes: list[Probe] = []
    runs: list[Run] = []
    devices: list[tuple[str, DeviceInfo]] = []
    for path in paths:
        kind = format_of(path)
        if kind == PROBE_FORMAT:
            probes.append(Probe(path.name, _timed(read_probe(path), str(path))))
            devices.append((str(path), probes[-1].result.device))
        elif kind == RUN_FORMAT:
            runs.append(Run(path.name, intact(read_run(path), str(path))))
            devices.append((str(path), runs[-1].result.device))
        else:
            found = f"found {kind!r:.60}" if kind else "found neither"
            raise UserError(f"{path}: expected a result of format {PROBE_FORMAT} or {RUN_FORMAT}, {found}")
    return _chosen(_one_device(devices), tuple(probes), tuple(runs), backends)


def intact(run: RunResult, source: str) -> RunResult:
    """The run, if every byte was right and no job ended before it began.

    Raises:
        UserError: names the file, and the block or the job.
    """
    wrong = run.integrity.first_wrong
    if wrong is not None:
        raise UserError(
            f"{source}: integrity failed: {wrong.side} block {wrong.block}, offset {wrong.offset}: found "
            f"{wrong.found:#x}, expected {wrong.expected:#x}; its times are those of another copy"
        )
    for job in run.jobs:
        if not 0 <= job.started_ns < job.finished_ns:
            raise UserError(
                f"{source}: job {job.job}: expected 0 <= started_ns < finished_ns, found {job.started_ns} and "
                f"{job.finished_ns}"
            )
        if job.direction in DIRECTION_OF and min(job.descriptors, job.descriptor_bytes) < 1:
            raise UserError(
                f"{source}: job {job.job}: expected at least one descriptor of at least one byte, found "
                f"{job.descriptors} x {job.descriptor_bytes} B"
            )
    for step in run.steps:
        if step.end_ns < step.start_ns:
            raise UserError(f"{source}: step {step.step}: ends at {step.end_ns}, before it starts at {step.start_ns}")
    return run


def same_device(one: DeviceInfo, other: DeviceInfo) -> bool:
    """Whether two results are of the same device under the same driver."""
    return _identity(one) == _identity(other)


def _identity(device: DeviceInfo) -> tuple[str, ...]:
    return device.kind, device.device, device.driver, device.cuda, device.cpu


def _one_device(devices: Sequence[tuple[str, DeviceInfo]]) -> DeviceInfo:
    """The newest record of the device that all results share."""
    first_source, first = devices[0]
    for source, device in devices[1:]:
        if not same_device(first, device):
            differs = [
                f"{name} {getattr(device, name)!r} and {getattr(first, name)!r}"
                for name in ("kind", "device", "driver", "cuda", "cpu")
                if getattr(device, name) != getattr(first, name)
            ]
            raise UserError(
                f"{source}: measured elsewhere than {first_source}: {', '.join(differs)}; a profile is of one device"
            )
    return max((device for _, device in devices), key=lambda device: device.date)


def _chosen(device: DeviceInfo, probes: tuple[Probe, ...], runs: tuple[Run, ...], backends: Sequence[str]) -> Evidence:
    """Which backend stands for which way."""
    probed = probe_cells(probe.result for probe in probes)
    replayed = run_cells([run.result for run in runs])
    cells = probed + replayed
    if not cells:
        files = ", ".join([probe.file for probe in probes] + [run.file for run in runs])
        raise UserError(f"{files}: no copies between GPU and host to fit a profile to")
    known = sorted({cell.group.backend for cell in cells})
    for name in backends:
        if name not in known:
            raise UserError(f"--backend {name}: not in these results, expected one of {', '.join(known)}")
    chosen: dict[Way, str] = {}
    notes: list[str] = []
    for way in ("dma_batch", "dma_loop", "kernel", "pageable"):
        # a probe measured a way on purpose: jobs stand for ways that no probe has
        source = [cell for cell in probed if cell.group.way == way] or [c for c in replayed if c.group.way == way]
        present = sorted({cell.group.backend for cell in source}, key=_preference)
        wanted = [name for name in backends if name in present] if backends else present
        if wanted:
            chosen[way] = wanted[0]
            others = [name for name in present if name != wanted[0]]
            if others:
                notes.append(f"{way}: fitted to backend {wanted[0]}; also measured: {', '.join(others)}")
    return Evidence(device, probes, runs, chosen, tuple(notes))


def _preference(backend: str) -> tuple[int, str]:
    return PREFERRED.index(backend) if backend in PREFERRED else len(PREFERRED), backend


def _timed(probe: ProbeResult, source: str) -> ProbeResult:
    """The probe, if every time that a fit uses is above zero."""
    for cell in probe.copies:
        times = (cell.job_ns.median, cell.job_ns.n, cell.link_ns.median, cell.descriptor_bytes, cell.count)
        if min(times) < 1:
            raise UserError(
                f"{source}: copies: {cell.backend} {cell.direction} {cell.count} x {cell.descriptor_bytes} B: expected "
                "times, samples and sizes above 0"
            )
    for both in probe.duplex:
        spreads = (both.h2d_alone_ns, both.d2h_alone_ns, both.h2d_both_ns, both.d2h_both_ns)
        if min(spread.median for spread in spreads) < 1:
            raise UserError(f"{source}: duplex: {both.backend}: expected times above 0")
    for overlap in probe.overlap:
        if min(overlap.compute_alone_ns.median, overlap.compute_both_ns.median) < 1:
            raise UserError(f"{source}: overlap: {overlap.backend}: expected times above 0")
    return probe
