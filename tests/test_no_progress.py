"""When nothing can ever move, the run stops and says who waits for what."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import worlds
from fast_compare import give_priorities
from fast_worlds import presets_read_once, random_world

import kvsim.engine
from kvsim.build import Simulation
from kvsim.cluster_plan import resolve_run
from kvsim.conform.scenario import Conformance
from kvsim.engine import NoProgressError
from kvsim.resolve import resolve

SCENARIO = Path(__file__).parent / "golden" / "scenarios" / "tier-lru-stuck.json"


@pytest.mark.parametrize("version", ["0.33.0", "0.23.0"])
def test_prefixes_that_evict_each_other_are_reported(version: str) -> None:
    """Two requests whose promoted prefixes exceed the CPU tier together: both are named, with sizes and a way out."""
    scenario = json.loads(SCENARIO.read_text())
    with pytest.raises(NoProgressError) as caught:
        Conformance(scenario, version, give_up_after=500).run()
    message = str(caught.value)
    assert message.startswith("no progress at time ")
    assert message.count("a larger cpu_bytes_to_use would help") == 2
    assert "in the CPU tier (300 chunks)" in message
    assert "holds 0 GPU blocks, needs" in message
    assert "\n" not in message


def test_copies_that_never_end_are_no_progress() -> None:
    """A lazy connector whose CPU pool is smaller than the GPU's content copies on while a prompt cannot fit."""
    scenario = {
        "name": "lazy-stuck",
        "engine": {"num_gpu_blocks": 61, "max_num_batched_tokens": 96},
        "connector": {"connector": "simple", "cpu_blocks": 32, "load_delay": 0, "store_delay": 1, "lazy": True},
        "system_tokens": 0,
        "think_steps": 20,
        "sessions": [
            {"name": "s6", "start_step": 0, "turns": [[47, 83]]},
            {"name": "s8", "start_step": 0, "turns": [[394, 1], [389, 50]]},
        ],
    }
    world = Conformance(scenario, "0.33.0", give_up_after=100)
    with pytest.raises(NoProgressError, match="s8t1 holds"):
        world.run()
    assert any(record["dma"] for record in world.recorder.records[-3:])


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_loads_that_fail_for_ever_are_no_progress(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases are shorter than loads: recomputing means asking again, and the store promises the same again."""
    monkeypatch.setattr(kvsim.engine, "MAX_FAILED_LOADS_IN_A_ROW", 50)
    builder = worlds.TraceBuilder()
    builder.session("s", [(400, 16, 0), (48, 1, 100_000_000)], start_ns=0)
    settings = worlds.config(
        debug=False,
        engine={"num_gpu_blocks_override": 300, "kind": engine},
        connector={"kind": "mooncake_store", "kv_load_failure_policy": "recompute"},
        cluster={
            "instances": [{"name": "a", "count": 2}],
            "store": {"memory_per_node": "4GiB", "lease_ttl": "10us", "placement": "local"},
        },
    )
    record = Simulation(resolve_run(settings, builder.build())).run()
    assert [request.status for request in record.requests] == ["finished", "stuck"]
    assert any("loads have failed 50 times in a row" in caution for caution in record.cautions)


@pytest.mark.parametrize("fast", [True, False])
def test_requests_that_preempt_each_other_for_ever_are_reported(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts are computed forty tokens at a time over 49 blocks, and lost before any of them is complete."""
    monkeypatch.setattr(kvsim.engine, "MAX_PREEMPTIONS_IN_VAIN", 200)
    with presets_read_once():
        world = random_world(20_004_463)
        plan = replace(resolve(world.config, world.trace), fast=fast)
    simulation = Simulation(plan)
    give_priorities(simulation, world.num_priorities)
    record = simulation.run()
    (caution,) = [caution for caution in record.cautions if "stopped" in caution]
    assert "requests have preempted each other 200 times, and none got a token" in caution
    assert "more GPU blocks would end that" in caution
