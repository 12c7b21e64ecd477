"""StorageDevice: little simulations of I/O streams, as lists of (name, time)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.clock import Clock
from kvsim.hardware import CopyCost, DuplexLink
from kvsim.host_memory import HostMemory
from kvsim.tiers.device import IoCost, IoDirection, StorageDevice

# 1 GB/s, so that a byte takes a nanosecond of the device.
PLAIN = IoCost(bytes_per_s=10**9, stream_bytes_per_s=10**9, latency_ns=0)
Io = tuple[str, int, IoDirection, int, int]  # (name, start, direction, chunks, bytes of a chunk)


def _play(read: IoCost, write: IoCost, streams: Sequence[Io]) -> tuple[list[tuple[str, int]], int]:
    """(name, time) of the ends of streams, as they happen; and how long the device was busy."""
    env = Clock()
    ends: list[tuple[str, int]] = []
    device = StorageDevice(env, {"read": read, "write": write}, lambda: None)

    def start(name: str, direction: IoDirection, chunks: int, size: int, _event: object) -> None:
        device.start(direction, chunks, size, lambda: ends.append((name, env.now)))

    for name, at, direction, chunks, size in streams:
        timeout = env.timeout(at)
        assert timeout.callbacks is not None
        timeout.callbacks.append(partial(start, name, direction, chunks, size))
    env.run()
    return ends, device.busy_ns()


def test_a_stream_pays_the_latency_of_every_chunk() -> None:
    """One thread waits before each chunk: 4 chunks of 1,000 ns with 1,000 ns of latency take 8,000 ns."""
    cost = IoCost(bytes_per_s=10**9, stream_bytes_per_s=10**9, latency_ns=1_000)
    assert _play(cost, PLAIN, [("a", 5, "read", 4, 1_000)]) == ([("a", 8_005)], 4_000)


def test_latency_hides_behind_other_streams() -> None:
    """Two such threads fill each other's gaps: the device is busy all the time, both end when one alone would."""
    cost = IoCost(bytes_per_s=10**9, stream_bytes_per_s=10**9, latency_ns=1_000)
    streams: list[Io] = [("a", 0, "read", 4, 1_000), ("b", 0, "read", 4, 1_000)]
    assert _play(cost, PLAIN, streams) == ([("a", 8_000), ("b", 8_000)], 8_000)


def test_reads_and_writes_share_the_device() -> None:
    """A write of 1,000 ns beside a read of 1,000 ns makes both take 2,000 ns; the rest of a longer one is alone."""
    streams: list[Io] = [("r", 0, "read", 1, 1_000), ("w", 0, "write", 3, 1_000)]
    assert _play(PLAIN, PLAIN, streams)[0] == [("r", 2_000), ("w", 4_000)]


def test_slow_writes_take_more_of_the_device() -> None:
    """Where writes have half the bandwidth, a byte written costs the device two bytes read."""
    half = IoCost(bytes_per_s=5 * 10**8, stream_bytes_per_s=5 * 10**8, latency_ns=0)
    assert _play(PLAIN, half, [("w", 0, "write", 1, 1_000), ("r", 0, "read", 1, 1_000)]) == (
        [("r", 2_000), ("w", 3_000)],
        3_000,
    )


def test_a_stream_leaves_what_it_cannot_use() -> None:
    """A connection of a quarter of the bandwidth leaves three quarters to the other one."""
    quarter = IoCost(bytes_per_s=10**9, stream_bytes_per_s=25 * 10**7, latency_ns=0)
    streams: list[Io] = [("slow", 0, "read", 1, 1_000), ("fast", 0, "write", 1, 3_000)]
    assert _play(quarter, PLAIN, streams)[0] == [("slow", 4_000), ("fast", 4_000)]


