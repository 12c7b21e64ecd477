"""Every number of a summary, on a run small enough to check by hand."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_builder import S, requests_of, small_requests, small_series, small_totals

from kvsim.results.findings import warnings
from kvsim.results.summary import REQUEST_COLUMNS, STATUSES, digest, summarize


@pytest.fixture
def summary() -> dict[str, Any]:
    """The summary of the small run."""
    return summarize(small_requests(), small_totals(), small_series())


def test_counts(summary: dict[str, Any]) -> None:
    """Arrived requests are the sum of finished, rejected, failed, aborted and stuck ones; each reason is counted."""
    assert summary["requests"] == {
        "arrived": 7,
        "finished": 3,
        "rejected": 2,
        "failed": 1,
        "aborted": 0,
        "stuck": 1,
        "admitted": 4,
        "reasons": {
            "rejected": {"prompt longer than max_model_len": 2},
            "failed": {"load failed": 1},
            "stuck": {"never fits": 1},
        },
    }


def test_hit_rate(summary: dict[str, Any]) -> None:
    """Hit rates are hit tokens over the prompt tokens of admitted requests, failed ones included."""
    assert summary["hit_rate"] == {
        "prompt_tokens": 4000,
        "local_hit_tokens": 800,
        "external_hit_tokens": 800,
        "local": 0.2,
        "external": 0.2,
        "total": 0.4,
    }


def test_latency(summary: dict[str, Any]) -> None:
    """TTFT, TPOT and E2E follow `vllm bench serve`; percentiles interpolate linearly."""
    latency = summary["latency"]
    assert latency["ttft_ms"] == {
        "count": 3,
        "mean": 300.0,
        "p50": 300.0,
        "p90": pytest.approx(460),
        "p99": pytest.approx(496),
    }
    # The request with a single output token has no TPOT.
    assert latency["tpot_ms"] == {"count": 2, "mean": 100.0, "p50": 100.0, "p90": 100.0, "p99": 100.0}
    assert latency["e2e_s"] == {
        "count": 3,
        "mean": pytest.approx(1.3),
        "p50": 1.1,
        "p90": pytest.approx(2.22),
        "p99": pytest.approx(2.472),
    }
    assert latency["queue_ms"] == {
        "count": 4,
        "mean": 35.0,
        "p50": 30.0,
        "p90": pytest.approx(58),
        "p99": pytest.approx(68.8),
    }
    assert latency["load_wait_ms"] == {
        "count": 2,
        "mean": 30.0,
        "p50": 30.0,
        "p90": pytest.approx(38),
        "p99": pytest.approx(39.8),
    }


def test_throughput(summary: dict[str, Any]) -> None:
    """Throughput is over the makespan, from the first arrival (1 s) to the last finish (5.5 s)."""
    assert summary["throughput"] == {
        "makespan_s": 4.5,
        "input_tokens": 3000,
        "output_tokens": 33,
        "requests_per_s": pytest.approx(3 / 4.5),
        "input_tokens_per_s": pytest.approx(3000 / 4.5),
        "output_tokens_per_s": pytest.approx(33 / 4.5),
        "total_tokens_per_s": pytest.approx(3033 / 4.5),
    }


def test_engine_and_links(summary: dict[str, Any]) -> None:
    """Busy and stall shares are over the span from the first arrival to the end of the run, 10 s here."""
    assert summary["preemptions"] == {"count": 2, "requests": 1}
    assert summary["gpu"] == {
        "steps": 40,
        "span_s": 10.0,
        "busy_s": 4.0,
        "busy_share": 0.4,
        "stall_s": 0.5,
        "stall_share": 0.05,
    }
    assert summary["transfers"] == {
        "h2d": {
            "bytes": 20_000_000_000,
            "busy_s": 1.0,
            "busy_share": 0.1,
            "gb_per_s_busy": 20.0,
            "gb_per_s_average": 2.0,
        },
        "d2h": {
            "bytes": 30_000_000_000,
            "busy_s": 2.0,
            "busy_share": 0.2,
            "gb_per_s_busy": 15.0,
            "gb_per_s_average": 3.0,
        },
        "load_jobs": 2,
        "store_jobs": 6,
        "stored_blocks": 1000,
        "unused_stored_blocks": 250,
        "unused_store_share": 0.25,
        "unused_store_bytes": 7_500_000_000,
    }


def test_tiers(summary: dict[str, Any]) -> None:
    """Tiers report peak and end in blocks, bytes and share of capacity, and what they evicted or refused."""
    mib = 2**20
    assert summary["tiers"]["gpu"] == {
        "capacity_blocks": 100,
        "capacity_bytes": 200 * mib,
        "evicted_blocks": 5,
        "held": {
            "peak_blocks": 80,
            "peak_bytes": 160 * mib,
            "peak_share": 0.8,
            "end_blocks": 10,
            "end_bytes": 20 * mib,
            "end_share": 0.1,
        },
        "cached": {
            "peak_blocks": 95,
            "peak_bytes": 190 * mib,
            "peak_share": 0.95,
            "end_blocks": 60,
            "end_bytes": 120 * mib,
            "end_share": 0.6,
        },
    }
    assert summary["tiers"]["cpu"] == {
        "capacity_blocks": 400,
        "capacity_bytes": 800 * mib,
        "evicted_blocks": 7,
        "cannot_store": 2,
        "used": {
            "peak_blocks": 300,
            "peak_bytes": 600 * mib,
            "peak_share": 0.75,
            "end_blocks": 200,
            "end_bytes": 400 * mib,
            "end_share": 0.5,
        },
    }


def test_sessions(summary: dict[str, Any]) -> None:
    """Session time runs from first arrival to last finish, only over sessions whose requests all finished."""
    assert summary["sessions"] == {
        "count": 4,
        "complete": 1,
        "time_s": {"count": 1, "mean": 4.5, "p50": 4.5, "p90": 4.5, "p99": 4.5},
        "slowest": "a",
    }


def test_totals_are_kept(summary: dict[str, Any]) -> None:
    """The engine's counters stay in the summary as they are."""
    assert summary["totals"] == small_totals()


