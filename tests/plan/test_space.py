"""What a plan may change, and the config of each of its points."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from plan_builder import small_trace, task_of

from kvsim.config import MultiConnectorConfig, OffloadingConnectorConfig
from kvsim.errors import UserError
from kvsim.plan.axes import ladder, parse_axes
from kvsim.plan.search import all_points
from kvsim.plan.space import Space

GIB = 2**30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a trace."""
    place = tmp_path_factory.mktemp("space")
    small_trace(place, sessions=1, turns=1)
    return place


def space(folder: Path, run: dict[str, Any] | None = None, **axes: Any) -> Space:
    """The space of a plan with these axes."""
    return task_of(folder, run, space=axes).space


def test_a_ladder_has_powers_of_two_and_half_steps() -> None:
    """Between two sizes: powers of two and 1.5 times them from a 64th of the largest on, both ends included."""
    assert ladder(0, 64 * GIB) == [size * GIB // 2 for size in (0, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)]
    assert ladder(10, 20) == [10, 12, 16, 20]
    assert ladder(3, 5) == [3, 4, 5]


def test_axes_have_a_fixed_order_and_rising_values() -> None:
    """However the space is written, known axes come in one order, counts and sizes rise, choices stay as they are."""
    axes = parse_axes(
        {
            "router": ["random", {"kind": "cost_based", "load_weight": 0.1}],
            "cpu": ["64GiB", 0],
            "replicas": [4, 1],
            "engine.max_num_batched_tokens": [8192, 2048],
        }
    )
    assert [axis.name for axis in axes] == ["replicas", "cpu", "router", "engine.max_num_batched_tokens"]
    assert [axis.values for axis in axes[:2]] == [(1, 4), (0, 64 * GIB)]
    assert axes[2].labels == ("random", "kind=cost_based load_weight=0.1")
    assert axes[3].values == (8192, 2048)
    assert [axis.monotone for axis in axes] == [True, True, False, False]


def test_steps_are_linear_and_end_at_the_end() -> None:
    """With a step sizes are evenly apart, and the largest one is always among them."""
    (axis,) = parse_axes({"cpu": {"from": "0GiB", "to": "100GiB", "step": "32GiB"}})
    assert axis.labels == ("0", "32GiB", "64GiB", "96GiB", "100GiB")


def test_fewer_sessions_are_more_to_the_right() -> None:
    """Sessions fall along their axis, as fewer are easier to serve."""
    (axis,) = parse_axes({"sessions": {"from": 2, "to": 5}})
    assert axis.values == (5, 4, 3, 2)
    assert axis.monotone


def test_without_memory_its_policy_means_nothing(folder: Path) -> None:
    """Points that differ only in what means nothing there are one point: 2 x (1 + 2 x 2 x 2) with one replica."""
    found = space(
        folder, replicas=[1, 2], cpu=["0GiB", "1GiB", "2GiB"], nvme=["0GiB", "8GiB"], eviction_policy=["lru", "arc"],
        router=["random", "round_robin"],
    )  # fmt: skip
    one, two = 1 + 2 * 2 * 2, 2 * (1 + 2 * 2 * 2)
    assert len(all_points(found)) == one + two
    assert found.canonical((0, 0, 1, 1, 1)) == (0, 0, 0, 0, 0)
    assert found.labels((0, 0, 1, 1, 1)) == {
        "replicas": "1", "cpu": "0", "nvme": "-", "eviction_policy": "-", "router": "-",
    }  # fmt: skip


def test_a_point_is_a_config(folder: Path) -> None:
    """Sizes, policy, tiers, replicas, router and any other key stand where a run has them."""
    found = space(
        folder, replicas=[1, 3], cpu=["0GiB", "2GiB"], nvme={"values": ["0GiB", "8GiB"], "storage": "nvme-gen5"},
        eviction_policy=["lru", "arc"], block_size_factor=[1, 4], max_num_seqs=[32, 64],
        router=["session_affinity"], **{"engine.max_num_batched_tokens": [2048]},
    )  # fmt: skip
    config = found.config((1, 1, 1, 1, 1, 1, 0, 0))
    connector = config.connector
    assert isinstance(connector, OffloadingConnectorConfig)
    assert (connector.cpu_bytes_to_use, connector.eviction_policy, connector.block_size_factor) == (2 * GIB, "arc", 4)
    assert [(tier.kind, getattr(tier, "storage", ""), getattr(tier, "capacity", 0)) for tier in connector.tiers] == [
        ("fs", "nvme-gen5", 8 * GIB)
    ]
    assert config.cluster is not None
    assert config.cluster.names == ["replica-0", "replica-1", "replica-2"]
    assert config.cluster.router.kind == "session_affinity"
    assert (config.engine.max_num_seqs, config.engine.max_num_batched_tokens) == (64, 2048)
    plain = found.config((0, 0, 0, 0, 0, 0, 0, 0))
    assert plain.connector.kind == "none"
    assert plain.cluster is None


def test_the_base_connector_keeps_its_other_keys(folder: Path) -> None:
    """What the base says about its connector and its tiers holds at every size; only its file system is replaced."""
    base = {
        "connector": {
            "kind": "offloading", "cpu_bytes_to_use": "1GiB", "offload_prompt_only": False,
            "tiers": [{"kind": "fs", "n_read_threads": 4}, {"kind": "obj"}],
        }
    }  # fmt: skip
    found = space(folder, base, cpu=["0GiB", "2GiB"], nvme=["0GiB", "8GiB"])
    with_both = found.config((1, 1)).connector
    assert isinstance(with_both, OffloadingConnectorConfig)
    assert not with_both.offload_prompt_only
    assert [tier.kind for tier in with_both.tiers] == ["fs", "obj"]
    assert getattr(with_both.tiers[0], "n_read_threads", 0) == 4
    without = found.config((1, 0)).connector
    assert isinstance(without, OffloadingConnectorConfig)
    assert [tier.kind for tier in without.tiers] == ["obj"]


def test_prefill_and_decode_apart(folder: Path) -> None:
    """A split makes both kinds of instances, replicas multiply it, and offloading joins NIXL in a MultiConnector."""
    found = space(folder, replicas=[1, 2], cpu=["0GiB", "2GiB"], pd=["none", {"prefill": 2, "decode": 1}])
    split = found.config((1, 1, 1))
    assert split.cluster is not None
    assert {role: len(names) for role, names in split.cluster.pools.items()} == {"prefill": 4, "decode": 2}
    assert isinstance(split.connector, MultiConnectorConfig)
    assert [part.kind for part in split.connector.connectors] == ["nixl", "offloading"]
    assert found.config((0, 0, 1)).connector.kind == "nixl"


def test_a_shared_store(folder: Path) -> None:
    """A store is lent by every instance, beside CPU memory if there is some."""
    found = space(folder, replicas=[2], cpu=["0GiB", "2GiB"], shared_store={"values": ["0GiB", "4GiB"], "replicas": 2})
    config = found.config((0, 0, 1))
    assert config.connector.kind == "mooncake_store"
    assert config.cluster is not None
    assert config.cluster.store is not None
    assert (config.cluster.store.memory_per_node, config.cluster.store.replicas) == (4 * GIB, 2)
    both = found.config((0, 1, 1)).connector
    assert isinstance(both, MultiConnectorConfig)
    assert [part.kind for part in both.connectors] == ["offloading", "mooncake_store"]
    assert found.config((0, 0, 0)).connector.kind == "none"


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({}, "space: expected axes"),
        ({"cpus": [1]}, "space: unknown axis cpus, did you mean cpu?"),
        ({"cpu": {"from": "0GiB"}}, "space.cpu.to is missing"),
        ({"cpu": {"from": "2GiB", "to": "1GiB"}}, "space.cpu: expected to above from (2GiB), found 1GiB"),
        ({"cpu": {"from": "0GiB", "to": "1TiB", "storage": "x"}}, "space.cpu: unknown key storage"),
        ({"cpu": {"from": "0GiB", "to": "1TiB", "step": "1MiB"}}, "space.cpu.step: expected a size that gives up to"),
        ({"cpu": {"from": "0GiB", "to": "1TiB", "step": 0}}, "space.cpu.step: expected a size"),
        ({"cpu": 64}, "space.cpu: expected a size with its unit"),
        ({"cpu": ["-1GiB"]}, "space.cpu: expected a size with its unit, such as 64GiB or 64GB, not negative"),
        ({"cpu": ["1GiB", "1024MiB"]}, "space.cpu: expected different values"),
        ({"cpu": []}, "space.cpu: expected sizes, found none"),
        ({"replicas": [0]}, "space.replicas: expected whole numbers of at least 1, found 0"),
        ({"replicas": [1.5]}, "space.replicas: expected whole numbers of at least 1, found 1.5"),
        ({"replicas": [True]}, "space.replicas: expected whole numbers"),
        ({"replicas": []}, "space.replicas: expected values, found none"),
        ({"replicas": [2, 2]}, "space.replicas: expected different values, found 2 2 times"),
        ({"pd": [{"prefill": 1}]}, "space.pd: expected none or {prefill: 1, decode: 1}, found prefill=1"),
        ({"gpu_blocks": [100], "gpu_memory": ["1GiB"]}, "space: expected gpu_blocks or gpu_memory, found both"),
        ({"router": ["random"]}, "space.router: expected replicas beside it"),
        ({"eviction_policy": ["lru"]}, "space.eviction_policy: expected cpu beside it"),
        ({"cpu": ["0GiB", "1GiB"], "eviction_policy": ["lru", "lur"]}, "connector.eviction_policy: expected one of"),
        ({"engine.block_sizes": [16]}, "unknown key engine.block_sizes, did you mean block_size?"),
        ({"engine.block_size": ["x"]}, "engine.block_size: expected a whole number, found 'x'"),
        ({"replicas": [1, 2], "router": ["rondom"]}, "expected one of"),
        ({"cpu": "1GiB", "nvme": {"values": ["1GiB"], "storage": "floppy"}}, "storage 'floppy': no such profile"),
        ({"cpu": "1GiB", "eviction_policy": ["lru", "opt_bypass"]}, "eviction_policy: opt_bypass knows the future"),
        ({"sessions": [1, 2]}, "space.sessions: expected only with objective max_sessions"),
    ],
)
def test_a_bad_space_is_told_before_anything_runs(folder: Path, axes: dict[str, Any], message: str) -> None:
    """A mistake in the space is one line that names the plan, the axis and what was expected."""
    with pytest.raises(UserError) as caught:
        space(folder, **axes).check()
    assert message in str(caught.value)
    assert "plan.yaml" in str(caught.value)


def test_axes_that_the_base_has_no_place_for(folder: Path) -> None:
    """CPU memory of a connector that has none of its own, and NVMe behind one that has none, are mistakes."""
    lmcache = {"connector": {"kind": "lmcache"}}
    with pytest.raises(UserError, match=r"space.cpu: expected a base with connector none, offloading, simple_cpu"):
        space(folder, lmcache, cpu=["0GiB", "1GiB"])
    simple = {"connector": {"kind": "simple_cpu"}}
    with pytest.raises(UserError, match=r"space.nvme: connector simple_cpu has none, expected offloading"):
        space(folder, simple, cpu=["0GiB", "1GiB"], nvme=["0GiB", "1GiB"])
