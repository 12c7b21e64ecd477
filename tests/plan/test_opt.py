"""The optimum over runs equals Belady's over single blocks, and no policy gets more."""

from __future__ import annotations

import pytest
from prompt_worlds import belady_hits, most_hits, world

from kvsim.plan.mrc import miss_ratio_curve
from kvsim.plan.opt import Optimum, optimum
from kvsim.plan.prompts import Prompts, prompts_of
from kvsim.trace.reuse import find_reuses


def _prompts(*runs: list[tuple[int, int]]) -> Prompts:
    return Prompts("by hand", 1, tuple(runs))


def test_optimum_by_hand() -> None:
    """A B C A B C in two blocks: after C one of A and B can stay; LRU keeps neither, the optimum one of each round."""
    prompts = _prompts(*([(segment, 1)] for segment in (0, 1, 2, 0, 1, 2)))
    assert [miss_ratio_curve(prompts).hits(size) for size in range(4)] == [0, 0, 0, 3]
    assert [optimum(prompts, size) for size in range(4)] == [0, 0, 2, 3]
    assert [optimum(prompts, size, bypass=True) for size in range(4)] == [0, 1, 2, 3]


def test_prompt_larger_than_the_cache_leaves_its_beginning() -> None:
    """Where a prompt does not fit, nothing else stays; a cache that may decline blocks keeps what it had."""
    prompts = _prompts([(0, 2)], [(1, 5)], [(0, 2)], [(1, 5)])
    assert Optimum(find_reuses(prompts.runs)).hits_by_prompt(3) == [0, 0, 0, 1]
    assert Optimum(find_reuses(prompts.runs)).hits_by_prompt(3, bypass=True) == [0, 0, 2, 1]
    assert optimum(prompts, 7) == optimum(prompts, 7, bypass=True) == 7


@pytest.mark.parametrize("batch", range(10))
def test_random_worlds_equal_block_by_block(batch: int) -> None:
    """Hits of every prompt are those of Belady's rule on single blocks; LRU never has more, bypassing never less."""
    for seed in range(100 * batch, 100 * batch + 100):
        made = world(seed)
        prompts = prompts_of(made.trace, tenants=made.tenants)
        reuses = find_reuses(prompts.runs)
        found, curve = Optimum(reuses), miss_ratio_curve(prompts, reuses)
        assert curve.hits(curve.full_blocks) == reuses.uses - reuses.first_uses
        for capacity in made.capacities:
            hits = {bypass: found.hits_by_prompt(capacity, bypass=bypass) for bypass in (False, True)}
            for bypass, own in hits.items():
                assert own == belady_hits(made.prompts, capacity, bypass=bypass), (seed, capacity, bypass)
            assert curve.hits(capacity) <= sum(hits[False]) <= sum(hits[True]) <= reuses.uses - reuses.first_uses


@pytest.mark.parametrize("bypass", [False, True])
def test_no_choice_of_blocks_gets_more(bypass: bool) -> None:
    """On tiny worlds nothing that any policy could keep after each prompt gives more leading hits."""
    differs = 0
    for seed in range(150):
        made = world(seed, most_prompts=7, most_added=3)
        prompts = prompts_of(made.trace, tenants=made.tenants)
        for capacity in range(1, 5):
            best = most_hits(made.prompts, capacity, bypass=bypass)
            assert optimum(prompts, capacity, bypass=bypass) == best, (seed, capacity)
            differs += best > miss_ratio_curve(prompts).hits(capacity)
    assert differs > 20
