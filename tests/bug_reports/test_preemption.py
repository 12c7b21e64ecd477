"""Reports about preemption and capacity (facts E2)."""

from __future__ import annotations

import pytest
from by_hand import HandEngine, Numbers, numbered
from engine_builder import ScriptedConnector, ids, make_request, make_scheduler, scheduled, step
from worlds import TraceBuilder, config, run, summary

from kvsim.async_scheduler import AsyncScheduler
from kvsim.connectors.base import WorkerOutput


def test_blis_373_a_request_that_can_never_fit_is_refused_when_it_arrives() -> None:
    """Reported: 57 blocks needed of 50, an endless loop. Right: rejected on arrival, without a single step."""
    builder = TraceBuilder()
    builder.session("s", [(57 * 16 - 4, 5, 0)])
    _, record = run(builder.build(), config(engine={"num_gpu_blocks_override": 50}))
    (entry,) = record.requests
    assert (entry.status, entry.reason) == ("rejected", "needs more KV blocks than the 49 of the GPU")
    assert record.totals.steps == 0


def test_blis_297_preempted_blocks_keep_their_hash() -> None:
    """Reported: a preempted request starts from nothing (597 evictions of one request). Right: it hits what is left.

    B outgrows the pool with 10 blocks and loses them; A takes two of them, so B finds its other 8 when it comes back.
    """
    scheduler = make_scheduler(num_blocks=21, max_num_batched_tokens=200)
    a, b = make_request("A", prompt=39, out=6), make_request("B", prompt=39, out=6)
    scheduler.add_request(a)
    scheduler.add_request(b)
    assert scheduled(step(scheduler)[0]) == [("A", 39), ("B", 39)]
    step(scheduler)
    output, _ = step(scheduler)  # both need an eleventh block
    assert (scheduled(output), ids(output.preempted)) == ([("A", 1)], ["B"])
    while "A" not in step(scheduler)[1]:
        pass
    output, _ = step(scheduler)
    assert ids(output.resumed) == ["B"]
    assert output.hits[b] == (36, 0)
    assert scheduled(output) == [("B", 5)]


def test_blis_963_an_undersized_pool_is_slow_but_finishes() -> None:
    """Reported: 173,622 failures, 858 of 5,000 done. Right (real vLLM: 7.4 % preempted, at most 4 times): all finish.

    Four hundred requests of up to 26 blocks in a pool of 100, up to sixteen of them running at once.
    """
    builder = TraceBuilder()
    for i in range(400):
        builder.session(f"s{i}", [(100 + 37 * i % 200, 40 + 53 * i % 80, 0)], start_ns=i * 5_000_000)
    _, record = run(builder.build(), config(engine={"num_gpu_blocks_override": 101}))
    assert {entry.status for entry in record.requests} == {"finished"}
    preempted = [entry.preemptions for entry in record.requests if entry.preemptions]
    assert (len(preempted), max(preempted)) == (132, 2)


def test_blis_492_free_slots_of_the_last_block_count() -> None:
    """Reported: the capacity check ignores free slots of a partial last block. Right: no preemption before it is full.

    A and B hold all four blocks with one free slot each: the next tokens fit; only those after them need blocks.
    """
    scheduler = make_scheduler(num_blocks=5)
    for name in "AB":
        scheduler.add_request(make_request(name, prompt=7, out=9))
    step(scheduler)
    assert scheduler.kv.pool.num_free == 0
    output, _ = step(scheduler)
    assert (scheduled(output), output.preempted) == ([("A", 1), ("B", 1)], [])
    output, _ = step(scheduler)
    assert (scheduled(output), ids(output.preempted)) == ([("A", 1)], ["B"])


def test_blis_196_a_chunk_is_hashed_from_the_start_of_the_prompt() -> None:
    """Reported: a chunk that starts at token 100 of 200 is hashed from there. Right: 12 hits, chunked or not."""
    found = {}
    for budget in (100, 200):
        world = HandEngine(num_gpu_blocks=101, max_num_batched_tokens=budget)
        content = Numbers(1000)
        world.run(numbered("first", 200, content))
        cached = world.scheduler.kv.pool.cached
        world.run(numbered("second", 200, content))
        found[budget] = (dict(cached), world.hits["second"], len(world.steps) > 4)
    assert found[100][:2] == found[200][:2]
    assert found[100][1] == (192, 0)
    assert sorted(found[100][0]) == [1000 + i for i in range(12)]


