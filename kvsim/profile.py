"""Link profiles: how long KV copies between GPU and host take, and where each number comes from.

A copy is one call with `count` descriptors of `descriptor_bytes` each. Its time is the submit time of the
call plus the time on the link. The latter comes from a grid of measurements (descriptor size by count),
because ``alpha + bytes / beta`` is wrong: on Hopper a batched host-to-device copy of 24 KiB descriptors takes
five times as long as one of 28 KiB descriptors (vllm-project/vllm#42212).

Every number in a profile has a source. A number that nobody measured is written as ``value: null`` with what
is `assumed` instead, so that a report can say which of its inputs are guesses.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from datetime import date as Date  # noqa: N812 - a field is named date
from functools import cache
from pathlib import Path
from typing import Annotated, Generic, Literal, NamedTuple, TypeVar

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator

from kvsim.checked import Component, Misfit, check, closest
from kvsim.errors import UserError
from kvsim.units import Duration, Rate, Size
from kvsim.yamlfile import dump_yaml, is_path, read_yaml

PRESETS = Path(__file__).parent / "presets" / "links"
SUFFIX = ".profile.yaml"
PPM = 1_000_000

Direction = Literal["h2d", "d2h"]
"""Host to device (loads) or device to host (stores)."""


def _iso_date(value: object) -> object:
    try:
        Date.fromisoformat(str(value))
    except ValueError:
        raise ValueError(f"expected a date such as 2026-11-29, found {value!r:.60}") from None
    return value


T = TypeVar("T")
IsoDate = Annotated[str, BeforeValidator(_iso_date)]
Source = Annotated[str, Field(min_length=3)]


class Figure(Component, Generic[T]):
    """A number and its source; either known (`value`) or, if nobody measured it, `assumed`."""

    value: T | None = Field(description="the number, null if unknown")
    assumed: T | None = Field(None, description="what is used where the number is unknown")
    source: Source = Field(description="where the number comes from, or why it was assumed")

    @model_validator(mode="after")
    def _known_or_assumed(self) -> Figure[T]:
        if (self.value is None) == (self.assumed is None):
            raise Misfit("value", "expected either a value, or null and what is assumed instead")
        return self

    @property
    def used(self) -> T:
        """The number, known or assumed."""
        if self.value is not None:
            return self.value
        assert self.assumed is not None  # the validator above
        return self.assumed


RateFigure = Figure[Annotated[Rate, Field(gt=0)]]
"""Bytes per second."""

TimeFigure = Figure[Duration]
"""Nanoseconds."""

PartFigure = Figure[Annotated[float, Field(ge=0, le=1)]]
"""A part of a whole."""

FactorFigure = Figure[Annotated[float, Field(ge=1)]]
"""How many times longer."""


class Grid(Component):
    """Measured rates of one call, by descriptor size (rows) and number of descriptors (columns)."""

    counts: list[Annotated[int, Field(ge=1)]] = Field(min_length=1, description="descriptors in the call, rising")
    gb_per_s: dict[Size, list[Annotated[float, Field(gt=0)]]] = Field(
        min_length=1, description="size of a descriptor: GB/s for each count; sizes rising"
    )
    assumed: bool = Field(False, description="true if measured on other hardware")
    source: Source = Field(description="where the numbers come from")

    @model_validator(mode="after")
    def _is_a_grid(self) -> Grid:
        sizes = list(self.gb_per_s)
        if self.counts != sorted(set(self.counts)):
            raise Misfit("counts", f"expected rising counts, found {self.counts}")
        if sizes != sorted(sizes) or sizes[0] == 0:
            raise Misfit("gb_per_s", "expected rising sizes above 0")
        for size, rates in self.gb_per_s.items():
            if len(rates) != len(self.counts):
                raise Misfit(
                    "gb_per_s",
                    f"expected {len(self.counts)} rates for {size} bytes, one per count, found {len(rates)}",
                )
            times = [count / rate for count, rate in zip(self.counts, rates, strict=True)]
            if times != sorted(times):
                raise Misfit("gb_per_s", f"more descriptors of {size} bytes take less time in all, found {rates}")
        return self


class CopyPath(Component):
    """How copies of one direction are made and how fast they are when they run alone."""

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
        if self.grid is not None:
            fastest = max(rate for rates in self.grid.gb_per_s.values() for rate in rates)
            if round(fastest * 10**9) > self.peak.used:
                raise Misfit("peak", f"expected at least the grid's fastest rate, {fastest}GB/s")
        return self

    def link_ns(self, descriptor_bytes: int, count: int) -> int:
        """Time on the link of one call, without the submit time."""
        at_peak = -(-count * descriptor_bytes * 10**9 // self.peak.used)
        if self.grid is not None:
            return max(at_peak, round(count * _descriptor_ns(self.grid, descriptor_bytes, count)))
        assert self.per_descriptor is not None  # the validator above
        return max(at_peak, count * self.per_descriptor.used)


class Duplex(Component):
    """What is left of both directions while both are busy."""

    total: RateFigure = Field(description="both directions together")
    h2d_part: PartFigure | None = Field(
        None, description="part of the total that goes host to device; null = in equal halves"
    )


class Share(NamedTuple):
    """Rate of each direction while both run, in parts per million of its rate alone."""

    h2d_ppm: int
    d2h_ppm: int


class LinkProfile(Component):
    """The link between one GPU and host memory.

    The lookups are pure functions of the profile and give integers; results of the grid are remembered.
    """

    name: str = Field(min_length=1, description="name of the profile")
    kind: Literal["shipped", "measured"] = Field(
        description="shipped = from public sources; measured = on this very machine"
    )
    device: str = Field(min_length=1, description="GPU, link and host")
    driver: str = Field(min_length=1, description="driver and CUDA version, or unknown")
    date: IsoDate = Field(description="when measured or collected, such as 2026-11-29")
    method: str = Field(min_length=1, description="how the numbers were got")
    h2d: CopyPath | None = Field(description="host to device; null = takes no time")
    d2h: CopyPath | None = Field(description="device to host; null = takes no time")
    duplex: Duplex | None = Field(description="both directions at once; null = they do not touch each other")
    compute_slowdown: FactorFigure = Field(description="compute takes this much longer while a copy runs")
    host_dram: RateFigure | None = Field(
        description="DRAM bandwidth of the host, shared by all ranks of the engine; null = no limit"
    )
    numa: str = Field(min_length=1, description="what is known about memory of the other socket")
    notes: list[str] = Field(default_factory=list, description="anything else worth knowing")

    _memo: dict[tuple[str, int, int], int] = PrivateAttr(default_factory=dict)

    def copy_ns(self, direction: Direction, descriptor_bytes: int, count: int) -> int:
        """Time of one call that runs alone: submit plus time on the link.

        Never falls when `count` rises; may fall when `descriptor_bytes` rises.

        Args:
            direction: h2d or d2h.
            descriptor_bytes: contiguous bytes of one descriptor, at least 1.
            count: number of descriptors; 0 takes no time, because no call is made.
        """
        key = (direction, descriptor_bytes, count)
        known = self._memo.get(key)
        if known is None:
            if descriptor_bytes < 1 or count < 0:
                raise ValueError(f"expected descriptors of 1 byte or more, found {count} x {descriptor_bytes} B")
            path = self.path(direction)
            known = path.submit.used + path.link_ns(descriptor_bytes, count) if path is not None and count else 0
            self._memo[key] = known
        return known

    def path(self, direction: Direction) -> CopyPath | None:
        """The copy path of a direction, None if it takes no time."""
        return self.h2d if direction == "h2d" else self.d2h

    def bidirectional_share(self) -> Share:
        """How fast each direction is while both are busy, in parts per million of its peak."""
        if self.duplex is None or self.h2d is None or self.d2h is None:
            return Share(PPM, PPM)
        total = self.duplex.total.used
        part = self.duplex.h2d_part
        h2d = total * (round(PPM * part.used) if part is not None else PPM // 2) // PPM
        return Share(min(PPM, PPM * h2d // self.h2d.peak.used), min(PPM, PPM * (total - h2d) // self.d2h.peak.used))

    @property
    def compute_slowdown_ppm(self) -> int:
        """Factor on compute time while a copy runs, in parts per million: 1,000,000 is no slow-down."""
        return round(PPM * self.compute_slowdown.used)

    @property
    def host_dram_bytes_per_s(self) -> int | None:
        """DRAM bandwidth that all ranks share; None if there is no limit."""
        return self.host_dram.used if self.host_dram is not None else None

    def assumptions(self) -> list[str]:
        """One line for each number that nobody measured: its key and why it was assumed."""
        return [f"{key}: {source}" for key, source in _assumed(self)]


def load_link(name_or_path: str | Path) -> LinkProfile:
    """A shipped profile by its name, or any profile by its path.

    Raises:
        UserError: there is no such profile, or the file is not one.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or is_path(text):
        return check(LinkProfile, read_yaml(Path(text).expanduser()))
    if text not in link_names():
        guess = closest(text, link_names())
        hint = f", did you mean {guess}?" if guess else ""
        raise UserError(
            f"link {text!r}: no such profile{hint} (expected a path ending in {SUFFIX} or one of "
            f"{', '.join(link_names())})"
        )
    return check(LinkProfile, read_yaml(PRESETS / f"{text}{SUFFIX}"))


