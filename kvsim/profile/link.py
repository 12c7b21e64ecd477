"""The link between one GPU and host memory: what each way of copying takes, alone and with the other direction busy.

The time of a batched copy comes from a grid of measurements (descriptor size by count), because
``alpha + bytes / beta`` is wrong: on Hopper a batched host-to-device copy of 24 KiB descriptors takes five times as
long as one of 28 KiB descriptors (vllm-project/vllm#42212).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, NamedTuple

from pydantic import Field, PrivateAttr

from kvsim.checked import Component
from kvsim.profile.figures import FactorFigure, IsoDate, PartFigure, PositivePartFigure, RateFigure, assumed_figures
from kvsim.profile.paths import CopyPath, DmaLoop, KernelCopies, Pageable, Pieces

PPM = 1_000_000

Direction = Literal["h2d", "d2h"]
"""Host to device (loads) or device to host (stores)."""

PathName = Literal["dma_batch", "dma_loop", "kernel", "pageable"]
"""Ways of copying; pageable is what is left of any of them where host memory is not pinned."""


class Duplex(Component):
    """What is left of both directions while both are busy."""

    total: RateFigure = Field(description="both directions together")
    h2d_part: PartFigure | None = Field(
        None, description="part of the total that goes host to device; null = in equal halves"
    )


class Remote(Component):
    """What is left of the link's peak where host memory belongs to the other socket."""

    h2d: PositivePartFigure = Field(description="part of the peak of loads that is left")
    d2h: PositivePartFigure = Field(description="part of the peak of stores that is left")


class Share(NamedTuple):
    """Rate of each direction while both run, in parts per million of its rate alone."""

    h2d_ppm: int
    d2h_ppm: int


