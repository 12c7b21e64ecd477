"""MooncakeStoreConnector in clusters: hits of others' blocks, times, saves and their blocks, failures, tenants."""

from __future__ import annotations

from typing import Any

from worlds import MS, TraceBuilder, config, run

from kvsim.results.records import RequestRecord, RunRecord

S = 10**9
BLOCK = 2 * 2**20  # 16 tokens of Llama-3.1-8B
FAST = {"nic": "instant"}


def settings(count: int = 2, *, store: dict[str, Any] | None = None, **parts: Any) -> dict[str, Any]:
    """Sections for a round robin over instances that share a store; the network takes no time unless it is given."""
    connector = {"kind": "mooncake_store", "descriptor_time": "0"} | parts.pop("connector", {})
    cluster = {
        "instances": [{"name": "i", "count": count}],
        "network": FAST,
        "store": {"memory_per_node": "4GiB", "rpc_latency": "0", "key_time": "0", **(store or {})},
    } | parts.pop("cluster", {})
    engine = {"num_gpu_blocks_override": 150, "max_num_batched_tokens": 4_096, "max_model_len": 4_096}
    return {"connector": connector, "cluster": cluster, "engine": engine | parts.pop("engine", {}), **parts}


def simulate(*starts_ms: int, prompt: int = 2_050, out: int = 5, **parts: Any) -> RunRecord:
    """Sessions of one turn with the same prompt, one after the other to the instances in turn."""
    builder = TraceBuilder(outputs_return=False)
    builder.common_prefix(prompt)
    for number, start in enumerate(starts_ms):
        builder.session(f"s{number}", [(0, out, 0)], start_ns=start * MS)
    return run(builder.build(), config(**settings(**parts)))[1]


def hits(record: RunRecord) -> list[tuple[int, int]]:
    """Local and external hits of each request."""
    return [(request.local_hit_tokens, request.external_hit_tokens) for request in record.requests]


def ttft(request: RequestRecord) -> int:
    """Nanoseconds to the first token."""
    return request.first_token_ns - request.arrival_ns


def test_another_instance_finds_what_the_first_has_computed() -> None:
    """128 whole blocks are loaded by the second instance; the third request finds them where it was loaded first."""
    record = simulate(0, 1_000, 2_000, 3_000)
    assert hits(record) == [(0, 0), (0, 2_048), (2_048, 0), (2_048, 0)]
    assert [request.instance for request in record.requests] == ["i-0", "i-1", "i-0", "i-1"]
    second = record.requests[1]
    assert second.load_wait_ns < 1_000  # the network takes next to no time
    assert ttft(second) == second.load_wait_ns + MS + 2 * 10_000
    assert (record.totals.d2h_bytes, record.totals.h2d_bytes) == (128 * BLOCK, 128 * BLOCK)
    assert [tier.hit_tokens for tier in record.tiers] == [2_048]
    assert record.requests[1].secondary_hit_tokens == 2_048


