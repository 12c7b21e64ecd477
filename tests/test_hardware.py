"""DuplexLink: little simulations of copies, as lists of (name, time)."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.clock import Clock
from kvsim.hardware import CopyCost, DuplexLink, LinkDirection, Transfer

Copy = tuple[str, int, LinkDirection, int]  # (name, time of submission, direction, ns alone on the link)

FULL = (1_000_000, 1_000_000)
HALF = (500_000, 500_000)


def _play(shared_ppm: tuple[int, int], copies: Sequence[Copy]) -> list[tuple[str, int]]:
    """(name, time) of the ends of copies, as they happen."""
    env = Clock()
    ends: list[tuple[str, int]] = []
    pending: dict[str, Transfer] = {}

    def look() -> None:
        for name in [name for name, transfer in pending.items() if transfer.is_done]:
            assert pending.pop(name).finished_ns == env.now
            ends.append((name, env.now))

    link = DuplexLink(env, look)
    shares: dict[LinkDirection, int] = {"h2d": shared_ppm[0], "d2h": shared_ppm[1]}

    def submit(name: str, at: int, direction: LinkDirection, solo_ns: int) -> Generator[simpy.Event]:
        yield env.timeout(at)
        pending[name] = link.submit(direction, CopyCost(solo_ns, shares[direction]), 1)
        look()

    for copy in copies:
        env.process(submit(*copy))
    env.run()
    assert not pending
    assert link.is_idle
    return ends


def test_a_copy_takes_its_time() -> None:
    """Alone on the link, a copy ends after exactly its own time."""
    assert _play(HALF, [("a", 7, "h2d", 100)]) == [("a", 107)]


def test_first_in_first_out_per_direction() -> None:
    """Copies of one direction follow each other, short or long."""
    copies: list[Copy] = [
        ("a", 0, "h2d", 100),
        ("b", 0, "h2d", 5),
        ("c", 30, "h2d", 10),
        ("d", 200, "h2d", 1),
    ]
    assert _play(HALF, copies) == [("a", 100), ("b", 105), ("c", 115), ("d", 201)]


def test_directions_are_independent_at_full_speed() -> None:
    """With nothing lost to sharing, neither direction notices the other."""
    copies: list[Copy] = [("a", 0, "h2d", 100), ("b", 10, "d2h", 40), ("c", 10, "d2h", 100)]
    assert _play(FULL, copies) == [("b", 50), ("a", 100), ("c", 150)]


def test_both_directions_slow_down_while_both_are_busy() -> None:
    """Two copies of 100 ns at half speed each need 200 ns."""
    assert _play(HALF, [("a", 0, "h2d", 100), ("b", 0, "d2h", 100)]) == [("a", 200), ("b", 200)]


def test_the_rest_speeds_up_when_the_other_direction_is_done() -> None:
    """40 ns of work each at half speed, then 60 ns alone."""
    assert _play(HALF, [("a", 0, "h2d", 100), ("b", 0, "d2h", 40)]) == [("b", 80), ("a", 140)]


def test_the_rest_slows_down_when_the_other_direction_starts() -> None:
    """50 ns alone, 50 ns of work at half speed; the other does 50 of its 100 meanwhile."""
    assert _play(HALF, [("a", 0, "h2d", 100), ("b", 50, "d2h", 100)]) == [("a", 150), ("b", 200)]


def test_shares_belong_to_directions() -> None:
    """At 80 % and 25 %: the load of 100 ns ends at 125; of the store 68.75 ns are left then."""
    assert _play((800_000, 250_000), [("load", 0, "h2d", 100), ("store", 0, "d2h", 100)]) == [
        ("load", 125),
        ("store", 194),
    ]


def test_shares_belong_to_copies() -> None:
    """A copy by kernel may suffer more from the other direction than one by DMA behind it in the queue."""
    env = Clock()
    link = DuplexLink(env)
    slow, fast = link.submit("h2d", CopyCost(100, 250_000), 1), link.submit("h2d", CopyCost(100, 500_000), 1)
    store = link.submit("d2h", CopyCost(1_000), 1)
    env.run()
    assert (slow.finished_ns, fast.finished_ns, store.finished_ns) == (400, 600, 1_000)


def test_a_queue_keeps_the_other_direction_slow() -> None:
    """Between two copies of one direction the other does not get its full speed back."""
    copies: list[Copy] = [("a", 0, "h2d", 20), ("b", 0, "h2d", 20), ("c", 0, "d2h", 100)]
    assert _play(HALF, copies) == [("a", 40), ("b", 80), ("c", 140)]


def test_ends_are_whole_nanoseconds_rounded_up() -> None:
    """10 ns at 30 % take 33.3 ns: the copy is there after 34."""
    assert _play((300_000, 300_000), [("a", 0, "h2d", 10), ("b", 0, "d2h", 1000)])[0] == ("a", 34)


def test_a_copy_that_takes_no_time_is_done_at_once() -> None:
    """On an idle direction it is done when it is submitted, whatever the other direction does."""
    copies: list[Copy] = [("a", 3, "h2d", 0), ("b", 3, "d2h", 50), ("c", 10, "h2d", 0)]
    assert _play(HALF, copies) == [("a", 3), ("c", 10), ("b", 53)]


def test_a_copy_that_takes_no_time_waits_for_its_turn() -> None:
    """Behind others of its direction it ends with the one before it."""
    copies: list[Copy] = [("a", 0, "h2d", 50), ("b", 10, "h2d", 0), ("c", 10, "h2d", 0), ("d", 10, "h2d", 7)]
    assert _play(HALF, copies) == [("a", 50), ("b", 50), ("c", 50), ("d", 57)]


def test_busy_time_and_bytes() -> None:
    """A direction is busy while it has a copy, also a slowed one; bytes count when their copy has ended."""
    env = Clock()
    link = DuplexLink(env)
    link.submit("h2d", CopyCost(100, 500_000), 1000)
    link.submit("h2d", CopyCost(10, 500_000), 24)
    seen = []

    def look(at: int) -> None:
        env.run(until=at)
        seen.append((link.busy_ns("h2d"), link.busy_ns("d2h"), link.bytes["h2d"], link.bytes["d2h"]))

    look(60)
    link.submit("d2h", CopyCost(20, 500_000), 7)
    look(99)
    look(101)  # the store ran for 40 ns at half speed, the load did 80 ns of its work
    look(125)
    look(500)
    assert seen == [(60, 0, 0, 0), (99, 39, 0, 0), (101, 40, 0, 7), (125, 40, 1000, 7), (130, 40, 1024, 7)]


def test_is_idle() -> None:
    """Idle means nothing queued in either direction."""
    env = Clock()
    link = DuplexLink(env)
    assert link.is_idle
    link.submit("d2h", CopyCost(10), 1)
    assert not link.is_idle
    env.run()
    assert link.is_idle


def test_the_end_of_copies_is_announced_when_they_have_ended() -> None:
    """The callback comes at the end of every copy, after its transfer is marked as done."""
    env = Clock()
    transfers: list[Transfer] = []
    calls: list[tuple[int, list[bool]]] = []
    link = DuplexLink(env, lambda: calls.append((env.now, [t.is_done for t in transfers])))
    transfers += [link.submit("h2d", CopyCost(10), 1), link.submit("h2d", CopyCost(5), 1)]
    env.run()
    assert calls == [(10, [True, False]), (15, [True, True])]


@pytest.mark.parametrize("shared_ppm", [FULL, HALF, (930_000, 610_000)])
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(st.integers(0, 300), st.sampled_from(["h2d", "d2h"]), st.integers(0, 100)),
        min_size=1,
        max_size=12,
    )
)
def test_bounds_on_any_traffic(shared_ppm: tuple[int, int], traffic: list[tuple[int, LinkDirection, int]]) -> None:
    """Per direction: ends in order of submission, not before those alone, not after those always slowed."""
    copies = [(f"{i}", *copy) for i, copy in enumerate(sorted(traffic, key=lambda copy: copy[0]))]
    ends = _play(shared_ppm, copies)
    for direction, share in zip(("h2d", "d2h"), shared_ppm, strict=True):
        own = [copy for copy in copies if copy[2] == direction]
        times = [next(time for name, time in ends if name == copy[0]) for copy in own]
        assert [name for name, _ in ends if any(name == copy[0] for copy in own)] == [copy[0] for copy in own]
        alone = slowed = 0
        for (_, at, _, solo_ns), time in zip(own, times, strict=True):
            alone = max(alone, at) + solo_ns
            slowed = max(slowed, at) - (-solo_ns * 1_000_000 // share) + 1
            assert alone <= time <= slowed