def test_vllm_25780_recomputed_tokens_are_no_hits() -> None:
    """Reported: random 1,000 x (1024 + 1024) shows 32.2 % hits, preempted requests hit themselves. Right: about 0.2 %.

    Prompts that share nothing hit nothing here, although preempted requests do find their own blocks again.
    """
    builder = TraceBuilder()
    for i in range(40):
        builder.session(f"s{i}", [(1024, 1024, 0)])
    _, record = run(builder.build(), config(engine={"num_gpu_blocks_override": 1001, "max_model_len": 4096}))
    totals = record.totals
    assert totals.preemptions > 10
    assert (totals.prompt_tokens, totals.local_hit_tokens, totals.external_hit_tokens) == (40 * 1024, 0, 0)
    assert {entry.local_hit_tokens for entry in record.requests} == {0}


def test_sglang_2555_chunks_of_one_prompt_are_no_hits() -> None:
    """Reported: the earlier chunks of a prompt count as hits of its later ones. Right: a new prompt hits nothing."""
    builder = TraceBuilder()
    builder.session("s", [(2000, 1, 0)])
    _, record = run(builder.build(), config())
    assert record.totals.steps == 8  # of 256 tokens
    assert (record.totals.prompt_tokens, record.totals.local_hit_tokens) == (2000, 0)


def test_llmservingsim_29_capacity_is_multiplied_by_the_block_once() -> None:
    """Reported: the free size is multiplied by the bytes per token twice. Right: blocks times bytes of a block.

    2,588 blocks of 2 MiB (an RTX 4090 with Llama-3.1-8B) are 5.05 GiB; its log says 41,408 tokens.
    """
    builder = TraceBuilder()
    builder.session("s", [(16, 1, 0)])
    _, record = run(builder.build(), config(engine={"num_gpu_blocks_override": 2589}))
    gpu = summary(record)["tiers"]["gpu"]
    assert gpu["capacity_bytes"] == 2588 * 2 * 2**20 == 5_427_429_376
    assert gpu["capacity_blocks"] * record.totals.block_tokens == 41_408


@pytest.mark.parametrize("num_prompts", [25, 100, 400])
def test_vllm_26329_more_prompts_change_nothing_but_the_length(num_prompts: int) -> None:
    """Reported: the offloading connector fails as --num-prompts grows. Right: all end and nothing is left over.

    All prompts arrive at once, each twice, in pools too small for them; at the end every copy is done, nothing is
    pinned, watched or remembered.
    """
    world = HandEngine(
        num_gpu_blocks=120, num_cpu_chunks=150, load_steps=3, store_steps=3, max_num_batched_tokens=512, max_num_seqs=16
    )
    for part in ("a", "b"):
        requests = []
        for i in range(num_prompts):
            prompt, content = 50 + 61 * i % 700, Numbers(1000 * (2 + i), shared=i % 3)
            requests.append(numbered(f"{part}{i}", prompt, content, out=1 + i % 40))
        world.run(*requests)
    assert len(world.ended) == 2 * num_prompts
    world.scheduler.check(at_end=True)
    connector = world.connector
    assert (connector._states, connector._jobs, connector._watched, connector._loading) == ({}, {}, {}, set())
    assert connector.num_load_jobs > 0
    assert world.scheduler.num_preemptions > 0


def test_ascend_16315_blocks_that_are_not_freed_at_once_preempt_nobody() -> None:
    """Reported: frees wait for the step in flight, so retries preempt one after another, for nothing. Right: stop.

    A, B and C hold all six blocks and each needs a third, while the step before is in flight (fixed by vLLM PR 49675).
    Once it has come back, C's blocks can be freed: only C is preempted.
    """
    scheduler = make_scheduler(AsyncScheduler, num_blocks=7, connector=ScriptedConnector())
    for name in "ABC":
        scheduler.add_request(make_request(name, prompt=7, out=9))
    prompts, last_slots = scheduler.schedule(), scheduler.schedule()
    assert scheduled(last_slots) == [("A", 1), ("B", 1), ("C", 1)]
    scheduler.update_from_output(prompts, WorkerOutput())
    nothing = scheduler.schedule()
    assert (scheduled(nothing), nothing.preempted) == ([], [])
    scheduler.update_from_output(last_slots, WorkerOutput())
    output = scheduler.schedule()
    assert (scheduled(output), ids(output.preempted)) == ([("A", 1), ("B", 1)], ["C"])
