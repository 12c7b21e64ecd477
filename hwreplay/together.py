"""What copies do to each other, and copies and compute to each other: as a probe measured it, or replays show it."""

from __future__ import annotations

import statistics
from typing import Any

from hwreplay.cells import DIRECTIONS, Direction
from hwreplay.evidence import Evidence
from hwreplay.holdout import slowdown_from_steps
from hwreplay.result import DuplexCell, OverlapCell, Way
from hwreplay.sections import share_of_both
from hwreplay.sources import assumed, known, percents, probes_source, runs_source


def shares(evidence: Evidence, way: Way, peaks: dict[Direction, int]) -> tuple[tuple[float, float], str]:
    """Speed of each direction while both are busy, and its source; (1, 1) and "" if no probe measured it.

    Batches that are far from the peak alone are bound by their descriptors, not by the link: they are used only if
    there are no others.
    """
    backend = evidence.backends.get(way)
    cells = [cell for probe in evidence.probes for cell in probe.result.duplex if cell.way == way]
    cells = [cell for cell in cells if cell.backend == backend]
    if not cells:
        return (1.0, 1.0), ""

    def bound_by_link(cell: DuplexCell) -> bool:
        moved = cell.descriptor_bytes * cell.count * 10**9
        alone = cell.h2d_alone_ns.median, cell.d2h_alone_ns.median
        return all(2 * moved / ns >= peaks[direction] for ns, direction in zip(alone, DIRECTIONS, strict=True))

    used = [cell for cell in cells if bound_by_link(cell)] or cells
    pairs = [
        (
            share_of_both(cell.h2d_alone_ns.median, cell.h2d_both_ns.median),
            share_of_both(cell.d2h_alone_ns.median, cell.d2h_both_ns.median),
        )
        for cell in used
    ]
    shares = statistics.median(pair[0] for pair in pairs), statistics.median(pair[1] for pair in pairs)
    samples = sum(cell.h2d_both_ns.n for cell in used)
    low, high = (pick(min(pair) for pair in pairs) for pick in (min, max))
    why = (
        f"each keeps {percents(shares)} of its speed (h2d, d2h): median of {len(used)} cells, {samples} samples, the "
        f"slower direction {percents((low, high))} at the extremes, applied to the peaks; backend {backend}, "
        f"{probes_source(evidence)}"
    )
    return shares, why


def slowdown(evidence: Evidence, way: Way, unless_measured: float) -> dict[str, Any]:
    """Figure of the factor on compute: from a probe's overlap, else from the steps of replays, else assumed."""
    backend = evidence.backends.get(way)
    ratios = [cell.compute_both_ns.median / cell.compute_alone_ns.median for cell in _overlap(evidence, way)]
    if ratios:
        spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
        why = f"median of {len(ratios)} cells of compute beside copies, {spread}; backend {backend}, "
        return known(max(1.0, round(statistics.median(ratios), 4)), why + probes_source(evidence))
    steps = slowdown_from_steps([run.result for run in evidence.runs_of(way)])
    if steps is not None:
        why = (
            f"median of {steps.beside} forward passes beside copies against {steps.apart} without; backend {backend}, "
        )
        return known(round(steps.factor, 4), why + runs_source(evidence))
    return assumed(unless_measured, "copies were not timed beside compute: hwreplay probe measures it as overlap")


def _overlap(evidence: Evidence, way: Way) -> list[OverlapCell]:
    cells = [cell for probe in evidence.probes for cell in probe.result.overlap if cell.way == way]
    return [cell for cell in cells if cell.backend == evidence.backends.get(way)]


def beside_compute(evidence: Evidence) -> list[str]:
    """What compute does to copies, which the simulator leaves out."""
    ratios = [
        cell.copy_both_ns.median / cell.copy_alone_ns.median
        for cell in _overlap(evidence, "dma_batch")
        if cell.copy_alone_ns.median
    ]
    if not ratios:
        return []
    reach = f"{min(ratios):.2f} to {max(ratios):.2f}, {len(ratios)} cells"
    middle = statistics.median(ratios)
    return [f"copies beside compute take {middle:.2f} times as long ({reach}); kvsim takes them to be as fast as alone"]
