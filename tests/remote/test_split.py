"""One prefix over two paths at once: from the prefill instance and from the shared store (connector.split)."""

from __future__ import annotations

from typing import Any

import pytest
from worlds import MS, TraceBuilder, config, run

from kvsim.cluster_plan import resolve_run
from kvsim.config import RunConfig
from kvsim.results.records import RunRecord

S = 10**9
BLOCK = 2 * 2**20  # 16 tokens of Llama-3.1-8B, all ranks
PROMPT, BLOCKS = 3_200, 200
NIXL, STORE = {"kind": "nixl", "handshake": "0"}, {"kind": "mooncake_store", "descriptor_time": "0"}
FREE = {"memory_per_node": "4GiB", "rpc_latency": "0", "key_time": "0"}


def settings(connector: dict[str, Any], *, decode_gpus: int = 2, network: Any = None, **cluster: Any) -> RunConfig:
    """One decode instance; three prefill instances with one NIC each, of 1 GB/s: 200 blocks take 420 ms from one."""
    return config(
        connector=connector,
        engine={"num_gpu_blocks_override": 450, "max_num_batched_tokens": 4_096, "max_model_len": 4_096},
        cluster={
            "instances": [
                {"name": "p", "count": 3, "role": "prefill"},
                {"name": "d", "role": "decode", "hardware": {"tensor_parallel_size": decode_gpus}},
            ],
            "network": {"nic": "instant", "bandwidth": "1GB/s", **(network or {})},
            "store": FREE,
            **cluster,
        },
    )


def multi(*, split: bool, **changes: Any) -> dict[str, Any]:
    """Nixl and the store."""
    return {"kind": "multi", "connectors": [NIXL, STORE | changes], "split": split}


def simulate(wanted: RunConfig, *, sessions: int = 2, apart_ms: int = 20_000) -> RunRecord:
    """The same prompt, every so often: the first one fills the store; its other prefills go elsewhere."""
    builder = TraceBuilder(outputs_return=False)
    builder.common_prefix(PROMPT)
    for number in range(sessions):
        builder.session(f"s{number}", [(0, 2, 0)], start_ns=number * apart_ms * MS)
    record = run(builder.build(), wanted)[1]
    for instance in record.instances:
        network = instance.network
        assert network is not None
        assert network.blocks_wanted == network.blocks_received + network.blocks_failed
    return record


def waits(record: RunRecord) -> list[int]:
    """How long each request's KV took to come, ns; the decode instance keeps nothing."""
    return [request.remote_wait_ns for request in record.requests]


def no_cache(wanted: RunConfig) -> RunConfig:
    """The decode instance finds nothing in its own cache."""
    data = wanted.model_dump(mode="json")
    data["cluster"]["instances"][1]["engine"] = {"enable_prefix_caching": False}
    return RunConfig.model_validate(data)


LOCAL = FREE | {"placement": "local"}


def test_two_equal_paths_take_half_the_time() -> None:
    """The decode instance has two NICs; the prefill instance and the node with the store's blocks have one each."""
    one, two = (simulate(no_cache(settings(multi(split=split), store=LOCAL))) for split in (False, True))
    alone, together = waits(one)[1], waits(two)[1]
    assert alone == BLOCKS * BLOCK  # at 1 GB/s, in ns
    assert together == pytest.approx(alone / 2, rel=0.01)
    assert [request.status for request in two.requests] == ["finished"] * 2
    assert two.requests[1].remote_tokens == PROMPT // 2
    assert "d-0: 1 prefixes came over two paths, 100 blocks of them from the store" in two.notes


def test_all_bytes_come_once() -> None:
    """What the store and the prefill instance bring of a split load is the whole prefix, and nothing twice."""
    record = simulate(no_cache(settings(multi(split=True))))
    decode = record.instances[-1]
    assert decode.network is not None
    assert decode.network.blocks_received + decode.tiers[0].read_bytes // BLOCK == 2 * BLOCKS
    assert decode.network.blocks_failed == 0


