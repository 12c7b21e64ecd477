"""Whole simulations: everything is accounted for, nothing leaks, the same again is the same."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest
from worlds import MS, TraceBuilder, config, random_config, random_trace, run

from kvsim.results.records import RunRecord, as_row
from kvsim.results.summary import digest
from kvsim.runner import requests_frame

STATUSES = {"finished", "rejected", "failed", "stuck"}


def one_session(*turns: tuple[int, int, int]) -> TraceBuilder:
    """A trace with a single session."""
    builder = TraceBuilder()
    builder.session("s", list(turns))
    return builder


def test_times_of_one_request() -> None:
    """A prompt of 300 tokens takes two chunks, then each token a step: every time is the sum of its steps."""
    _, record = run(one_session((300, 3, 0)).build(), config())
    (entry,) = record.requests
    chunks = (MS + 256 * 10_000) + (MS + 44 * 10_000)
    step = MS + 10_000
    assert (entry.arrival_ns, entry.first_scheduled_ns, entry.first_token_ns) == (0, 0, chunks)
    assert (entry.finish_ns, entry.output_tokens) == (chunks + 2 * step, 3)
    assert (record.totals.steps, record.totals.gpu_busy_ns) == (4, chunks + 2 * step)


def test_second_turn_hits_the_first() -> None:
    """The next turn hits all full blocks of prompt and answer: (100 + 20) // 16 blocks; think time comes before it."""
    _, record = run(one_session((100, 20, 0), (50, 1, 7 * MS)).build(), config())
    first, second = record.requests
    assert second.arrival_ns == first.finish_ns + 7 * MS
    assert (second.prompt_tokens, second.local_hit_tokens, second.external_hit_tokens) == (170, 112, 0)


def test_answers_that_do_not_come_back_are_not_hit() -> None:
    """Without returning outputs only the prompt's full blocks are hit."""
    builder = TraceBuilder(outputs_return=False)
    builder.session("s", [(100, 20, 0), (50, 1, 0)])
    _, record = run(builder.build(), config())
    assert record.requests[1].prompt_tokens == 150
    assert record.requests[1].local_hit_tokens == 96


def test_evicted_prefix_comes_back_from_the_cpu() -> None:
    """With a GPU of 40 blocks a rival evicts the first session; its second turn loads its prompt from the CPU."""
    builder = TraceBuilder()
    builder.session("a", [(400, 1, 0), (16, 1, 100 * MS)])
    builder.session("b", [(600, 1, 0)], start_ns=30 * MS)
    settings = config(
        engine={"num_gpu_blocks_override": 41}, connector={"kind": "offloading", "cpu_bytes_to_use": "1GiB"}
    )
    _, record = run(builder.build(), settings)
    again = record.requests[2]
    assert again.request_id.endswith("a#1")
    assert again.local_hit_tokens + again.external_hit_tokens == 400
    assert again.external_hit_tokens > 0
    assert again.load_wait_ns > 0
    assert record.totals.h2d_bytes == again.external_hit_tokens // 16 * 2 * 2**20
    assert record.totals.load_jobs == 1


def test_instant_copies_wait_for_the_poll_only() -> None:
    """With instant copies a load is reported by the step that submitted it."""
    builder = TraceBuilder()
    builder.session("a", [(400, 1, 0), (16, 1, 100 * MS)])
    builder.session("b", [(600, 1, 0)], start_ns=30 * MS)
    settings = config(
        engine={"num_gpu_blocks_override": 41},
        connector={"kind": "offloading", "cpu_bytes_to_use": "1GiB"},
        transfer={"kind": "instant"},
    )
    _, record = run(builder.build(), settings)
    assert record.requests[2].external_hit_tokens > 0
    assert record.requests[2].load_wait_ns == 0


