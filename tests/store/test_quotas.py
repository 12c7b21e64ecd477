"""Quotas of tenants in a shared store: who is over its quota drops its own objects, and nobody else's."""

from __future__ import annotations

import random
from typing import Any

import pytest
from worlds import MS, TraceBuilder, config, run

from kvsim.clock import Clock
from kvsim.cluster_plan import resolve_run
from kvsim.errors import ConfigError
from kvsim.results.records import RunRecord
from kvsim.store.master import Master, MasterRules
from kvsim.store.quotas import TenantQuotas
from kvsim.store.segments import Segments

S = 1_000 * MS
BLOCK = 2 * 2**20  # 16 tokens of Llama-3.1-8B


def master(limits: dict[int, int], *, capacity: int = 100, nodes: str = "a", **rules: Any) -> tuple[Clock, Master]:
    """Tenants 0 (even keys) and 1 (odd ones); leases of 5 s."""
    clock = Clock()
    found = Master(
        clock, Segments("local"), MasterRules(**rules), TenantQuotas(limits, 2, rules.get("lease_ns", 5 * S))
    )
    for node in nodes:
        found.mount(node, capacity)
    return clock, found


def put(target: Master, *keys: int) -> list[int]:
    """Write these at once; those for which there was no room."""
    answer = target.put_start(keys, "a")
    target.put_end([key for key, _ in answer.placed])
    return answer.refused


def wait(clock: Clock, duration_ns: int) -> None:
    """Let time pass."""
    clock.run(until=clock.timeout(duration_ns))


def there(target: Master, upto: int = 100) -> list[int]:
    """Keys that can be read; looking grants no lease here."""
    return [key for key in range(upto) if key in target._complete]


def test_who_is_over_its_quota_drops_its_own_oldest() -> None:
    """Tenant 0 may keep three: its fourth and fifth push out its first two; tenant 1, without a quota, keeps all."""
    clock, target = master({0: 3})
    for key in (1, 0, 3, 2, 4, 5, 6, 7, 8):
        wait(clock, 1)
        assert put(target, key) == []
    assert there(target) == [1, 3, 4, 5, 6, 7, 8]
    room = target.quotas.rooms[0] if target.quotas else None
    assert room is not None
    assert (room.used, room.peak, room.evicted, room.refused) == (3, 3, 2, 0)
    assert (target.num_evicted, target.segments.all[0].evicted) == (2, 2)
    target.check()


def test_what_is_leased_or_being_written_stays() -> None:
    """All that tenant 1 has was looked up just now: it cannot write until the lease is over. Half written stays too."""
    clock, target = master({1: 2})
    put(target, 1, 3)
    target.exist([1, 3])
    assert put(target, 5) == [5]
    assert there(target) == [1, 3]
    wait(clock, 5 * S)
    assert [key for key, _ in target.put_start([5, 7], "a").placed] == [5, 7]
    assert there(target) == []
    assert put(target, 9) == [9]  # 5 and 7 are being written
    target.put_end([5, 7])
    assert put(target, 9) == []
    assert there(target) == [7, 9]
    assert target.quotas is not None
    assert target.quotas.rooms[1].refused == 2
    target.check()


def test_copies_count() -> None:
    """With two copies of each object a quota of three is one object and a half: the second gets one copy."""
    clock, target = master({0: 3}, nodes="ab", replicas=2)
    put(target, 0)
    target.exist([0])
    wait(clock, 1)
    put(target, 2)
    assert [len(target._entries[key].memory) for key in (0, 2)] == [2, 1]
    assert target.quotas is not None
    assert target.quotas.rooms[0].used == 3
    target.check()


def test_no_quota_at_all() -> None:
    """A quota of 0 keeps nothing."""
    _, target = master({0: 0})
    assert put(target, 0, 1, 2) == [0, 2]
    assert there(target) == [1]
    target.check()


def test_a_copy_on_disk_outlives_the_quota() -> None:
    """Quotas are of memory: what has been written to a disk is still there when its copy in memory has to go."""
    clock, target = master({0: 1})
    put(target, 0)
    target.add_disk(0, target.segments.all[0])
    wait(clock, 1)
    put(target, 2)
    assert there(target) == [0, 2]
    assert target._entries[0].memory == []
    target.check()


