"""Hits of every policy on a cut of the committed trace: they change only when somebody means it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kvsim.plan.replay import CacheRequest, cache_requests, replay
from kvsim.registry import POLICIES
from kvsim.trace.read import read_trace
from kvsim.trace.replay import ReplayOptions

REPO = Path(__file__).resolve().parents[2]
SIZES = (100, 200, 400, 700)  # chunks of 2,048 tokens; all prompts together have 1,032

# As counted by this replay when the policies were written. `lru` and `opt` equal brute force on small workloads, and
# policies that libCacheSim has equal it on a flat one (see the tests beside this one).
HITS = {
    "lru": (3107, 5339, 13481, 16714),
    "arc": (3198, 5343, 13028, 16651),
    "fifo": (3129, 5410, 13332, 16714),
    "sieve": (3583, 6841, 13293, 16351),
    "s3fifo": (4562, 6671, 11890, 15948),
    "lfu": (4640, 7556, 10939, 15147),
    "slru": (4763, 7749, 11038, 15345),
    "arc_textbook": (4214, 6363, 13624, 16673),
    "gdsf": (3953, 7134, 12390, 16612),
    "cost_idle": (3642, 6313, 13291, 16674),
    "workload_aware": (3612, 6498, 13585, 16714),
    "ttl_fixed": (3156, 5731, 13711, 16714),
    "continuum": (3154, 5737, 13760, 16714),
    "queue_lru": (3107, 5339, 13481, 16714),
    "session_oracle": (6542, 10790, 15204, 16695),
    "opt": (6584, 11034, 15798, 16714),
    "opt_bypass": (7733, 11634, 15844, 16714),
}


def prefill_ns(first: int, last: int) -> int:
    """0.1 s per chunk at the start of a prompt, 1 ms more for each further down."""
    return (last - first) * 10**8 + (last * last - first * first) * 10**6


@pytest.fixture(scope="module")
def requests() -> Sequence[CacheRequest]:
    """The first 20 sessions, one every 10 s."""
    trace = read_trace([REPO / "traces/swe-bench-like-60.jsonl.gz"], "auto", "auto")
    cut = replace(trace, sessions=trace.sessions[:20])
    return cache_requests(cut, 2048, ReplayOptions(session_interval_ns=10 * 10**9, max_think_ns=60 * 10**9))


def test_every_policy_is_here() -> None:
    """A new policy gets its numbers too."""
    assert list(HITS) == POLICIES.names()


@pytest.mark.parametrize("policy", HITS)
def test_hits(requests: Sequence[CacheRequest], policy: str) -> None:
    """Hits at four sizes, of 17,746 chunks in 685 prompts."""
    found = [replay(requests, size, POLICIES.find(policy), prefill_ns=prefill_ns) for size in SIZES]
    assert tuple(each.hits for each in found) == HITS[policy]
    assert {each.lookups for each in found} == {17_746}


def test_tenants_share_nothing(requests: Sequence[CacheRequest]) -> None:
    """With two tenants the common prompts are there twice, so an unlimited tier has fewer hits."""
    trace = read_trace([REPO / "traces/swe-bench-like-60.jsonl.gz"], "auto", "auto")
    cut = replace(trace, sessions=trace.sessions[:20])
    tenants = {session.name: at % 2 for at, session in enumerate(cut.sessions)}
    apart = cache_requests(cut, 2048, tenants=tenants)
    together = {key for request in requests for key in request.keys}
    assert len({key for request in apart for key in request.keys}) > len(together) == 1032
    assert {request.facts.tenant for request in apart if request.facts} == {0, 1}
