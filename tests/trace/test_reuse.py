"""Reuse distances and hits over runs equal those over single blocks."""

from __future__ import annotations

import random
from collections import OrderedDict

import pytest

from kvsim.chain import Chain, PrefixTree
from kvsim.trace.reuse import InfiniteCache, Runs, blocks_per_window, prompt_runs, reuse_distances
from kvsim.trace.session import Turn


def _turn(chain: Chain, num_ids: int) -> Turn:
    return Turn(chain.num_tokens, 1, chain, chain.num_tokens, num_ids)


def _world(seed: int) -> tuple[list[list[int]], list[Runs]]:
    rng = random.Random(seed)
    prompts: list[list[int]] = []
    fresh = 0
    for _ in range(rng.randrange(2, 40)):
        base = rng.choice(prompts) if prompts and rng.random() < 0.8 else []
        keep, add = rng.randrange(len(base) + 1), rng.randrange(1, 8)
        prompts.append(base[:keep] + list(range(fresh, fresh + add)))
        fresh += add
    order = [rng.choice(prompts) for _ in range(60)]
    tree = PrefixTree()
    leaves = [tree.add("f", prompt, 4) for prompt in order]
    turns = [_turn(tree.chain(leaf, 4 * len(prompt)), len(prompt)) for leaf, prompt in zip(leaves, order, strict=True)]
    return order, [prompt_runs(turn, 4) for turn in turns]


def test_partial_last_block_counts_as_one() -> None:
    """A prompt that ends inside its last id uses the whole id."""
    tree = PrefixTree()
    leaf = tree.add("f", [1, 2, 3], 10)
    tree.add("f", [1, 9], 10)
    assert prompt_runs(_turn(tree.chain(leaf, 22), 3), 10) == [(0, 1), (1, 2)]


def test_prompt_does_not_reach_into_its_answer() -> None:
    """Where the chain goes on through the answer, only the prompt's own ids count."""
    tree = PrefixTree()
    leaf = tree.add("f", [1, 2, 3], 10)
    assert prompt_runs(_turn(tree.chain(leaf, 30), 2), 10) == [(0, 2)]


def test_distances_by_hand() -> None:
    """A, B, A: the second A is 2 + 3 blocks away, since both prompts lie between."""
    found = reuse_distances([[(0, 2)], [(1, 3)], [(0, 2)]])
    assert (found.counts, found.first_uses, found.reuses) == (((5, 2),), 5, 2)
    assert (found.percentile(50), found.percentile(99)) == (5, 5)
    assert (found.hit_rate(4), found.hit_rate(5)) == (0.0, 2 / 7)


def test_nothing_reused_has_no_percentile() -> None:
    """First uses have no distance."""
    found = reuse_distances([[(0, 4)], []])
    assert (found.percentile(50), found.hit_rate(100), found.first_uses) == (None, 0.0, 4)


@pytest.mark.parametrize("seed", range(60))
def test_random_worlds_equal_block_by_block(seed: int) -> None:
    """Hits, distances and windows are those of sets and lists of single blocks."""
    prompts, runs = _world(seed)
    cache, seen = InfiniteCache(), set[int]()
    last: OrderedDict[int, int] = OrderedDict()
    counts: dict[int, int] = {}
    first_uses = 0
    for now, (prompt, run) in enumerate(zip(prompts, runs, strict=True)):
        lead = next((place for place, block in enumerate(prompt) if block not in seen), len(prompt))
        assert cache.lookup(run) == lead
        cache.insert(run)
        seen.update(prompt)
        for block in prompt:
            if block in last:
                between = {x for old in prompts[last[block] : now] for x in old}
                counts[len(between)] = counts.get(len(between), 0) + 1
            else:
                first_uses += 1
        last.update(dict.fromkeys(prompt, now))
    assert cache.blocks == len(seen)
    found = reuse_distances(runs)
    assert (dict(found.counts), found.first_uses) == (counts, first_uses)
    times = [float(7 * place) for place in range(len(runs))]
    expected = [
        len({x for place, prompt in enumerate(prompts) if start <= times[place] < start + 60 for x in prompt})
        for start in range(0, int(times[-1]) + 1, 60)
    ]
    found_windows = blocks_per_window(times, runs, 60)
    assert list(found_windows.items()) == list(enumerate(expected))
    assert blocks_per_window([], [], 60) == {}
