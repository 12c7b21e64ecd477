"""A cache alone under every policy: against brute force, and against the optimum."""

from __future__ import annotations

import pytest
from chain_workload import chains, words
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.offload.policies.leaves import LeafPolicy
from kvsim.plan.replay import CacheReplay, CacheRequest, ReplayView, replay
from kvsim.registry import POLICIES


def hits(requests: list[CacheRequest], capacity: int, policy: str) -> int:
    """Hits of all requests."""
    return replay(requests, capacity, POLICIES.find(policy)).hits


def lru_by_brute_force(requests: list[CacheRequest], capacity: int) -> int:
    """All lookups against the state before the request, then the whole request is the most recent, its head most."""
    order: list[int] = []  # least recent first
    found = 0
    for request in requests:
        keys = list(request.keys[:capacity])
        found += next((at for at, key in enumerate(keys) if key not in order), len(keys))
        order = ([key for key in order if key not in keys] + keys[::-1])[-capacity:]
    return found


def opt_by_brute_force(requests: list[CacheRequest], capacity: int) -> int:
    """Belady, chunk by chunk: whatever is used furthest in the future goes, the deepest first."""
    held: dict[int, int] = {}  # key -> depth
    found = 0
    for now, request in enumerate(requests):
        keys = list(request.keys[:capacity])
        found += sum(key in held for key in keys)  # wherever it lies in the request
        held |= {key: depth for depth, key in enumerate(keys)}

        def next_use(key: int, after: int = now) -> int:
            later = (at for at in range(after + 1, len(requests)) if key in requests[at].keys[:capacity])
            return next(later, len(requests))

        for key in sorted(set(held) - set(keys), key=lambda key: (-next_use(key), -held[key])):
            if len(held) > capacity:
                del held[key]
    return found


def test_a_replay_counts_leading_chunks() -> None:
    """Hits are the chunks at the beginning of a request that are there; what is behind a gap is not counted."""
    outcome = replay(chains(["abc", "abd", "abc", "x"]), 10, POLICIES.find("lru"))
    assert (outcome.hits, outcome.lookups, outcome.stored, outcome.evicted) == (2 + 3, 10, 5, 0)
    assert outcome.hit_rate == 0.5


def test_a_request_longer_than_the_tier_keeps_its_head() -> None:
    """Of six chunks a tier of four keeps the first four, under every policy that stores everything."""
    for policy in POLICIES.names():
        assert hits(chains(["abcdef", "abcdef", "abcdef"]), 4, policy) == 8, policy


@settings(max_examples=300)
@given(words, st.integers(1, 12))
def test_lru_is_lru(texts: list[str], capacity: int) -> None:
    """The policy of vLLM's CPU tier, request by request, is least recently used."""
    requests = chains(texts)
    assert hits(requests, capacity, "lru") == lru_by_brute_force(requests, capacity)


@settings(max_examples=300)
@given(words, st.integers(1, 12))
def test_opt_is_beladys(texts: list[str], capacity: int) -> None:
    """OPT counts what brute force over single chunks counts, although only leaves may go."""
    requests = chains(texts)
    assert hits(requests, capacity, "opt") == opt_by_brute_force(requests, capacity)


@settings(max_examples=150)
@given(words, st.integers(1, 12))
def test_nobody_beats_opt(texts: list[str], capacity: int) -> None:
    """No policy that stores everything has more hits than OPT; with bypassing it has at least as many."""
    requests = chains(texts)
    most = hits(requests, capacity, "opt")
    for policy in POLICIES.names():
        if policy != "opt_bypass":
            assert hits(requests, capacity, policy) <= most, policy
    assert hits(requests, capacity, "opt_bypass") >= most


@settings(max_examples=60)
@given(words, st.integers(1, 12))
def test_prefixes_stay_whole(texts: list[str], capacity: int) -> None:
    """What a policy over leaves keeps is closed towards the root, and never more than the tier holds."""
    requests = chains(texts)
    parent = {key: request.keys[at] for request in requests for at, key in enumerate(request.keys[1:])}
    for policy in POLICIES.names():
        found = POLICIES.find(policy)
        if not issubclass(found, LeafPolicy):
            continue
        tier = CacheReplay(capacity, found, ReplayView(requests, capacity))
        for request in requests:
            tier.play(request.request_id, request.keys)
            assert len(tier.slots) <= capacity
            assert all(parent.get(key, key) in tier.slots for key in tier.slots), policy


def test_a_tier_of_nothing_is_refused() -> None:
    """A replay needs room for a chunk."""
    with pytest.raises(ValueError, match="a tier of 0 chunks, expected at least 1"):
        replay([], 0, POLICIES.find("lru"))
