"""The KV cache manager by the run: its arithmetic, and the scheduler over it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pool_worlds import Numbers, Stretches, Tree

from kvsim.cache.block_pool import BlockPool, BlockPool023
from kvsim.cache.kv_cache_manager import KVCacheManager
from kvsim.extents.extent_pool import ExtentPool, ExtentPool023
from kvsim.extents.kv_cache_manager import RunKVCacheManager
from kvsim.extents.path import Path
from kvsim.limits import SchedulerLimits
from kvsim.request import Request
from kvsim.scheduler import Scheduler


def _request(name: str, content: Any, prompt: int, outputs: int, *, size: int = 4, arrival: int = 0) -> Request:
    return Request(name, content, block_size=size, num_prompt_tokens=prompt, max_tokens=outputs, arrival=arrival)


def _manager(num_blocks: int = 10, **settings: Any) -> RunKVCacheManager:
    return RunKVCacheManager(ExtentPool(num_blocks), block_size=4, max_model_len=100, **settings)


def _of_six(kv: RunKVCacheManager, prompt: int = 22) -> Request:
    """A request of six blocks of segment 1."""
    assert kv.block_size == 4
    return _request("a", Stretches(Path([1], [6])), prompt, 24 - prompt)


def test_a_request_gets_blocks_and_its_prefix_is_hit() -> None:
    """22 tokens need six blocks, five of them are full; an equal prompt hits those five, held by the first."""
    kv = _manager()
    first, second = _of_six(kv), _of_six(kv)
    assert len(kv.get_computed_blocks(first)) == 0
    assert kv.full_sequence_fits(first, kv.no_hits)
    assert kv.allocate_slots(first, 22) == 6
    assert (kv.num_held_blocks(first), kv.tables[first].num_hashed, kv.pool.num_free) == (6, 5, 3)
    hits = kv.get_computed_blocks(second)
    assert (len(hits), hits.num_unreferenced, kv.num_hit_tokens(hits)) == (5, 0, 20)
    assert kv.num_blocks_to_allocate(second, 22, hits) == 1
    assert kv.allocate_slots(second, 2, hits) == 1
    assert kv.pool.num_free == 2
    kv.free(first)
    kv.pool.free_table(kv.pop_table(second))
    assert (kv.pool.num_free, kv.tables) == (9, {})
    assert kv.get_computed_blocks(second).num_unreferenced == 5
    assert len(kv.pop_table(second)) == 0


def test_the_last_token_is_left_to_compute() -> None:
    """A prompt that is all there is hit but for its last block."""
    kv = _manager()
    first = _of_six(kv, prompt=20)
    kv.allocate_slots(first, 20)
    assert kv.tables[first].num_hashed == 5
    assert len(kv.get_computed_blocks(_of_six(kv, prompt=20))) == 4


def test_a_running_request_takes_a_block_only_when_it_needs_one() -> None:
    """Zero, not None: nothing gained, nothing refused. With no room it is refused and nothing has changed."""
    kv = _manager(num_blocks=3)
    request = _of_six(kv, prompt=7)
    assert kv.allocate_slots(request, 7) == 2
    request.num_computed_tokens = 7
    assert kv.num_remaining_blocks(request) == 0
    assert kv.allocate_slots(request, 1) == 0
    request.num_computed_tokens = 8
    assert kv.allocate_slots(request, 1) is None
    assert (kv.num_held_blocks(request), kv.pool.num_free) == (2, 0)


def test_what_is_loaded_is_hashed_when_it_has_come() -> None:
    """Blocks for 16 loaded tokens, some others left for those who compute; findable once the load is settled."""
    kv = _manager()
    request = _of_six(kv)
    assert kv.allocate_slots(request, 0, kv.no_hits, 16, delay_cache_blocks=True, reserved_blocks=6) is None
    assert kv.allocate_slots(request, 0, kv.no_hits, 16, delay_cache_blocks=True, reserved_blocks=5) == 0
    assert (len(kv.tables[request]), len(kv.pool.cached)) == (4, 0)
    kv.cache_blocks(request, 16)
    assert (kv.tables[request].num_hashed, len(kv.pool.cached)) == (4, 4)


def test_without_caching_nothing_is_hit() -> None:
    """Blocks never get a hash."""
    kv = _manager(enable_caching=False)
    first = _of_six(kv)
    kv.allocate_slots(first, 22)
    assert (len(kv.pool.cached), kv.tables[first].num_hashed) == (0, 0)
    assert kv.get_computed_blocks(_of_six(kv)) is kv.no_hits


class TwoSchedulers:
    """The same requests through the same scheduler over either manager."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        size, blocks = rng.choice((1, 2, 4)), rng.randint(12, 60)
        self.size = size
        self.limits = SchedulerLimits(
            max_num_batched_tokens=rng.randint(3, 40) * size,
            max_num_seqs=rng.randint(2, 8),
            max_model_len=(blocks - 1) * size,
            scheduler_reserve_full_isl=rng.random() < 0.5,
            scheduling_policy=rng.choice(("fcfs", "priority")),
        )
        old = rng.random() < 0.5
        settings: Any = {"block_size": size, "max_model_len": self.limits.max_model_len}
        self.slow = Scheduler(self.limits, KVCacheManager((BlockPool023 if old else BlockPool)(blocks), **settings))
        fast: Any = RunKVCacheManager((ExtentPool023 if old else ExtentPool)(blocks), **settings)
        self.fast = Scheduler(self.limits, fast)
        self.tree = Tree(rng, rng.randint(1, 6), rng.choice((3, 12)))
        self.steps = self.arrived = 0

    def arrive(self) -> None:
        """One request that fits into the pool."""
        rng, size = self.rng, self.size
        path = self.tree.path(2)
        total = min(len(path) * size, self.limits.max_model_len - 1)
        prompt = rng.randint(1, total - 1)
        for scheduler, content in ((self.slow, Numbers(path)), (self.fast, Stretches(path))):
            request = _request(f"r{self.arrived}", content, prompt, total - prompt, size=size, arrival=self.steps)
            scheduler.add_request(request)
        self.arrived += 1

    def step(self) -> None:
        """The same decisions, the same pools."""
        slow, fast = self.slow.schedule(), self.fast.schedule()
        for attribute in ("num_scheduled_tokens", "hits", "preempted", "new", "resumed"):
            ours, theirs = (_named(getattr(output, attribute)) for output in (fast, slow))
            assert ours == theirs, attribute
        assert _named({request: len(blocks) for request, blocks in slow.new_blocks.items()}) == _named(fast.new_blocks)
        ended = [_named(s.update_from_output(o, None)) for s, o in ((self.slow, slow), (self.fast, fast))]
        assert ended[0] == ended[1]
        self.slow.check()
        self.fast.check()
        for attribute in ("num_free", "evicted_blocks", "release_epoch"):
            assert getattr(self.slow.kv.pool, attribute) == getattr(self.fast.kv.pool, attribute), attribute
        self.steps += 1

    def run(self) -> None:
        """Some requests come while others run, then everybody ends."""
        to_come = self.rng.randint(5, 40)
        while self.arrived < to_come or self.slow.has_unfinished():
            if self.arrived < to_come and self.rng.random() < 0.5:
                self.arrive()
            self.step()
        self.fast.schedule()
        self.fast.check(at_end=True)


def _named(requests: Any) -> Any:
    if isinstance(requests, dict):
        return [(request.request_id, value) for request, value in requests.items()]
    return [request.request_id for request in requests]


@pytest.mark.parametrize("seed", range(0, 100, 20))
def test_the_scheduler_decides_the_same(seed: int) -> None:
    """Scheduled tokens, hits, preemptions, blocks gained, ends: in every step, whichever manager is below."""
    for world in range(seed, seed + 20):
        TwoSchedulers(world).run()
