"""Tenants: the numbers of each, and the fairness of hit rates and slow-downs, with literal requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_builder import small_requests, small_series, small_totals

from kvsim.report.tables import tenants_table
from kvsim.report.tenants import tenant_header, tenant_rows
from kvsim.results.compare import compare
from kvsim.results.run import Run, assemble
from kvsim.results.tenants import jain, summarize_fairness, summarize_tenants

MS = 1_000_000


def two_tenants() -> Any:
    """Four finished requests: those of b wait 0 and 300 ms of 100 and 400 ms, those of a never; b hits nothing."""
    requests = small_requests().iloc[[0, 0, 0, 0]].reset_index(drop=True)
    return requests.assign(
        tenant=["b", "a", "b", "a"],
        status="finished",
        reason="",
        arrival_ns=[0, 0, 100 * MS, 100 * MS],
        first_scheduled_ns=[0, 0, 400 * MS, 100 * MS],
        first_token_ns=[50 * MS, 50 * MS, 450 * MS, 150 * MS],
        finish_ns=[100 * MS, 100 * MS, 500 * MS, 200 * MS],
        load_wait_ns=0,
        prompt_tokens=100,
        output_tokens=10,
        local_hit_tokens=[0, 50, 0, 50],
        external_hit_tokens=[0, 0, 0, 20],
        preemptions=0,
    )


def run_of(requests: Any, name: str = "r", quotas: Any = ()) -> Run:
    """A run with these requests."""
    return assemble(
        requests=requests, series=small_series(), totals=small_totals(), config_text="", name=name, quotas=quotas
    )


def test_each_tenant_has_its_own_numbers() -> None:
    """Tenants in order of their first request; b: slow-downs 1 and 4, no hits; a: 1 and 1, 120 of 200 tokens hit."""
    b, a = summarize_tenants(two_tenants())
    assert (b["name"], b["requests"]["arrived"], b["hit_rate"]["total"]) == ("b", 2, 0.0)
    assert b["slowdown"] == {"count": 2, "mean": 2.5, "p50": 2.5, "p90": 3.7, "p99": pytest.approx(3.97)}
    assert b["latency"]["ttft_ms"]["p50"] == 200.0
    assert (a["name"], a["hit_rate"]["total"], a["slowdown"]["mean"]) == ("a", 0.6, 1.0)
    assert (a["throughput"]["input_tokens"], a["throughput"]["output_tokens"]) == (200, 20)
    assert a["throughput"]["makespan_s"] == 0.2


def test_fairness() -> None:
    """Hit rates 0 and 0.6: one of two has all, 1/2; slow-downs 2.5 and 1: 3.5^2 / (2 x 7.25)."""
    found = summarize_fairness(summarize_tenants(two_tenants()))
    assert found["hit_rate"] == {"jain": 0.5, "lowest": 0.0, "highest": 0.6}
    assert found["slowdown"] == {"jain": pytest.approx(12.25 / 14.5), "lowest": 1.0, "highest": 2.5}
    assert found["ttft_p90_ms"] == {"lowest": 50.0, "highest": 320.0}


def test_what_never_finished_has_no_slowdown() -> None:
    """Requests that failed or were never scheduled count as arrived and nothing else."""
    requests = two_tenants()
    requests.loc[[0, 2], "status"] = ["failed", "rejected"]
    requests.loc[2, ["first_scheduled_ns", "first_token_ns", "finish_ns"]] = -1
    b, _ = tenants = summarize_tenants(requests)
    assert b["slowdown"] == {"count": 0, "mean": None, "p50": None, "p90": None, "p99": None}
    assert summarize_fairness(tenants)["slowdown"] == {"jain": 1.0, "lowest": 1.0, "highest": 1.0}


@pytest.mark.parametrize("names", [None, [""] * 4, ["a"] * 4])
def test_one_tenant_is_no_matter(names: list[str] | None) -> None:
    """Without tenants, or with one, a summary says nothing about them, and no table is shown."""
    requests = two_tenants().drop(columns="tenant")
    summary = run_of(requests if names is None else requests.assign(tenant=names)).summary
    assert "tenants" not in summary
    assert "fairness" not in summary
    assert tenants_table(summary) is None


def test_tables() -> None:
    """A row per tenant, and what it had of the store where it has a quota; tenants without one say so."""
    quota = {"tenant": "a", "chunk_bytes": 2**20, "quota_chunks": 2_048, "used_chunks": 10, "used_chunks_peak": 512,
             "evicted_chunks": 7, "refused_chunks": 1}  # fmt: skip
    summary = run_of(two_tenants(), quotas=[quota]).summary
    assert tenant_header(summary)[-2:] == ("Store, peak", "Quota")
    assert tenant_rows(summary) == [
        ("b", "2", "0.0 %", "200 ms", "320 ms", "2.50", "200", "20", "n/a", "none"),
        ("a", "2", "60.0 %", "50.0 ms", "50.0 ms", "1.00", "200", "20", "512 MiB", "2.00 GiB"),
    ]
    assert summary["tenants"][1]["store"] == {
        "quota_bytes": 2**31, "used_bytes": 10 * 2**20, "used_peak_bytes": 2**29, "evicted_chunks": 7,
        "refused_chunks": 1,
    }  # fmt: skip


def test_comparison() -> None:
    """Runs are compared by fairness, and tenant by tenant; with more than eight tenants by fairness alone."""
    better = two_tenants().assign(local_hit_tokens=50)
    rows = {row.metric.key: row for row in compare([run_of(two_tenants()), run_of(better, "better")])}
    assert rows["fairness.hit_rate.jain"].values == (0.5, pytest.approx(1.21 / 1.22))
    assert rows["tenants.b.hit_rate.total"].values == (0.0, 0.5)
    assert rows["tenants.a.slowdown.mean"].values == (1.0, 1.0)
    many = [replace(run_of(two_tenants().assign(tenant=list(names))), name=names) for names in ("abcd", "efgh", "ijkl")]
    assert not [row for row in compare(many) if row.metric.key.startswith("tenants.")]


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=20), st.floats(0.1, 10))
def test_jain(shares: list[float], factor: float) -> None:
    """The index lies between 1/n and 1, is 1 for equal shares, and does not depend on the unit."""
    found = jain(shares)
    assert found is not None
    assert 1 / len(shares) - 1e-9 <= found <= 1 + 1e-9
    assert jain([share * factor for share in shares]) == pytest.approx(found)
    assert jain([factor] * len(shares)) == pytest.approx(1.0)
    assert jain([0.0] * len(shares)) is None