@pytest.mark.parametrize(
    ("turn", "engine", "reason"),
    [
        ((2048, 1, 0), {}, "prompt too long for max_model_len 2048"),
        ((1500, 100, 0), {"num_gpu_blocks_override": 50}, "needs more KV blocks than the 49 of the GPU"),
        (
            (300, 10, 0),
            {"enable_chunked_prefill": False, "max_model_len": 256},
            "prompt too long for max_model_len 256",
        ),
    ],
)
def test_what_can_never_run_is_rejected_on_arrival(
    turn: tuple[int, int, int], engine: dict[str, object], reason: str
) -> None:
    """A request that can never fit is refused with its reason, and its session goes on."""
    builder = one_session(turn)
    builder.session("other", [(16, 1, 0)])
    _, record = run(builder.build(), config(engine=engine))
    assert [(e.status, e.reason) for e in record.requests] == [("rejected", reason), ("finished", "")]


def test_a_request_that_just_fits_is_taken() -> None:
    """The last sampled token has no KV: 160 tokens and one answer fit ten blocks of 16."""
    _, record = run(one_session((160, 1, 0)).build(), config(engine={"num_gpu_blocks_override": 11}))
    assert [entry.status for entry in record.requests] == ["finished"]
    assert record.totals.gpu_used_blocks_peak == 10


def test_one_token_blocks_end() -> None:
    """A prompt of one token and one block, loaded from the CPU, is computed again instead of loaded for ever."""
    builder = TraceBuilder(outputs_return=False)
    builder.common_prefix(1)
    builder._sessions = []
    builder.session("a", [(0, 1, 0)])
    builder.session("b", [(40, 1, 0)], start_ns=20 * MS, keep=0)
    builder.session("c", [(0, 1, 0)], start_ns=90 * MS)
    settings = config(
        engine={"block_size": 1, "num_gpu_blocks_override": 42, "max_model_len": 41},
        connector={"kind": "offloading", "cpu_bytes_to_use": "1GiB"},
        transfer={"kind": "instant"},
    )
    _, record = run(builder.build(), settings)
    assert [(e.status, e.external_hit_tokens) for e in record.requests] == [
        ("finished", 0),
        ("finished", 0),
        ("finished", 1),
    ]


def test_output_stops_at_max_model_len() -> None:
    """A request whose answer would pass max_model_len ends there, and a note says so."""
    _, record = run(one_session((250, 50, 0)).build(), config(engine={"max_model_len": 256}))
    assert record.requests[0].output_tokens == 6
    assert "1 requests stopped early at max_model_len 256" in record.notes


def test_without_reservation_two_growing_requests_preempt_each_other_and_finish() -> None:
    """Two requests that outgrow the pool together: the later one is preempted, recomputed, and both finish."""
    builder = TraceBuilder()
    builder.session("a", [(100, 300, 0)])
    builder.session("b", [(100, 300, 0)])
    _, record = run(builder.build(), config(engine={"num_gpu_blocks_override": 41}))
    assert [e.status for e in record.requests] == ["finished", "finished"]
    assert [e.preemptions > 0 for e in record.requests] == [False, True]
    assert [e.output_tokens for e in record.requests] == [300, 300]


