"""Numbers as people read them: three digits and a unit."""

from __future__ import annotations

from kvsim.units import format_size

MISSING = "n/a"


def digits(value: float) -> str:
    """Three significant digits, never an exponent: ``0.123``, ``4.56``, ``12,345``."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 1 or size == 0 else f"{value:.3f}"


def time_text(ns: float) -> str:
    """A time in the unit that suits it: ``8.10 us``, ``12.4 ms``, ``3.21 s``."""
    for limit, unit_ns, unit in ((1e3, 1.0, "ns"), (1e6, 1e3, "us"), (1e9, 1e6, "ms")):
        if abs(ns) < limit:
            return f"{digits(ns / unit_ns)} {unit}" if unit != "ns" else f"{ns:.0f} ns"
    return f"{digits(ns / 1e9)} s"


def percent(part: float) -> str:
    """A part as a percentage: ``4.2 %``."""
    return f"{100 * part:.1f} %"


def signed(part: float) -> str:
    """An error as a percentage with its sign: ``+4.2 %``."""
    return f"{100 * part:+.1f} %"


def size_text(num_bytes: int) -> str:
    """Bytes in the largest unit that is exact: ``28KiB``."""
    return format_size(num_bytes)


def moved(num_bytes: int) -> str:
    """Bytes moved, decimal: ``12.3 MB``, ``4.56 GB`` (1e9 bytes)."""
    for limit, unit_bytes, unit in ((1e6, 1e3, "kB"), (1e9, 1e6, "MB"), (1e12, 1e9, "GB")):
        if num_bytes < limit:
            return f"{digits(num_bytes / unit_bytes)} {unit}"
    return f"{digits(num_bytes / 1e12)} TB"