@pytest.mark.parametrize("store", [FREE, LOCAL])
@pytest.mark.parametrize("decode_gpus", [1, 2])
@pytest.mark.parametrize("network", [{}, {"setup": "20ms"}, {"latency": "3ms"}, {"nic": "cx7-400g", "bandwidth": None}])
def test_never_later_than_one_path(network: dict[str, Any], decode_gpus: int, store: dict[str, Any]) -> None:
    """On an idle network it takes no longer than the better path alone, but for a block."""
    parts = {"network": network, "decode_gpus": decode_gpus, "store": store}
    both = waits(simulate(no_cache(settings(multi(split=True), **parts))))[1]
    single = [
        waits(simulate(no_cache(settings({"kind": "multi", "connectors": order}, **parts))))[1]
        for order in ([NIXL, STORE], [STORE, NIXL])
    ]
    per_block = min(single) // BLOCKS
    assert both <= min(single) + per_block + MS  # a step of the engine, until which nobody looks


def test_off_it_is_vllms() -> None:
    """Without split the same decisions as ever, to the nanosecond."""
    plain = {"kind": "multi", "connectors": [NIXL, STORE]}
    runs = [simulate(settings(connector), sessions=3) for connector in (plain, multi(split=False))]
    assert [r.finish_ns for r in runs[0].requests] == [r.finish_ns for r in runs[1].requests]
    assert runs[1].instances[-1].tiers[0].read_bytes == 0


def test_several_at_once() -> None:
    """Prefixes that come at the same time see what has been asked for; together they wait less than over one path."""
    one, two = (
        simulate(no_cache(settings(multi(split=split))), sessions=6, apart_ms=200) for split in (False, True)
    )  # fmt: skip
    assert sum(waits(two)[1:]) < sum(waits(one)[1:])
    assert [request.status for request in two.requests] == ["finished"] * 6


@pytest.mark.parametrize(("policy", "status"), [("fail", "failed"), ("recompute", "finished")])
def test_a_prefill_instance_dies(policy: str, status: str) -> None:
    """Its part is lost: the request fails, or computes what the store has not brought, and that only."""
    events = [{"at": "20500ms", "instance": "p-1", "action": "fail"}]  # while both bring their parts
    connector = multi(split=True) | {"kv_load_failure_policy": policy}
    record = simulate(no_cache(settings(connector, events=events, store=LOCAL)))
    assert [request.status for request in record.requests] == ["finished", status]
    decode = record.instances[-1]
    assert decode.network is not None
    assert decode.network.blocks_failed == BLOCKS // 2
    # Two steps of one token for the first request; the second computes 1,600 tokens and then one.
    again = MS + 1_600 * 10_000 + MS + 10_000 if policy == "recompute" else 0
    assert decode.totals.gpu_busy_ns == 2 * (MS + 10_000) + again


@pytest.mark.parametrize("at_ms", [20_200, 20_425, 20_500, 20_640])
def test_whenever_it_dies(at_ms: int) -> None:
    """Nothing is left behind, and every block has come or failed."""
    events = [{"at": f"{at_ms}ms", "instance": "p-1", "action": "fail"}]
    record = simulate(no_cache(settings(multi(split=True), events=events)))
    assert record.requests[0].status == "finished"
    assert record.requests[1].status in {"finished", "failed"}


@pytest.mark.parametrize(
    ("connectors", "message"),
    [
        ([NIXL], "expected the connectors nixl and mooncake_store, found nixl"),
        ([NIXL | {"mode": "push"}, STORE], "expected nixl with mode pull and kv_buffer_device cuda"),
        ([NIXL | {"kv_buffer_device": "cpu"}, STORE], "expected nixl with mode pull and kv_buffer_device cuda"),
    ],
)
def test_what_is_refused(connectors: list[Any], message: str) -> None:
    """Only the two whose paths are known can share a prefix."""
    with pytest.raises(ValueError, match=message):
        settings({"kind": "multi", "connectors": connectors, "split": True})


def test_it_is_told() -> None:
    """A note says that no vLLM does that."""
    builder = TraceBuilder()
    builder.session("s", [(100, 5, 0)])
    notes = resolve_run(settings(multi(split=True)), builder.build()).notes
    assert any("connector.split: prefixes come from" in note and "which no vLLM does" in note for note in notes)