@pytest.mark.parametrize("requests", [pd.DataFrame(), requests_of([])], ids=["no columns", "no rows"])
def test_nothing_arrived(requests: pd.DataFrame) -> None:
    """Without requests every mean, share and rate is null, and the counts are zero."""
    summary = summarize(requests, {})
    assert summary["requests"]["arrived"] == 0
    nothing = {"count": 0, "mean": None, "p50": None, "p90": None, "p99": None}
    assert summary["latency"] == dict.fromkeys(("ttft_ms", "tpot_ms", "e2e_s", "queue_ms", "load_wait_ms"), nothing)
    assert summary["hit_rate"]["total"] is None
    assert summary["throughput"]["makespan_s"] is None
    assert summary["throughput"]["output_tokens_per_s"] is None
    assert summary["gpu"]["busy_share"] is None
    assert summary["tiers"]["cpu"]["used"]["peak_share"] is None
    assert summary["sessions"]["time_s"] == nothing


def test_nothing_finished() -> None:
    """When all requests were rejected there is no latency and no throughput, but the span is known."""
    rows = [{"arrival_ns": S, "first_scheduled_ns": -1, "status": "rejected", "reason": "too long"}]
    summary = summarize(requests_of(rows), small_totals())
    assert summary["latency"]["ttft_ms"]["p90"] is None
    assert summary["throughput"]["requests_per_s"] is None
    assert summary["gpu"]["busy_share"] == 0.4
    assert summary["tiers"]["cpu"]["used"]["end_blocks"] is None  # no samples were handed in


def test_no_tier_has_no_share() -> None:
    """A tier of no blocks has no share in use, rather than zero percent."""
    summary = summarize(small_requests(), small_totals() | {"num_cpu_blocks": 0, "cpu_used_blocks_peak": 0})
    assert summary["tiers"]["cpu"]["capacity_bytes"] == 0
    assert summary["tiers"]["cpu"]["used"]["peak_share"] is None


def test_zero_time_has_no_rate() -> None:
    """A request that ends when it arrives gives a makespan of zero and no throughput."""
    rows = [{"arrival_ns": 5, "first_scheduled_ns": 5, "first_token_ns": 5, "finish_ns": 5, "output_tokens": 1}]
    throughput = summarize(requests_of(rows), {"end_ns": 5})["throughput"]
    assert throughput["makespan_s"] == 0.0
    assert throughput["requests_per_s"] is None


