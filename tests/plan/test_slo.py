"""SLOs: what is read, what is measured, and what counts as missed."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest

from kvsim.errors import UserError
from kvsim.plan.slo import Check, parse_slo

S = 10**9


def requests(*rows: tuple[str, str, int, int, int, int]) -> pd.DataFrame:
    """Rows of (status, reason, arrival, first token, finish, output tokens), times in s."""
    names = ("status", "reason", "arrival_ns", "first_token_ns", "finish_ns", "output_tokens")
    frame = pd.DataFrame(list(rows), columns=list(names))
    for name in ("arrival_ns", "first_token_ns", "finish_ns"):
        frame[name] = [value if value == -1 else value * S for value in frame[name]]
    return frame


FOUR = requests(
    ("finished", "", 0, 1, 11, 11),  # TTFT 1 s, TPOT 1 s, E2E 11 s
    ("finished", "", 10, 13, 13, 1),  # TTFT 3 s, one token: no TPOT, E2E 3 s
    ("rejected", "prompt too long for max_model_len 131072", 20, -1, -1, 0),
    ("stuck", "no progress", 30, 31, -1, 5),
)


def test_measures_percentiles_over_finished_requests() -> None:
    """Percentiles and means are those of finished requests, TPOT of those with more than one token."""
    slo = parse_slo({"ttft_p50": "2s", "ttft_mean": "2s", "tpot_p90": "2s", "e2e_p99.9": "1min"})
    measured = slo.of(FOUR)
    assert measured["ttft_p50"] == 2 * S
    assert measured["ttft_mean"] == 2 * S
    assert measured["tpot_p90"] == 1 * S
    assert measured["e2e_p99.9"] == pytest.approx((3 + 8 * 0.999) * S)


def test_goodput_counts_requests_that_meet_all_their_limits() -> None:
    """Good is who finished within every limit; too long ones count nowhere, stuck ones are not good."""
    slo = parse_slo({"goodput": 0.5, "request": {"ttft": "2s", "tpot": "1s"}})
    assert slo.of(FOUR)["goodput"] == pytest.approx(1 / 3)
    strict = parse_slo({"goodput": 0.5, "request": {"ttft": "999ms"}})
    assert strict.of(FOUR)["goodput"] == 0
    loose = parse_slo({"goodput": 0.5, "request": {"ttft": "3s"}})
    assert loose.of(FOUR)["goodput"] == pytest.approx(2 / 3)


def test_requests_that_did_not_finish_miss_any_slo() -> None:
    """Whatever the limits, all requests but those that are too long have to finish."""
    slo = parse_slo({"ttft_p90": "1h"})
    checks = slo.check(slo.of(FOUR))
    assert [check.key for check in checks] == ["ttft_p90", "finished"]
    assert checks[1].measured == pytest.approx(2 / 3)
    assert checks[1].strain == pytest.approx(1.5)
    finished = slo.of(FOUR.iloc[:3])
    assert [check.key for check in slo.check(finished)] == ["ttft_p90"]


def test_nothing_to_measure_is_a_miss() -> None:
    """A run without finished requests has no percentiles, and misses them infinitely."""
    slo = parse_slo({"ttft_p90": "1h"})
    measured = slo.of(FOUR.iloc[3:])
    assert measured["ttft_p90"] is None
    assert slo.check(measured)[0].strain == math.inf


def test_strain() -> None:
    """Strain is measured / limit for times, the other way round for shares; 1 is met."""
    assert Check("ttft_p90", 2.0 * S, 1.0 * S).strain == 0.5
    assert Check("ttft_p90", 2.0 * S, 2.0 * S).is_met
    assert not Check("ttft_p90", 2.0 * S, 2.0 * S + 1).is_met
    assert Check("goodput", 0.9, 0.45).strain == 2
    assert Check("goodput", 0.9, 0.0).strain == math.inf


def test_name_covers_what_is_measured_and_not_the_limits() -> None:
    """A stored result serves another limit of the same percentile, but not another percentile or per-request limit."""
    names = [
        parse_slo(data).name
        for data in (
            {"ttft_p90": "2s"},
            {"ttft_p90": "3s"},
            {"ttft_p99": "2s"},
            {"goodput": 0.9, "request": {"ttft": "2s"}},
            {"goodput": 0.8, "request": {"ttft": "2s"}},
            {"goodput": 0.9, "request": {"ttft": "3s"}},
        )
    ]
    assert names[0] == names[1]
    assert names[3] == names[4]
    assert len(set(names)) == 4


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "slo: expected limits, such as {ttft_p90: 2s, tpot_p90: 100ms}"),
        (None, "slo: expected limits"),
        ({"ttft_p90": 2}, "slo.ttft_p90: expected a time with its unit, such as 30ms, 60s or 1.5h, found the plain"),
        ({"ttft_p90": "-2s"}, "slo.ttft_p90: expected a time"),
        ({"ttft_p90": "0s"}, "slo.ttft_p90: expected more than 0, found '0s'"),
        ({"ttft_p90": math.nan}, "slo.ttft_p90: expected a time"),
        ({"tftf_p90": "2s"}, "slo: unknown key tftf_p90, did you mean ttft_p90?"),
        ({"ttft_p900": "2s"}, "slo: unknown key ttft_p900, did you mean ttft_p90?"),
        ({"goodput": 0.9}, "slo.request is missing, expected beside goodput"),
        ({"request": {"ttft": "2s"}}, "slo.goodput is missing, expected beside request"),
        ({"goodput": 95, "request": {"ttft": "2s"}}, "slo.goodput: expected a share above 0 and up to 1, such as 0.95"),
        ({"goodput": True, "request": {"ttft": "2s"}}, "slo.goodput: expected a share"),
        ({"goodput": 0.9, "request": {"ttfb": "2s"}}, "slo.request: unknown key ttfb, expected ttft, tpot, e2e"),
        ({"goodput": 0.9, "request": {}}, "slo.request: expected limits of a request"),
    ],
)
def test_a_bad_slo_names_its_key(data: Any, message: str) -> None:
    """A mistake in an SLO is one line that names the key, what was found and what was expected."""
    with pytest.raises(UserError) as caught:
        parse_slo(data)
    assert message in str(caught.value)
