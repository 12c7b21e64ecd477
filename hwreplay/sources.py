"""What a fitted profile says about its numbers: file, date, device, method and spread of each."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from hwreplay.cells import Cell
from hwreplay.evidence import Evidence
from hwreplay.result import DeviceInfo

MOST_NAMES = 4
"""Longer lists of files are cut."""


def known(value: object, source: str) -> dict[str, Any]:
    """A measured figure."""
    return {"value": value, "source": source}


def assumed(value: object, source: str) -> dict[str, Any]:
    """A figure that nobody measured, and why it is what it is."""
    return {"value": None, "assumed": value, "source": source}


def driver_text(device: DeviceInfo) -> str:
    """Driver and CUDA version."""
    if device.kind == "host":
        return "none (no GPU)"
    return f"driver {device.driver or 'unknown'}, CUDA {device.cuda or 'unknown'}, torch {device.torch or 'none'}"


def fitted_text(cells: Sequence[Cell], error: float) -> str:
    """How well a number fits its cells; ``error`` = mean absolute error of the logarithm."""
    return f"best fit to {len(cells)} cells, mean error {100 * error:.1f} %"


def source_of(evidence: Evidence, cells: Sequence[Cell]) -> str:
    """Method, spread, files, date and device of cells."""
    jobs = cells[0].link_ns is None
    least, most = min(cell.samples for cell in cells), max(cell.samples for cell in cells)
    samples = f"{least}" if least == most else f"{least} to {most}"
    spreads = [cell.spread for cell in cells]
    return (
        f"backend {cells[0].group.backend}, medians of {samples} {'jobs' if jobs else 'samples'}, P10 to P90 "
        f"{percents([statistics.median(spreads)])} of the median in the middle cell, {percents([max(spreads)])} in the "
        f"widest; {runs_source(evidence) if jobs else probes_source(evidence)}"
    )


def probes_source(evidence: Evidence) -> str:
    """Files, date and device of the probes."""
    return _origin(evidence, [probe.file for probe in evidence.probes])


def runs_source(evidence: Evidence) -> str:
    """Files, date and device of the replays."""
    return _origin(evidence, [run.file for run in evidence.runs])


def listed(names: Sequence[str]) -> str:
    """Names of files, the first few of them."""
    return ", ".join(names) if len(names) <= MOST_NAMES else f"{', '.join(names[:3])} and {len(names) - 3} more"


def percents(parts: Iterable[float]) -> str:
    """Parts of a whole as percentages."""
    return " and ".join(f"{100 * part:.0f} %" for part in parts)


def _origin(evidence: Evidence, files: Sequence[str]) -> str:
    return f"{listed(files)} of {evidence.device.date} on {evidence.device.label}"
