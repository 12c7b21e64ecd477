"""With API servers in front, the fast engine and the reference are still equal, in any order of building."""

from __future__ import annotations

from collections import Counter

import pytest
from cluster_worlds import compare_cluster
from fast_compare import compare_seed
from store_worlds import compare_store


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_random_worlds(first: int) -> None:
    """Requests, totals, tiers, series, notes and orders, with clients that give up and engines that die."""
    seen: Counter[str] = Counter()
    for seed in range(first, first + 20):
        verdict = compare_seed(seed, frontend=True)
        assert not verdict.difference, f"world {seed} ({verdict.shape}): {verdict.difference}"
        seen.update(verdict.seen)
    assert seen["requests that spent time in front"]
    assert seen["requests aborted"]


@pytest.mark.parametrize("seed", range(20))
def test_random_clusters(seed: int) -> None:
    """Instances that come and go, each with servers of its own."""
    verdict = compare_cluster(seed, frontend=True)
    assert not verdict.difference
    assert verdict.seen["requests that spent time in front"]


@pytest.mark.parametrize("seed", range(6))
def test_random_stores(seed: int) -> None:
    """Instances that share a store."""
    verdict = compare_store(seed, frontend=True)
    assert not verdict.difference
    assert verdict.seen["requests that spent time in front"]
