"""When nothing can ever move, the run stops and says who waits for what."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvsim.conform.scenario import Conformance
from kvsim.engine import NoProgressError

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
