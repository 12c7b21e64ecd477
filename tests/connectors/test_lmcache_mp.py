"""LMCacheMPConnector in simulations: asynchronous lookups and loads, delayed frees, tenants, quotas, restarts."""

from __future__ import annotations

from typing import Any

import pytest
from worlds import MS, TraceBuilder, config, run

from kvsim.results.records import RequestRecord, RunRecord

S = 10**9
CHUNK = 32 * 2**20  # 256 tokens of Llama-3.1-8B


def simulate(*starts_ms: int, tenants: tuple[str, ...] = (), **connector: Any) -> RunRecord:
    """Sessions of one turn with the same 2,050 tokens; each has the GPU's 130 blocks for itself."""
    builder = TraceBuilder(outputs_return=False)
    builder.common_prefix(2_050)
    for number, start in enumerate(starts_ms):
        builder.session(f"s{number}", [(0, 5, 0)], start_ns=start * MS)
    settings = config(
        trace={"tenants": list(tenants)},
        engine={
            "num_gpu_blocks_override": 131, "max_num_batched_tokens": 4096, "max_model_len": 4096,
            "enable_prefix_caching": False,
        },
        connector={"kind": "lmcache_mp", **connector},
    )  # fmt: skip
    return run(builder.build(), settings)[1]


def hits(record: RunRecord) -> list[int]:
    """External hits of each request."""
    return [request.external_hit_tokens for request in record.requests]


def ttft(request: RequestRecord) -> int:
    """Nanoseconds to the first token."""
    return request.first_token_ns - request.arrival_ns


def test_a_second_prompt_loads_in_the_background() -> None:
    """8 chunks are stored once and loaded once; the lookup takes its 1 ms, and the request is parked for its load."""
    record = simulate(0, 1_000)
    first, second = record.requests
    assert hits(record) == [0, 2_048]
    assert ttft(first) == MS + (MS + 2_050 * 10_000)
    assert second.load_wait_ns > 4 * MS
    assert ttft(second) == MS + second.load_wait_ns + (MS + 2 * 10_000)
    assert (record.totals.d2h_bytes, record.totals.h2d_bytes) == (8 * CHUNK, 8 * CHUNK)
    assert record.totals.sync_stall_ns == 0


def test_lookups_take_their_time() -> None:
    """A request waits for the server's answer, also if it is that nothing was found."""
    (request,) = simulate(0, lookup_latency="7ms").requests
    assert ttft(request) == 7 * MS + (MS + 2_050 * 10_000)


def test_blocks_stay_until_they_are_stored() -> None:
    """A request that ends with its store in flight keeps its blocks, so that the next one, which needs them, waits."""
    builder = TraceBuilder(outputs_return=False)
    builder.session("a", [(2_050, 1, 0)], start_ns=0)
    builder.session("b", [(2_050, 1, 0)], start_ns=0)
    settings = config(
        engine={"num_gpu_blocks_override": 131, "max_num_batched_tokens": 4096, "max_model_len": 4096},
        connector={"kind": "lmcache_mp", "lookup_latency": "0"},
    )
    _, record = run(builder.build(), settings)
    first, second = record.requests
    stored_ns = second.first_scheduled_ns - first.finish_ns
    assert 4 * MS < stored_ns < 8 * MS


def test_tenants_share_nothing() -> None:
    """Of four equal prompts the first two are of different tenants; each later one finds its own tenant's chunks."""
    assert hits(simulate(0, 1_000, 2_000, 3_000, tenants=("a", "b"))) == [0, 0, 2_048, 2_048]
    assert hits(simulate(0, 1_000, 2_000, 3_000)) == [0, 2_048, 2_048, 2_048]


def test_l2_serves_what_memory_has_lost() -> None:
    """Memory for 10 chunks loses one of 8 in the first second; with an L2 it is read from there before the load."""
    alone, below = simulate(0, 5_000, l1_size="320MiB"), simulate(0, 5_000, l1_size="320MiB", l2={})
    assert hits(alone) == [0, 7 * 256]
    assert hits(below) == [0, 2_048]
    assert ttft(below.requests[1]) > ttft(simulate(0, 5_000).requests[1])