class LinkProfile(Component):
    """The link between one GPU and host memory.

    The lookups are pure functions of the profile and give integers; results of the grid are remembered.
    """

    name: str = Field(min_length=1, description="name of the profile")
    kind: Literal["shipped", "measured", "host"] = Field(
        description="shipped = from public sources; measured = on this very machine; host = copies by CPU threads, no "
        "GPU: only for checking the method"
    )
    device: str = Field(min_length=1, description="GPU, link and host")
    driver: str = Field(min_length=1, description="driver and CUDA version, or unknown")
    date: IsoDate = Field(description="when measured or collected, such as 2026-11-29")
    method: str = Field(min_length=1, description="how the numbers were got")
    h2d: CopyPath | None = Field(description="host to device; null = takes no time")
    d2h: CopyPath | None = Field(description="device to host; null = takes no time")
    duplex: Duplex | None = Field(description="both directions at once; null = they do not touch each other")
    dma_loop: DmaLoop | None = Field(None, description="copies by one call per descriptor; null = unknown")
    kernel: KernelCopies | None = Field(None, description="copies by a kernel; null = unknown")
    pageable: Pageable | None = Field(None, description="copies of memory that is not pinned; null = unknown")
    remote: Remote | None = Field(None, description="memory of the other socket; null = unknown")
    compute_slowdown: FactorFigure = Field(description="compute takes this much longer while a copy engine copies")
    host_dram: RateFigure | None = Field(
        description="DRAM bandwidth of the host, shared by all ranks of the engine; null = no limit"
    )
    numa: str = Field(min_length=1, description="what is known about memory of the other socket")
    notes: list[str] = Field(default_factory=list, description="anything else worth knowing")

    _memo: dict[tuple[str, str, tuple[Pieces, ...], bool], int] = PrivateAttr(default_factory=dict)

    def copy_ns(self, direction: Direction, descriptor_bytes: int, count: int) -> int:
        """Time of one batched call of equal descriptors that runs alone: submit plus time on the link.

        Never falls when `count` rises; may fall when `descriptor_bytes` rises.

        Args:
            direction: h2d or d2h.
            descriptor_bytes: contiguous bytes of one descriptor, at least 1.
            count: number of descriptors; 0 takes no time, because no call is made.
        """
        if descriptor_bytes < 1 or count < 0:
            raise ValueError(f"expected descriptors of 1 byte or more, found {count} x {descriptor_bytes} B")
        return self.batch_ns("dma_batch", direction, (Pieces(descriptor_bytes, count),) if count else ())

    def batch_ns(self, way: PathName, direction: Direction, batch: tuple[Pieces, ...], *, remote: bool = False) -> int:
        """Time of a batch that runs alone; an empty one takes none.

        Args:
            way: how it is copied; `has` says whether the profile knows.
            direction: h2d or d2h.
            batch: its descriptors, by size.
            remote: host memory belongs to the other socket.
        """
        key = (way, direction, batch, remote)
        known = self._memo.get(key)
        if known is None:
            engine = self.path(direction)
            known = 0
            if engine is not None and batch:
                known = self._timed(way, engine).batch_ns(batch, self.peak(way, direction, remote=remote))
            self._memo[key] = known
        return known

    def _timed(self, way: PathName, engine: CopyPath) -> CopyPath | DmaLoop | KernelCopies | Pageable:
        section = engine if way == "dma_batch" else getattr(self, way)
        assert section is not None, f"{self.name} knows no {way}"  # who resolves a config asks `has` first
        timed: CopyPath | DmaLoop | KernelCopies | Pageable = section
        return timed

    def has(self, way: PathName) -> bool:
        """Whether the profile knows how long this way of copying takes; one whose copies take no time knows all."""
        return way == "dma_batch" or getattr(self, way) is not None or (self.h2d is None and self.d2h is None)

    def peak(self, way: PathName, direction: Direction, *, remote: bool = False) -> int:
        """Bytes per second that no copy exceeds; for a direction that takes time."""
        engine = self.path(direction)
        assert engine is not None, f"{direction} takes no time"
        peak = engine.peak.used
        if way == "kernel" and self.kernel is not None:
            peak = (self.kernel.h2d_peak if direction == "h2d" else self.kernel.d2h_peak).used
        if remote and self.remote is not None:
            part = (self.remote.h2d if direction == "h2d" else self.remote.d2h).used
            peak = max(1, peak * round(PPM * part) // PPM)
        return peak

    def path(self, direction: Direction) -> CopyPath | None:
        """The copy path of a direction, None if it takes no time."""
        return self.h2d if direction == "h2d" else self.d2h

    def bidirectional_share(self) -> Share:
        """How fast batched copies of each direction are while both are busy, in parts per million of their peaks."""
        return Share(self.shared_ppm("dma_batch", "h2d"), self.shared_ppm("dma_batch", "d2h"))

    def shared_ppm(self, way: PathName, direction: Direction, *, remote: bool = False) -> int:
        """Speed of a copy while the other direction is busy too, in parts per million of its speed alone.

        Both directions are taken to be copied in the same way; a mix of ways was never measured.
        """
        if self.h2d is None or self.d2h is None:
            return PPM
        if way == "kernel" and self.kernel is not None:
            total = self.kernel.total
            return (
                PPM if total is None else min(PPM, PPM * total.used // (2 * self.peak(way, direction, remote=remote)))
            )
        if self.duplex is None:
            return PPM
        total_bytes, part = self.duplex.total.used, self.duplex.h2d_part
        h2d = total_bytes * (round(PPM * part.used) if part is not None else PPM // 2) // PPM
        mine = h2d if direction == "h2d" else total_bytes - h2d
        return min(PPM, PPM * mine // self.peak(way, direction, remote=remote))

    def slowdown_ppm(self, way: PathName) -> int:
        """Factor on compute time while such a copy runs, in parts per million: 1,000,000 is no slow-down."""
        section = self.kernel if way == "kernel" else None
        return round(PPM * (self.compute_slowdown if section is None else section.compute_slowdown).used)

    @property
    def host_dram_bytes_per_s(self) -> int | None:
        """DRAM bandwidth that all ranks share; None if there is no limit."""
        return self.host_dram.used if self.host_dram is not None else None

    def assumptions(self, without: Collection[str] = ()) -> list[str]:
        """One line for each number that nobody measured: its key and why it was assumed.

        ``without``: sections of which none is used.
        """
        return [f"{key}: {source}" for key, source in assumed_figures(self) if key.split(".")[0] not in without]
