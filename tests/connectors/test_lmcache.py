"""LMCacheConnectorV1: chunks, remembered lookups, what is loaded and what is saved."""

from __future__ import annotations

from typing import Any

import pytest
from engine_builder import Letters, make_request, make_scheduler
from worlds import MS, TraceBuilder, config, run

from kvsim.connectors.base import WorkerOutput
from kvsim.connectors.lmcache import LMCacheConnector, LMCacheMeta
from kvsim.offload.chunk_store import ChunkStore
from kvsim.request import Request, Salted
from kvsim.results.records import RunRecord
from kvsim.scheduler import Scheduler


def build(
    chunks: int = 100, *, budget: int = 64, caching: bool = False, **options: Any
) -> tuple[ChunkStore, Scheduler]:
    """Blocks of 4 tokens, chunks of 8; without prefix cache, so that every hit is external."""
    store = ChunkStore(chunks)
    connector = LMCacheConnector(store, blocks_per_chunk=2, block_size=4, **options)
    return store, make_scheduler(connector=connector, enable_caching=caching, max_num_batched_tokens=budget)


def step(scheduler: Scheduler, *arriving: Request) -> tuple[LMCacheMeta, dict[str, tuple[int, int]]]:
    """One step: what the worker was told, and (local, external) hits of those admitted."""
    for request in arriving:
        scheduler.add_request(request)
    output = scheduler.schedule()
    scheduler.update_from_output(output, WorkerOutput())
    scheduler.check()
    assert isinstance(output.connector_meta, LMCacheMeta)
    return output.connector_meta, {request.request_id: hit for request, hit in output.hits.items()}


def test_whole_chunks_only() -> None:
    """A prompt of 22 tokens is two chunks of 8: they are stored, and all that a second prompt like it loads."""
    store, scheduler = build()
    meta, _ = step(scheduler, make_request("a", "abcde", prompt=22))
    assert (meta.loads, meta.stores, len(store)) == ([], [2], 2)
    meta, hits = step(scheduler, make_request("b", "abcde", prompt=22))
    assert hits == {"b": (0, 16)}
    assert (meta.loads, meta.stores) == ([[(0, 2)]], [])


def test_a_longer_prompt_loads_what_is_there_and_stores_the_rest() -> None:
    """Four chunks, two known: two are loaded, two are computed and stored in the same step."""
    store, scheduler = build()
    step(scheduler, make_request("a", "abcd"))
    meta, hits = step(scheduler, make_request("b", "abcdefgh"))
    assert hits == {"b": (0, 16)}
    assert (meta.loads, meta.stores, len(store)) == ([[(0, 2)]], [2], 4)


def test_after_a_full_hit_the_last_token_is_computed() -> None:
    """A prompt of 16 tokens that is known whole loads both chunks, counts 15 tokens, and computes one."""
    _, scheduler = build()
    step(scheduler, make_request("a", "abcd"))
    meta, hits = step(scheduler, make_request("b", "abcd"))
    assert hits == {"b": (0, 15)}
    assert meta.loads == [[(0, 2)]]


def test_what_the_gpu_holds_is_not_loaded() -> None:
    """Local hits of 12 tokens: the chunk of tokens 8 to 15 is loaded whole, 4 tokens of it are counted."""
    store, scheduler = build(caching=True)
    step(scheduler, make_request("a", "abc"))
    store.store([ord("b"), ord("d")], skip_present=False)
    meta, hits = step(scheduler, make_request("b", "abcdxx", prompt=20))
    assert hits == {"b": (12, 4)}
    assert meta.loads == [[(0, 1)]]


def test_a_prompt_in_chunks_is_stored_as_it_grows() -> None:
    """44 tokens in steps of 20: after 20 tokens two chunks are stored, after 40 three more, after 44 nothing."""
    store, scheduler = build(budget=20)
    request = make_request("a", "abcdefghijk", out=2)
    stored = [step(scheduler, request)[0].stores, *(step(scheduler)[0].stores for _ in range(3))]
    assert stored == [[2], [3], [], []]
    assert len(store) == 5


def test_generated_tokens_are_stored_only_when_asked() -> None:
    """A prompt of 12 tokens and 13 generated ones: the second and third chunk fill up while decoding."""
    for save_decode_cache, chunks in ((False, 1), (True, 3)):
        store, scheduler = build(save_decode_cache=save_decode_cache)
        step(scheduler, make_request("a", "abcdefg", prompt=12, out=13))
        while scheduler.requests:
            step(scheduler)
        assert len(store) == chunks


def test_small_loads_are_left_alone() -> None:
    """With min_retrieve_tokens 20 a hit of 16 tokens is computed again, and its chunks are not stored again."""
    store, scheduler = build(min_retrieve_tokens=20)
    step(scheduler, make_request("a", "abcd"))
    meta, hits = step(scheduler, make_request("b", "abcdef"))
    assert hits == {"b": (0, 0)}
    assert (meta.loads, meta.stores, len(store)) == ([], [1], 3)


