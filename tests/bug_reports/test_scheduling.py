"""Reports about scheduling with a KV connector (facts E1): what was reported, and that it can't happen here."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from by_hand import HandEngine, Numbers, numbered
from serial import Prompt, at_times, offloading, play
from worlds import MS, TraceBuilder, config, run

from kvsim.cache.block_pool import BlockPool
from kvsim.cache.kv_cache_manager import KVCacheManager
from kvsim.connectors.simple_cpu import SimpleCPUOffloadConnector
from kvsim.engine import NoProgressError
from kvsim.request import Request, RequestStatus
from kvsim.results.records import RunRecord

BOTH = pytest.mark.parametrize("version", ["0.33.0", "0.23.0"])


class NoReservation(KVCacheManager):
    """Releases up to 0.22: an asynchronous load is admitted if its prefix fits, whatever others still need."""

    def allocate_slots(
        self, request: Request, num_new_tokens: int, hits: Sequence[int] = (), *args: Any, **options: Any
    ) -> list[int] | None:
        options["reserved_blocks"] = 0
        return super().allocate_slots(request, num_new_tokens, hits, *args, **options)


def two_loads(version: str, kv_manager: type[KVCacheManager]) -> HandEngine:
    """The report's world: 2,047 usable blocks, A1 loads 512 of its 1,600 blocks, B1 736 of its 1,200."""
    world = HandEngine(version, num_gpu_blocks=2048, num_cpu_chunks=4000, kv_manager=kv_manager)
    a, b = Numbers(100_000), Numbers(200_000)
    world.fill_cpu(a, 512)
    world.fill_cpu(b, 736)
    world.run(numbered("A1", 25_596, a), numbered("B1", 19_196, b), steps=2)
    return world


@BOTH
def test_vllm_45388_async_loads_that_reserve_only_their_prefix(version: str) -> None:
    """Reported: two parked loads hold 1,248 blocks and neither gets the rest. Right: B1 waits until A1 has all.

    A1 still needs 1,088 blocks when it is parked, which leaves B1's prefix of 736 no room beside them: 447 are free
    of reservations.
    """
    world = two_loads(version, KVCacheManager)
    held = {request.request_id: len(table) for request, table in world.scheduler.kv.tables.items()}
    assert held == {"A1": 512}
    assert world.scheduler.kv.pool.num_free - 1088 == 447
    world.run()
    assert world.ended == ["A1", "B1"]
    assert world.hits == {"A1": (0, 8192), "B1": (0, 11_776)}
    assert world.tokens_of("A1") == 25_596 - 8192


def test_vllm_45388_the_deadlock_without_reservation_is_told() -> None:
    """Reported: the engine spins for ever. Right: the stall is told.

    With the old rule both park, and 799 blocks are free.
    B1, which needs only 464 blocks more, could run; it is never reached behind A1.
    """
    world = two_loads("0.33.0", NoReservation)
    held = {request.request_id: len(table) for request, table in world.scheduler.kv.tables.items()}
    assert held == {"A1": 512, "B1": 736}
    assert world.scheduler.kv.pool.num_free == 799
    with pytest.raises(NoProgressError) as caught:
        world.run()
    message = str(caught.value)
    assert "A1 holds 512 GPU blocks, needs 1088 more, 799 of 2047 are free (more GPU blocks" in message
    assert "B1 holds 736 GPU blocks, needs 464 more, 799 of 2047 are free" in message
    assert world.ended == []


def stranding(version: str) -> HandEngine:
    """P has loaded half of the pool and needs little more; then H arrives, more urgent, and needs the whole pool."""
    world = HandEngine(version, num_gpu_blocks=101, scheduling_policy="priority")
    content = Numbers(1000)
    world.fill_cpu(content, 50)
    world.run(numbered("P", 60 * 16, content, priority=5), steps=1)
    assert len(world.scheduler.kv.tables) == 1
    world.run(numbered("H", 100 * 16 - 1, Numbers(2000), priority=0, arrival=1), steps=1)
    return world


def test_vllm_45406_loaded_requests_are_not_stranded_behind_a_head_that_does_not_fit() -> None:
    """Reported: a finished load is stuck behind a head that does not fit. Right (0.33.0): holders of KV come first."""
    world = stranding("0.33.0")
    world.run()
    assert world.ended == ["P", "H"]


