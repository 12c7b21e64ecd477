"""Numbers as people read them: three significant digits, a unit always, ``n/a`` for what does not exist."""

from __future__ import annotations

from kvsim.results.compare import Unit

MISSING = "n/a"
SAME = "same"
"""No difference, or none in the digits shown."""

_MANY_TIMES = 3.0
"""From this ratio on, "4.2 times" reads better than "+320 %"."""


def number(value: float) -> str:
    """Integers as they are, others with three digits or more: ``12,345``, ``81.2``, ``0.0123``."""
    size = abs(value)
    if isinstance(value, int) or size == 0:
        return f"{value:,.0f}"
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 1:
        return f"{value:.2f}"
    return f"{value:.3g}"


def percent(share: float) -> str:
    """A share as a percentage: ``78.1 %``."""
    return f"{100 * share:.1f} %"


def duration(ms: float) -> str:
    """A time in the unit that suits its size: ``0.84 ms``, ``3.21 s``, ``12.4 min``, ``3.10 h``."""
    if ms == 0:
        return "0 s"
    for limit, unit_ms, unit in ((1e3, 1.0, "ms"), (120e3, 1e3, "s"), (7200e3, 60e3, "min")):
        if abs(ms) < limit:
            return f"{number(ms / unit_ms)} {unit}"
    return f"{number(ms / 3600e3)} h"


def traffic(size_bytes: float) -> str:
    """Bytes moved, decimal: kB = 1e3, MB = 1e6, GB = 1e9, TB = 1e12."""
    for limit, unit_bytes, unit in (
        (1e3, 1.0, "bytes"),
        (1e6, 1e3, "kB"),
        (1e9, 1e6, "MB"),
        (1e12, 1e9, "GB"),
    ):
        if abs(size_bytes) < limit:
            return f"{number(size_bytes if unit_bytes == 1 else size_bytes / unit_bytes)} {unit}"
    return f"{number(size_bytes / 1e12)} TB"


def memory(size_bytes: float) -> str:
    """Bytes of capacity, binary: KiB = 2**10, MiB = 2**20, GiB = 2**30."""
    for limit, unit_bytes, unit in ((2**10, 1, "bytes"), (2**20, 2**10, "KiB"), (2**30, 2**20, "MiB")):
        if abs(size_bytes) < limit:
            return f"{number(size_bytes if unit_bytes == 1 else size_bytes / unit_bytes)} {unit}"
    return f"{number(size_bytes / 2**30)} GiB"


def value(amount: float | None, unit: Unit) -> str:
    """A value of a metric with its unit."""
    if amount is None:
        return MISSING
    if unit == "share":
        return percent(amount)
    if unit in ("ms", "s"):
        return duration(amount if unit == "ms" else 1000 * amount)
    if unit == "bytes":
        return traffic(amount)
    if unit == "memory_bytes":
        return memory(amount)
    if unit == "gb_per_s":
        return f"{number(amount)} GB/s"
    return number(amount)


def change(difference: float | None, ratio: float | None, unit: Unit) -> str:
    """How a value differs from the first run's: points for shares, else ``-66.0 %`` or ``4.20 times``."""
    if difference is None:
        return ""
    if difference == 0:
        return SAME
    if unit == "share":
        points = f"{100 * difference:+.1f} points"
        return SAME if points[1:] == "0.0 points" else points
    if ratio is None:
        sign = "+" if difference > 0 else "-"
        return sign + value(abs(difference), unit)
    if ratio >= _MANY_TIMES:
        return f"{number(ratio)} times"
    share = f"{100 * (ratio - 1):+.1f} %"
    return SAME if share[1:] == "0.0 %" else share


def is_better(difference: float | None, better: str) -> bool | None:
    """Whether a difference is an improvement; None where it is neither."""
    if not difference or not better:
        return None
    return (difference > 0) == (better == "higher")


def shorten(text: str, width: int) -> str:
    """The text cut in the middle to ``width`` characters; names mostly differ at their ends."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return text[: width - 1 - tail] + "…" + text[len(text) - tail :]
