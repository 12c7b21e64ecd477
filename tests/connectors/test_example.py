"""ExampleConnector: whole prompts or nothing, one folder for all tokens that fill blocks."""

from __future__ import annotations

from engine_builder import make_request, make_scheduler
from worlds import MS, TraceBuilder, config, run

from kvsim.connectors.base import WorkerOutput
from kvsim.connectors.example import ExampleConnector, ExampleMeta, Load
from kvsim.request import Request
from kvsim.results.records import RunRecord
from kvsim.scheduler import Scheduler


def play(scheduler: Scheduler, *requests: Request) -> ExampleMeta:
    """The requests arrive together; one step; what the worker was told."""
    for request in requests:
        scheduler.add_request(request)
    output = scheduler.schedule()
    scheduler.update_from_output(output, WorkerOutput())
    meta = output.connector_meta
    assert isinstance(meta, ExampleMeta)
    return meta


def fresh() -> tuple[ExampleConnector, Scheduler]:
    """A connector on a scheduler with blocks of 4 tokens, without prefix cache, so that every hit is external."""
    connector = ExampleConnector(block_size=4)
    return connector, make_scheduler(connector=connector, enable_caching=False)


def test_a_whole_prompt_is_stored_and_found() -> None:
    """14 tokens are stored as the 12 that fill blocks, and found by a prompt with the same 12 tokens and 2 others."""
    connector, scheduler = fresh()
    assert play(scheduler, make_request("a", "abc", prompt=14)).stores == [3]
    again = make_request("b", "abc", prompt=14)
    assert connector.get_num_new_matched_tokens(again, 0) == (12, False)
    assert connector.get_num_new_matched_tokens(again, 8) == (4, False)
    assert play(scheduler, again).loads == [Load(3, True)]


def test_a_longer_prompt_finds_nothing() -> None:
    """A prompt that goes on where a stored one ended has another hash: there are no partial hits."""
    connector, scheduler = fresh()
    play(scheduler, make_request("a", "abc", prompt=14))
    longer = make_request("b", "abcd", prompt=18)
    assert connector.get_num_new_matched_tokens(longer, 0) == (0, False)
    assert play(scheduler, longer).stores == [4]


def test_one_token_off() -> None:
    """13 tokens are stored as 12 and looked up as 8: they find what a prompt of 9 to 12 tokens has stored."""
    connector, scheduler = fresh()
    play(scheduler, make_request("a", "abc", prompt=13))
    again = make_request("b", "abc", prompt=13)
    assert connector.get_num_new_matched_tokens(again, 0) == (0, False)
    play(scheduler, make_request("c", "ab", prompt=11))
    assert connector.get_num_new_matched_tokens(again, 0) == (8, False)
    assert connector.get_num_new_matched_tokens(again, 12) == (-4, False)


def test_a_load_without_its_file_is_counted() -> None:
    """13 tokens that find the folder of 8 load the file of 12, which is not there: vLLM's engine would end."""
    connector, scheduler = fresh()
    play(scheduler, make_request("a", "ab", prompt=11))
    assert play(scheduler, make_request("b", "abc", prompt=13)).loads == [Load(3, False)]
    (line,) = connector.cautions()
    assert line.startswith("1 loads wanted a file that is missing or too short")


def test_a_chunk_cuts_the_store() -> None:
    """A prompt of 102 tokens has 16 blocks after a first chunk of 64 tokens: 16 of 25 are stored, which is counted."""
    connector, scheduler = fresh()
    assert play(scheduler, make_request("a", prompt=102)).stores == [16]
    (line,) = connector.cautions()
    assert line.startswith("1 prompts were stored when only their first chunk had been computed")


def test_short_prompts_share_a_folder() -> None:
    """Prompts without a full block all have the empty one's folder; nothing is loaded from it."""
    _, scheduler = fresh()
    assert play(scheduler, make_request("a", prompt=3)).stores == [0]
    meta = play(scheduler, make_request("b", prompt=4))
    assert (meta.loads, meta.stores) == ([], [])


def test_twins_in_a_step_both_store() -> None:
    """Files of a step are seen from the next step on: two equal prompts in one step are both stored."""
    _, scheduler = fresh()
    assert play(scheduler, make_request("a", "ab", prompt=10), make_request("b", "ab", prompt=10)).stores == [2, 2]


def simulate(**connector: object) -> RunRecord:
    """Two equal prompts of 402 tokens; a rival of 600 in between takes all of the GPU's 40 blocks."""
    builder = TraceBuilder(outputs_return=False)
    builder.common_prefix(402)
    builder.session("a", [(0, 1, 0)], start_ns=0)
    builder.session("rival", [(600, 1, 0)], start_ns=400 * MS, keep=0)
    builder.session("b", [(0, 1, 0)], start_ns=900 * MS)
    settings = config(
        engine={"num_gpu_blocks_override": 41, "max_num_batched_tokens": 1024},
        step_time={"kind": "fixed", "per_step": "1ms", "per_token": "50us"},
        connector={"kind": "example", **connector},
    )
    return run(builder.build(), settings)[1]


def test_time_of_files() -> None:
    """Files come one after the other: 32 layers x (latency + bytes at the storage's rate + the copy over the link).

    402 tokens fill 25 blocks: 25 x 2 MiB of KV for Llama-3.1-8B, 1,638,400 bytes per layer. At 1 GB/s and 1 ms a file
    takes 2.6384 ms. A copy of 1,638,400 bytes takes the same time in every layer.
    """
    record = simulate(read_bandwidth="1GB/s", write_bandwidth="1GB/s", latency="1ms")
    first, _, again = record.requests
    assert (again.local_hit_tokens, again.external_hit_tokens) == (32, 368)  # and yet all 400 are loaded
    compute_ns = MS + 402 * 50_000
    waited = first.first_token_ns - first.arrival_ns - compute_ns - 32 * 2_638_400
    assert 0 < waited < 32 * 200_000
    assert waited % 32 == 0
    compute_ns = MS + 2 * 50_000
    waited = again.first_token_ns - again.arrival_ns - compute_ns - 32 * 2_638_400
    assert 0 < waited < 32 * 200_000
    assert waited % 32 == 0
    assert record.totals.h2d_bytes == 25 * 2 * 2**20
    assert record.totals.d2h_bytes == (25 + 37) * 2 * 2**20
    busy, stalls = record.totals.gpu_busy_ns, record.totals.sync_stall_ns
    assert busy == 3 * MS + (402 + 600 + 2) * 50_000
    assert stalls > 3 * 32 * 2_638_400


def test_slow_storage_is_worse_than_computing() -> None:
    """A file system that needs longer than the GPU makes TTFT worse; without any time it makes it better."""
    slow, fast = simulate(read_bandwidth="100MB/s"), simulate(read_bandwidth="1TB/s", latency="0")
    slow_ttft, fast_ttft = (
        record.requests[2].first_token_ns - record.requests[2].arrival_ns for record in (slow, fast)
    )
    assert fast_ttft < MS + 402 * 50_000 < slow_ttft
