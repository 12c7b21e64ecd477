"""NICs and fabric: fair shares, message sizes, failures, and the published P/D tables."""

from __future__ import annotations

import pytest

from kvsim.clock import Clock
from kvsim.network import Endpoint, Fabric, Flow, Nic
from kvsim.nics import load_nic, nic_names

TOKENS = (128, 256, 512, 1_024, 2_048, 4_096, 8_192, 16_384, 32_768)
H800_MS = (0.54, 0.61, 0.92, 1.50, 2.51, 4.75, 8.84, 16.43, 31.65)  # Mooncake documentation, Qwen3-8B TP8
H20_MS = (2.07, 2.58, 2.98, 3.96, 6.43, 10.95, 20.31, 39.14, 76.78)  # Qwen3-235B TP8, 4 KV heads: each twice


def nic_of(name: str) -> Nic:
    """A preset as the fabric takes it."""
    profile = load_nic(name)
    parts = tuple((size, round(part * 1e6)) for size, part in profile.efficiency.parts.items())
    return Nic(profile.bandwidth.used, profile.setup.used, parts)


def transfer_ns(nic: Nic, nics: int, num_bytes: int, message_bytes: int) -> int:
    """Time of a lone transfer."""
    clock = Clock()
    fabric = Fabric(clock)
    flow = fabric.send(
        fabric.endpoint("p", nic, nics), fabric.endpoint("d", nic, nics), num_bytes, message_bytes=message_bytes
    )
    clock.run()
    return flow.finished_ns


def two(clock: Clock, rate: int = 10**9, **more: float) -> tuple[Fabric, list[Endpoint]]:
    """A fabric with four endpoints of one NIC each."""
    fabric = Fabric(clock, **more)  # type: ignore[arg-type]
    return fabric, [fabric.endpoint(name, Nic(rate), 1) for name in "abcd"]


