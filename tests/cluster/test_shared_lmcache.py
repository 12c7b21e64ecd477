"""Instances of one node share LMCache's server: its chunks, its memory, its restarts."""

from __future__ import annotations

from typing import Any

import pytest
from worlds import MS, TraceBuilder, config, run

from kvsim.cluster_plan import resolve_run
from kvsim.errors import ConfigError
from kvsim.results.records import RunRecord

GIB = 2**30


def settings(per_node: int = 2, count: int = 4, cluster: dict[str, Any] | None = None, **connector: Any) -> Any:
    """A round robin over instances, whose GPUs have room for one prompt and keep nothing."""
    return config(
        engine={"num_gpu_blocks_override": 131, "max_num_batched_tokens": 4096, "max_model_len": 4096,
                "enable_prefix_caching": False},
        connector={"kind": "lmcache_mp", **connector},
        cluster={"instances": [{"name": "i", "count": count}], "instances_per_node": per_node, **(cluster or {})},
    )  # fmt: skip


def simulate(*starts_ms: int, **parts: Any) -> RunRecord:
    """Sessions of one turn with the same 2,050 tokens, to the instances in turn."""
    builder = TraceBuilder(outputs_return=False)
    builder.common_prefix(2_050)
    for number, start in enumerate(starts_ms):
        builder.session(f"s{number}", [(0, 5, 0)], start_ns=start * MS)
    return run(builder.build(), settings(**parts))[1]


def hits(record: RunRecord) -> list[int]:
    """External hits of each request, in order of arrival; instances i-0, i-1, ... in turn."""
    return [request.external_hit_tokens for request in record.requests]


@pytest.mark.parametrize(
    ("per_node", "expected"),
    [
        (1, [0, 0, 0, 0, 2_048, 2_048, 2_048, 2_048]),
        (2, [0, 2_048, 0, 2_048, 2_048, 2_048, 2_048, 2_048]),
        (4, [0] + [2_048] * 7),
    ],
)
def test_neighbours_find_each_others_chunks(per_node: int, expected: list[int]) -> None:
    """The first prompt on each node computes and stores it; whoever comes to that node later finds it."""
    record = simulate(*range(0, 8_000, 1_000), per_node=per_node)
    assert hits(record) == expected
    assert all(request.status == "finished" for request in record.requests)
    assert record.totals.d2h_bytes == 4 // per_node * 2**28
    nodes = 4 // per_node
    assert record.totals.num_cpu_blocks * record.totals.cpu_block_bytes == nodes * 64 * GIB
    assert record.totals.cpu_used_blocks_peak == nodes * 8


def test_prompts_at_the_same_time() -> None:
    """Two neighbours that compute the same prompt at once store each chunk once: the second finds it being written."""
    record = simulate(0, 0, per_node=2, count=2)
    assert hits(record) == [0, 0]
    assert record.totals.d2h_bytes == 2**28
    assert record.totals.cpu_used_blocks_peak == 8


def test_a_restart_is_everybodys() -> None:
    """The server ends at 25 s and is back at 60 s: one neighbour misses then, the other hits again."""
    restarts = [{"at": "25s", "downtime": "35s"}]
    record = simulate(0, 1_000, 80_000, 81_000, per_node=2, count=2, restarts=restarts)
    assert hits(record) == [0, 2_048, 0, 2_048]
    kept = simulate(0, 1_000, 80_000, 81_000, per_node=2, count=2, restarts=[restarts[0] | {"keep_cache": True}])
    assert hits(kept) == [0, 2_048, 2_048, 2_048]


def test_l2_is_shared_too() -> None:
    """Of 8 chunks memory keeps 2 after two seconds; the others are in L2, whoever stored them."""
    parts: dict[str, Any] = {"l1_size": "256MiB", "eviction_trigger_watermark": 0.4, "eviction_ratio": 0.5}
    for l2, expected in (({}, [0, 2_048, 2_048]), (None, [0, 512, 2_048])):
        record = simulate(0, 5_000, 5_500, per_node=2, count=2, l2=l2, **parts)
        assert hits(record) == expected
        assert all(request.status == "finished" for request in record.requests)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"kind": "simple_cpu"},
            "cluster.instances_per_node: 2: expected 1 for i, whose connector is simple_cpu: only",
        ),
        ({"count": 3}, "cluster.instances_per_node: 2: i has 3 instances, expected a multiple"),
        (
            {"cluster": {"events": [{"at": "1s", "instance": "i-0", "action": "fail"}]}},
            "cluster.events: i-0 fails, expected cluster.instances_per_node 1 for instances that fail",
        ),
    ],
)
def test_what_is_refused(parts: dict[str, Any], message: str) -> None:
    """One line that names the key, what was found and what was expected."""
    builder = TraceBuilder()
    builder.session("s", [(100, 5, 0)])
    with pytest.raises(ConfigError) as caught:
        resolve_run(settings(**parts), builder.build())
    assert message in str(caught.value)


def test_it_is_told() -> None:
    """A note says how many servers there are, and where their memory is counted."""
    builder = TraceBuilder()
    builder.session("s", [(100, 5, 0)])
    assert (
        "2 instances share a node, its host memory and its LMCache server: 2 servers in all; its memory is counted with"
        " the first of them"
    ) in resolve_run(settings(), builder.build()).notes
