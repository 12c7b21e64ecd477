"""Prefill and decode apart with a shared store beside the hand-over: vLLM's MultiConnector as in the Mooncake blog."""

from __future__ import annotations

from typing import Any

import pytest
from worlds import MS, TraceBuilder, config, run

from kvsim.results.records import RunRecord

NIXL, STORE = {"kind": "nixl", "handshake": "0"}, {"kind": "mooncake_store", "descriptor_time": "0"}


def simulate(wanted: dict[str, Any], *, turns: int = 4, prefills: int = 2, **changes: Any) -> RunRecord:
    """One session of several turns; its prefills take turns at two instances that keep nothing in their GPUs."""
    builder = TraceBuilder()
    builder.session(
        "s", [(1_600 if not turn else 160, 32, 0 if not turn else 500 * MS) for turn in range(turns)], start_ns=0
    )
    store = {} if wanted["kind"] == "nixl" else {"store": {"memory_per_node": "4GiB"}}
    settings = config(
        connector=wanted,
        cluster={
            "instances": [
                {"name": "p", "count": prefills, "role": "prefill"},
                {"name": "d", "role": "decode", **changes},
            ],
            "network": {"nic": "instant"},
        }
        | store,
        engine={"num_gpu_blocks_override": 400, "max_num_batched_tokens": 4_096, "max_model_len": 4_096},
    )
    return run(builder.build(), settings)[1]


def hit_rate(record: RunRecord) -> float:
    """Of the prefills."""
    totals = record.totals
    return (totals.local_hit_tokens + totals.external_hit_tokens) / totals.prompt_tokens


def test_without_a_store_a_prefill_knows_only_its_own_turns() -> None:
    """Every second turn of a session: what was computed for the others in between is missing."""
    record = simulate(NIXL)
    assert [request.status for request in record.requests] == ["finished"] * 4
    assert [request.local_hit_tokens for request in record.requests] == [0, 0, 1_600, 1_792]
    assert all(request.external_hit_tokens == 0 for request in record.requests)


@pytest.mark.parametrize("saves_decoded", [False, True])
def test_with_a_store_all_prefills_find_everything(saves_decoded: bool) -> None:
    """What another prefill instance has computed is loaded; with the decoded blocks, that of the last answer too."""
    store = STORE | {"save_decode_cache": saves_decoded}
    record = simulate({"kind": "multi", "connectors": [NIXL, store]})
    assert [request.status for request in record.requests] == ["finished"] * 4
    found = [request.local_hit_tokens + request.external_hit_tokens for request in record.requests]
    assert found == ([0, 1_616, 1_808, 2_000] if saves_decoded else [0, 1_600, 1_792, 1_984])
    assert hit_rate(record) > 0.7


def test_the_decode_instance_gets_its_kv_from_the_prefill_instance() -> None:
    """It asks nixl first: everything but what its own cache has comes from there, nothing from the store."""
    record = simulate({"kind": "multi", "connectors": [NIXL, STORE]})
    decode = next(instance for instance in record.instances if instance.role == "decode")
    assert decode.tiers[0].read_bytes == 0
    assert all(request.remote_tokens > 0 for request in record.requests)


def test_the_store_may_come_first() -> None:
    """Then a decode instance loads from the store what the store has, and the prefill instance's lease ends."""
    record = simulate({"kind": "multi", "connectors": [STORE, NIXL]})
    assert [request.status for request in record.requests] == ["finished"] * 4


def test_both_sides_need_the_same_way() -> None:
    """A decode instance without the hand-over is refused."""
    with pytest.raises(Exception, match="expected"):
        simulate({"kind": "multi", "connectors": [NIXL, STORE]}, connector={"kind": "mooncake"})