@pytest.mark.parametrize("seed", range(120))
def test_random_worlds_are_accounted_for(seed: int) -> None:
    """With invariants checked at every step, every request ends, hits never exceed the prompt, nothing is pinned."""
    rng = random.Random(seed)
    trace = random_trace(rng)
    _, record = run(trace, random_config(rng))
    assert len(record.requests) == trace.num_requests
    assert Counter(e.status for e in record.requests).keys() <= {"finished", "rejected"}
    for entry in record.requests:
        if entry.status == "finished":
            assert entry.arrival_ns <= entry.first_scheduled_ns < entry.first_token_ns <= entry.finish_ns
            hit = entry.local_hit_tokens + entry.external_hit_tokens
            assert 0 <= hit <= entry.prompt_tokens
    totals = record.totals
    finished = [e for e in record.requests if e.status == "finished"]
    assert totals.output_tokens == sum(e.output_tokens for e in finished)
    assert totals.preemptions == sum(e.preemptions for e in finished)
    assert totals.gpu_busy_ns + totals.stall_ns + totals.flush_stall_ns <= totals.end_ns
    if not totals.load_jobs:
        assert totals.stall_ns == 0
    largest = max((-(-e.prompt_tokens // 16) for e in finished), default=0)
    assert totals.gpu_used_blocks_peak >= largest
    check_series(record)


def check_series(record: RunRecord) -> None:
    """Samples are in order of time, cumulative figures never fall, the last sample is at the end."""
    samples = [as_row(sample) for sample in record.series.samples]
    now = {"running", "waiting", "loading", "gpu_used_blocks", "gpu_cached_blocks", "cpu_used_blocks"}
    for before, after in pairwise(samples):
        assert all(before[name] <= after[name] for name in after if name not in now)
    assert samples[-1]["time_ns"] == record.totals.end_ns
    assert samples[-1]["output_tokens"] == record.totals.output_tokens
    assert len(samples) <= record.series.max_points


@pytest.mark.parametrize("seed", range(20))
def test_same_config_same_result(seed: int) -> None:
    """Two runs of one config give equal records, series, totals and digest."""
    outcomes = []
    for _ in range(2):
        rng = random.Random(1000 + seed)
        _, record = run(random_trace(rng), random_config(rng))
        outcomes.append((record.requests, record.series.samples, record.totals, digest(requests_frame(record))))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("seed", range(30))
def test_one_request_at_a_time_offload_never_lowers_hits(seed: int) -> None:
    """Served one after another, a request hits at least as much with an unlimited CPU tier as without it."""
    rng = random.Random(2000 + seed)
    trace = random_trace(rng)
    engine = {"max_num_seqs": 1, "num_gpu_blocks_override": rng.choice([60, 130])}
    _, without = run(trace, config(engine=engine))
    _, with_cpu = run(
        trace,
        config(
            engine=engine,
            connector={"kind": "offloading", "cpu_bytes_to_use": "64GiB", "offload_prompt_only": False},
            transfer={"kind": "instant"},
        ),
    )
    hits = [sum(e.local_hit_tokens + e.external_hit_tokens for e in r.requests) for r in (without, with_cpu)]
    assert hits[1] >= hits[0]


def most_running(record: RunRecord) -> int:
    """Requests that ran at once, as sampled."""
    return max(sample.running for sample in record.series.samples)


def test_windows_leave_room_for_more_requests() -> None:
    """Six prompts of 1,500 tokens of gpt-oss in 700 blocks: windows of 128 tokens are let go, so more run at once.

    With the hybrid manager off all 24 layers keep every token (in half as many, twice as large blocks).
    """
    builder = TraceBuilder()
    for number in range(6):
        builder.session(f"s{number}", [(1500, 40, 0)], start_ns=0)
    engine = {"num_gpu_blocks_override": 701, "max_num_batched_tokens": 256, "max_num_seqs": 8, "max_model_len": 4096}
    _, hybrid = run(builder.build(), config(model="gpt-oss-20b", engine=engine))
    engine |= {"num_gpu_blocks_override": 351, "disable_hybrid_kv_cache_manager": True}
    _, off = run(builder.build(), config(model="gpt-oss-20b", engine=engine))
    assert [entry.status for entry in hybrid.requests + off.requests] == ["finished"] * 12
    assert hybrid.totals.gpu_block_bytes * 2 == off.totals.gpu_block_bytes
    assert most_running(hybrid) > most_running(off)


@pytest.mark.parametrize(
    "model", ["gpt-oss-20b", "gemma-3-27b", "gemma-4-26b-a4b", "qwen3-next-80b-a3b", "nemotron-h-8b"]
)
def test_hybrid_models_run_with_their_groups(model: str) -> None:
    """A second turn hits what the first has left, nothing leaks, and the notes say which groups there are."""
    engine = {"num_gpu_blocks_override": 3000, "max_num_batched_tokens": 2048, "max_num_seqs": 8, "max_model_len": 8192}
    _, record = run(one_session((3000, 20, 0), (500, 10, MS)).build(), config(model=model, engine=engine))
    first, second = record.requests
    assert (first.status, second.status) == ("finished", "finished")
    assert second.local_hit_tokens > 2000
    assert any("KV groups" in note for note in record.notes)