@pytest.mark.parametrize("seed", range(20))
def test_nobody_else_pays(seed: int) -> None:
    """While all memory never fills, whatever tenant 0 does leaves tenant 1's objects alone; books agree at any time."""
    rng = random.Random(seed)
    limits = {0: rng.randint(0, 8)} | ({1: 30} if rng.random() < 0.5 else {})
    clock, target = master(limits, capacity=40, nodes="ab", lease_ns=rng.choice([1, 50]), replicas=rng.choice([1, 2]))
    written: set[int] = set()
    for _ in range(300):
        wait(clock, rng.randint(1, 20))
        action = rng.random()
        if action < 0.5:
            keys = rng.sample(range(0, 60, 2), rng.randint(1, 6))
            answer = target.put_start(keys, rng.choice("ab"))
            done = [key for key, _ in answer.placed if rng.random() < 0.8]
            target.put_end(done)
            target.put_revoke([key for key, _ in answer.placed if key not in done])
        elif action < 0.6 and len(written) < 10:
            key = rng.randrange(1, 60, 2)
            assert put(target, key) == []
            written.add(key)
        else:
            target.exist(rng.sample(range(60), 5))
        assert written <= set(there(target))
        target.check()


def simulate(quotas: dict[str, str], *, turns: int = 6) -> RunRecord:
    """Alice, Bob and Carol in turn, a second apart: she the same prompt, they new ones. The GPU holds one prompt."""
    builder = TraceBuilder(outputs_return=False)
    builder.common_prefix(2_050)
    for number in range(3 * turns):
        new, keep = (2_050, 0) if number % 3 else (0, 2_050)
        builder.session(f"s{number}", [(new, 5, 0)], start_ns=number * S, keep=keep)
    store = {"memory_per_node": "800MiB", "lease_ttl": "1ms", "rpc_latency": "0", "key_time": "0", "quotas": quotas}
    settings = config(
        trace={"tenants": ["alice", "bob", "carol"]},
        connector={"kind": "mooncake_store"},
        engine={"num_gpu_blocks_override": 150, "max_num_batched_tokens": 4_096, "max_model_len": 4_096},
        cluster={"instances": [{"name": "i"}], "network": {"nic": "instant"}, "store": store},
    )
    return run(builder.build(), settings)[1]


def test_a_quota_protects_the_others() -> None:
    """The three prompts take 384 of 400 blocks, too many: Alice loses hers, unless the others may keep 120 only."""
    free, fenced = simulate({}), simulate({"bob": "240MiB", "carol": "240MiB"})
    hits = [
        [r.local_hit_tokens + r.external_hit_tokens for r in record.requests if r.tenant == "alice"]
        for record in (free, fenced)
    ]
    assert hits[1] == [0] + [2_048] * 5
    assert sum(hits[0]) < sum(hits[1])
    assert free.quotas == []
    for found, name in zip(fenced.quotas, ("bob", "carol"), strict=True):
        assert (found.tenant, found.quota_chunks, found.used_chunks, found.used_chunks_peak) == (name, 120, 120, 120)
        assert (found.evicted_chunks, found.refused_chunks) == (5 * 120, 6 * 8)


@pytest.mark.parametrize(
    ("quotas", "message"),
    [
        ({"dave": "1GiB"}, "cluster.store.quotas: no tenant 'dave', expected alice, bob, carol"),
        ({"bob": "1MiB"}, "cluster.store.quotas.bob: 1048576 B: a block takes 2097152 B, expected room for at least"),
    ],
)
def test_quotas_that_do_not_fit(quotas: dict[str, str], message: str) -> None:
    """One line that names the key, what was found and what was expected."""
    with pytest.raises(ConfigError) as caught:
        simulate(quotas, turns=1)
    assert message in str(caught.value)


def test_quotas_are_told() -> None:
    """The notes say that quotas hold, and what of them is not in vLLM."""
    settings = config(
        trace={"tenants": ["a", "b"]},
        connector={"kind": "mooncake_store"},
        cluster={"instances": [{"name": "i"}], "store": {"memory_per_node": "4GiB", "quotas": {"a": "1GiB", "b": 0}}},
    )
    builder = TraceBuilder()
    builder.session("s", [(100, 5, 0)])
    notes = resolve_run(settings, builder.build()).notes
    assert (
        "store: quotas of a 1.0 GiB, b 0.0 GiB; Mooncake has them, vLLM's connector tells it no tenant so far" in notes
    )