def test_a_lookup_is_remembered_and_pinned() -> None:
    """A request that finds no room keeps what it found, although others store; when it ends its pins are gone."""
    store, scheduler = build(3)
    step(scheduler, make_request("a", "abcd"))
    waiting = make_request("b", "abcd")
    connector = scheduler.connector
    assert connector is not None
    assert connector.get_num_new_matched_tokens(waiting, 0) == (15, False)
    assert store.store([1, 2, 3], skip_present=False) == 1
    assert connector.get_num_new_matched_tokens(waiting, 8) == (7, False)
    assert len(store) == 3
    connector.request_finished(waiting, [])
    store.check(at_end=True)


def test_salts_do_not_separate_chunks() -> None:
    """Tenants with the same prompt have different GPU blocks and the same chunks: LMCacheConnectorV1 knows no salt."""
    _, scheduler = build(caching=True, num_salts=2)

    def of_tenant(name: str, salt: int) -> Request:
        content = Salted(Letters("abcd"), salt, 2)
        return Request(name, content, block_size=4, num_prompt_tokens=17, max_tokens=1, arrival=0)

    step(scheduler, of_tenant("a", 0))
    _, hits = step(scheduler, of_tenant("b", 1))
    assert hits == {"b": (0, 16)}
    _, hits = step(scheduler, of_tenant("c", 0))
    assert hits == {"c": (16, 0)}


def simulate(**connector: Any) -> RunRecord:
    """Two equal prompts of 2,050 tokens; a rival of 1,000 in between takes most of the GPU's 130 blocks."""
    builder = TraceBuilder(outputs_return=False)
    builder.common_prefix(2_050)
    builder.session("a", [(0, 5, 0)], start_ns=0)
    builder.session("rival", [(2_040, 1, 0)], start_ns=400 * MS, keep=0)
    builder.session("b", [(0, 5, 0)], start_ns=900 * MS)
    settings = config(
        engine={"num_gpu_blocks_override": 131, "max_num_batched_tokens": 4096, "max_model_len": 4096},
        connector={"kind": "lmcache", **connector},
    )
    return run(builder.build(), settings)[1]


def test_chunks_of_256_tokens() -> None:
    """2,050 tokens are 8 chunks of 256 = 2,048 tokens, 32 MiB each for Llama-3.1-8B; 5 GiB hold 160 of them."""
    record = simulate()
    again = record.requests[2]
    assert again.local_hit_tokens + again.external_hit_tokens == 2_048
    assert again.external_hit_tokens > 0
    assert record.totals.num_cpu_blocks == 160
    assert record.totals.d2h_bytes == (8 + 7) * 32 * 2**20
    first_chunk = again.local_hit_tokens // 256
    assert record.totals.h2d_bytes == (8 - first_chunk) * 32 * 2**20


def ttft(record: RunRecord, at: int) -> int:
    """Nanoseconds to the first token."""
    return record.requests[at].first_token_ns - record.requests[at].arrival_ns


def test_layerwise_hides_copies() -> None:
    """Storing 256 MiB beside 21.5 ms of computing costs a layer-wise step one layer more, the other all of it."""
    whole, layers = simulate(), simulate(use_layerwise=True, piecewise_launch="0")
    compute_ns = MS + 2_050 * 10_000
    assert ttft(whole, 0) - compute_ns > 4 * MS
    assert 0 < ttft(layers, 0) - compute_ns < MS
    assert ttft(layers, 2) < ttft(whole, 2)
    assert layers.totals.h2d_bytes == whole.totals.h2d_bytes
    assert layers.totals.sync_stall_ns < whole.totals.sync_stall_ns


def test_piecewise_graphs_cost_every_decode_step() -> None:
    """32 layers at 4.7 us: each of the four decode steps of a request takes 150.4 us longer, prefills do not."""
    free, paid = (simulate(use_layerwise=True, piecewise_launch=cost) for cost in ("0", "4.7us"))
    for at in (0, 2):
        assert ttft(free, at) == ttft(paid, at)
        lengths = [record.requests[at].finish_ns - record.requests[at].first_token_ns for record in (free, paid)]
        assert lengths[1] - lengths[0] == 4 * 32 * 4_700


def test_a_disk_brings_back_what_memory_lost() -> None:
    """CPU memory for 8 chunks keeps nothing for the second prompt; with a disk all is there, and takes longer."""
    small = simulate(max_local_cpu_size="256MiB")
    assert small.requests[2].external_hit_tokens == 0
    disk = simulate(max_local_cpu_size="256MiB", local_disk={"max_local_disk_size": "1GiB"})
    assert disk.requests[2].external_hit_tokens == simulate().requests[2].external_hit_tokens
    assert ttft(disk, 2) > ttft(simulate(), 2)


@pytest.mark.parametrize("layerwise", [False, True])
def test_nothing_is_left_behind(layerwise: bool) -> None:
    """A run with preemptions ends with nothing pinned, every request served and blocks all returned."""
    builder = TraceBuilder()
    builder.common_prefix(300)
    for number in range(8):
        builder.session(f"s{number}", [(200, 200, 0), (50, 60, 0)], start_ns=number * MS)
    settings = config(
        engine={"num_gpu_blocks_override": 120},
        connector={"kind": "lmcache", "max_local_cpu_size": "192MiB", "use_layerwise": layerwise},
    )
    _, record = run(builder.build(), settings)
    assert {request.status for request in record.requests} == {"finished"}
    assert record.totals.preemptions > 0
    assert record.totals.cpu_evicted_blocks > 0
