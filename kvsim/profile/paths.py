"""Copy paths: three ways to move the same blocks, and how long one batch of descriptors takes on each.

A batch is a list of `Pieces`: so many descriptors of so many bytes each. Sizes may differ, because neighbours that were
joined are longer: the time of each descriptor is that of its own size, in a call with as many descriptors as there are
in all.

To add a path: a component with `batch_ns`, a section of `LinkProfile`, and a rule in `kvsim.copy_path`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from pydantic import Field, model_validator

from kvsim.checked import Component, Misfit
from kvsim.profile.figures import FactorFigure, Grid, RateFigure, SizeFigure, TimeFigure

NS = 10**9


class Pieces(NamedTuple):
    """Descriptors of one size."""

    descriptor_bytes: int
    number: int


class CopyPath(Component):
    """Copy engines, one call per batch (cuMemcpyBatchAsync), in one direction and alone on the link."""

    path: Literal["dma_batch"] = Field(description="dma_batch = one cuMemcpyBatchAsync per transfer")
    submit: TimeFigure = Field(description="time of a call before its first byte moves")
    peak: RateFigure = Field(description="rate that no copy exceeds")
    grid: Grid | None = Field(None, description="rates by descriptor size and count; null = unknown")
    per_descriptor: TimeFigure | None = Field(
        None, description="shortest time between two descriptors, where there is no grid"
    )

    @model_validator(mode="after")
    def _fits(self) -> CopyPath:
        if (self.grid is None) == (self.per_descriptor is None):
            raise Misfit("grid", "expected either a grid or per_descriptor, found both or none")
        if self.grid is not None and self.grid.fastest_bytes_per_s > self.peak.used:
            fastest = self.grid.fastest_bytes_per_s / 10**9
            raise Misfit("peak", f"expected at least the grid's fastest rate, {fastest}GB/s")
        return self

    def batch_ns(self, batch: Sequence[Pieces], bytes_per_s: int) -> int:
        """Time of one call that moves no more than ``bytes_per_s``: submit plus time on the link."""
        return self.submit.used + max(_at_rate(batch, bytes_per_s), self._descriptors_ns(batch))

    def _descriptors_ns(self, batch: Sequence[Pieces]) -> int:
        total = sum(pieces.number for pieces in batch)
        if self.grid is not None:
            grid = self.grid
            return round(sum(count * grid.descriptor_ns(size, total) for size, count in batch))
        assert self.per_descriptor is not None  # the validator above
        return total * self.per_descriptor.used


class DmaLoop(Component):
    """Copy engines, one call per descriptor (cudaMemcpyAsync in a loop): vLLM's way without cuMemcpyBatchAsync."""

    per_call: TimeFigure = Field(description="shortest time between two calls")

    def batch_ns(self, batch: Sequence[Pieces], bytes_per_s: int) -> int:
        """Time of all calls: the host makes the next while the link is busy with the last."""
        per_call = self.per_call.used
        return sum(count * max(per_call, -(-size * NS // bytes_per_s)) for size, count in batch)


class KernelCopies(Component):
    """A kernel on a few SMs that reads one side and writes the other (vLLM's swap_blocks_triton.py).

    Each of its programs has so many bytes in flight and waits a round trip for them: the rate is the smaller of the
    link's and programs x bytes / round trip (measured for SGLang's kernel: sgl-project/sglang#40278).
    """

    launch: TimeFigure = Field(description="time of a launch before its first byte moves")
    h2d_peak: RateFigure = Field(description="rate of loads that no launch exceeds")
    d2h_peak: RateFigure = Field(description="rate of stores that no launch exceeds")
    programs: int = Field(12, ge=1, description="thread blocks of a launch: vLLM's NUM_SMS")
    in_flight: SizeFigure = Field(description="bytes that a program asks for at a time, if a descriptor has them")
    round_trip: TimeFigure = Field(description="time until they have come")
    total: RateFigure | None = Field(None, description="both directions together, in equal halves; null = no limit")
    compute_slowdown: FactorFigure = Field(description="a forward pass takes this much longer during a kernel copy")

    def batch_ns(self, batch: Sequence[Pieces], bytes_per_s: int) -> int:
        """Time of one launch that moves no more than ``bytes_per_s``."""
        programs = min(self.programs, sum(pieces.number for pieces in batch))
        moving = 0
        for size, count in batch:
            in_flight = programs * min(self.in_flight.used, size)
            moving += -(-size * count * self.round_trip.used // in_flight)
        return self.launch.used + max(_at_rate(batch, bytes_per_s), moving)


class Pageable(Component):
    """Copies from and to host memory that is not pinned: the driver stages them through a pinned buffer of its own."""

    rate: RateFigure = Field(description="rate of a staged copy, either direction")
    per_call: TimeFigure = Field(description="shortest time of one staged descriptor")

    def batch_ns(self, batch: Sequence[Pieces], bytes_per_s: int) -> int:
        """Time of all descriptors, one after another."""
        rate, per_call = min(self.rate.used, bytes_per_s), self.per_call.used
        return sum(count * max(per_call, -(-size * NS // rate)) for size, count in batch)


def _at_rate(batch: Sequence[Pieces], bytes_per_s: int) -> int:
    return -(-sum(size * count for size, count in batch) * NS // bytes_per_s)
