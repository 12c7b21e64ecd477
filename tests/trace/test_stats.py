"""Statistics of real traces equal reference figures that were computed block by block, with sets."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvsim.trace.read import read_trace
from kvsim.trace.schedule import recorded_pace
from kvsim.trace.session import Trace
from kvsim.trace.stats import Distribution, OrderStats, TraceStats, describe, distribution


def _reference(root: Path, section: str) -> dict[str, str]:
    """One section of the reference figures: name -> text behind it."""
    body = (root / "STATS.txt").read_text().split(f"== {section}\n")[1].split("\n== ")[0]
    # Most names end where two blanks follow; long ones run into their first figure.
    names = {}
    for line in body.splitlines():
        match = re.match(r"  (.+?)(?: {2,}| (?=(?:p10|p50|40GB)=| *[\d.,]+(?: of .*)?$))(.*)", line)
        if match:
            names[match.group(1).strip()] = match.group(2).strip()
    return names


def _numbers(text: str) -> dict[str, float]:
    pairs = re.findall(r"(\w+)=([\d,.]+)", text)
    return {name: float(value.replace(",", "")) for name, value in pairs}


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _same(found: Distribution | None, text: str, digits: int) -> None:
    """Every figure of a reference line equals ours, rounded as it was."""
    assert found is not None
    figures = _numbers(text)
    assert len(figures) >= 6
    for name, value in figures.items():
        ours: Any = getattr(found, name)
        places = max(digits, 1) if name == "mean" else digits
        # Lines show two decimals even where more were kept.
        assert ours == pytest.approx(value, abs=0.51 * 10.0**-places + 0.0051 * (digits > 2)), name


@pytest.fixture(scope="module")
def sessions(shared_traces: Path) -> tuple[Trace, TraceStats, dict[str, str]]:
    """The 60 recorded sessions, their statistics and the reference."""
    trace = read_trace([shared_traces / "kv-cache-tester"])
    return trace, describe(trace), _reference(shared_traces, "kv-cache-tester")


def test_recorded_sessions_have_the_reference_counts(
    sessions: tuple[Trace, TraceStats, dict[str, str]],
) -> None:
    """Sessions, sub-agents, requests, turns, lengths, ratio and cuts are those of the reference."""
    _, stats, reference = sessions
    assert stats.sessions == _number(reference["sessions (files)"]) == 60
    assert stats.sessions_with_subagents == _number(reference["sessions with sub-agents"]) == 10
    assert stats.main_requests == _number(reference["requests main"]) == 6952
    assert stats.subagents == _number(reference["sub-agents"]) == 43
    assert stats.subagent_requests == _number(reference["requests in sub-agents"]) == 440
    assert stats.requests == _number(reference["requests all"]) == 7392
    _same(stats.turns_per_session, reference["turns per session (main)"], 0)
    _same(stats.requests_per_subagent, reference["requests per sub-agent"], 0)
    _same(stats.input_tokens, reference["input tokens per request (all)"], 0)
    _same(stats.output_tokens, reference["output tokens per request (all)"], 0)
    _same(stats.first_input_tokens, reference["first-request input tokens (main)"], 0)
    _same(stats.max_input_tokens, reference["max input tokens per session"], 0)
    _same(stats.uncached_tokens, reference["uncached tokens per request (not first of stream)"], 0)
    _same(stats.think_s, reference["think_time s (main, not first)"], 2)
    assert round(stats.input_output_ratio, 2) == 228.58
    assert _number(reference["in:out ratio, sum(in)/sum(out)"]) == 228.58
    cuts = f"{stats.context_cuts} of {stats.consecutive_pairs} consecutive pairs"
    assert cuts == reference["context cuts (<90% of previous blocks kept)"]
    assert _numbers(reference["models (requests)"].replace("claude-", "claude_").replace("-", "_")) == {
        name.replace("-", "_"): float(count) for name, count in stats.models.items()
    }


def test_recorded_sessions_have_the_reference_hit_rates(
    sessions: tuple[Trace, TraceStats, dict[str, str]],
) -> None:
    """All hit rates agree to six digits, the hits to the block."""
    _, stats, reference = sessions
    hits = stats.hits
    assert f"{hits.blocks_hit} / {hits.blocks}" == reference["blocks hit / blocks"] == "11699608 / 12206703"
    for ours, name in (
        (hits.block_rate, "block hit rate, session cache, main+sub (pooled)"),
        (hits.capped_block_rate, "block hit rate capped (in-1)//64"),
        (hits.token_rate, "token hit rate"),
        (hits.main_block_rate, "block hit rate, main streams only"),
        (hits.generated_block_rate, "block hit rate if generated tokens are cached too"),
    ):
        assert round(ours, 6) == _number(reference[name]), name
    assert hits.per_session is not None
    _same(hits.per_session, reference["block hit rate per session"].split(" mean=")[0], 4)
    assert round(hits.per_session.mean, 4) == 0.9385


def _same_order(order: OrderStats, reference: dict[str, str], name: str) -> None:
    reuse = _numbers(reference[f"{name}: reuse distance GB"])
    assert (order.reuses, order.first_uses) == (reuse.pop("reuses"), reuse.pop("first_uses"))
    assert sorted(order.reuse_gb) == sorted(reuse)
    for percent, value in reuse.items():
        # Three decimals were kept and two are shown.
        assert order.reuse_gb[percent] == pytest.approx(value, abs=0.0056), percent
    for size, value in _numbers(reference[f"{name}: LRU@C block hit rate"]).items():
        assert round(order.lru_block_rate[size.removesuffix("GB")], 4) == value, size


def test_recorded_sessions_have_the_reference_working_sets(
    sessions: tuple[Trace, TraceStats, dict[str, str]],
) -> None:
    """Working sets, reuse distances, LRU rates and windows agree in both orders of the requests."""
    _, stats, reference = sessions
    _same(stats.session_gb, reference["unique KV per session GB"], 2)
    _same(stats.largest_request_gb, reference["largest single request KV GB"], 2)
    assert round(stats.unique_gb, 1) == _number(reference["total unique KV GB"]) == 10_634.6
    alone, mixed = stats.orders
    assert (alone.order, mixed.order) == ("sessions one after another", "interleaved")
    _same_order(alone, reference, "sessions one after another")
    _same_order(mixed, reference, "interleaved (closed loop, 60 s stagger, think<=60)")
    for window, found in mixed.window_gb.items():
        _same(found, reference[f"interleaved: unique KV GB touched per {window}s window"], 1)
    assert mixed.makespan_s == pytest.approx(_number(reference["interleaved: makespan s"]), abs=0.06)


@pytest.mark.parametrize("name", ["conversation_trace", "synthetic_trace"])
def test_mooncake_has_the_reference_figures(shared_traces: Path, name: str) -> None:
    """Lengths, hit rates, reuse distances, LRU rates and windows of the Mooncake traces agree."""
    stats = describe(read_trace([shared_traces / "mooncake" / f"{name}.jsonl.gz"]))
    reference = _reference(shared_traces, f"mooncake/{name}.jsonl.gz")
    assert stats.requests == stats.sessions == _number(reference["requests"])
    assert stats.arrival_times == _number(reference["distinct timestamps"])
    assert stats.arrivals_per_s is not None
    assert round(stats.arrivals_per_s, 3) == _number(reference["arrivals per second"])
    _same(stats.input_tokens, reference["input tokens"], 0)
    _same(stats.output_tokens, reference["output tokens"], 0)
    assert round(stats.input_output_ratio, 2) == _number(reference["in:out ratio"])
    hits = stats.hits
    assert f"{hits.blocks_hit} / {hits.blocks}" == reference["blocks hit / blocks"]
    assert round(hits.block_rate, 6) == _number(reference["block hit rate (global infinite cache)"])
    assert round(hits.capped_block_rate, 6) == _number(reference["block hit rate capped (in-1)//512"])
    assert round(hits.token_rate, 6) == _number(reference["token hit rate"])
    assert stats.unique_blocks == _number(reference["unique blocks"])
    assert round(stats.unique_gb, 1) == _number(reference["unique KV GB"])
    (order,) = stats.orders
    assert order.order == "by time stamp"
    _same_order(order, reference, "by timestamp")
    for window, found in order.window_gb.items():
        _same(found, reference[f"by timestamp: unique KV GB touched per {window}s window"], 1)


def test_sizes_follow_the_kv_bytes_per_token(sessions: tuple[Trace, TraceStats, dict[str, str]]) -> None:
    """Half the bytes per token are half the GB and nothing else."""
    trace, stats, _ = sessions
    half = describe(trace, 163_840)
    assert half.unique_gb == pytest.approx(stats.unique_gb / 2)
    assert half.orders[0].lru_block_rate["40"] == stats.orders[0].lru_block_rate["80"]
    assert half.hits == stats.hits


def test_percentiles_are_nearest_rank() -> None:
    """The p-th percentile of n values is the one at rank ceil(p n)."""
    found = distribution([5, 1, 4, 2, 3])
    assert found is not None
    assert (found.p10, found.p25, found.p50, found.p75, found.p90, found.max) == (1, 2, 3, 4, 5, 5)
    assert (found.n, found.total, found.mean, found.min) == (5, 15, 3.0, 1)
    assert distribution([]) is None


def test_recorded_pace_takes_the_think_time_as_recorded(
    sessions: tuple[Trace, TraceStats, dict[str, str]],
) -> None:
    """The recorded pace knows no corrections, so that it equals the reference schedule."""
    trace, _, _ = sessions
    session = trace.sessions[0]
    first = session.turns[0]
    second = replace(session.turns[1], think_ns=1, recorded_think_ns=7 * 10**9, recorded_ns=None)
    second = replace(second, subagents=())
    small = replace(trace, sessions=(replace(session, turns=(first, second), trailing=()),))
    assert first.recorded_ns is not None
    one, two = recorded_pace(small)
    assert two.time_s == first.recorded_ns / 1e9 + 7.0
    assert (one.time_s, two.end_s) == (0.0, two.time_s + 10.0)
