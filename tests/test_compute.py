"""ComputeStream: forward passes under changing slow-downs, as literal times."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import pytest
import simpy
from worlds import TraceBuilder

from kvsim.build import Simulation
from kvsim.clock import Clock
from kvsim.compute import ComputeStream
from kvsim.config import RunConfig
from kvsim.hardware import CopyCost, DuplexLink, LinkDirection
from kvsim.resolve import resolve
from kvsim.results.records import RunRecord


def _ends(passes: Sequence[int], slowdowns: Sequence[tuple[int, int]]) -> list[int]:
    """Ends of passes that follow each other, while the slow-down (in ppm) changes at given times."""
    env = Clock()
    stream, ends = ComputeStream(env), []

    def compute() -> Generator[simpy.Event, Any, None]:
        for work_ns in passes:
            yield stream.forward(work_ns)
            ends.append(env.now)

    def disturb() -> Generator[simpy.Event, Any, None]:
        for at, slowdown_ppm in slowdowns:
            yield env.timeout(at - env.now)
            stream.slow_down(slowdown_ppm)

    env.process(compute())
    env.process(disturb())
    env.run()
    return ends


@pytest.mark.parametrize(
    ("passes", "slowdowns", "ends"),
    [
        ([100, 50], [], [100, 150]),
        ([100], [(0, 1_250_000)], [125]),  # all of it at four fifths of the speed
        ([100], [(20, 2_000_000)], [180]),  # 20 ns at full speed, 80 ns of work at half speed
        ([100], [(20, 2_000_000), (60, 1_000_000)], [120]),  # 40 ns at half speed do 20 ns of work
        ([100, 100], [(50, 2_000_000), (250, 1_000_000)], [150, 300]),  # the second: 100 ns for 50, then 50
        ([10], [(0, 3_000_000)], [31]),  # a third of a million ppm is 333,333: rounded up to whole nanoseconds
        ([0, 7], [(3, 2_000_000)], [0, 11]),
        ([100], [(100, 2_000_000)], [100]),  # too late
    ],
)
def test_a_pass_is_stretched_while_it_is_slowed(
    passes: list[int], slowdowns: list[tuple[int, int]], ends: list[int]
) -> None:
    """Work gets done at the speed of the moment; whoever comes after the end changes nothing."""
    assert _ends(passes, slowdowns) == ends


def test_kernel_copies_slow_a_pass_and_dma_copies_do_not() -> None:
    """A load by kernel of 40 ns at factor 2, then one by DMA: a pass of 100 ns loses the 20 ns of the first."""
    env = Clock()
    stream = ComputeStream(env)
    link = DuplexLink(env, on_slowdown=stream.slow_down)
    ends: list[tuple[str, int]] = []

    def compute() -> Generator[simpy.Event, Any, None]:
        yield stream.forward(100)
        ends.append(("pass", env.now))

    env.process(compute())
    kernel = link.submit("h2d", CopyCost(40, slowdown_ppm=2_000_000), 1)
    dma = link.submit("h2d", CopyCost(40), 1)
    env.run()
    assert [*ends, ("kernel", kernel.finished_ns), ("dma", dma.finished_ns)] == [
        ("pass", 120), ("kernel", 40), ("dma", 80),
    ]  # fmt: skip


def test_the_worst_copy_of_both_directions_counts() -> None:
    """The slow-down is the larger of the two running copies', and is told once per change."""
    env = Clock()
    told: list[tuple[int, int]] = []
    link = DuplexLink(env, on_slowdown=lambda ppm: told.append((env.now, ppm)))
    copies: list[tuple[LinkDirection, int, int]] = [
        ("h2d", 30, 1_100_000),
        ("h2d", 30, 1_100_000),
        ("d2h", 40, 1_300_000),
        ("d2h", 10, 1_000_000),
    ]
    for direction, solo_ns, slowdown_ppm in copies:
        link.submit(direction, CopyCost(solo_ns, slowdown_ppm=slowdown_ppm), 1)
    env.run()
    assert told == [(0, 1_100_000), (0, 1_300_000), (40, 1_100_000), (60, 1_000_000)]


def test_a_pass_may_be_timed_elsewhere() -> None:
    """A pass in lockstep with other ranks ends when it is told to; what waits for it waits so long."""
    env = Clock()
    stream, seen = ComputeStream(env), []
    stream.occupy()
    stream.after_launched(lambda: seen.append(env.now))
    stream.slow_down(2_000_000)
    env.run(until=30)
    stream.vacate()
    env.run()
    assert (seen, stream.ended, stream.lost_ns) == ([30], None, 0)


def test_the_worst_link_counts() -> None:
    """Two links disturb: factor 2 for 40 ns, factor 4 from 20 to 60 ns: 10 + 5 + 5 of 100 ns are done by then."""
    env = Clock()
    stream = ComputeStream(env)
    one, other = stream.disturber(), stream.disturber()
    ended = stream.forward(100)
    one(2_000_000)
    env.run(until=20)
    other(4_000_000)
    env.run(until=40)
    one(1_000_000)
    env.run(until=60)
    other(1_000_000)
    env.run(until=ended)
    assert env.now == 140


def _run(path: str) -> RunRecord:
    """A request of 400 tokens that are stored in the step after its prefill; steps of 10 ms."""
    builder = TraceBuilder()
    builder.session("s", [(400, 3, 0)])
    config = {
        "trace": {"path": "unused"},
        "model": "llama-3.1-8b",
        "engine": {"num_gpu_blocks_override": 100},
        "connector": {"kind": "offloading", "cpu_bytes_to_use": "1GiB"},
        "step_time": {"kind": "fixed", "per_step": "10ms", "per_token": "0ms"},
        "transfer": {"kind": "profile", "path": path},
    }
    return Simulation(resolve(RunConfig.model_validate(config), builder.build())).run()


def test_a_store_by_kernel_delays_the_next_token() -> None:
    """25 blocks of 2 MiB at 52.8 GB/s after 30 us are 1,022,970 ns, at 10/11 of the speed: 92,999 ns are lost."""
    slowed, plain = _run("kernel"), _run("dma_batch")
    assert plain.totals.slowdown_ns == 0
    assert slowed.totals.slowdown_ns == 92_999
    assert slowed.totals.gpu_busy_ns == plain.totals.gpu_busy_ns + 92_999 == 30_092_999
    assert slowed.requests[0].first_token_ns == plain.requests[0].first_token_ns == 10_000_000
    assert slowed.requests[0].finish_ns == plain.requests[0].finish_ns + 92_999
    assert any("held forward passes up for 9.3e-05 s of 0.0301 s" in note for note in slowed.notes)
