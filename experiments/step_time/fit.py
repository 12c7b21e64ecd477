# ruff: noqa: INP001 - scripts, run by path
"""Fit the two host constants on measured TPOTs, and error figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from silicon import Row

from kvsim.steptime.gpu import Host

_SOFT = 0.1  # log errors beyond this count linearly: outliers are old releases and queueing
_REFINEMENTS = 4


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors in per cent."""

    count: int
    median: float
    p90: float
    bias: float


def errors(predicted: Sequence[float], measured: Sequence[float]) -> Errors:
    """Median and 90th percentile of the absolute relative error, and the median signed error."""
    error = 100 * (np.array(predicted) / np.array(measured) - 1)
    return Errors(
        len(error),
        float(np.median(np.abs(error))),
        float(np.quantile(np.abs(error), 0.9)),
        float(np.median(error)),
    )


def fit_step_and_request(rows: Sequence[Row]) -> Host:
    """Host time per step and per request, kernel time as it is."""
    kernel, requests, measured = _columns(rows)
    step, request = _minimize(lambda a, b: kernel + a + b * requests, measured, (0.0, 2.0), (0.0, 0.120))
    return Host(slack=1.0, step_us=1e3 * step, request_us=1e3 * request)


def fit_slack_and_request(rows: Sequence[Row]) -> Host:
    """A factor on kernel time and host time per request: the form of our first fit, for comparison."""
    kernel, requests, measured = _columns(rows)
    slack, request = _minimize(lambda a, b: a * kernel + b * requests, measured, (0.9, 1.3), (0.0, 0.120))
    return Host(slack=slack, step_us=0.0, request_us=1e3 * request)


def _columns(rows: Sequence[Row]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    return (
        np.array([r.kernel_ms for r in rows]),
        np.array([r.requests for r in rows]),
        np.array([r.tpot_ms for r in rows]),
    )


def _minimize(
    predict: Callable[[float, float], NDArray[np.float64]],
    measured: NDArray[np.float64],
    first: tuple[float, float],
    second: tuple[float, float],
) -> tuple[float, float]:
    """Least soft-L1 log error over two parameters: a grid, refined around its best point."""
    a_range, b_range = first, second
    best = (np.inf, 0.0, 0.0)
    for _ in range(_REFINEMENTS):
        for a in np.linspace(*a_range, 33):
            for b in np.linspace(*b_range, 33):
                error = np.log(predict(a, b) / measured) / _SOFT
                loss = float(np.sum(np.sqrt(1 + error**2) - 1))
                if loss < best[0]:
                    best = (loss, float(a), float(b))
        a_step, b_step = (a_range[1] - a_range[0]) / 32, (b_range[1] - b_range[0]) / 32
        a_range = (max(best[1] - a_step, first[0]), min(best[1] + a_step, first[1]))
        b_range = (max(best[2] - b_step, second[0]), min(best[2] + b_step, second[1]))
    return best[1], best[2]