@pytest.mark.parametrize(
    ("preset", "nics", "table", "token_bytes", "messages_per_token_byte"),
    [("h800-8xcx7", 8, H800_MS, 147_456, 8 * 36 * 2), ("h20-4x400g", 4, H20_MS, 385_024, 8 * 94 * 2)],
)
def test_refit_of_published_tables(
    preset: str, nics: int, table: tuple[float, ...], token_bytes: int, messages_per_token_byte: int
) -> None:
    """Nine sizes of each table within 5 %."""
    nic = nic_of(preset)
    for tokens, ms in zip(TOKENS, table, strict=True):
        num_bytes = tokens * token_bytes
        ours = transfer_ns(nic, nics, num_bytes, num_bytes // messages_per_token_byte) / 1e6
        assert ours == pytest.approx(ms, rel=0.05), tokens


@pytest.mark.parametrize("name", nic_names())
def test_every_preset_works(name: str) -> None:
    """It can be read and moves bytes."""
    assert load_nic(name).name == name
    assert transfer_ns(nic_of(name), 1, 1 << 20, 1 << 16) > 0


def test_a_lone_flow_has_the_slower_end() -> None:
    """Setup and rate are those of the slower end."""
    clock = Clock()
    fabric = Fabric(clock, latency_ns=7)
    fast, slow = fabric.endpoint("a", Nic(4 * 10**9, 100), 2), fabric.endpoint("b", Nic(10**9, 300), 1)
    flow = fabric.send(fast, slow, 1_000)
    clock.run()
    assert flow.finished_ns == 300 + 7 + 1_000
    assert (fast.bytes_sent, slow.bytes_received, slow.busy_in_ns) == (1_000, 1_000, 1_000)


def test_shares_are_max_min_fair() -> None:
    """Two flows through each tight NIC get half of it."""
    clock = Clock()
    fabric, (a, b, c, _d) = two(clock)
    # a sends to b and c, b's other sender is c: a->b and c->b get half of b, a->c the other half of a.
    flows = [fabric.send(a, b, 500), fabric.send(c, b, 500), fabric.send(a, c, 500)]
    clock.run()
    assert [flow.finished_ns for flow in flows] == [1_000, 1_000, 1_000]


def test_what_one_leaves_another_takes() -> None:
    """When a flow ends, the other speeds up."""
    clock = Clock()
    fabric, (a, b, c, _d) = two(clock)
    short, long = fabric.send(a, b, 100), fabric.send(c, b, 500)
    clock.run()
    assert short.finished_ns == 200
    assert long.finished_ns == 200 + 400


def test_the_two_directions_do_not_touch_each_other() -> None:
    """NICs are full duplex."""
    clock = Clock()
    fabric, (a, b, _c, _d) = two(clock)
    flows = [fabric.send(a, b, 500), fabric.send(b, a, 500)]
    clock.run()
    assert [flow.finished_ns for flow in flows] == [500, 500]


def test_a_core_that_is_oversubscribed() -> None:
    """Flows that share no NIC share the core."""
    clock = Clock()
    fabric, (a, b, c, d) = two(clock, oversubscription=4.0)  # a core of 1 GB/s
    flows = [fabric.send(a, b, 500), fabric.send(c, d, 500)]
    clock.run()
    assert [flow.finished_ns for flow in flows] == [1_000, 1_000]


def test_small_messages_take_the_line_for_longer() -> None:
    """Efficiency by message size, between two sizes and outside."""
    nic = Nic(10**9, 0, ((1_024, 250_000), (4_096, 750_000)))
    assert transfer_ns(nic, 1, 4_096, 4_096) == 5_462
    assert transfer_ns(nic, 1, 4_096, 1_024) == 16_384
    assert transfer_ns(nic, 1, 4_096, 2_048) == 8_192  # half way on a log scale
    assert transfer_ns(nic, 1, 4_096, 64) == 16_384


def test_striping() -> None:
    """A flow over two of eight NICs leaves the others to the other flow."""
    clock = Clock()
    fabric = Fabric(clock)
    a, b = fabric.endpoint("a", Nic(10**9), 8), fabric.endpoint("b", Nic(10**9), 8)
    all_nics, two_nics = fabric.send(a, b, 6_000), fabric.send(a, b, 2_000, nics=2)
    clock.run()
    assert (all_nics.finished_ns, two_nics.finished_ns) == (1_000, 1_000)


def test_a_dead_endpoint_fails_its_flows_and_those_that_come() -> None:
    """The others get the bandwidth."""
    clock = Clock()
    fabric, (a, b, c, _d) = two(clock)
    ended: list[Flow] = []
    lost = fabric.send(a, b, 500, on_done=ended.append)
    other = fabric.send(c, b, 500, on_done=ended.append)
    clock.alarm(300, lambda: fabric.fail(a))
    clock.alarm(400, lambda: ended.append(fabric.send(a, b, 10, setup_ns=50)))
    clock.run()
    assert (lost.finished_ns, lost.failed) == (300, True)
    assert (other.finished_ns, other.failed) == (300 + 350, False)
    assert (ended[1].finished_ns, ended[1].failed) == (450, True)
    assert (a.bytes_failed, a.bytes_sent, b.bytes_received, fabric.num_flows) == (510, 0, 500, 0)


def test_cancelled_flows_end_silently() -> None:
    """Nobody is told, and the others get the bandwidth."""
    clock = Clock()
    fabric, (a, b, c, _d) = two(clock)
    ended: list[Flow] = []
    gone, stays = fabric.send(a, b, 500, on_done=ended.append), fabric.send(c, b, 500, on_done=ended.append)
    clock.alarm(200, lambda: fabric.cancel(gone))
    clock.run()
    assert ended == [stays]
    assert (stays.finished_ns, gone.failed) == (600, True)


def test_bytes_are_sent_received_or_failed() -> None:
    """60 flows between four endpoints of which one goes away and comes back."""
    clock = Clock()
    fabric, ends = two(clock)
    total = 0
    for number in range(60):
        source, target = ends[number % 4], ends[(number * 7 + 1) % 4]
        size = 1 + number * 37 % 900
        total += size
        clock.alarm(number * 41, lambda s=source, t=target, n=size: fabric.send(s, t, n))  # type: ignore[misc]
    clock.alarm(1_000, lambda: fabric.fail(ends[2]))
    clock.alarm(1_500, lambda: fabric.recover(ends[2]))
    clock.run()
    sent, failed = (sum(getattr(end, name) for end in ends) for name in ("bytes_sent", "bytes_failed"))
    assert sent == sum(end.bytes_received for end in ends)
    assert (sent + failed, fabric.num_flows) == (total, 0)
    assert failed > 0
