"""NixlConnector in small clusters by hand: 1 ms a step, 10 us a token; a block of 16 tokens has 2 MiB."""

from __future__ import annotations

from typing import Any

import pytest
from worlds import MS, TraceBuilder, config, run

from kvsim.errors import UserError
from kvsim.results.records import NetworkTotals, RunRecord

Session = tuple[int, list[tuple[int, int, int]]]  # start in ms, turns: new tokens, output tokens, think ns
BLOCK_BYTES = 2 * 2**20
GB = 10**9


def settings(
    *, groups: list[dict[str, Any]] | None = None, connector: dict[str, Any] | None = None, **more: Any
) -> Any:
    """A prefill and a decode instance, 2 GB/s between them: 1 block takes about a millisecond."""
    parts = more.pop("parts", {})
    cluster = {
        "instances": groups or [{"name": "p", "role": "prefill"}, {"name": "d", "role": "decode"}],
        "network": {"nic": "instant", "bandwidth": "2097152000B/s"} | more.pop("network", {}),
    }
    own = {"kind": "nixl", "handshake": "5ms"} | (connector or {})
    return config(cluster=cluster | more, connector=own, **parts)


def play(*sessions: Session, **cluster: Any) -> RunRecord:
    """A run of sessions s0, s1, ..."""
    builder = TraceBuilder()
    for number, (start, turns) in enumerate(sessions):
        builder.session(f"s{number}", turns, start_ns=start * MS)
    return run(builder.build(), settings(**cluster))[1]


def network(record: RunRecord, name: str) -> NetworkTotals:
    """Of an instance."""
    (found,) = [each.network for each in record.instances if each.name == name]
    assert found is not None
    return found


def conserved(record: RunRecord) -> tuple[int, int, int]:
    """(blocks wanted, received, failed) of all instances, after checking that none is missing."""
    totals = [each.network for each in record.instances if each.network is not None]
    wanted, received, failed = (
        sum(getattr(each, f"blocks_{what}") for each in totals) for what in ("wanted", "received", "failed")
    )
    assert wanted == received + failed
    assert sum(each.sent_bytes for each in totals) == sum(each.received_bytes for each in totals)
    return wanted, received, failed


def test_one_request_all_the_way() -> None:
    """Prefill, handshake, transfer, and the last prompt token once more; the client's first token is the decode's."""
    record = play((0, [(160, 3, 0)]))
    (entry,) = record.requests
    assert (entry.prefill_instance, entry.instance, entry.status) == ("p-0", "d-0", "finished")
    # 1 ms and 160 x 10 us of prefill, 5 ms of handshake, 10 blocks of 1 ms, a step of 1 token.
    assert entry.first_token_ns == 2_600_000 + 5 * MS + 10 * MS + 1_010_000
    assert entry.finish_ns == entry.first_token_ns + 2 * 1_010_000
    assert entry.remote_wait_ns == 15 * MS
    assert (entry.remote_tokens, entry.decode_hit_tokens, entry.local_hit_tokens, entry.output_tokens) == (160, 0, 0, 3)
    assert conserved(record) == (10, 10, 0)
    d = network(record, "d-0")
    assert (d.handshakes, d.transfers, d.received_bytes, d.transfer_ns) == (1, 1, 10 * BLOCK_BYTES, 10 * MS)
    assert (network(record, "p-0").sent_bytes, record.totals.output_tokens) == (10 * BLOCK_BYTES, 3)
    assert record.totals.prompt_tokens == 160


def test_the_second_turn_sends_only_what_is_new() -> None:
    """Both instances have the first turn's blocks; engines know each other by then."""
    record = play((0, [(160, 16, 0), (48, 1, 100 * MS)]))
    _, second = record.requests
    # 160 + 16 + 48 = 224 tokens: the decode instance has 175 of the first turn with KV, hence 10 blocks.
    assert second.prompt_tokens == 224
    assert (second.local_hit_tokens, second.decode_hit_tokens, second.remote_tokens) == (160, 160, 64)
    assert second.remote_wait_ns == 4 * MS
    assert network(record, "d-0").handshakes == 1
    assert conserved(record) == (14, 14, 0)