def test_vllm_45406_is_told_where_the_release_has_it() -> None:
    """0.23.0 has the bug under PRIORITY: H is in front, waits for P's blocks, and P is never reached. It is told."""
    world = stranding("0.23.0")
    with pytest.raises(NoProgressError) as caught:
        world.run()
    assert "H holds 0 GPU blocks, needs 100 more, 50 of 100 are free" in str(caught.value)
    assert "P holds 50 GPU blocks, needs 10 more, 50 of 100 are free" in str(caught.value)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_vllm_57104_two_full_hits_that_fill_the_pool_get_their_draft_slots(asynchronous: bool) -> None:
    """Reported: 4,096 and 4,080 tokens, loaded whole, park on all 511 blocks; drafts need one more: both hang.

    Right: both finish. (Qwen3 with a draft model, three drafts a step.)
    """
    first, second, flush = (
        "".join(map(chr, range(start, start + blocks))) for start, blocks in ((1000, 256), (2000, 255), (3000, 510))
    )
    again = [(9000 * MS, Prompt(word, out=20)) for word in (first, second)]
    trace = at_times([(0, first), (1000 * MS, second), (3000 * MS, flush), *again])
    engine = {
        "max_model_len": 8192,
        "max_num_batched_tokens": 8192,
        "async_scheduling": asynchronous,
        "speculative": {"method": "draft_model", "num_speculative_tokens": 3},
    }
    record = play(trace, offloading(4096, gpu_blocks=511, engine=engine, debug=False))
    assert [(entry.status, entry.external_hit_tokens) for entry in record.requests[3:]] == [
        ("finished", 4096),
        ("finished", 4080),
    ]


def convoy(version: str, *, on_gpu: bool) -> HandEngine:
    """Fifty requests share a prefix of 10,000 tokens (625 blocks); it lies in the CPU tier, and on the GPU or not."""
    world = HandEngine(version, num_gpu_blocks=1500, num_cpu_chunks=2000, load_steps=9, max_num_batched_tokens=16_384)
    prefix = Numbers(10_000, shared=625)
    world.fill_cpu(prefix, 625)
    if on_gpu:
        world.run(numbered("first", 10_001, prefix))
        world.steps.clear()
        world.copies.clear()
    requests = [numbered(f"r{i}", 10_050, Numbers(20_000 + 1000 * i, shared=625)) for i in range(50)]
    world.run(*requests)
    assert len(world.ended) == 50 + on_gpu
    return world


@BOTH
def test_vllm_44294_nobody_waits_for_a_load_of_what_the_gpu_holds(version: str) -> None:
    """Reported: 50 requests wait for one load (12x TTFT) though the GPU has the blocks. Right: all start at once."""
    world = convoy(version, on_gpu=True)
    assert world.steps[0] == ([(f"r{i}", 50) for i in range(50)], [])
    assert world.load_jobs() == []


@BOTH
def test_vllm_44294_a_prefix_being_loaded_is_loaded_once(version: str) -> None:
    """If the GPU has it not, one load of 625 blocks serves all: the 49 others wait for it and hit it on the GPU."""
    world = convoy(version, on_gpu=False)
    assert [len(destination) for _, _, _, destination in world.load_jobs()] == [625]
    assert world.hits["r0"] == (0, 10_000)
    assert {world.hits[f"r{i}"] for i in range(1, 50)} == {(10_000, 0)}
    assert [batch for batch, _ in world.steps if batch] == [[(f"r{i}", 50) for i in range(50)]]


def test_vllm_39702_blocks_cannot_be_evicted_between_lookup_and_allocation() -> None:
    """Reported: "expected 19,264 hit tokens, got 0". Right: what a lookup found is pinned until it is loaded.

    1,204 blocks fill the CPU pool; between A's lookup and its allocation B ends and wants to store.
    """
    gpu, cpu = BlockPool(3000), BlockPool(1 + 1204)
    connector = SimpleCPUOffloadConnector(
        gpu, cpu, block_size=16, lazy=False, blocks_per_step=1024, enable_caching=True
    )
    content = Numbers(0)
    blocks = cpu.get_new_blocks(1204)
    cpu.cache_full_blocks(blocks, content.block_hashes(0, 1204), 0, 1204)
    cpu.free_blocks(reversed(blocks))
    a, b = numbered("A", 19_265, content), numbered("B", 1600, Numbers(50_000))
    table_b = gpu.get_new_blocks(100)
    gpu.cache_full_blocks(table_b, b.block_hashes, 0, 100)
    connector.update_state_after_alloc(b, table_b, 0)
    b.num_computed_tokens = 1600

    assert connector.get_num_new_matched_tokens(a, 0) == (19_264, True)
    b.status = RequestStatus.FINISHED
    connector.request_finished(b, table_b)  # 0.33.0 stores at the end: no room beside the pinned blocks
    assert cpu.evicted_blocks == 0
    table_a = gpu.get_new_blocks(1205)
    connector.update_state_after_alloc(a, table_a, 19_264)
    sources, destinations = connector._loads[a]
    assert [cpu.hashes[block] for block in sources] == content.block_hashes(0, 1204)
    assert destinations == table_a[:1204]


def two_turns(first: int, rival: int, again: int, **settings: Any) -> RunRecord:
    """One session of two turns, a rival session between them that can push its KV out of the GPU."""
    builder = TraceBuilder(outputs_return=False)
    builder.session("a", [(first, 1, 0), (again, 1, 500 * MS)])
    builder.session("rival", [(rival, 1, 0)], start_ns=200 * MS)
    _, record = run(builder.build(), config(**settings))
    assert [entry.status for entry in record.requests] == ["finished"] * 3
    return record