def test_a_load_takes_the_network_its_time() -> None:
    """256 MiB over one NIC of 50 GB/s: 5,369 us, and the setup; the request is parked for it, nobody else."""
    nic = {"nic": "instant", "bandwidth": "50GB/s", "setup": "400us", "latency": "10us"}
    record = simulate(0, 1_000, cluster={"network": nic})
    (second,) = record.requests[1:]
    loaded_ns = 410_000 + -(-128 * BLOCK // 50)
    assert second.load_wait_ns == loaded_ns
    assert ttft(second) == loaded_ns + MS + 2 * 10_000


def test_more_nics_share_a_load() -> None:
    """Four NICs for the one GPU: a quarter of the time."""
    nic = {"nic": "instant", "bandwidth": "50GB/s", "nics_per_gpu": 4}
    record = simulate(0, 1_000, cluster={"network": nic})
    assert record.requests[1].load_wait_ns == -(-128 * BLOCK // 200)


def test_the_io_thread_lists_descriptors_first() -> None:
    """128 blocks x 32 layers x 2 us = 8,192 us before the first byte."""
    record = simulate(0, 1_000, connector={"descriptor_time": "2us"})
    assert 8_192_000 <= record.requests[1].load_wait_ns < 8_193_000


def test_one_thread_loads_one_request_after_the_other() -> None:
    """Two sessions move to another instance at once: 65 blocks x 32 us each, with two threads at the same time."""
    moves = [{"at": "1s", "instance": "i-1", "action": "join"}, {"at": "1s", "instance": "i-0", "action": "drain"}]
    cluster = {"instances": [{"name": "i", "count": 2}], "events": moves}
    waits = {}
    for threads in (1, 2):
        builder = TraceBuilder(outputs_return=False)
        for name in "ab":
            builder.session(name, [(1_040, 5, 0), (16, 5, 2_000 * MS)], start_ns=0)
        connector = {"descriptor_time": "1us", "load_recv_threads": threads}
        record = run(builder.build(), config(**settings(connector=connector, cluster=cluster)))[1]
        waits[threads] = [request.load_wait_ns // 10_000 for request in record.requests if request.external_hit_tokens]
    assert waits == {1: [208, 425], 2: [208, 208]}  # 416, noticed at the end of a step


def test_lookups_hold_the_scheduler_up() -> None:
    """A question takes 3 ms, and the decision waits for the answer: 0 hits cost as much as many."""
    record = simulate(0, 1_000, store={"rpc_latency": "2ms", "key_time": "10us"})
    first, second = record.requests
    asked_ns = 2 * MS + 128 * 10_000
    assert ttft(first) == asked_ns + MS + 2_050 * 10_000
    assert ttft(second) > 2 * asked_ns  # its load asks where the blocks are


def test_lookups_in_the_background_hold_nobody_up() -> None:
    """With lookup_async the same question lets the request wait, and is answered later."""
    slow = {"rpc_latency": "2ms", "key_time": "10us"}
    record = simulate(0, 1_000, store=slow, connector={"lookup_async": True})
    assert ttft(record.requests[0]) == 2 * MS + 128 * 10_000 + MS + 2_050 * 10_000
    assert hits(record)[1] == (0, 2_048)


def test_generated_tokens_are_saved_if_asked() -> None:
    """A prompt of 64 tokens and 64 generated ones, which the next turn repeats: 7 blocks with them, 4 without."""
    for save, found in ((False, 64), (True, 112)):
        builder = TraceBuilder()
        builder.session("s", [(64, 64, 10 * MS), (32, 5, 0)], start_ns=0)
        record = run(builder.build(), config(**settings(connector={"save_decode_cache": save})))[1]
        assert hits(record)[1] == (0, found)


def test_a_consumer_saves_no_prompts() -> None:
    """Both instances are consumers: nothing is ever found. With producers all is."""
    assert hits(simulate(0, 1_000, connector={"role": "consumer"})) == [(0, 0), (0, 0)]
    assert hits(simulate(0, 1_000, connector={"role": "producer"})) == [(0, 0), (0, 2_048)]
    assert hits(simulate(0, 1_000, connector={"enable_lookup": False})) == [(0, 0), (0, 0)]


def test_a_save_keeps_the_blocks_of_a_request_that_has_ended() -> None:
    """The save takes 2.7 s over a slow NIC; the next request needs its blocks and waits for it."""
    nic = {"nic": "instant", "bandwidth": "100MB/s"}
    builder = TraceBuilder(outputs_return=False)
    for name in "ab":
        builder.session(name, [(2_050, 1, 0)], start_ns=0)
    parts = settings(1, cluster={"instances": [{"name": "i", "count": 1}], "network": nic})
    first, second = run(builder.build(), config(**parts))[1].requests
    assert second.first_scheduled_ns - first.finish_ns > 2 * S
    assert second.status == "finished"


def test_tenants_share_nothing() -> None:
    """The salt is part of a block's hash: each tenant finds its own blocks only."""
    record = simulate(0, 1_000, 2_000, 3_000, count=4, trace={"tenants": ["a", "b"]})
    assert hits(record) == [(0, 0), (0, 0), (0, 2_048), (0, 2_048)]


def test_a_full_store_evicts_the_oldest() -> None:
    """Room for 200 blocks on the only node: the first prompt's 128 are on their way out when the second has come."""
    builder = TraceBuilder(outputs_return=False)
    for name, at in (("a", 0), ("b", 6_000), ("c", 12_000)):
        builder.session(name, [(2_050, 5, 0)], start_ns=at * MS)
    record = run(builder.build(), config(**settings(1, store={"memory_per_node": "400MiB"}, cluster={})))[1]
    (tier,) = record.tiers
    assert tier.evicted_chunks > 0
    assert tier.used_chunks <= 400


def test_a_node_that_fails_takes_its_blocks_along() -> None:
    """Blocks lie on the writer's node, which fails: their load fails, and the request computes them again, or fails.

    It tries again and again until the master has given the node up.
    """
    events = [{"at": "500ms", "instance": "i-0", "action": "fail"}]
    cluster = {"events": events, "store": {"memory_per_node": "4GiB", "placement": "local", "client_ttl": "2s"}}
    for policy, status in (("recompute", "finished"), ("fail", "failed")):
        connector, engine = {"kv_load_failure_policy": policy}, {"num_gpu_blocks_override": 300}
        record = simulate(0, 1_000, cluster=cluster, connector=connector, engine=engine)
        assert record.requests[1].status == status
        assert any("could not be read" in line for line in record.cautions)


def test_after_its_time_to_live_nobody_counts_on_it() -> None:
    """10 s later the master knows that the node is gone: the prompt is computed as if it was new."""
    events = [{"at": "500ms", "instance": "i-0", "action": "fail"}]
    cluster = {"events": events, "store": {"memory_per_node": "4GiB", "placement": "local"}}
    record = simulate(0, 11_000, cluster=cluster)
    assert hits(record) == [(0, 0), (0, 0)]
    assert record.requests[1].status == "finished"


def test_the_order_in_the_config_changes_nothing() -> None:
    """Groups listed the other way round: the same requests at the same times."""
    groups = [{"name": "a", "count": 2}, {"name": "b", "count": 1}]
    results = []
    for order in (groups, groups[::-1]):
        record = simulate(*range(0, 3_000, 100), prompt=1_500, cluster={"instances": order, "network": FAST})
        results.append([(r.instance, r.first_token_ns, r.external_hit_tokens) for r in record.requests])
    assert results[0] == results[1]
