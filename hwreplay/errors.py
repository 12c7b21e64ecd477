"""How far predicted times are from measured ones. An error is predicted over measured, minus 1."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of several predictions, as parts of what was measured.

    Attributes:
        n: how many.
        bias: median of the errors with their signs; above 0 = predicted too long.
        median: of their absolute values.
        mean: of their absolute values (MAPE).
        p90, p99: percentiles of their absolute values.
        mae_ns: median absolute error in ns.
    """

    n: int
    bias: float
    median: float
    mean: float
    p90: float
    p99: float
    mae_ns: int


def errors_of(pairs: Iterable[tuple[float, float]]) -> Errors | None:
    """Errors of (predicted, measured) in ns, measured above 0; None if there are none."""
    table = np.array(list(pairs), dtype=np.float64).reshape(-1, 2)
    if not len(table):
        return None
    signed = table[:, 0] / table[:, 1] - 1
    absolute = np.abs(signed)
    middle, p90, p99 = (float(value) for value in np.percentile(absolute, (50, 90, 99)))
    return Errors(
        n=len(table),
        bias=float(np.median(signed)),
        median=middle,
        mean=float(absolute.mean()),
        p90=p90,
        p99=p99,
        mae_ns=round(float(np.median(np.abs(table[:, 0] - table[:, 1])))),
    )
