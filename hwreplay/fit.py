"""From measurements to a link profile that kvsim reads: each number with its file, date, device, method and spread.

What decides: the time of a batch is that which a scheduler sees, from the submit call to the end. Numbers that nobody
measured are written as `assumed`, with what it would take to measure them. Nothing here touches a device.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hwreplay.cells import DIRECTIONS, Cell, Direction
from hwreplay.errors import Errors
from hwreplay.evidence import Evidence, read_evidence
from hwreplay.grid import LeftOut, Rates, left_out, rates_of
from hwreplay.holdout import Check, cross_checked, duplex_from_jobs
from hwreplay.result import Way
from hwreplay.sections import (
    PROGRAMS,
    fastest,
    kernel,
    per_call,
    submit_from_jobs,
    submit_from_modes,
)
from hwreplay.sources import (
    assumed,
    driver_text,
    fitted_text,
    known,
    listed,
    percents,
    runs_source,
    source_of,
)
from hwreplay.together import beside_compute, shares, slowdown
from kvsim.checked import check
from kvsim.errors import UserError
from kvsim.profile import LinkProfile, dump_link
from kvsim.units import format_rate, format_size, format_time
from kvsim.yamlfile import Document

SUFFIX = ".profile.yaml"


@dataclass(frozen=True, slots=True)
class Fit:
    """A profile and what speaks for it.

    Attributes:
        profile: as kvsim loads it.
        left_out: by direction, each cell of the grid as the others would have predicted it.
        checks: jobs of replays, predicted and measured.
    """

    profile: LinkProfile
    left_out: dict[Direction, list[LeftOut]]
    checks: tuple[Check, ...]


@dataclass(slots=True)
class _Draft:
    """A profile in the making: plain data as in its file."""

    document: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    left_out: dict[Direction, list[LeftOut]] = field(default_factory=dict)


def fit_files(paths: Sequence[Path], name: str, backends: Sequence[str] = ()) -> Fit:
    """Fit a profile to results of one device.

    Args:
        paths: files of `hwreplay probe` and `hwreplay run`.
        name: of the profile.
        backends: use these only; without any, what vLLM itself does is preferred.

    Raises:
        UserError: as `read_evidence`, or a direction was not measured with batched copies.
    """
    return fit(read_evidence(paths, backends), name)


def fit(evidence: Evidence, name: str) -> Fit:
    """Fit a profile, and check it with the jobs of the replays; the checks go into its notes."""
    draft = _draft(evidence, name)
    profile = _checked(draft)
    checks = tuple(cross_checked(evidence, profile, lambda part: _checked(_draft(part, name))))
    draft.notes += [_check_note(entry) for entry in checks]
    return Fit(_checked(draft), draft.left_out, checks)


def written_beside(path: Path) -> Path:
    """Where the errors of a profile's cells are written: ``gpu.fit.json`` beside ``gpu.profile.yaml``."""
    return path.with_name(f"{path.name.removesuffix('.yaml').removesuffix('.profile')}.fit.json")


