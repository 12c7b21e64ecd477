"""Numbers of a profile: each known and measured, or assumed, and always with its source."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from datetime import date as Date  # noqa: N812 - a field is named date
from typing import Annotated, Generic, TypeVar

from pydantic import BeforeValidator, Field, model_validator

from kvsim.checked import Component, Misfit
from kvsim.units import Duration, Rate, Size

T = TypeVar("T")
Source = Annotated[str, Field(min_length=3)]


def _iso_date(value: object) -> object:
    try:
        Date.fromisoformat(str(value))
    except ValueError:
        raise ValueError(f"expected a date such as 2026-11-29, found {value!r:.60}") from None
    return value


IsoDate = Annotated[str, BeforeValidator(_iso_date)]


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

SizeFigure = Figure[Annotated[Size, Field(gt=0)]]
"""Bytes."""

PartFigure = Figure[Annotated[float, Field(ge=0, le=1)]]
"""A part of a whole."""

PositivePartFigure = Figure[Annotated[float, Field(gt=0, le=1)]]
"""A part of a whole that leaves something."""

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

    @property
    def fastest_bytes_per_s(self) -> int:
        """The highest rate in the grid."""
        return round(max(rate for rates in self.gb_per_s.values() for rate in rates) * 10**9)

    def descriptor_ns(self, descriptor_bytes: int, count: int) -> float:
        """Time per descriptor, interpolated on logarithms of size, count and time; constant outside the grid.

        Between two counts the call's total is a power of the count, which does not fall because it does not fall
        between the columns (checked when the grid is read).
        """
        sizes = list(self.gb_per_s)
        low_size, high_size, size_part = _between(sizes, descriptor_bytes)
        low_count, high_count, count_part = _between(self.counts, count)

        def log_ns(size: int, column: int) -> float:
            return math.log(sizes[size] / self.gb_per_s[sizes[size]][column])  # 1 GB/s is 1 byte per ns

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


def assumed_figures(component: Component, keys: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """(key, why) of each number in a profile that nobody measured."""
    if isinstance(component, Figure | Grid) and component.assumed not in (None, False):
        yield ".".join(keys), component.source
    for key in type(component).model_fields:
        inner = getattr(component, key)
        if isinstance(inner, Component):
            yield from assumed_figures(inner, (*keys, key))
