"""The fast engine and the reference are equal to the last nanosecond, in random worlds and on cuts of real traces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import fast_cuts
import pytest
import worlds
from fast_compare import compare, compare_seed, first_difference
from fast_worlds import MS, presets_read_once

from kvsim.build import Simulation
from kvsim.chain import ROOT, Leaf, PrefixTree
from kvsim.resolve import Plan, resolve
from kvsim.trace.session import Session, Trace, Turn

NUM_WORLDS, PER_TEST = 2_000, 50
NUM_WITH_TIER_FAULTS = 200


@pytest.mark.parametrize("first", range(0, NUM_WORLDS, PER_TEST))
def test_random_worlds(first: int) -> None:
    """Requests, totals, tiers, series, notes, and at the end the order of everything that is kept."""
    for seed in range(first, first + PER_TEST):
        verdict = compare_seed(seed)
        assert not verdict.difference, f"world {seed} ({verdict.shape}): {verdict.difference}"


@pytest.mark.parametrize("first", range(0, NUM_WITH_TIER_FAULTS, PER_TEST))
def test_random_worlds_with_faults_of_tiers(first: int) -> None:
    """The same, what has failed and who is stuck included, where storage loses, stalls, goes away and comes back."""
    for seed in range(first, first + PER_TEST):
        verdict = compare_seed(seed, tier_faults=True)
        assert not verdict.difference, f"world {seed} with faults of tiers ({verdict.shape}): {verdict.difference}"


@pytest.mark.parametrize("seed", [11_530])
def test_worlds_with_faults_of_tiers_that_differed_once(seed: int) -> None:
    """The same for those that many worlds have found.

    11530: a copy that waits behind a stalled one begins at the deadline, in the middle of a step, but behind its pass.
    """
    assert not compare_seed(seed, tier_faults=True).difference


@pytest.mark.parametrize(("seed", "frontend"), [(200_985, False), (8_800_088, True), (40_027_221, False)])
def test_worlds_that_differed_once(seed: int, frontend: bool) -> None:
    """The same for three that only many worlds have found.

    200985: a request gives up for whom blocks were reserved, and another one fits that did not before. 8800088: in
    0.23.0 an offer is repeated until it finds room; by then it touches keys of what has been decoded meanwhile.
    40027221: a request of 0.23.0 that is stuck says how many chunks it has, those of what it had decoded included.
    """
    assert not compare_seed(seed, frontend=frontend).difference


def test_who_leaves_the_cohort_goes_back_to_its_place() -> None:
    """Three end in the same step, in scheduling order, as their next turns show.

    The first of them is alone with its content until its twin comes; the others are twins from the start. A loner keeps
    the cohort alive meanwhile.
    """
    tree = PrefixTree()
    one, other, third = (tree.grow(ROOT, 0, 100) for _ in range(3))
    begins = {"first": (one, 0), "second": (other, 0), "third": (other, 0), "loner": (third, 0), "twin": (one, 10 * MS)}

    def turns(name: str, leaf: Leaf) -> tuple[Turn, ...]:
        chain, out = (
            tree.chain(leaf, 100),
            60 if name == "loner" else 24,
        )  # a whole number of blocks: to the end, the last is not there
        return Turn(40, out, chain.truncated(40 + out), 40, 0), Turn(101, 2, chain, 100, 0)

    sessions = tuple(Session(name, start, turns(name, leaf)) for name, (leaf, start) in begins.items())
    trace = Trace("twins", "sessions", 1, sessions, outputs_return=True, notes=(), tree=tree)
    difference, seen = compare(resolve(worlds.config(debug=False), trace))
    assert not difference
    assert seen["windows"]


def test_a_step_outlives_its_engine() -> None:
    """An engine dies inside a step, for good: the clock stops at its end, not where the window would stop next."""
    builder = worlds.TraceBuilder()
    builder.session("only", [(40, 100, 0)])
    settings = worlds.config(debug=False, faults={"restarts": ["25500us"], "restart_time": "0"})
    plan = resolve(settings, builder.build())
    difference, seen = compare(plan)
    assert not difference
    assert seen["engine deaths"] == seen["requests failed"] == 1
    assert Simulation(plan).run().totals.end_ns == 1_400_000 + 24 * 1_010_000  # 1 ms per step, 10 us per token


def test_a_run_that_hangs_counts_the_blocks_of_the_step_under_way() -> None:
    """The step waits for ever for a store that reads what it hands out; a member fills a block of its own in it."""
    builder = worlds.TraceBuilder()
    for name, prompt, output, start_ms in (("stored", 64, 2, 0), ("decodes", 29, 300, 0), ("wants", 320, 5, 100)):
        builder.session(name, [(prompt, output, 0)], start_ms * MS)
    settings = worlds.config(
        debug=False,
        engine={"num_gpu_blocks_override": 31, "max_num_batched_tokens": 1_024},
        connector={"kind": "offloading", "cpu_bytes_to_use": "1GiB"},
        faults={"cpu": {"stalls": {"stores": [0]}}},
    )
    plan = resolve(settings, builder.build())
    difference, seen = compare(plan)
    assert not difference
    assert seen["requests stuck"] == 2
    assert Simulation(plan).run().series.samples[-1].gpu_cached_blocks == 30


def test_a_stretch_of_chunks_ends_when_the_decoding_take_the_last_blocks() -> None:
    """There was room for a prompt of 43 blocks, one in each step; but two others need some, too, before it is over."""
    builder = worlds.TraceBuilder()
    for name in ("one", "two"):
        builder.session(name, [(16, 200, 0)])
    builder.session("long", [(43 * 16, 2, 0)], 4 * MS)
    engine = {"num_gpu_blocks_override": 49, "max_num_batched_tokens": 18}
    difference, seen = compare(resolve(worlds.config(debug=False, engine=engine), builder.build()))
    assert not difference
    assert seen["preemptions"] == 1
    assert seen["windows"]


def test_who_arrives_behind_one_that_has_given_up_is_looked_at() -> None:
    """One finds no room beside the first and gives up; when the next one comes, nobody is before it in the queue."""
    builder = worlds.TraceBuilder()
    for name, prompt, output, start_ms in (("first", 320, 150, 0), ("gives up", 400, 5, 10), ("next", 20, 5, 60)):
        builder.session(name, [(prompt, output, 0)], start_ms * MS)
    faults = {"aborts": {"script": [{"request": 1, "after": "20ms"}]}}
    settings = worlds.config(debug=False, engine={"num_gpu_blocks_override": 40}, faults=faults)
    plan = resolve(settings, builder.build())
    difference, seen = compare(plan)
    assert not difference
    assert seen["windows"]
    first, gave_up, newcomer = Simulation(plan).run().requests
    assert (first.status, gave_up.status, newcomer.status) == ("finished", "aborted", "finished")
    assert newcomer.first_scheduled_ns < 62 * MS


@pytest.mark.parametrize("limit", [None, 5])
def test_who_arrives_at_the_instant_of_a_fault_comes_behind_it(limit: int | None) -> None:
    """The engine is down for it; sessions of one request, which are no processes without a limit, come no earlier."""
    builder = worlds.TraceBuilder()
    for name, start_ns in (("before", 9 * MS), ("at", 10 * MS), ("behind", 16 * MS)):
        builder.session(name, [(40, 2, 0)], start_ns)
    faults = {"restarts": ["10ms"], "restart_time": "5ms"}
    settings = worlds.config(debug=False, faults=faults, trace={"max_concurrent_sessions": limit})
    record = Simulation(resolve(settings, builder.build())).run()
    reasons = [(entry.status, entry.reason) for entry in record.requests]
    assert reasons == [("failed", "the engine died"), ("failed", "the engine was down"), ("finished", "")]


@pytest.mark.parametrize("cut", fast_cuts.SMALL, ids=str)
def test_cuts_of_real_traces(cut: fast_cuts.Cut, shared_traces: Path) -> None:
    """The same, with real prefixes and round trips; each takes the reference a few seconds."""
    config = cut.config(shared_traces)
    with presets_read_once():
        plan = resolve(config, cut.trace(config))
    assert plan.fast
    difference, seen = compare(plan)
    assert not difference
    if cut.connector.get("offload_prompt_only", True):  # else generated tokens are offered, step by step
        assert seen["forward passes decided"] < seen["steps"] / 3


@pytest.mark.parametrize(
    ("found", "difference"),
    [
        ({"a": 1, "b": [1, 2]}, ""),
        ({"a": 1, "b": [1, 3]}, "b.1: expected 2, found 3"),
        ({"a": 1, "b": [1]}, "b: expected [1, 2], found [1]"),
        ({"a": 1}, ": expected {'a': 1, 'b': [1, 2]}, found {'a': 1}"),
    ],
)
def test_the_first_difference_is_named(found: Any, difference: str) -> None:
    """By its keys, with both values."""
    assert first_difference({"a": 1, "b": [1, 2]}, found) == difference


def _one_block_less(plan: Plan) -> Plan:
    return replace(plan, sizes=replace(plan.sizes, num_gpu_blocks=plan.sizes.num_gpu_blocks - 1))


def test_a_difference_is_noticed() -> None:
    """With one GPU block less, the reference differs in every world."""
    assert all(compare_seed(seed, spoil=_one_block_less).difference for seed in range(8))
