"""With API servers in front, the fast engine and the reference are still equal, in any order of building."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from cluster_worlds import ClusterWorld, difference, in_other_order, played, random_cluster, reference
from fast_compare import compare
from fast_worlds import presets_read_once, random_world

from kvsim.config import FrontendConfig, RunConfig
from kvsim.resolve import resolve

NUM_WORLDS, NUM_CLUSTERS = 60, 20


def with_frontend(config: RunConfig, seed: int) -> RunConfig:
    """The same with a random one; its times are round, so that things happen at the same instant."""
    rng = random.Random(f"frontend {seed}")
    times = {"request_time": rng.choice(["0", "10us", "1ms"]), "token_time": rng.choice(["1us", "10us", "100us"])}
    frontend = FrontendConfig.model_validate(times | {"api_servers": rng.choice([1, 1, 2, 5])})
    return config.model_copy(update={"frontend": frontend})


@pytest.mark.parametrize("first", range(0, NUM_WORLDS, 20))
def test_random_worlds(first: int) -> None:
    """Requests, totals, tiers, series, notes and orders, with clients that give up and engines that die."""
    inside = 0
    for seed in range(first, first + 20):
        world = random_world(seed)
        with presets_read_once():
            plan = resolve(with_frontend(world.config, seed), world.trace)
        assert plan.fast
        found, seen = compare(plan, world.num_priorities)
        assert not found, f"world {seed}: {found}"
        inside += seen["requests aborted"] + seen["requests failed"]
    assert inside


@pytest.mark.parametrize("seed", range(NUM_CLUSTERS))
def test_random_clusters(seed: int) -> None:
    """Instances that come and go, each with a frontend."""
    world = random_cluster(seed)
    world = ClusterWorld(seed, world.trace, with_frontend(world.config, seed))
    plan = world.plan()
    found = played(plan)
    assert any(entry.frontend_ns for entry in found.requests)
    assert not difference(played(reference(plan)), found)
    assert not difference(found, played(replace(in_other_order(world)).plan()))
