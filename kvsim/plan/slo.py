"""Service level objectives: what is asked for, what a run gives, and how far apart the two are."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from kvsim.checked import closest
from kvsim.errors import UserError
from kvsim.units import format_time, parse_time

TIMES = ("ttft", "tpot", "e2e")
GOODPUT, FINISHED = "goodput", "finished"
TOO_LONG = "prompt too long for max_model_len"  # how an instance refuses what no server of this model takes

_KEY = re.compile(r"(ttft|tpot|e2e)_(?:p([0-9]{1,2}(?:\.[0-9]{1,3})?)|(mean))")
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Limit:
    """One line of an SLO: at most so long, or (goodput) at least such a share of the requests."""

    key: str
    limit: float  # ns, or a share


@dataclass(frozen=True, slots=True)
class Check:
    """A limit beside what a run gave."""

    key: str
    limit: float
    measured: float | None  # None: nothing to measure

    @property
    def strain(self) -> float:
        """Above 1 the limit is missed: measured / limit, the other way round for what should be large."""
        if self.measured is None:
            return math.inf
        if self.key in (GOODPUT, FINISHED):
            return self.limit / self.measured if self.measured > 0 else math.inf
        return self.measured / self.limit

    @property
    def is_met(self) -> bool:
        """Whether the limit holds."""
        return self.strain <= 1


@dataclass(frozen=True, slots=True)
class Slo:
    """All limits of a plan.

    Attributes:
        limits: of percentiles and means over finished requests, and of the goodput.
        per_request: what makes a request count as good: limits of its own, in ns.
    """

    limits: tuple[Limit, ...]
    per_request: tuple[tuple[str, int], ...] = ()

    @property
    def name(self) -> str:
        """What is measured, and by which version of `of`; which limits it is compared with does not matter for that."""
        return " ".join(("slo1", *(limit.key for limit in self.limits), *map(str, self.per_request)))

    def of(self, requests: pd.DataFrame) -> dict[str, float | None]:
        """What a run gives for every limit, and the share of its requests that finished.

        TTFT, TPOT and E2E as in `kvsim.results.summary`. Requests longer than max_model_len are refused by every
        server of the model, so they count nowhere; any other request that did not finish is not good, and the share
        that finished says so.
        """
        status, reason = (requests[name].astype(str) for name in ("status", "reason"))
        too_long = ((status == "rejected") & reason.str.contains(TOO_LONG, regex=False)).to_numpy(dtype=bool)
        finished = (status == "finished").to_numpy(dtype=bool)
        times = _times(requests)
        found: dict[str, float | None] = {FINISHED: _share(finished, ~too_long)}
        for limit in self.limits:
            if limit.key == GOODPUT:
                good = finished.copy()
                for name, most in self.per_request:
                    good &= ~(times[name] > most)  # a request of one token has no TPOT: NaN is not too long
                found[GOODPUT] = _share(good, ~too_long)
                continue
            name, percent = _parse_key(limit.key)
            values = times[name][finished & ~np.isnan(times[name])]
            if not len(values):
                found[limit.key] = None
            else:
                found[limit.key] = float(values.mean() if percent is None else np.percentile(values, percent))
        return found

    def check(self, measured: Mapping[str, float | None]) -> tuple[Check, ...]:
        """Every limit beside its figure, in the order of the SLO; last, if some did not, that all requests finish."""
        checks = [Check(limit.key, limit.limit, measured.get(limit.key)) for limit in self.limits]
        finished = Check(FINISHED, 1.0, measured.get(FINISHED))
        return tuple(checks) if finished.is_met else (*checks, finished)

    def plain(self) -> dict[str, Any]:
        """The SLO as a plan says it."""
        found: dict[str, Any] = {each.key: show_limit(each.key, each.limit) for each in self.limits}
        if self.per_request:
            found["request"] = {name: format_time(limit) for name, limit in self.per_request}
        return found


def parse_slo(data: object) -> Slo:
    """The section ``slo`` of a plan.

    Raises:
        UserError: names the key below ``slo``; the caller knows the file.
    """
    if not isinstance(data, Mapping) or not data:
        raise UserError("slo: expected limits, such as {ttft_p90: 2s, tpot_p90: 100ms}")
    limits: list[Limit] = []
    per_request: tuple[tuple[str, int], ...] = ()
    for key, value in data.items():
        if key == "request":
            per_request = _per_request(value)
        elif key == GOODPUT:
            limits.append(Limit(GOODPUT, _goodput(value)))
        elif _KEY.fullmatch(str(key)):
            limits.append(Limit(str(key), _time(f"slo.{key}", value)))
        else:
            known = [*(f"{time}_{end}" for time in TIMES for end in ("p50", "p90", "p99", "mean")), GOODPUT, "request"]
            guess = closest(str(key), known)
            hint = f", did you mean {guess}?" if guess else ""
            raise UserError(
                f"slo: unknown key {key}{hint} (expected ttft_p90, tpot_p50, e2e_p99, e2e_mean, ..., goodput, request)"
            )
    has_goodput = any(limit.key == GOODPUT for limit in limits)
    if has_goodput != bool(per_request):
        given, missing = (GOODPUT, "request") if has_goodput else ("request", GOODPUT)
        raise UserError(
            f"slo.{missing} is missing, expected beside {given}, such as {{goodput: 0.95, request: {{ttft: 2s}}}}"
        )
    return Slo(tuple(limits), per_request)


def show_limit(key: str, amount: float) -> str | float:
    """A limit as people write it."""
    return amount if key in (GOODPUT, FINISHED) else format_time(round(amount))


def _per_request(value: object) -> tuple[tuple[str, int], ...]:
    if not isinstance(value, Mapping) or not value:
        raise UserError("slo.request: expected limits of a request, such as {ttft: 2s, tpot: 50ms}")
    for name in value:
        if name not in TIMES:
            raise UserError(f"slo.request: unknown key {name}, expected {', '.join(TIMES)}")
    return tuple((str(name), _time(f"slo.request.{name}", limit)) for name, limit in value.items())


def _time(place: str, value: object) -> int:
    try:
        found = parse_time(value)
    except ValueError as error:
        raise UserError(f"{place}: {error}") from None
    if not found:
        raise UserError(f"{place}: expected more than 0, found {value!r}")
    return found


def _goodput(value: object) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < float(value) <= 1:  # type: ignore[arg-type]  # a number
        raise UserError(f"slo.goodput: expected a share above 0 and up to 1, such as 0.95, found {value!r}")
    return float(value)  # type: ignore[arg-type]  # a number


def _parse_key(key: str) -> tuple[str, float | None]:
    match = _KEY.fullmatch(key)
    assert match is not None, key
    return match[1], None if match[3] else float(match[2])


def _times(requests: pd.DataFrame) -> dict[str, Floats]:
    """TTFT, TPOT and E2E of each request in ns, NaN where it has none."""
    arrival, first, finish, output = (
        requests[name].to_numpy(dtype=np.float64)
        for name in ("arrival_ns", "first_token_ns", "finish_ns", "output_tokens")
    )
    spoke, ended, several = first >= 0, finish >= 0, output > 1
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = (finish - first) / (output - 1)
    return {
        "ttft": np.where(spoke, first - arrival, np.nan),
        "tpot": np.where(spoke & ended & several, tpot, np.nan),
        "e2e": np.where(ended, finish - arrival, np.nan),
    }


def _share(good: npt.NDArray[np.bool_], of: npt.NDArray[np.bool_]) -> float | None:
    count = int(of.sum())
    return int((good & of).sum()) / count if count else None
