"""Random clusters over a small shared store, with nodes that come and go: books agree in every step and at the end."""

from __future__ import annotations

import random
from typing import Any

import pytest
from cluster_worlds import ClusterWorld, random_cluster

from kvsim.build import Simulation
from kvsim.config import RunConfig


def with_store(seed: int) -> ClusterWorld:
    """The random cluster of a seed; its instances are alike and share a store with room for little."""
    world, rng = random_cluster(seed), random.Random(f"store {seed}")
    data = world.config.model_dump(mode="json")
    cluster: dict[str, Any] = data["cluster"]
    cluster["instances"] = [
        {"name": group["name"], "count": group["count"]} for group in cluster["instances"] if group["name"] != "c"
    ]
    names = {f"{group['name']}-{number}" for group in cluster["instances"] for number in range(group["count"])}
    cluster["events"] = [event for event in cluster["events"] if event["instance"] in names]
    data["engine"] |= {"vllm_version": "0.33.0", "kind": "auto", "async_scheduling": False, "speculative": None,
                       "data_parallel_size": 1, "disable_hybrid_kv_cache_manager": True}  # fmt: skip
    block = 2 * 2**20 * data["engine"]["block_size"] // 16 if data["engine"]["block_size"] else 2 * 2**20
    blocks = rng.choice([8, 30, 200])
    cluster["store"] = {
        "memory_per_node": f"{blocks * block}B",
        "disk_per_node": f"{rng.choice([0, 40]) * block}B" if rng.random() < 0.5 else 0,
        "disk_path": rng.choice(["local", "shared"]),
        "placement": rng.choice(["random", "local"]),
        "replicas": rng.choice([1, 1, 2]),
        "lease_ttl": rng.choice(["1ms", "20ms", "5s"]),
        "eviction_high_watermark_ratio": rng.choice([0.5, 0.95, 1.0]),
        "client_ttl": rng.choice(["5ms", "10s"]),
        "rpc_latency": rng.choice(["0", "100us"]),
    }
    cluster["network"] = {"nic": rng.choice(["instant", "cx7-400g"])}
    data["connector"] = {
        "kind": "mooncake_store",
        "save_decode_cache": rng.random() < 0.5,
        "lookup_async": rng.random() < 0.5,
        "load_recv_threads": rng.choice([1, 2]),
        "kv_load_failure_policy": rng.choice(["fail", "recompute"]),
    }
    data["debug"] = True
    return ClusterWorld(seed, world.trace, RunConfig.model_validate(data))


@pytest.mark.parametrize("seed", range(24))
def test_books_agree(seed: int) -> None:
    """No block is lost or read by nobody, every request ends or says why not, and all flows are accounted for."""
    simulation = Simulation(with_store(seed).plan())
    record = simulation.run()
    assert simulation.cluster is not None
    store = simulation.cluster.store
    assert store is not None
    store.master.check()
    assert store.fabric.num_flows == 0
    sent = sum(end.bytes_sent for end in store.fabric.endpoints.values())
    received = sum(end.bytes_received for end in store.fabric.endpoints.values())
    assert sent == received
    assert all(request.status != "stuck" or request.reason for request in record.requests)
    again = Simulation(with_store(seed).plan()).run()
    assert [r.finish_ns for r in again.requests] == [r.finish_ns for r in record.requests]