def dump_link(profile: LinkProfile) -> str:
    """A profile as YAML that `load_link` reads back equal."""
    return dump_yaml(profile.model_dump(mode="json"))


def link_names() -> tuple[str, ...]:
    """Names of the shipped profiles, sorted."""
    return tuple(sorted(path.name.removesuffix(SUFFIX) for path in PRESETS.glob(f"*{SUFFIX}")))


def default_link(gpu: str) -> str:
    """Name of the shipped profile for a GPU preset.

    Raises:
        UserError: the GPU is not a preset, so the link has to be named.
    """
    links = _default_links()
    if gpu not in links:
        raise UserError(
            f"GPU {gpu!r} has no link of its own: set hardware.link to a profile's path or one of "
            f"{', '.join(link_names())}"
        )
    return links[gpu]


@cache
def _default_links() -> Mapping[str, str]:
    links: dict[str, str] = read_yaml(PRESETS / "defaults.yaml").data
    return links


def _descriptor_ns(grid: Grid, descriptor_bytes: int, count: int) -> float:
    """Time per descriptor, interpolated on logarithms of size, count and time; constant outside the grid.

    Between two counts the call's total is a power of the count, which does not fall because it does not fall
    between the columns (checked when the grid is read).
    """
    sizes = list(grid.gb_per_s)
    low_size, high_size, size_part = _between(sizes, descriptor_bytes)
    low_count, high_count, count_part = _between(grid.counts, count)

    def log_ns(size: int, column: int) -> float:
        return math.log(sizes[size] / grid.gb_per_s[sizes[size]][column])  # 1 GB/s is 1 byte per ns

    rows = [
        (1 - count_part) * log_ns(row, low_count) + count_part * log_ns(row, high_count)
        for row in (low_size, high_size)
    ]
    return math.exp((1 - size_part) * rows[0] + size_part * rows[1])


def _between(points: list[int], x: int) -> tuple[int, int, float]:
    """Indices of the points around x, and how far x is from the first to the second on a log scale."""
    high = bisect_right(points, x)
    if high == 0 or high == len(points):
        edge = min(high, len(points) - 1)
        return edge, edge, 0.0
    low = high - 1
    return low, high, math.log(x / points[low]) / math.log(points[high] / points[low])


def _assumed(component: Component, keys: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    if isinstance(component, Figure | Grid) and component.assumed not in (None, False):
        yield ".".join(keys), component.source
    for key in type(component).model_fields:
        inner = getattr(component, key)
        if isinstance(inner, Component):
            yield from _assumed(inner, (*keys, key))
