"""Clusters are the same on both engines, however they are built, and in any process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from cluster_worlds import compare_cluster, played, random_cluster
from fast_compare import first_difference
from fast_worlds import presets_read_once

from kvsim.build import Simulation
from kvsim.cluster_plan import resolve_run
from kvsim.results.records import RunRecord, as_row
from kvsim.results.summary import digest
from kvsim.runner import requests_frame

NUM_WORLDS, PER_TEST = 120, 30
TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("first", range(0, NUM_WORLDS, PER_TEST))
def test_random_clusters(first: int) -> None:
    """Fast is reference, and groups that are listed and built in another order give the same: all that is written."""
    for seed in range(first, first + PER_TEST):
        verdict = compare_cluster(seed)
        assert not verdict.difference, f"cluster {seed}: {verdict.difference}"


@pytest.mark.parametrize("seed", [440, 547, 729, 987])
def test_turns_that_arrive_when_a_sample_is_taken(seed: int) -> None:
    """Routed at the instant at which quiet steps stop for a sample, they join the next step; copies slow some down."""
    assert not compare_cluster(seed).difference


@pytest.mark.parametrize("seed", [20_000_718, 40_040_011])
def test_instances_decide_in_the_order_of_their_names(seed: int) -> None:
    """At one instant a client of one gives up: what it sends next is there when those behind it decide, and not before.

    20000718: it gives up at the first, and the second looks at its next turn. 40040011: the other way round, while the
    first decodes and nothing has stopped it at that instant.
    """
    assert not compare_cluster(seed).difference


@pytest.mark.parametrize("seed", range(100, 140))
def test_every_turn_goes_to_one_instance(seed: int) -> None:
    """Each turn has one record; instances' counts of what they served add up to the cluster's."""
    world = random_cluster(seed)
    record = played(world.plan())
    assert len(record.requests) == world.trace.num_requests
    turns = Counter((entry.session, entry.stream, entry.turn) for entry in record.requests)
    assert set(turns.values()) == {1}
    names = {each.name for each in record.instances}
    for entry in record.requests:
        turned_away = entry.reason.startswith("no instance took requests")
        assert (entry.instance == "") == turned_away
        assert turned_away or entry.instance in names
    for name in ("prompt_tokens", "output_tokens", "preemptions", "steps", "load_jobs", "h2d_bytes", "num_gpu_blocks"):
        assert getattr(record.totals, name) == sum(getattr(each.totals, name) for each in record.instances)
    for each in record.instances:
        own = [entry for entry in record.requests if entry.instance == each.name]
        assert each.totals.output_tokens == sum(entry.output_tokens for entry in own)
        assert each.totals.local_hit_tokens == sum(entry.local_hit_tokens for entry in own)
    last, sums = record.series.samples[-1], [each.series.samples[-1] for each in record.instances]
    assert (last.prompt_tokens, last.running) == (sum(s.prompt_tokens for s in sums), 0)


def test_a_cluster_of_one_is_a_server() -> None:
    """Behind any router a lone instance does what it does without, if no two turns arrive at the same instant."""
    compared = 0
    for seed in range(60):
        world = random_cluster(seed, kind="round_robin")
        assert world.config.cluster is not None
        alone = world.config.model_copy(update={"cluster": None})
        one = world.config.cluster.instances[0].model_copy(update={"count": 1})
        cluster = world.config.cluster.model_copy(update={"instances": (one,), "events": ()})
        behind = world.config.model_copy(update={"cluster": cluster})
        with presets_read_once():
            expected, found = (Simulation(resolve_run(each, world.trace)).run() for each in (alone, behind))
        arrivals = [entry.arrival_ns for entry in expected.requests]
        if len(set(arrivals)) == len(arrivals):
            assert first_difference(_nameless(expected), _nameless(found)) == ""
            compared += 1
    assert compared >= 15


def _nameless(record: RunRecord) -> dict[str, object]:
    return {
        "requests": [as_row(entry) | {"instance": ""} for entry in record.requests],
        "totals": as_row(record.totals),
        "last": as_row(record.series.samples[-1]),
    }


def test_two_processes_give_the_same_digest() -> None:
    """Whatever the hash seed of the process, for routers that hash, draw and learn."""
    program = """
import sys
sys.path.insert(0, sys.argv[1])
from cluster_worlds import ROUTERS, played, random_cluster
from kvsim.results.summary import digest
from kvsim.runner import requests_frame
for number, router in enumerate(ROUTERS):
    print(digest(requests_frame(played(random_cluster(number, **router).plan()))))
"""
    outputs = [
        subprocess.run(  # noqa: S603 - our own program
            [sys.executable, "-c", program, str(TESTS)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert len(set(outputs[0].split())) > 5


def test_the_digest_tells_who_served() -> None:
    """Equal times on other instances are another result."""
    record = played(random_cluster(3, kind="least_requests").plan())
    before = digest(requests_frame(record))
    for entry in record.requests:
        entry.instance = f"other-{entry.instance}"
    assert digest(requests_frame(record)) != before
