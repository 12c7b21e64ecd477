"""Reports about the managers of offloaded KV (facts E3)."""

from __future__ import annotations

import random

import pytest
from by_hand import HandEngine, Numbers, numbered
from engine_builder import hashes, make_context, word
from worlds import MS, TraceBuilder, config, run, summary

from kvsim.cache.block_pool import BlockPool
from kvsim.cache.kv_cache_manager import KVCacheManager
from kvsim.offload.ledger import StorePlan
from kvsim.offload.manager import OffloadingManager
from kvsim.offload.policies.arc import ArcPolicy
from kvsim.releases import RELEASES
from kvsim.results.records import RunRecord

EVERY_POLICY = pytest.mark.parametrize(
    ("version", "policy"), [(version, policy) for version in RELEASES for policy in ("lru", "arc")]
)


def make_manager(num_slots: int, version: str, policy: str) -> OffloadingManager:
    """The CPU manager of a release."""
    return RELEASES[version].manager(num_slots, RELEASES[version].policies[policy])


def store(manager: OffloadingManager, name: str, content: str) -> None:
    """A request stores these chunks, and ends."""
    context = make_context(name, content)
    plan = manager.prepare_store(context, 0, len(content))
    assert plan is not None
    manager.complete_store([context.keys[i] for i in plan.positions], context)
    manager.on_request_finished(context)


@EVERY_POLICY
def test_vllm_35846_what_is_offered_is_not_evicted_for_the_offer(version: str, policy: str) -> None:
    """Reported: prepare_store([2, 3, 4, 5]) evicts 2, which is stored already. Right: the offer's own keys stay.

    2 is older than 1, so it would be the first to go.
    """
    manager = make_manager(4, version, policy)
    store(manager, "r", "2")
    store(manager, "s", "1")
    assert manager.prepare_store(make_context("t", "2345"), 0, 4) == StorePlan([1, 2, 3], [2, 3, 1])
    assert word(sorted(manager.slots)) == "2345"


def pinned_t2(version: str) -> OffloadingManager:
    """Room for three chunks: b and c in T1 (wanted: 3), a in T2 and being read."""
    manager = make_manager(3, version, "arc")
    store(manager, "1", "a")
    reader = make_context("2", "a")
    manager.prepare_load(reader, 0, 1)
    manager.complete_load(hashes("a"))
    manager.on_request_finished(reader)
    manager.touch(reader)  # how 0.23.0 learns of it
    store(manager, "3", "bc")
    assert isinstance(manager.policy, ArcPolicy)
    assert (word(sorted(manager.policy.t1)), word(manager.policy.t2)) == ("bc", "a")
    manager.policy.target = 3.0
    manager.prepare_load(make_context("4", "a"), 0, 1)
    return manager


def test_vllm_55461_arc_takes_from_t1_when_t2_is_exhausted() -> None:
    """Reported: T1 below its target and T2 pinned, the store is refused though T1 has candidates. Right: T1."""
    manager = pinned_t2("0.33.0")
    assert manager.prepare_store(make_context("5", "x"), 0, 1) is not None
    assert "a" in word(manager.slots)
    assert manager.num_refusals == 0


def test_vllm_55461_is_counted_where_the_release_has_it() -> None:
    """0.23.0 has the bug: the store is refused, nothing is evicted, and the refusal is counted."""
    manager = pinned_t2("0.23.0")
    assert manager.prepare_store(make_context("5", "x"), 0, 1) is None
    assert (manager.num_refusals, manager.num_evicted) == (1, 0)


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("capacity", [2, 4])
def test_vllm_27039_ghosts_are_bounded_by_the_capacity(version: str, capacity: int) -> None:
    """Reported: a pool of 2 to 4 blocks with room for 10,000 ghosts. Right in vLLM: each ghost list has the capacity.

    (The textbook bounds the two lists together; no release does, and neither do we.)
    """
    rng = random.Random(0)
    manager = make_manager(capacity, version, "arc")
    policy = manager.policy
    assert isinstance(policy, ArcPolicy)
    longest = 0
    for number in range(400):
        letter = chr(97 + rng.randrange(26))
        context = make_context(str(number), letter)
        manager.touch(context)
        if manager.prepare_store(context, 0, 1) != StorePlan([], []):
            manager.complete_store(context.keys, context)
        manager.on_request_finished(context)
        assert max(len(policy.b1), len(policy.b2)) <= capacity
        longest = max(longest, len(policy.b1), len(policy.b2))
    assert longest == capacity


def test_vllm_28950_a_load_starts_inside_a_chunk() -> None:
    """Reported: chunks of 4 blocks, the GPU hit ends inside one, the load writes from its start. Right: skip its head.

    The GPU has 6 of 12 blocks, so chunks 1 and 2 are read (8 blocks) into 6 GPU blocks: the first 2 are skipped,
    -6 modulo 4.
    """
    world = HandEngine(num_gpu_blocks=101, factor=4)
    content = Numbers(1000)
    world.fill_cpu(content, 12)
    world.run(numbered("warm", 6 * 16 + 1, content), steps=1)
    world.run()
    world.copies.clear()
    # What the warm-up loaded (one whole chunk) and computed is on the GPU: blocks 0 to 5.
    world.run(numbered("r", 12 * 16 + 1, content))
    assert world.hits["r"] == (6 * 16, 6 * 16)
    ((_, _, source, destination),) = world.load_jobs()
    assert (len(source), len(destination)) == (2, 6)
    assert len(source) * 4 - len(destination) == -6 % 4 == 2
    assert world.manager.slots[1007].slot_id == source[0]