def test_prefill_blocks_are_kept_until_they_are_read() -> None:
    """A prefill instance with room for one prompt takes the second one only when the first is read."""
    groups = [
        {"name": "p", "role": "prefill", "engine": {"num_gpu_blocks_override": 12}},
        {"name": "d", "role": "decode"},
    ]
    record = play((0, [(160, 1, 0)]), (0, [(160, 1, 0)]), groups=groups)
    first, second = record.requests
    assert first.first_token_ns == 18_610_000
    # The first one's blocks are read 17.6 ms after the start.
    assert second.first_scheduled_ns == 17_600_000
    assert [entry.status for entry in record.requests] == ["finished", "finished"]


def test_two_decode_instances_read_at_half_the_rate() -> None:
    """The NICs of the prefill instance are shared; its steps are not held up."""
    groups = [{"name": "p", "role": "prefill"}, {"name": "d", "role": "decode", "count": 2}]
    record = play((0, [(96, 1, 0)]), (0, [(96, 1, 0)]), groups=groups)
    assert {entry.instance for entry in record.requests} == {"d-0", "d-1"}
    # Both are prefilled in one step of 2.92 ms; 6 blocks each at half the rate.
    assert [entry.first_token_ns for entry in record.requests] == [2_920_000 + 5 * MS + 12 * MS + 1_010_000] * 2


def test_blocks_of_another_size() -> None:
    """A decode instance with blocks of 64 tokens reads them from blocks of 16; what is not there is not read."""
    groups = [
        {"name": "p", "role": "prefill"},
        {"name": "d", "role": "decode", "engine": {"block_size": 64, "num_gpu_blocks_override": 50}},
    ]
    record = play((0, [(160, 1, 0)]), groups=groups)
    assert conserved(record) == (3, 3, 0)
    assert network(record, "d-0").received_bytes == 10 * BLOCK_BYTES


def test_another_tp_size() -> None:
    """Two ranks that decode read as much as the one that prefills has, over the NICs of both."""
    groups = [
        {"name": "p", "role": "prefill"},
        {"name": "d", "role": "decode", "hardware": {"tensor_parallel_size": 2}},
    ]
    record = play((0, [(160, 1, 0)]), groups=groups)
    assert (network(record, "p-0").nics, network(record, "d-0").nics) == (1, 2)
    assert record.requests[0].remote_wait_ns == 15 * MS


def test_the_hosts_buffer() -> None:
    """KV goes down to the host behind the step that computes it, and up again before it is decoded."""
    fast = play((0, [(160, 1, 0)]))
    slow = play((0, [(160, 1, 0)]), connector={"kv_buffer_device": "cpu"})
    assert conserved(slow) == (10, 10, 0)
    p, d = slow.instances
    assert (p.totals.d2h_bytes, d.totals.h2d_bytes) == (10 * BLOCK_BYTES, 10 * BLOCK_BYTES)
    assert slow.requests[0].first_token_ns > fast.requests[0].first_token_ns
    assert p.totals.sync_stall_ns > 0


def test_a_decode_instance_dies_and_everything_expires() -> None:
    """While it reads: its flow fails, nobody tells the prefill instance, whose blocks are free when the lease ends."""
    groups = [{"name": "p", "role": "prefill"}, {"name": "d", "role": "decode", "count": 2}]
    events = [{"at": "12ms", "instance": "d-0", "action": "fail"}]
    record = play((0, [(160, 1, 0)]), (100, [(160, 1, 0)]), groups=groups, events=events)
    first, second = record.requests
    assert (first.status, first.reason) == ("failed", "the engine died")
    assert (second.status, second.instance) == ("finished", "d-1")
    assert conserved(record) == (20, 10, 10)
    p = network(record, "p-0")
    assert (p.expired_requests, p.late_notifications, p.blocks_freed_early) == (1, 0, 0)
    # No heartbeat came: 30 s after the end of the prefill, and with it the run.
    assert record.instances[0].totals.end_ns == 2_600_000 + 30_000 * MS


def test_heartbeats_keep_the_blocks_of_who_waits() -> None:
    """A decode instance that is full for longer than the lease beats every sixth of it, and reads in the end."""
    groups = [
        {"name": "p", "role": "prefill"},
        {"name": "d", "role": "decode", "engine": {"max_num_seqs": 1}},
    ]
    # The first one decodes for 1.5 s; the second one's lease is 1 s.
    record = play((0, [(160, 1_500, 0)]), (0, [(160, 1, 0)]), groups=groups, connector={"kv_lease_duration": "1s"})
    assert [entry.status for entry in record.requests] == ["finished", "finished"]
    assert network(record, "p-0").expired_requests == 0
    assert record.requests[1].first_token_ns > 1_500 * MS


