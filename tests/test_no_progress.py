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
