"""What a store's config means: sizes of blocks, notes, and what is refused in one line."""

from __future__ import annotations

from typing import Any

import pytest
from worlds import TraceBuilder, config

from kvsim.cluster_plan import ClusterPlan, resolve_run
from kvsim.errors import ConfigError

STORE = {"memory_per_node": "4GiB"}


def plan(**parts: Any) -> ClusterPlan:
    """Of a cluster of two with a store, but for what is given."""
    builder = TraceBuilder()
    builder.session("s", [(100, 5, 0)])
    cluster = {"instances": [{"name": "i", "count": 2}], "store": STORE} | parts.pop("cluster", {})
    found = resolve_run(
        config(**{"connector": {"kind": "mooncake_store"}, "cluster": cluster} | parts), builder.build()
    )
    assert isinstance(found, ClusterPlan)
    return found


@pytest.mark.parametrize(
    ("model", "gpus", "sizes"),
    [
        ("llama-3.1-8b", 1, (2_097_152, 16, 32, 65_536, 1)),
        ("llama-3.1-8b", 4, (2_097_152, 16, 32, 16_384, 1)),  # a quarter of each block on each rank
        ("qwen2.5-0.5b", 2, (196_608, 16, 24, 4_096, 1)),
        ("kimi-k2.5", 4, (4_497_408, 64, 61, 73_728, 4)),  # the same latents on four ranks, stored once
    ],
)
def test_blocks_in_the_store(model: str, gpus: int, sizes: tuple[int, ...]) -> None:
    """Bytes of an object, tokens, descriptors of a rank, bytes of each, and ranks that hold the same."""
    found = plan(
        model={"name": model},
        hardware={"gpu": "gb200", "tensor_parallel_size": gpus},
        engine={"block_size": None, "num_gpu_blocks_override": 200},
    )
    layout = found.members[0].plan.store
    values = (layout.object_bytes, layout.block_tokens, layout.descriptors, layout.message_bytes, layout.readers)
    assert values == sizes


def test_what_is_assumed_is_told() -> None:
    """Sizes, assumptions of the host, and those of the disks."""
    notes = plan(cluster={"store": STORE | {"disk_per_node": "1TB"}}).notes
    assert any("store: 2,048 blocks of 16 tokens (2,097,152 B) per node" in note for note in notes)
    assert (
        "assumed, not measured: rpc_latency and key_time of the store's master, descriptor_time of the I/O threads"
        in notes
    )
    assert any("nodes begin to write to disk at once" in note for note in notes)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"cluster": {"store": None}},
            "cluster.instances.0 (i): connector.kind: mooncake_store: expected a store: cluster.store",
        ),
        ({"connector": {"kind": "none"}}, "cluster.store: no instance uses it, expected connector.kind mooncake_store"),
        (
            {"engine": {"vllm_version": "0.23.0"}},
            "connector.kind: mooncake_store: expected engine.vllm_version 0.33.0, found 0.23.0",
        ),
        ({"cluster": {"store": {"memory_per_node": "1MiB"}}}, "cluster.store.memory_per_node: 1048576 B: a block"),
        (
            {"cluster": {"store": STORE | {"disk_per_node": "1MiB"}}},
            "cluster.store.disk_per_node: 1048576 B: a block takes 2097152 B",
        ),
        (
            {"cluster": {"store": STORE | {"disk_per_node": "1TB", "disk": "floppy"}}},
            "cluster.store.disk: ",
        ),
        ({"cluster": {"network": {"nic": "token-ring"}}}, "cluster.network.nic: "),
        (
            {"connector": {"kind": "mooncake_store", "role": "consumer", "enable_lookup": False}},
            "connector.role: consumer: it neither looks anything up nor saves anything",
        ),
        ({"engine": {"async_scheduling": True}}, "engine.async_scheduling: true: expected false"),
        ({"engine": {"data_parallel_size": 2}}, "engine.data_parallel_size: 2: expected 1"),
        (
            {"engine": {"kind": "fast", "enable_prefix_caching": False}, "debug": False},
            "expected reference (or auto) with engine.enable_prefix_caching false",
        ),
        (
            {"cluster": {"instances": [{"name": "a"}, {"name": "b", "engine": {"block_size": 32}}]}},
            "cluster.store: groups a and b have blocks of 16 and 32 tokens, expected the same",
        ),
        (
            {"connector": {"kind": "multi", "connectors": [{"kind": "offloading", "cpu_bytes_to_use": "1KiB"}]},
             "cluster": {"store": None}},
            "connector.connectors.0.cpu_bytes_to_use: 1024 B",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(parts: dict[str, Any], message: str) -> None:
    """One line that names the key, what was found and what was expected."""
    with pytest.raises(ConfigError) as caught:
        plan(**parts)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