def test_faulty_tables_are_refused() -> None:
    """A missing column and an unknown status are errors, not zeros."""
    with pytest.raises(ValueError, match="lack the columns finish_ns"):
        summarize(small_requests().drop(columns="finish_ns"), {})
    with pytest.raises(ValueError, match="unknown request status 'lost', expected one of finished, rejected"):
        summarize(small_requests().assign(status="lost"), {})


def test_reasons_are_sorted() -> None:
    """Reasons come most frequent first, then by name, whatever the order of the rows."""
    rows = [{"status": "rejected", "first_scheduled_ns": -1, "reason": reason} for reason in ("b", "c", "a", "c", "")]
    reasons = summarize(requests_of(rows), {})["requests"]["reasons"]
    assert list(reasons["rejected"].items()) == [("c", 2), ("a", 1), ("b", 1), ("unknown", 1)]


def test_digest_is_pinned() -> None:
    """The digest of known results is a known number: it does not depend on library versions."""
    assert digest(small_requests()) == "06768f67ef4c7d7d1a05a7df26048f627a2a3dc19ee4ecf36b3890eeff96be31"


def test_digest_is_a_hash_of_text() -> None:
    """The digest is the SHA-256 of a text that anybody can write down."""
    text = (
        "request_id\tsession\tstream\tturn\tstatus\treason\tarrival_ns\tfirst_scheduled_ns\tfirst_token_ns\t"
        "finish_ns\tprompt_tokens\toutput_tokens\tlocal_hit_tokens\texternal_hit_tokens\tload_wait_ns\t"
        "preemptions\n"
        '"r0"\t"\\u00e9"\t""\t0\t"finished"\t""\t7\t0\t-1\t-1\t0\t0\t0\t0\t0\t0\n'
    )
    rows = [{"session": "é", "arrival_ns": 7}]
    assert digest(requests_of(rows)) == hashlib.sha256(text.encode()).hexdigest()


def test_digest_sees_every_value() -> None:
    """Changing any column changes the digest; another column, other types and an index do not."""
    base = small_requests()
    for name, kind in REQUEST_COLUMNS.items():
        changed = base.copy()
        changed.loc[2, name] = "failed" if name == "status" else "x" if kind == "str" else int(base[name].iloc[2]) + 1
        assert digest(changed) != digest(base), name
    assert digest(base.assign(extra=1)) == digest(base)
    assert digest(base.astype(object).set_index(pd.Index(range(7, 14)))) == digest(base)
    assert digest(base[list(reversed(base.columns))]) == digest(base)


def test_digest_keeps_fields_apart() -> None:
    """Tabs and line ends inside a text cannot make two different tables alike."""
    first = requests_of([{"session": "a\tb", "stream": ""}])
    second = requests_of([{"session": "a", "stream": "b\t"}])
    assert digest(first) != digest(second)


times = st.integers(min_value=-1, max_value=2**50)
small = st.integers(min_value=0, max_value=2**40)
rows = st.lists(
    st.fixed_dictionaries(
        {
            "session": st.sampled_from(["a", "b", ""]),
            "status": st.sampled_from(STATUSES),
            "reason": st.sampled_from(["", "x"]),
            "arrival_ns": st.integers(min_value=0, max_value=2**50),
            "first_scheduled_ns": times,
            "first_token_ns": times,
            "finish_ns": times,
            "prompt_tokens": small,
            "output_tokens": small,
            "local_hit_tokens": small,
            "external_hit_tokens": small,
            "load_wait_ns": small,
            "preemptions": small,
        }
    ),
    max_size=5,
)
totals = st.dictionaries(st.sampled_from(sorted(small_totals())), small)


def _numbers(value: object) -> list[float]:
    if isinstance(value, dict):
        return [number for part in value.values() for number in _numbers(part)]
    return [value] if isinstance(value, float) else []


@settings(max_examples=60, deadline=None)
@given(rows=rows, totals=totals, with_series=st.booleans())
def test_always_plain_and_finite(rows: list[dict[str, Any]], totals: dict[str, int], with_series: bool) -> None:
    """Whatever arrived and whatever was counted, a summary is plain JSON without NaN and can be judged."""
    requests = requests_of(rows)
    summary = summarize(requests, totals, small_series() if with_series else None)
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert all(math.isfinite(number) for number in _numbers(summary))
    counts = summary["requests"]
    assert counts["arrived"] == sum(counts[status] for status in STATUSES)
    assert all(isinstance(line, str) for line in warnings(summary))
    assert len(digest(requests)) == 64
