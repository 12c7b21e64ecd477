"""Random clusters over a small shared store, on top of the random clusters."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from cluster_worlds import ClusterWorld, random_cluster
from fast_compare import Verdict, happened
from fast_worlds import with_frontend

from kvsim.build import Simulation
from kvsim.cluster_plan import ClusterPlan
from kvsim.config import RunConfig
from kvsim.results.records import RunRecord
from kvsim.trace.session import SubAgent, Trace, Turn


def with_store(seed: int, *, debug: bool = True) -> ClusterWorld:
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
    data["debug"] = debug
    return ClusterWorld(seed, world.trace, RunConfig.model_validate(data))


def for_both_engines(seed: int) -> ClusterWorld:
    """The same without what only the reference does; in most of them requests wait for room and ask again and again.

    A request that recomputes what it could not load asks the store first, and finds the same again: while a lost node
    is still listed, or if leases are shorter than loads, for ever. Those worlds would not end.
    """
    world, rng = with_store(seed, debug=False), random.Random(f"both {seed}")
    data = world.config.model_dump(mode="json")
    data["engine"]["enable_prefix_caching"] = True
    cluster: dict[str, Any] = data["cluster"]
    if data["connector"]["kv_load_failure_policy"] == "recompute":
        cluster["store"] |= {"lease_ttl": "5s", "client_ttl": "1ms"}
    if rng.random() < 0.7:  # crowded
        size = data["engine"]["block_size"]
        need = -(-_longest(world.trace) // size) + 2
        data["engine"] |= {
            "num_gpu_blocks_override": min(int(need * rng.uniform(1, 1.3)), 4_000),
            "max_num_seqs": 64,
            "max_num_batched_tokens": max(data["engine"]["max_num_batched_tokens"], 64),
            "scheduler_reserve_full_isl": rng.random() < 0.8,
        }
        cluster["instances"] = [{"name": "a", "count": rng.choice([1, 1, 2, 3])}]
        names = {f"a-{number}" for number in range(cluster["instances"][0]["count"])}
        cluster["events"] = [event for event in cluster["events"] if event["instance"] in names]
        data["connector"] |= {"lookup_async": rng.random() < 0.2, "save_decode_cache": rng.random() < 0.7}
        cluster["store"]["rpc_latency"] = rng.choice(["30us", "100us", "100us", "3ms"])
        cluster["store"]["key_time"] = rng.choice(["0", "1us", "1us"])
        data["trace"]["session_interval"] = "0"
        data["transfer"] = {"kind": "profile"}
    return replace(world, config=RunConfig.model_validate(data))


def _longest(trace: Trace) -> int:
    """Tokens of the longest request."""

    def turns(stream: tuple[Turn, ...], trailing: tuple[SubAgent, ...] = ()) -> list[Turn]:
        agents = [*trailing, *(agent for turn in stream for agent in turn.subagents)]
        return [*stream, *(turn for agent in agents for turn in turns(agent.turns))]

    sessions = trace.sessions
    found = [turn for session in sessions for turn in turns(session.turns, session.trailing)]
    return max(turn.input_tokens + turn.output_tokens for turn in found)


@dataclass
class Played:
    """A run, and what is left at its end in the store."""

    record: RunRecord
    left: dict[str, Any]


def played(plan: ClusterPlan) -> Played:
    """Simulate it; the books of the store must be right."""
    simulation = Simulation(plan)
    record = simulation.run()
    assert simulation.cluster is not None
    store = simulation.cluster.store
    assert store is not None
    store.master.check()
    ends = store.fabric.endpoints.values()
    left = {
        "objects": len(store.master),
        "used": [segment.used for segment in store.master.segments.all],
        "on disk": [segment.disk_used for segment in store.master.segments.all],
        "network": [(end.name, end.bytes_sent, end.bytes_received, end.busy_in_ns, end.busy_out_ns) for end in ends],
        "dropped": (store.master.num_evicted, store.master.num_lost, store.master.num_refused),
    }
    return Played(record, left)


def compare_store(seed: int, *, frontend: bool = False) -> Verdict:
    """The store world of a seed on both engines."""
    from cluster_worlds import difference, reference  # noqa: PLC0415 - the mutant's
    from fast_compare import first_difference  # noqa: PLC0415

    verdict = Verdict(seed, "store")
    try:
        world = for_both_engines(seed)
        if frontend:
            world = replace(world, config=with_frontend(world.config, seed))
        plan = world.plan()
        if not plan.fast:
            verdict.difference = f"the fast engine does not run this: {plan.notes[0]}"
            return verdict
        found, expected = played(plan), played(reference(plan))
        verdict.difference = difference(expected.record, found.record) or first_difference(expected.left, found.left)
    except Exception as error:  # noqa: BLE001 - whatever breaks is what we look for
        verdict.difference = f"{type(error).__name__}: {error}"
        return verdict
    verdict.seen.update(happened(found.record))
    verdict.seen["stores"] = 1
    return verdict
