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