def write_profile(path: Path, profile: LinkProfile) -> None:
    """Write a profile so that kvsim loads it by its path.

    Raises:
        UserError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dump_link(profile), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from None


def _checked(draft: _Draft) -> LinkProfile:
    return check(LinkProfile, Document("the fitted profile", {**draft.document, "notes": list(draft.notes)}))


def _draft(evidence: Evidence, name: str) -> _Draft:
    device = evidence.device
    host = device.kind == "host"
    draft = _Draft(
        {
            "name": name,
            "kind": "host" if host else "measured",
            "device": device.label if host else f"{device.label}, host {device.cpu or 'unknown'}",
            "driver": driver_text(device),
            "date": device.date,
            "method": f"hwreplay fit of {listed(evidence.files)}",
        }
    )
    if host:
        draft.notes.append("Copies were made by host threads between two regions of host memory: no GPU was involved.")
    draft.notes += evidence.notes
    peaks = {direction: _copy_path(draft, evidence, direction) for direction in DIRECTIONS}
    draft.document["duplex"] = None
    draft.document["compute_slowdown"] = assumed(1.0, "copies were not timed beside compute")
    draft.document["host_dram"] = None
    draft.document["numa"] = "unknown; measured with memory as the process got it"
    draft.notes.append(
        "host_dram: not measured (one device was busy at a time), so null: no limit beyond the duplex one"
    )
    _loop(draft, evidence, peaks)
    _pageable(draft, evidence)
    _duplex(draft, evidence, peaks)
    draft.document["compute_slowdown"] = slowdown(evidence, "dma_batch", 1.0)
    _kernel(draft, evidence)
    draft.notes += beside_compute(evidence)
    return draft


def _copy_path(draft: _Draft, evidence: Evidence, direction: Direction) -> int:
    """Write the section of a direction; its peak in bytes per second."""
    cells = evidence.cells("dma_batch", direction)
    if not cells:
        what = "loads (h2d)" if direction == "h2d" else "stores (d2h)"
        raise UserError(
            f"{listed(evidence.files)}: no batched copies of {what}: a profile needs both directions "
            "by one backend of way dma_batch (memcpy_batch, or host without a GPU)"
        )
    measured = submit_from_modes(cells)
    fitted = measured if measured is not None else submit_from_jobs(cells)
    submit_ns = fitted or 0
    peak = fastest(cells, submit_ns)
    rates = rates_of(cells, submit_ns, peak)
    source = source_of(evidence, cells)
    if measured is not None:
        submit = known(format_time(submit_ns), f"whole time less time behind a gate, smallest batches; {source}")
    elif fitted is not None:
        submit = known(format_time(submit_ns), f"where time over count begins (Theil-Sen); {source}")
    else:
        submit = assumed(
            "0ns", "jobs of too few sizes to tell it from time on the link: it is part of the grid's times"
        )
    draft.document[direction] = {
        "path": "dma_batch",
        "submit": submit,
        "peak": known(format_rate(peak), f"fastest cell of {len(cells)}; {source}"),
        "grid": {
            "counts": list(rates.counts),
            "gb_per_s": {format_size(size): list(row) for size, row in rates.gb_per_s.items()},
            "source": f"{len(cells)} cells of whole time less submit, the others by interpolation; {source}",
        },
    }
    draft.left_out[direction] = left_out(cells, submit_ns, peak, rates)
    draft.notes += _grid_notes(direction, rates, draft.left_out[direction])
    return peak


def _loop(draft: _Draft, evidence: Evidence, peaks: dict[Direction, int]) -> None:
    cells = _both(evidence, "dma_loop")
    if cells:
        loop = per_call(cells, peaks)
        draft.document["dma_loop"] = {
            "per_call": known(format_time(loop.ns), f"{fitted_text(cells, loop.error)}; {source_of(evidence, cells)}")
        }


def _pageable(draft: _Draft, evidence: Evidence) -> None:
    cells = _both(evidence, "pageable")
    if cells:
        rate = fastest(cells, gated=False)  # the driver stages while the host waits: a gate holds nothing back
        staged = per_call(cells, dict.fromkeys(DIRECTIONS, rate))
        source = source_of(evidence, cells)
        draft.document["pageable"] = {
            "rate": known(format_rate(rate), f"fastest cell of {len(cells)}; {source}"),
            "per_call": known(format_time(staged.ns), f"{fitted_text(cells, staged.error)}; {source}"),
        }


def _kernel(draft: _Draft, evidence: Evidence) -> None:
    cells = _both(evidence, "kernel")
    if not cells:
        return
    found = kernel(cells)
    source = f"{fitted_text(cells, found.error)}; {source_of(evidence, cells)}"
    parts, why = shares(evidence, "kernel", found.peaks)
    total = _rounded(sum(part * found.peaks[direction] for part, direction in zip(parts, DIRECTIONS, strict=True)))
    draft.document["kernel"] = {
        "launch": known(format_time(found.launch_ns), source),
        "h2d_peak": known(format_rate(found.peaks["h2d"]), f"fastest cell; {source}"),
        "d2h_peak": known(format_rate(found.peaks["d2h"]), f"fastest cell; {source}"),
        "programs": PROGRAMS,
        "in_flight": known(format_size(found.in_flight_bytes), f"together with round_trip; {source}"),
        "round_trip": known(format_time(found.round_trip_ns), source),
        "total": known(format_rate(total), why) if why else None,
        "compute_slowdown": slowdown(evidence, "kernel", 1.1),
    }
    if not why:
        draft.notes.append("kernel.total: not measured, so null: both directions at full speed")


def _duplex(draft: _Draft, evidence: Evidence, peaks: dict[Direction, int]) -> None:
    """What is left of each direction's peak: kvsim takes the part, so the parts are applied to the fitted peaks."""
    parts, why = shares(evidence, "dma_batch", peaks)
    if not why:
        fitted = _checked(draft)
        from_jobs = duplex_from_jobs([run.result for run in evidence.runs_of("dma_batch")], fitted)
        if from_jobs is not None:
            parts, why = from_jobs.shares, f"{from_jobs.jobs} jobs that ran beside the other direction; "
            why += f"each keeps {percents(parts)} of its speed (h2d, d2h); {runs_source(evidence)}"
    rates = [share * peaks[direction] for share, direction in zip(parts, DIRECTIONS, strict=True)]
    total = format_rate(_rounded(sum(rates)))
    part = round(rates[0] / sum(rates), 4)
    unmeasured = "never measured with both directions busy: taken not to touch each other"
    draft.document["duplex"] = {
        "total": known(total, why) if why else assumed(total, unmeasured),
        "h2d_part": known(part, "as total") if why else assumed(part, "as total"),
    }


def _both(evidence: Evidence, way: Way) -> list[Cell]:
    return [cell for direction in DIRECTIONS for cell in evidence.cells(way, direction)]


def _rounded(rate: float) -> int:
    """Four digits of a rate."""
    return round(float(f"{rate:.4g}"))


def _grid_notes(direction: Direction, rates: Rates, cells: Sequence[LeftOut]) -> list[str]:
    notes = []
    if rates.pooled:
        notes.append(
            f"{direction}: {rates.pooled} of {len(cells)} cells were moved so that more descriptors never take less "
            f"time (isotonic regression), by {100 * rates.largest_change:.1f} % at most"
        )
    by_count = [abs(cell.by_count) for cell in cells if cell.by_count is not None and cell.inside]
    by_size = [abs(cell.by_size) for cell in cells if cell.by_size is not None]
    if by_count:
        notes.append(f"{direction}: leave-one-out error between counts: {_error_text(by_count)}")
    if by_size:
        notes.append(f"{direction}: leave-one-out error between sizes: {_error_text(by_size)}")
    return notes


def _error_text(errors: Sequence[float]) -> str:
    return f"median {100 * statistics.median(errors):.1f} %, worst {100 * max(errors):.1f} % of {len(errors)} cells"


def _check_note(entry: Check) -> str:
    errors: Errors = entry.errors
    how = "not used for the fit" if entry.held_out else "the fit's own"
    return (
        f"{entry.file}, {entry.direction}: {errors.n} jobs, {how}: median error {100 * errors.median:.1f} %, mean "
        f"{100 * errors.mean:.1f} %, P90 {100 * errors.p90:.1f} %"
    )
