"""Clusters of servers of every kind, checked at every step, while instances come and go."""

from __future__ import annotations

import random
from typing import Any

import pytest
from cluster_worlds import ROUTERS, random_events
from worlds import random_config, random_trace, run

from kvsim.config import RunConfig
from kvsim.results.records import RunRecord

SERVERS: dict[str, dict[str, Any]] = {
    "async": {"engine": {"async_scheduling": True}},
    "drafts": {"engine": {"speculative": {"method": "ngram", "num_speculative_tokens": 2, "acceptance_rate": 0.5}}},
    "lmcache": {"connector": {"kind": "lmcache", "chunk_size": 32}},
    "lmcache_mp": {"connector": {"kind": "lmcache_mp", "chunk_size": 32, "l1_size": "1GiB"}},
    "example": {"connector": {"kind": "example"}},
    "simple_cpu": {"connector": {"kind": "simple_cpu", "cpu_bytes_to_use": "200MiB"}},
    "tiers": {
        "connector": {
            "kind": "offloading",
            "cpu_bytes_to_use": "200MiB",
            "tiers": [{"kind": "fs"}, {"kind": "obj"}],
        }
    },
    "groups of KV": {"model": {"name": "gpt-oss-20b"}, "connector": {"kind": "none"}},
    "ranks": {"model": {"name": "gpt-oss-20b"}, "connector": {"kind": "none"}, "engine": {"data_parallel_size": 2}},
}


def config_of(kind: str, seed: int) -> RunConfig:
    """A random config with such servers, in two groups, behind a random router."""
    rng = random.Random(f"{kind} {seed}")
    data = random_config(rng).model_dump(mode="json") | {"faults": {}}
    data["engine"] |= {"vllm_version": "0.33.0", "enable_prefix_caching": True}
    for section, changes in SERVERS[kind].items():
        data[section] = changes if section == "connector" else data[section] | changes
    events = random_events(rng, ["a-0", "a-1", "b-0"])
    if kind == "ranks":  # they do not fail
        events = [{"at": "5ms", "instance": "a-1", "action": "drain"}]
    router = dict(rng.choice(ROUTERS))
    if router["kind"] in {"prefix_aware", "cost_based"}:
        router["index"] = rng.choice(["history", "kv_events"])
    data["cluster"] = {
        "instances": [{"name": "a", "count": 2}, {"name": "b", "engine": {"num_gpu_blocks_override": 300}}],
        "router": router,
        "events": events,
    }
    return RunConfig.model_validate(data)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", SERVERS)
def test_every_kind_of_server(kind: str, seed: int) -> None:
    """All turns are accounted for and end; twice the same config is twice the same run."""
    settings, trace = config_of(kind, seed), random_trace(random.Random(seed))
    record = run(trace, settings)[1]
    assert len(record.requests) == trace.num_requests
    assert {entry.status for entry in record.requests} <= {"finished", "rejected", "failed"}
    assert ends(record) == ends(run(trace, settings)[1])


def ends(record: RunRecord) -> list[tuple[str, str, int]]:
    """Who served what, until when."""
    return [(entry.request_id, entry.instance, entry.finish_ns) for entry in record.requests]