def test_sglang_16909_a_host_pool_smaller_than_the_gpu_does_not_stop_it() -> None:
    """Reported: the write-back to a host pool smaller than the GPU's fails and the engine with it. Right: it goes on.

    Three chunks in CPU memory, prompts of twenty: every store is refused, the GPU evicts without them, all finish.
    """
    world = HandEngine(num_gpu_blocks=61, num_cpu_chunks=3)
    world.run(*(numbered(f"{i}", 320, Numbers(1000 * i)) for i in range(1, 11)))
    assert len(world.ended) == 10
    assert world.manager.num_refusals >= 10
    assert world.manager.num_chunks == 0
    assert world.scheduler.kv.pool.evicted_blocks == 10 * 20 - 60


def test_dynamo_6506_a_write_through_tier_smaller_than_the_gpu_gives_no_hits() -> None:
    """Reported: a CPU tier below the GPU's size brings no hits. So it is here, and one above it does.

    Twelve sessions of 25 blocks take turns twice, with 200 blocks on the GPU: each prefix is gone when it is asked for.
    """
    external = {}
    for blocks in (150, 200, 320):
        builder = TraceBuilder(outputs_return=False)
        for i in range(12):
            builder.session(f"s{i}", [(400, 1, 0), (16, 1, 600 * MS)], start_ns=i * 40 * MS)
        connector = {"kind": "offloading", "cpu_bytes_to_use": f"{2 * blocks}MiB"}
        _, record = run(
            builder.build(),
            config(engine={"num_gpu_blocks_override": 201, "max_num_batched_tokens": 512}, connector=connector),
        )
        external[blocks] = record.totals.external_hit_tokens
    assert external == {150: 0, 200: 0, 320: 12 * 400}


def test_sglang_26357_evictable_blocks_are_evicted() -> None:
    """Reported: 768 tokens free, 432,960 evictable of 464,256, one request waits for ever. Right: evict for it."""
    pool = BlockPool(464_256 // 16 + 1)
    kv = KVCacheManager(pool, block_size=16, max_model_len=500_000)
    others = numbered("others", 30_528, Numbers(1_000_000))
    kv.allocate_slots(others, 30_528)
    done = numbered("done", 432_960, Numbers(2_000_000))
    kv.allocate_slots(done, 432_960)
    kv.free(done)
    assert sum(pool.hashes[block] < 0 for block in pool.free_list()) * 16 == 768
    assert len(pool.cached) * 16 == 30_528 + 432_960
    request = numbered("one", 433_728, Numbers(3_000_000))
    blocks = kv.allocate_slots(request, 433_728)
    assert blocks is not None
    assert len(blocks) * 16 == 433_728
    assert (pool.num_free, pool.evicted_blocks * 16) == (0, 432_960)


def test_mlcommons_283_only_what_was_written_is_hit() -> None:
    """Reported: prefix hits are subtracted though nothing was ever written. Right: no copy, no hit.

    The store of A is refused for lack of room; B, whose prompt begins with A's, computes all of it.
    """
    world = HandEngine(num_gpu_blocks=41, num_cpu_chunks=5)
    content = Numbers(1000)
    world.run(numbered("A", 320, content))
    world.run(numbered("rival", 640, Numbers(5000)))
    assert world.manager.num_chunks == 0
    world.run(numbered("B", 500, content))
    assert world.hits["B"] == (0, 0)
    assert world.tokens_of("B") == 500


def one_shot(threshold: int) -> RunRecord:
    """Twenty prompts of 25 blocks that nobody repeats, and one that comes twice and has left the GPU in between."""
    builder = TraceBuilder(outputs_return=False)
    builder.session("twice", [(400, 1, 0), (16, 1, 900 * MS)])
    for i in range(20):
        builder.session(f"once{i}", [(400, 1, 0)], start_ns=(i + 1) * 40 * MS)
    connector = {"kind": "offloading", "cpu_bytes_to_use": "4GiB", "store_threshold": threshold}
    settings = config(
        engine={"num_gpu_blocks_override": 101, "max_num_batched_tokens": 512},
        connector=connector,
    )
    return run(builder.build(), settings)[1]


def test_vllm_35259_stores_that_nobody_loads_are_counted_in_bytes() -> None:
    """Reported: one-shot traffic is stored to the last block and never reused. Right: that is seen, and can be avoided.

    22 prompts store 21 * 25 + 1 blocks of 2 MiB, 25 of which are loaded; with a threshold of 2 none is stored.
    """
    everything, selective = summary(one_shot(0)), summary(one_shot(2))
    transfers = everything["transfers"]
    assert (transfers["stored_blocks"], transfers["unused_stored_blocks"]) == (526, 501)
    assert transfers["unused_store_bytes"] == 501 * 2 * 2**20
    assert any("95 % of what was stored (1.1 GB) was never loaded" in line for line in everything["warnings"])
    assert selective["transfers"]["stored_blocks"] == 25
    assert selective["transfers"]["unused_store_share"] == 1.0


def test_lmcache_1109_no_gain_is_explained_by_the_hit_rate_of_the_gpu() -> None:
    """Asked: why does offloading gain nothing? Right answer: "gain <= x % because the GPU hit rate is already y %"."""
    builder = TraceBuilder()
    builder.session("s", [(1600, 16, 0)] + [(16, 16, 0)] * 30)
    builder.session("other", [(1500, 1, 0)], start_ns=900 * MS)
    connector = {"kind": "offloading", "cpu_bytes_to_use": "4GiB"}
    _, record = run(builder.build(), config(engine={"num_gpu_blocks_override": 201, "max_model_len": 4096},
                                            connector=connector))  # fmt: skip
    lines = summary(record)["warnings"]
    assert any("Offload gain <= 6.2 % because the GPU hit rate is already 94 %" in line for line in lines)
