"""Figures of a plan, as people read them."""

from __future__ import annotations

import math

from kvsim.plan.slo import FINISHED, GOODPUT
from kvsim.report.format import MISSING, duration, memory, percent


def limit_name(key: str) -> str:
    """``ttft_p90`` is TTFT P90."""
    if key == FINISHED:
        return "Requests finished"
    if key == GOODPUT:
        return "Goodput"
    name, _, end = key.partition("_")
    return f"{name.upper()} {end.upper() if end != 'mean' else end}".strip()


def amount(key: str, value: float | None) -> str:
    """A figure of a limit: a share, or a time in ns."""
    if value is None:
        return MISSING
    return percent(value) if key in (GOODPUT, FINISHED) else duration(value / 1e6)


def money(usd: float) -> str:
    """USD with cents, or as many digits as say something."""
    if math.isinf(usd):
        return MISSING
    return f"{usd:,.2f} USD" if usd >= 0.1 or usd == 0 else f"{usd:.3g} USD"


def size(size_bytes: float) -> str:
    """Memory in GiB, or TiB from 10 of them on."""
    return f"{size_bytes / 2**40:.1f} TiB" if size_bytes >= 10 * 2**40 else memory(size_bytes)


def more_or_less(ours: float, theirs: float) -> str:
    """How another price compares with ours."""
    if math.isinf(ours) or math.isinf(theirs) or not ours:
        return MISSING
    share = 100 * (theirs / ours - 1)
    return "the same" if abs(share) < 0.05 else f"{share:+.1f} %"
