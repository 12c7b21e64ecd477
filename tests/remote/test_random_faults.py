"""Random clusters of prefill and decode instances that come and go: nothing is lost, nothing stays."""

from __future__ import annotations

import random
from typing import Any

import pytest
from fast_worlds import with_frontend
from worlds import MS, config, random_trace

from kvsim.build import Simulation
from kvsim.cluster_plan import resolve_run

KINDS = (
    {"kind": "nixl"},
    {"kind": "nixl", "kv_buffer_device": "cpu"},
    {"kind": "nixl", "kv_load_failure_policy": "recompute"},
    {"kind": "nixl", "mode": "push"},
    {"kind": "mooncake"},
)


def world(seed: int) -> tuple[Any, Any]:
    """A config and a trace."""
    rng = random.Random(seed)
    events = []
    for role in ("p", "d"):
        for number in range(1, 3):  # the first of each always stays
            at = 0
            for action in rng.choice([(), ("fail",), ("fail", "join"), ("drain", "join"), ("drain", "fail", "join")]):
                at += rng.randint(1, 150)
                events.append({"at": f"{at}ms", "instance": f"{role}-{number}", "action": action})
    ttl = {"kv_lease_duration": rng.choice(["1s", "30s"])}
    connector = rng.choice(KINDS)
    if connector["kind"] == "mooncake":
        ttl = {"abort_request_timeout": "20s"}
    cluster = {
        "instances": [
            {"name": "p", "role": "prefill", "count": 3, "engine": {"num_gpu_blocks_override": rng.choice([140, 200])}},
            {"name": "d", "role": "decode", "count": 3, "engine": {"num_gpu_blocks_override": rng.choice([140, 200])}},
        ],
        "router": rng.choice(["round_robin", "least_tokens", "session_affinity"]),
        "decode_router": rng.choice(["round_robin", "least_requests"]),
        "network": {"nic": "instant", "bandwidth": rng.choice(["300MB/s", "5GB/s"]), "setup": "50us", "latency": "5us"},
        "events": events,
    }
    settings = config(cluster=cluster, connector=connector | ttl | {"handshake": rng.choice(["0s", "20ms"])})
    return settings, random_trace(rng)


@pytest.mark.parametrize(
    ("seed", "frontend"), [*((seed, False) for seed in (*range(24), 43)), *((seed, True) for seed in range(8))]
)
def test_conservation(seed: int, *, frontend: bool) -> None:
    """Blocks that were wanted have come or failed; living engines hold nothing when all is over; no order counts.

    ``frontend``: with API servers in front of all instances, which may fail with them.
    """
    settings, trace = world(seed)
    if frontend:
        settings = with_frontend(settings, seed)
    simulation = Simulation(resolve_run(settings, trace))
    record = simulation.run()
    totals = [each.network for each in record.instances if each.network is not None]
    wanted, received, failed = (
        sum(getattr(each, f"blocks_{what}") for each in totals) for what in ("wanted", "received", "failed")
    )
    assert wanted == received + failed
    assert sum(each.sent_bytes for each in totals) == sum(each.received_bytes for each in totals)
    may_be_stuck = getattr(settings.connector, "mode", "") == "push"
    for entry in record.requests:
        assert entry.status in {"finished", "failed", "rejected"} or may_be_stuck, (entry.request_id, entry.reason)
    if settings.connector.kind == "nixl" and settings.connector.mode == "pull":
        assert sum(each.blocks_freed_early for each in totals) == 0
    for server in simulation.servers:
        scheduler = server.ranks[0].scheduler
        if not server.is_dead and not scheduler.requests:
            assert not scheduler.kv.tables, server.name
            assert scheduler.kv.pool.num_free == scheduler.kv.pool.num_blocks - 1, server.name
    assert record.totals.end_ns < 2_000_000 * MS
    cluster = settings.cluster
    turned = settings.model_copy(update={"cluster": cluster.model_copy(update={"instances": cluster.instances[::-1]})})
    again = Simulation(resolve_run(turned, trace)).run()
    assert [repr(entry) for entry in record.requests] == [repr(entry) for entry in again.requests]
