"""The fast engine and the reference are equal to the last nanosecond, in random worlds and on cuts of real traces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import fast_cuts
import pytest
from fast_compare import compare, compare_seed, first_difference
from fast_worlds import presets_read_once

from kvsim.resolve import Plan, resolve

NUM_WORLDS, PER_TEST = 2_000, 50


@pytest.mark.parametrize("first", range(0, NUM_WORLDS, PER_TEST))
def test_random_worlds(first: int) -> None:
    """Requests, totals, tiers, series, notes, and at the end the order of everything that is kept."""
    for seed in range(first, first + PER_TEST):
        verdict = compare_seed(seed)
        assert not verdict.difference, f"world {seed} ({verdict.shape}): {verdict.difference}"


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
