"""Rules of prefill and decode apart that nothing else in this folder would miss (see mutants.py)."""

from __future__ import annotations

from typing import Any

from worlds import MS, TraceBuilder, config, run

from kvsim.results.records import NetworkTotals, RunRecord


def play(starts_ms: list[int], *, prompt: int = 160, network: dict[str, Any], **parts: Any) -> RunRecord:
    """Sessions of one turn with different prompts; 10 blocks of 2 MiB each."""
    builder = TraceBuilder()
    for number, start in enumerate(starts_ms):
        builder.session(f"s{number}", [(prompt, 1, 0)], start_ns=start * MS)
    cluster = {
        "instances": parts.pop("instances", [{"name": "p", "role": "prefill"}, {"name": "d", "role": "decode"}]),
        "network": {"nic": "instant", **network},
        **parts.pop("cluster", {}),
    }
    return run(builder.build(), config(cluster=cluster, **parts))[1]


def of(record: RunRecord, name: str) -> NetworkTotals:
    """An instance's network totals."""
    return next(each.network for each in record.instances if each.name == name and each.network is not None)


def test_a_heartbeat_does_not_shorten_a_lease() -> None:
    """It grants 20 s from now; a lease of 30 s that has just begun still lasts 30 s when its reader dies behind it."""
    record = play(
        [0, 100, 1_000],
        network={"bandwidth": "2097152000B/s", "latency": "1ms"},
        instances=[{"name": "p", "role": "prefill"}, {"name": "d", "role": "decode", "count": 2}],
        cluster={"events": [{"at": "1008ms", "instance": "d-0", "action": "fail"}]},
        connector={"kind": "nixl", "handshake": "5ms"},
    )
    assert [request.status for request in record.requests] == ["finished", "finished", "failed"]
    assert record.requests[2].reason == "the engine died"
    assert of(record, "p-0").expired_requests == 1
    # The prefill of the last one takes 2.6 ms.
    assert record.instances[0].totals.end_ns == 1_002_600_000 + 30_000 * MS


def test_what_mooncake_writes_does_not_expire() -> None:
    """Ten blocks at 10 MB/s take 2 s, KV is kept for 1 s: it is kept until it has been written."""
    record = play(
        [0], network={"bandwidth": "10485760B/s"}, connector={"kind": "mooncake", "abort_request_timeout": "1s"}
    )  # fmt: skip
    assert record.requests[0].status == "finished"
    assert record.requests[0].remote_wait_ns > 2_000 * MS
    assert (of(record, "p-0").expired_requests, of(record, "p-0").blocks_freed_early) == (0, 0)


TWO = [{"name": "p", "role": "prefill", "count": 2}, {"name": "d", "role": "decode"}]
LINE = {"bandwidth": "2097152000B/s"}  # a block in a millisecond


def test_a_dead_server_is_waited_for() -> None:
    """A handshake that begins when the other side is gone ends after 5 s, however long one takes otherwise."""
    builder = TraceBuilder()
    builder.session("long", [(160, 1_500, 0)], start_ns=0)  # the only one that the decode instance runs, for 1.5 s
    builder.session("late", [(160, 1, 0)], start_ns=300 * MS)
    cluster = {
        "instances": [TWO[0], {"name": "d", "role": "decode", "engine": {"max_num_seqs": 1}}],
        "network": {"nic": "instant", **LINE},
        "events": [{"at": "310ms", "instance": "p-1", "action": "fail"}],
    }
    settings = config(cluster=cluster, connector={"kind": "nixl", "handshake": "200ms"})
    long, late = run(builder.build(), settings)[1].requests
    assert (long.status, late.status, late.prefill_instance) == ("finished", "failed", "p-1")
    assert 5_000 * MS <= late.finish_ns - long.finish_ns <= 5_010 * MS


def test_handshakes_are_made_one_after_the_other() -> None:
    """Two prefill instances at once: the second one's blocks come 20 ms after the first one's."""
    record = play([0, 0], network=LINE, instances=TWO, connector={"kind": "nixl", "handshake": "20ms"})
    first, second = record.requests
    assert {first.prefill_instance, second.prefill_instance} == {"p-0", "p-1"}
    assert first.remote_wait_ns == 30 * MS
    assert second.remote_wait_ns >= 50 * MS


def test_messages_are_the_smaller_sides() -> None:
    """A layer of a block has 256 KiB on the prefill's GPU and 128 KiB on each of two: such messages reach 0.4775."""
    record = play(
        [0], prompt=640, network={"nic": "efa-200g", "setup": "0s", "latency": "0s", "bandwidth": "25GB/s"},
        instances=[TWO[0] | {"count": 1}, TWO[1] | {"hardware": {"tensor_parallel_size": 2}}],
        engine={"block_size": 64, "max_num_batched_tokens": 1_024}, connector={"kind": "nixl"},
    )  # fmt: skip
    size = 10 * 8 * 2**20
    assert of(record, "d-0").received_bytes == size
    assert abs(of(record, "d-0").transfer_ns - size / 25 / 0.4775) < 1_000


def test_a_load_that_fails_fails_as_a_whole() -> None:
    """The second turn's KV does not come: nothing of it counts as computed; asked again, it finds its first turn."""
    builder = TraceBuilder()
    builder.session("s", [(160, 16, 0), (48, 1, 100 * MS)], start_ns=0)
    cluster = {
        "instances": TWO,
        "network": {"nic": "instant", **LINE},
        "router": "round_robin",
        "events": [{"at": "134ms", "instance": "p-1", "action": "fail"}],
    }
    settings = config(
        cluster=cluster, connector={"kind": "nixl", "handshake": "0s", "kv_load_failure_policy": "recompute"}
    )  # fmt: skip
    record = run(builder.build(), settings)[1]
    _, second = record.requests
    assert (second.status, second.prompt_tokens, second.decode_hit_tokens) == ("finished", 224, 160)
    assert of(record, "d-0").blocks_failed > 0
    assert record.faults.lost_tokens == 224
    # 16 steps of one token for the first turn, then 64 tokens in one.
    assert record.instances[-1].totals.gpu_busy_ns == 16 * 1_010_000 + MS + 64 * 10_000


def test_who_registers_early_gets_the_blocks_at_the_end_of_the_prompt() -> None:
    """Mooncake's decode instance has told where its blocks are before the prompt is computed."""
    record = play([0], network=LINE, connector={"kind": "mooncake", "handshake": "0s"})
    (request,) = record.requests
    assert request.status == "finished"
    assert request.first_token_ns == 2_600_000 + 10 * MS + 1_010_000


def test_mooncake_has_no_heartbeats() -> None:
    """A decode instance that is full for longer than KV is kept finds it gone."""
    builder = TraceBuilder()
    builder.session("long", [(160, 2_500, 0)], start_ns=0)
    builder.session("late", [(160, 1, 0)], start_ns=100 * MS)
    cluster = {
        "instances": [TWO[0] | {"count": 1}, {"name": "d", "role": "decode", "engine": {"max_num_seqs": 1}}],
        "network": {"nic": "instant", **LINE},
    }
    settings = config(
        cluster=cluster, connector={"kind": "mooncake", "handshake": "0s", "abort_request_timeout": "1s"},
        engine={"max_model_len": 4_096, "num_gpu_blocks_override": 400},
    )  # fmt: skip
    record = run(builder.build(), settings)[1]
    assert record.requests[0].status == "finished"
    assert of(record, "p-0").expired_requests == 1
