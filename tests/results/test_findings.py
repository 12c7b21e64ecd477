"""Each finding appears when its reason is there, and only then."""

from __future__ import annotations

from typing import Any

import pytest
from run_builder import MS, S, requests_of, small_requests, small_series, small_totals

from kvsim.results.findings import warnings
from kvsim.results.summary import summarize


def found(local: int = 300, external: int = 300, queue_ns: int = 10 * MS, **totals: int) -> list[str]:
    """Warnings of 200 finished requests of 1,000 prompt tokens in a healthy run, but for what is given."""
    row: dict[str, Any] = {
        "first_scheduled_ns": queue_ns,
        "first_token_ns": queue_ns + 100 * MS,
        "finish_ns": 10 * S,
        "prompt_tokens": 1000,
        "output_tokens": 10,
        "local_hit_tokens": local,
        "external_hit_tokens": external,
    }
    healthy = small_totals() | {"stall_ns": 0, "cannot_store": 0, "cpu_used_blocks_peak": 400}
    return warnings(summarize(requests_of([row] * 200), healthy | totals))


def test_healthy_run_has_none() -> None:
    """A run in which nothing is odd gives no warning."""
    assert found() == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stall_ns": S}, "The GPU stood idle for 9.1 % of the time only because KV was being loaded"),
        ({"sync_stall_ns": S, "gpu_busy_ns": 9 * S}, "Forward passes spent 10 % of their time waiting for the KV that"),
        ({"h2d_busy_ns": 10 * S}, "The host-to-device link was busy for 91 % of the time"),
        ({"d2h_busy_ns": 11 * S}, "The device-to-host link was busy for 100 % of the time"),
        ({"cannot_store": 2}, "The offload tier refused stores 2 times"),
        ({"queue_ns": 2 * S}, "Half of the requests waited 2.0 s or more"),
        (
            {"local": 700, "external": 10},
            "Offload gain <= 30 % because the GPU hit rate is already 70 %; the offload tier adds 1.0 %",
        ),
        ({"local": 100, "external": 10}, "serves only 1.0 % of the prompt tokens and evicted 7 blocks"),
        (
            {"local": 100, "external": 10, "num_gpu_blocks": 400},
            "it is not larger than the GPU's own cache (0.8 GiB, the GPU KV cache 0.8 GiB)",
        ),
        ({"local": 100, "external": 10, "cpu_evicted_blocks": 0}, "though it evicted nothing"),
        (
            {"stored_blocks": 1000, "unused_stored_blocks": 950},
            "95 % of what was stored (28.5 GB) was never loaded",
        ),
        (
            {"external": 0, "gpu_evicted_blocks": 0},
            "Offload gain 0 %: the GPU hit rate is 30 % and the GPU KV cache never evicted a block",
        ),
        (
            {"cpu_used_blocks_peak": 100, "cpu_evicted_blocks": 0},
            "The CPU tier never filled: 0.2 GiB of 0.8 GiB (25 %) were used at the peak",
        ),
    ],
)
def test_one_oddity_gives_one_warning(change: dict[str, int], words: str) -> None:
    """Each oddity alone is told, with its numbers, and nothing else is."""
    lines = found(**change)
    assert len(lines) == 1
    assert words in lines[0]


def test_lost_requests_are_told_first() -> None:
    """Rejected, failed and stuck requests come first, each with its share and its reason."""
    lines = warnings(summarize(small_requests(), small_totals(), small_series()))
    assert lines[:4] == [
        "2 of 7 requests (29 %) were rejected (reason: prompt longer than max_model_len).",
        "1 of 7 requests (14 %) failed (reason: load failed).",
        "1 of 7 requests (14 %) had not ended when the run ended (reason: never fits).",
        "Latency and throughput count finished requests only.",
    ]
    assert any("1 of 4 admitted requests (25 %) were preempted" in line for line in lines)
    assert lines[-1] == "Only 3 requests finished: P99 rests on one or two of them."


def test_no_tier_no_advice_about_it() -> None:
    """Without an offload tier nothing is said about its size or its gain."""
    assert found(external=0, num_cpu_blocks=0, cpu_used_blocks_peak=0, cpu_evicted_blocks=0) == []


def test_nothing_arrived_is_told() -> None:
    """A run without requests says so and nothing else."""
    assert warnings(summarize(requests_of([]), {})) == [
        "No request arrived: the trace is empty or the run ended before the first arrival."
    ]
