"""Policies on a flat workload count the hits that libCacheSim counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from flat_workload import POLICIES, SIZES, keys, libcachesim_hits

from kvsim.plan.replay import CacheRequest, replay
from kvsim.registry import POLICIES as REGISTERED

# libcachesim 0.3.5, by `libcachesim_hits` with every policy's defaults.
HITS = {
    "lru": (6882, 7591, 8103, 8478, 8690, 8750),
    "fifo": (6380, 7189, 7829, 8285, 8637, 8750),
    "sieve": (6663, 7304, 7862, 8461, 8687, 8750),
    "s3fifo": (7077, 7644, 8115, 8449, 8676, 8750),
    "arc_textbook": (7320, 7845, 8234, 8499, 8687, 8750),
    "lfu": (2237, 3936, 7141, 8461, 8687, 8750),
    "opt": (7998, 8411, 8670, 8750, 8750, 8750),
}


@pytest.mark.parametrize("policy", POLICIES)
def test_hits_equal_libcachesims(policy: str) -> None:
    """With one chunk per request, hits are exactly those of libCacheSim at six sizes."""
    requests = [CacheRequest(str(at), [key]) for at, key in enumerate(keys())]
    found = [replay(requests, size, REGISTERED.find(policy)).hits for size in SIZES]
    assert found == list(HITS[policy])


@pytest.mark.parametrize("policy", POLICIES)
def test_the_numbers_above_are_libcachesims(policy: str, tmp_path: Path) -> None:
    """The installed libCacheSim counts the hits that are written down here."""
    pytest.importorskip("libcachesim", reason="libcachesim is not installed (pip install kvsim[xcheck])")
    assert [libcachesim_hits(policy, size, tmp_path) for size in SIZES] == list(HITS[policy])