@pytest.mark.parametrize(("policy", "status"), [("fail", "failed"), ("recompute", "finished")])
def test_a_prefill_instance_dies_while_it_is_read(policy: str, status: str) -> None:
    """The load fails; by policy the request fails with it, or the decode instance computes the prompt itself."""
    groups = [{"name": "p", "role": "prefill", "count": 2}, {"name": "d", "role": "decode"}]
    events = [{"at": "12ms", "instance": "p-0", "action": "fail"}]
    record = play((0, [(160, 1, 0)]), groups=groups, events=events, connector={"kv_load_failure_policy": policy})
    (entry,) = record.requests
    assert entry.status == status
    assert conserved(record) == (10, 0, 10)
    assert network(record, "d-0").failed_transfers == 1
    if status == "finished":
        assert entry.finish_ns == 12 * MS + 2_600_000
    else:
        assert entry.reason == "its KV could not be loaded"


def test_nobody_answers_the_handshake() -> None:
    """The prefill instance dies before the first contact: five seconds of patience, then the load has failed."""
    groups = [{"name": "p", "role": "prefill", "count": 2}, {"name": "d", "role": "decode"}]
    events = [{"at": "2600001ns", "instance": "p-0", "action": "fail"}]
    record = play((0, [(160, 1, 0)]), groups=groups, events=events, connector={"handshake": "10ms"})
    (entry,) = record.requests
    # It was dead by the end of a handshake that had begun.
    assert (entry.status, network(record, "d-0").failed_handshakes) == ("failed", 1)
    assert conserved(record) == (0, 0, 0)


def test_who_comes_back_is_somebody_else() -> None:
    """An instance that has failed and joined again is known anew, by another handshake."""
    events = [
        {"at": "50ms", "instance": "p-0", "action": "fail"},
        {"at": "60ms", "instance": "p-0", "action": "join"},
    ]
    groups = [{"name": "p", "role": "prefill", "count": 2}, {"name": "d", "role": "decode"}]
    record = play((0, [(160, 1, 0)]), (30, [(16, 1, 0)]), (90, [(160, 1, 0)]), groups=groups, events=events)
    assert [entry.prefill_instance for entry in record.requests] == ["p-0", "p-1", "p-0"]
    assert [entry.status for entry in record.requests] == ["finished"] * 3
    assert network(record, "d-0").handshakes == 3


def test_a_lease_that_ends_before_the_first_contact() -> None:
    """Heartbeats need a handshake: a lease shorter than it ends, and what is read then may be anything, as in vLLM."""
    record = play((0, [(160, 1, 0)]), connector={"kv_lease_duration": "1s", "handshake": "1100ms"})
    assert record.requests[0].status == "finished"
    assert conserved(record) == (10, 10, 0)
    p = network(record, "p-0")
    assert (p.expired_requests, p.late_notifications, p.blocks_freed_early) == (1, 1, 0)
    assert "KV of 1 requests was read after its lease had ended" in "".join(record.cautions)


def test_a_lease_that_ends_while_it_is_read() -> None:
    """A decode instance that computes for longer than the lease sends no heartbeat; the run says what that does."""
    groups = [
        {"name": "p", "role": "prefill"},
        {"name": "d", "role": "decode", "step_time": {"per_step": "3s"}},
    ]
    record = play(
        (0, [(160, 1, 0)]),
        (100, [(16, 2, 0)]),
        groups=groups,
        network={"bandwidth": "2097152B/s"},
        connector={"kv_lease_duration": "1s"},
    )
    p = network(record, "p-0")
    assert (p.expired_requests, p.blocks_freed_early) == (1, 10)
    assert "10 blocks were freed while a decode instance was still reading them" in "".join(record.cautions)


def test_no_decode_instance() -> None:
    """All of them are gone for a moment: the turn fails with the reason, its KV expires."""
    events = [
        {"at": "1ms", "instance": "d-0", "action": "drain"},
        {"at": "50ms", "instance": "d-0", "action": "join"},
    ]
    record = play((0, [(160, 1, 0)]), (90, [(160, 1, 0)]), events=events)
    first, second = record.requests
    assert (first.status, first.reason) == ("failed", "no decode instance took requests (1 draining)")
    assert second.status == "finished"
    assert network(record, "p-0").expired_requests == 1