def quotas(*, change: bool) -> RunRecord:
    """Two tenants in turn; memory holds 16 chunks, L2 has quotas of 1 GiB. Later that of "b" may become 0."""
    changes = [{"at": "10s", "tenant": "b", "size": "0"}] if change else []
    l2 = {"eviction_policy": "IsolatedLRU", "quotas": {"a": "1GiB", "b": "1GiB"}, "quota_changes": changes}
    starts = (0, 500, 1_500, 5_000, 6_000, 20_000, 21_000)
    return simulate(*starts, tenants=("a", "b"), l1_size="512MiB", l2=l2)


def test_a_quota_taken_away_clears_the_tenant() -> None:
    """Until 10 s both tenants hit; then L2 forgets "b" with the next cycle, and only "a" goes on hitting whole."""
    before, after = hits(quotas(change=False)), hits(quotas(change=True))
    assert before[:5] == after[:5]
    assert before[5] == 2_048
    assert after[5] < 2_048


def restarted(*starts_ms: int, downtime: str, keep: bool = False, at: str = "61s") -> RunRecord:
    """A server that ends at 61 s; pings are sent every 10 s."""
    return simulate(*starts_ms, restarts=[{"at": at, "downtime": downtime, "keep_cache": keep}])


def test_requests_meanwhile_wait_then_miss() -> None:
    """A server away from 61 to 85 s: at 65 s a lookup hangs until a ping times out at 80 s, then it is a miss.

    At 82 s the client knows and asks nothing. At 91 s it has registered again, and the cache is empty. What is
    computed then is stored, and found at 95 s.
    """
    record = restarted(0, 30_000, 65_000, 82_000, 91_000, 95_000, downtime="24s")
    compute_ns = MS + 2_050 * 10_000
    assert hits(record) == [0, 2_048, 0, 0, 0, 2_048]
    assert ttft(record.requests[2]) == 15 * S + compute_ns
    assert ttft(record.requests[3]) == compute_ns
    assert ttft(record.requests[4]) == MS + compute_ns


def test_a_kept_cache_is_found_after_the_restart() -> None:
    """With keep_cache the first prompt after the registration hits what was stored before."""
    assert hits(restarted(0, 82_000, 91_000, downtime="24s", keep=True)) == [0, 0, 2_048]


def test_a_restart_that_nobody_notices_is_for_ever() -> None:
    """Five seconds between two pings: the client never registers again, and nothing is found or stored any more."""
    record = restarted(0, 63_000, 100_000, 200_000, downtime="5s", keep=True)
    assert hits(record) == [0, 0, 0, 0]
    assert ttft(record.requests[1]) == 3 * S + (MS + 2_050 * 10_000)
    assert record.totals.d2h_bytes == 8 * CHUNK
    assert any("restarted between two heartbeats" in line for line in record.cautions)


def test_a_store_in_flight_is_lost() -> None:
    """A server that ends 1.5 ms into a store: the blocks are free for the next prompt when a ping has timed out."""
    record = restarted(0, 1, 300_000, downtime="30s", at="24ms")
    first, second, _ = record.requests
    assert (first.status, hits(record)) == ("finished", [0, 0, 0])
    assert second.first_scheduled_ns == 20 * S
    assert any("2 loads and stores were lost" in line for line in record.cautions)


@pytest.mark.parametrize("save_decode_cache", [False, True])
def test_nothing_is_left_behind(save_decode_cache: bool) -> None:
    """A run with preemptions ends with no lock, no block and no request left; generated chunks are stored if asked."""
    builder = TraceBuilder()
    builder.common_prefix(300)
    for number in range(8):
        builder.session(f"s{number}", [(200, 300, 0), (50, 60, 0)], start_ns=number * MS)
    settings = config(
        engine={"num_gpu_blocks_override": 150},
        connector={"kind": "lmcache_mp", "l1_size": "512MiB", "save_decode_cache": save_decode_cache},
    )
    _, record = run(builder.build(), settings)
    assert {request.status for request in record.requests} == {"finished"}
    assert record.totals.preemptions > 0
    assert record.totals.load_jobs > 0
