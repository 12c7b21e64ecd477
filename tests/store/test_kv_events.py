"""KV events of instances that share a store: what each has written there, as vLLM publishes it."""

from __future__ import annotations

import io
import json
from typing import Any

from worlds import MS, TraceBuilder, config

from kvsim.build import Simulation
from kvsim.cluster_plan import resolve_run

STORE = {"memory_per_node": "4GiB", "rpc_latency": "0", "key_time": "0"}


def events(*starts_ms: int, prompt: int = 50, store: dict[str, Any] | None = None, **connector: Any) -> list[Any]:
    """(instance, event) of all that concerns the store; equal prompts at these moments, to two instances in turn."""
    builder = TraceBuilder(outputs_return=False)
    builder.common_prefix(prompt)
    for number, start in enumerate(starts_ms):
        builder.session(f"s{number}", [(0, 20, 0)], start_ns=start * MS)
    settings = config(
        connector={"kind": "mooncake_store", "descriptor_time": "0"} | connector,
        cluster={
            "instances": [{"name": "i", "count": 2}],
            "network": {"nic": "instant"},
            "store": STORE | (store or {}),
        },
        output={"kv_events": True},
    )
    file = io.StringIO()
    Simulation(resolve_run(settings, builder.build()), kv_events=file).run()
    batches = [json.loads(line) for line in file.getvalue().splitlines()]
    return [(batch["instance"], each) for batch in batches for each in batch["events"] if each["medium"] == "cpu"]


def stored(block: int, parent: int | None) -> dict[str, Any]:
    """A block of 16 tokens."""
    return {
        "type": "BlockStored", "block_hashes": [block], "parent_block_hash": parent, "token_ids": None,
        "block_size": 16, "lora_id": None, "medium": "cpu", "lora_name": None, "group_idx": 0,
    }  # fmt: skip


def test_an_event_per_block() -> None:
    """Three full blocks, each behind the one before it, by the instance that has computed them."""
    assert events(0) == [("i-0", stored(1, None)), ("i-0", stored(2, 1)), ("i-0", stored(3, 2))]


def test_who_finds_blocks_there_tells_nothing() -> None:
    """The second instance loads all three, and has nothing to write; with decoded blocks it has one."""
    assert [name for name, _ in events(0, 500)] == ["i-0"] * 3
    with_decoded = events(0, 500, save_decode_cache=True)
    assert [name for name, _ in with_decoded] == ["i-0"] * 4 + ["i-1"]
    assert with_decoded[3][1]["parent_block_hash"] == 3


def test_what_found_no_room_is_not_told_nor_what_leaves() -> None:
    """Room for two blocks of three on each of two nodes, and one copy: all fit; for one, two of three do."""
    block = 2 * 2**20
    assert len(events(0, store={"memory_per_node": f"{2 * block}B"})) == 3
    few = events(0, store={"memory_per_node": f"{block}B", "lease_ttl": "1ms"})
    assert [event["block_hashes"] for _, event in few] == [[1], [2]]
    assert all(event["type"] == "BlockStored" for _, event in few)