def test_push() -> None:
    """The prefill instance writes after two handshakes, one in each direction; the second turn needs none."""
    record = play((0, [(160, 16, 0), (48, 1, 100 * MS)]), connector={"mode": "push"})
    first, second = record.requests
    assert (first.remote_wait_ns, second.remote_wait_ns) == (5 * MS + 5 * MS + 10 * MS, 4 * MS)
    assert (second.decode_hit_tokens, second.remote_tokens) == (160, 64)
    assert conserved(record) == (14, 14, 0)
    assert (network(record, "p-0").handshakes, network(record, "d-0").handshakes) == (1, 1)


def test_push_to_who_has_died() -> None:
    """The write fails, the lease ends."""
    groups = [{"name": "p", "role": "prefill"}, {"name": "d", "role": "decode", "count": 2}]
    events = [{"at": "18ms", "instance": "d-0", "action": "fail"}]
    record = play((0, [(160, 1, 0)]), groups=groups, events=events, connector={"mode": "push"})
    assert record.requests[0].status == "failed"
    assert conserved(record) == (10, 0, 10)
    assert network(record, "p-0").expired_requests == 1


def test_push_from_who_has_died() -> None:
    """Nobody tells the decode instance: it waits for ever, and the run says for what."""
    groups = [{"name": "p", "role": "prefill", "count": 2}, {"name": "d", "role": "decode"}]
    events = [{"at": "18ms", "instance": "p-0", "action": "fail"}]
    record = play(
        (0, [(160, 1, 0)]), groups=groups, events=events, connector={"mode": "push", "kv_lease_duration": "6s"}
    )
    (entry,) = record.requests
    assert entry.status == "stuck"
    assert "waits for KV from p-0#0" in entry.reason


MOONCAKE = {"kind": "mooncake", "handshake": "5ms"}


def mooncake(*sessions: Session, **cluster: Any) -> RunRecord:
    """As `play`, with MooncakeConnector."""
    builder = TraceBuilder()
    for number, (start, turns) in enumerate(sessions):
        builder.session(f"s{number}", turns, start_ns=start * MS)
    wanted = settings(**cluster)
    return run(builder.build(), wanted.model_copy(update={"connector": config(connector=MOONCAKE).connector}))[1]


def test_mooncake_does_not_wait_for_the_prefill() -> None:
    """Handshake and registration happen while the prompt is computed, and the blocks are written at its end."""
    record = mooncake((0, [(160, 3, 0)]))
    (entry,) = record.requests
    # The handshake takes 5 ms, longer than the prefill of 2.6 ms.
    assert entry.first_token_ns == 5 * MS + 10 * MS + 1_010_000
    assert entry.remote_wait_ns == 15 * MS
    assert conserved(record) == (10, 10, 0)


def test_mooncake_joins_neighbouring_blocks() -> None:
    """In empty pools all blocks of a prompt lie in a row on both sides: one message instead of ten."""
    small = {"nic": "efa-200g", "setup": "0s", "latency": "0s", "bandwidth": "25GB/s"}
    nixl, joined = (
        network(found, "d-0").transfer_ns
        for found in (play((0, [(160, 1, 0)]), network=small), mooncake((0, [(160, 1, 0)]), network=small))
    )
    # Pieces of 64 KiB reach 0.2425 of the line, those of 640 KiB 0.891.
    assert nixl == pytest.approx(10 * BLOCK_BYTES / 25 / 0.2425, rel=0.001)
    assert joined == pytest.approx(10 * BLOCK_BYTES / 25 / 0.891, rel=0.001)


def test_mooncake_gives_up_on_a_dead_prefill_instance() -> None:
    """Nine minutes after it has asked."""
    groups = [{"name": "p", "role": "prefill", "count": 2}, {"name": "d", "role": "decode"}]
    events = [{"at": "10ms", "instance": "p-0", "action": "fail"}]
    record = mooncake((0, [(160, 1, 0)]), groups=groups, events=events)
    (entry,) = record.requests
    # The write that had begun fails; nobody is left to tell.
    assert (entry.status, entry.finish_ns) == ("failed", 5 * MS + 540_000 * MS)
    assert conserved(record) == (10, 0, 10)


def p2p(*sessions: Session, **cluster: Any) -> RunRecord:
    """As `play`, with P2pNcclConnector."""
    builder = TraceBuilder()
    for number, (start, turns) in enumerate(sessions):
        builder.session(f"s{number}", turns, start_ns=start * MS)
    wanted = settings(parts={"engine": {"vllm_version": "0.23.0"}}, **cluster)
    return run(builder.build(), wanted.model_copy(update={"connector": config(connector=P2P).connector}))[1]