@pytest.mark.parametrize(("deadline", "status"), [("0", "stuck"), ("60s", "finished")])
def test_vllm_49829_a_write_that_never_ends_is_a_miss_after_its_deadline(deadline: str, status: str) -> None:
    """Reported: a stalled write is pending for ever, and so is who wants it. Right: a miss after 60 s (0 = never).

    The first turn's prompt is being written when the rival takes its GPU blocks. No release has a deadline: then the
    second turn waits for ever, and it is said what for.
    """
    builder = TraceBuilder(outputs_return=False)
    builder.session("a", [(400, 1, 0), (16, 1, 500 * MS)])
    builder.session("rival", [(400, 1, 0)], start_ns=200 * MS)
    settings = config(
        engine={"num_gpu_blocks_override": 60},
        connector={"kind": "offloading", "cpu_bytes_to_use": "1GiB"},
        faults={"cpu": {"stalls": {"stores": [0], "deadline": deadline}}},
    )
    _, record = run(builder.build(), settings)
    second = next(entry for entry in record.requests if entry.turn == 1)
    assert second.status == status
    if status == "finished":
        assert 60_000 * MS < second.finish_ns < 60_100 * MS
    else:
        assert "copies of tier cpu have stalled for ever" in second.reason


def test_ascend_15222_a_pool_costs_nothing_where_the_gpu_hits() -> None:
    """Reported: a KV pool adds 50 % TTFT at 90 % GPU hits (128K in, 1K out). Right: it costs nothing."""
    ttft_ns, external = {}, {}
    for kind in ("none", "offloading"):
        builder = TraceBuilder(outputs_return=False)
        builder.common_prefix(117_968)  # 90 % of 131,072
        for i in range(3):
            builder.session(f"s{i}", [(13_104, 1000, 0)], start_ns=i * 10_000 * MS)
        connector = {"kind": kind} | ({"cpu_bytes_to_use": "64GiB"} if kind == "offloading" else {})
        engine = {"num_gpu_blocks_override": 20_000, "max_model_len": 133_000, "max_num_batched_tokens": 8192}
        _, record = run(builder.build(), config(engine=engine, connector=connector, debug=False))
        assert [entry.local_hit_tokens for entry in record.requests] == [0, 117_968, 117_968]
        ttft_ns[kind] = [entry.first_token_ns - entry.arrival_ns for entry in record.requests]
        external[kind] = record.totals.load_jobs + record.totals.h2d_bytes
    assert ttft_ns["offloading"] == ttft_ns["none"]
    assert ttft_ns["none"][1] == 2 * MS + 13_104 * 10_000  # two steps, 13,104 tokens
    assert external["offloading"] == 0


def test_blis_1586_the_cpu_is_asked_at_every_admission() -> None:
    """Reported: the tier was asked only after a failed allocation, so hits were missing. Right: also with a free GPU.

    When the second turn comes, nothing runs and all 40 blocks are free for it: no allocation fails.
    """
    record = two_turns(
        400, 600, 16, engine={"num_gpu_blocks_override": 41},
        connector={"kind": "offloading", "cpu_bytes_to_use": "1GiB"},
    )  # fmt: skip
    again = record.requests[2]
    assert (again.local_hit_tokens, again.external_hit_tokens) == (32, 368)
    assert record.totals.preemptions == 0


def test_blis_1699_more_hits_in_the_cpu_are_a_shorter_ttft() -> None:
    """Reported: 1 TiB or 1 block of CPU, the latency is byte-identical. Right: TTFT falls with every block hit."""
    found = []
    for size in ("2MiB", "220MiB", "260MiB", "300MiB", "400MiB", "1TiB"):  # a block takes 2 MiB
        record = two_turns(
            1600, 1600, 16, engine={"num_gpu_blocks_override": 103, "max_num_batched_tokens": 2048},
            connector={"kind": "offloading", "cpu_bytes_to_use": size, "kv_layout": "cross_layer"},
        )  # fmt: skip
        again = record.requests[2]
        found.append((again.local_hit_tokens + again.external_hit_tokens, again.first_token_ns - again.arrival_ns))
    hits, ttfts_ns = zip(*found, strict=True)
    assert hits == (32, 160, 480, 800, 1600, 1600)
    assert all(before > after for before, after in pairwise(ttfts_ns[:5]))
    assert ttfts_ns[4] == ttfts_ns[5] == 5_274_418


def test_blis_511_offloading_copies_and_the_gpu_keeps_its_blocks() -> None:
    """Reported: a stored prefix leaves the GPU. Right: a store is a copy, the GPU keeps its blocks until reuse."""
    world = HandEngine(num_gpu_blocks=101)
    content = Numbers(1000)
    world.run(numbered("first", 161, content))
    assert world.manager.num_chunks == 10
    assert world.scheduler.kv.pool.longest_prefix(content.block_hashes(0, 10), 10) == list(range(1, 11))
    world.run(numbered("second", 161, content))
    assert world.hits["second"] == (160, 0)
    assert world.load_jobs() == []