def test_operations_per_second_limit_small_chunks() -> None:
    """1,000 operations per second: a chunk of a byte takes a millisecond, and one of two operations two."""
    cost = IoCost(bytes_per_s=10**9, stream_bytes_per_s=10**9, latency_ns=0, iops=1_000, op_bytes=4_096)
    assert cost.device_ns(1) == 1_000_000
    assert cost.device_ns(4_097) == 2_000_000
    assert cost.device_ns(10**9) == 244_141_000_000  # 244,141 operations, more than the second that the bytes take


def test_progress_counts_whole_chunks() -> None:
    """A stream of 4 chunks has moved one after a quarter of its time, and none a nanosecond before."""
    env = Clock()
    device = StorageDevice(env, {"read": PLAIN, "write": PLAIN}, lambda: None)
    stream = device.start("write", 4, 1_000, lambda: None)
    seen = []
    for at in (0, 999, 1_000, 2_500, 3_999, 4_000):
        env.run(until=env.timeout(at - env.now))
        seen.append(device.chunks_done(stream))
    assert seen == [0, 0, 1, 2, 3, 4]


@given(
    st.lists(
        st.tuples(st.integers(0, 5_000), st.sampled_from(["read", "write"]), st.integers(1, 20), st.integers(1, 5_000)),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 2_000),
    st.integers(1, 4),
)
@settings(max_examples=150, deadline=None)
def test_nothing_is_faster_than_alone_and_the_device_never_does_more_than_it_can(
    streams: list[tuple[int, IoDirection, int, int]], latency_ns: int, part: int
) -> None:
    """Every stream takes at least its time alone; all together take at least the device's time for their bytes."""
    read = IoCost(bytes_per_s=10**9, stream_bytes_per_s=10**9 // part, latency_ns=latency_ns)
    write = IoCost(bytes_per_s=7 * 10**8, stream_bytes_per_s=7 * 10**8, latency_ns=latency_ns)
    named: list[Io] = [(str(i), *stream) for i, stream in enumerate(streams)]
    ends, busy_ns = _play(read, write, named)
    assert sorted(name for name, _ in ends) == sorted(name for name, *_ in named)
    times, costs = dict(ends), {"read": read, "write": write}
    work_ns = 0
    for name, at, direction, chunks, size in named:
        work_ns += chunks * costs[direction].device_ns(size)
        # The rate is rounded down, the end up: never early, and by a few parts in 10**9 late at most.
        assert times[name] - at >= chunks * costs[direction].alone_ns(size)
    assert abs(busy_ns - work_ns) <= 2 * len(named)  # a stream may end in the middle of its last nanosecond
    first = min(at for _, at, *_ in named)
    assert max(times.values()) - first >= work_ns - 2 * len(named)


def test_a_device_and_a_link_share_host_memory() -> None:
    """Reads want 1 B/ns, a copy 3 of the 3 B/ns there are: the reads keep all, the copy gets 2 until they are done."""
    env = Clock()
    memory = HostMemory(3 * 10**9)
    plain = IoCost(10**9, 10**9, 0)
    device = StorageDevice(env, {"read": plain, "write": plain}, lambda: None, memory)
    link = DuplexLink(env, memory=memory)
    ends: list[tuple[str, int]] = []
    device.start("read", 4, 50, lambda: ends.append(("read", env.now)))
    copy = link.submit("h2d", CopyCost(200, host_bytes=600), 1)
    env.run()
    # 200 ns at two thirds of the speed leave 66.7 ns of work
    assert [*ends, ("copy", copy.finished_ns)] == [("read", 200), ("copy", 267)]


def test_memory_that_is_short_slows_a_device_down() -> None:
    """Two streams of a device of 2 B/ns on memory of 1 B/ns: 100 chunks of 10 B take 1,000 ns instead of 500."""
    env = Clock()
    plain = IoCost(2 * 10**9, 2 * 10**9, 0)
    device = StorageDevice(env, {"read": plain, "write": plain}, lambda: None, HostMemory(10**9))
    ends: list[int] = []
    device.start("read", 50, 10, lambda: ends.append(env.now))
    device.start("write", 50, 10, lambda: ends.append(env.now))
    env.run()
    assert ends == [1_000, 1_000]