P2P = {"kind": "p2p_nccl"}


def test_p2p_nccl_holds_the_prefill_up() -> None:
    """Layers go out while others are computed; the step ends when all are sent, and the decode finds all of them."""
    record = p2p((0, [(160, 3, 0)]))
    (entry,) = record.requests
    # 32 layers: the first is computed after 2.6 / 32 ms, from then on 10 ms of sending hide the rest of computing.
    assert entry.first_token_ns == 2_600_000 // 32 + 10 * MS + 2 + 1_010_000  # 32 roundings up to a ns
    assert (entry.decode_hit_tokens, entry.remote_tokens, entry.remote_wait_ns) == (0, 159, 0)
    assert conserved(record) == (10, 10, 0)


def test_p2p_nccl_and_a_prefill_instance_that_dies() -> None:
    """In its step, while it sends: the turn fails, and nobody else is hurt."""
    groups = [{"name": "p", "role": "prefill", "count": 2}, {"name": "d", "role": "decode"}]
    events = [{"at": "5ms", "instance": "p-0", "action": "fail"}]
    record = p2p((0, [(160, 1, 0)]), (100, [(160, 1, 0)]), groups=groups, events=events)
    assert [entry.status for entry in record.requests] == ["failed", "finished"]
    assert conserved(record) == (20, 10, 10)


def test_decode_bench() -> None:
    """Two prompts are there at once: each begins with a step of one token."""
    builder = TraceBuilder()
    for number in range(2):
        builder.session(f"s{number}", [(1_500, 3, 0)], start_ns=0)
    record = run(builder.build(), config(connector={"kind": "decode_bench"}))[1]
    assert [entry.first_token_ns for entry in record.requests] == [1_020_000, 1_020_000]
    assert [entry.external_hit_tokens for entry in record.requests] == [1_499, 1_499]


def test_equal_runs_for_any_order_of_groups() -> None:
    """Who is built first changes nothing."""
    groups = [
        {"name": "p", "role": "prefill", "count": 2},
        {"name": "d", "role": "decode", "count": 2},
    ]
    sessions = [(7 * n % 40, [(50 + 37 * n % 300, 5 + n, 0), (40, 9, 3 * MS)]) for n in range(12)]
    for router in ("round_robin", "least_tokens", "prefix_aware"):
        one = play(*sessions, groups=groups, router=router)
        two = play(*sessions, groups=groups[::-1], router=router)
        assert [repr(entry) for entry in one.requests] == [repr(entry) for entry in two.requests]
        conserved(one)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"groups": [{"name": "p", "role": "prefill"}]}, "expected at least one of role decode beside the others"),
        (
            {"groups": [{"name": "p", "role": "prefill"}, {"name": "d", "role": "decode"}, {"name": "x"}]},
            "expected role prefill or decode for x, because others have one",
        ),
        (
            {"groups": [{"name": "p"}]},
            "connector.kind: nixl: expected a cluster with instances of role prefill and dec",
        ),
        ({"connector": {"kind": "none"}}, "connector.kind: none: expected nixl"),
        ({"network": {"nic": "cx8"}}, "cluster.network.nic: nic 'cx8': no such profile"),
        (
            {
                "groups": [
                    {"name": "p", "role": "prefill", "engine": {"block_size": 64}},
                    {"name": "d", "role": "decode"},
                ]
            },
            "blocks of d have 16 tokens, expected a multiple of the 64 of p",
        ),
        ({"connector": {"kind": "p2p_nccl", "handshake": "1s"}}, "handshake"),
        ({"parts": {"engine": {"data_parallel_size": 2}}}, "engine.data_parallel_size: 2: expected 1 with"),
        ({"parts": {"engine": {"async_scheduling": True}}}, "engine.async_scheduling: true: expected false"),
        ({"parts": {"engine": {"kind": "fast"}}}, "engine.kind: fast: expected reference"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    """With one error that names it."""
    if change.get("connector") == {"kind": "none"}:
        wanted = settings().model_copy(update={"connector": config().connector})
    with pytest.raises((UserError, ValueError)) as caught:
        run(_one(), wanted if change.get("connector") == {"kind": "none"} else settings(**change))
    assert message in str(caught.value)


def _one() -> Any:
    builder = TraceBuilder()
    builder.session("s0", [(160, 1, 0)], start_ns=0)
    return builder.build()
