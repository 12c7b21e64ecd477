"""The master of a shared store: leases, eviction, copies and lost nodes, with literal objects and times."""

from __future__ import annotations

import pytest

from kvsim.clock import Clock
from kvsim.store.master import Master, MasterRules
from kvsim.store.segments import Placement, Segment, Segments

MS = 1_000_000
S = 1_000 * MS


def store(
    capacity: int = 100, nodes: str = "a", placement: Placement = "local", **rules: float
) -> tuple[Clock, Master]:
    """A master with segments of so many objects."""
    clock = Clock()
    master = Master(clock, Segments(placement), MasterRules(**rules))  # type: ignore[arg-type]
    for node in nodes:
        master.mount(node, capacity)
    return clock, master


def put(master: Master, *keys: int, writer: str = "a") -> list[int]:
    """Write these at once; the keys that were written."""
    placed = [key for key, _ in master.put_start(keys, writer).placed]
    master.put_end(placed)
    return placed


def wait(clock: Clock, duration_ns: int) -> None:
    """Let time pass."""
    clock.run(until=clock.timeout(duration_ns))


def nodes_of(master: Master, key: int) -> list[str]:
    """Where an object's copies are."""
    master.locate([key])
    entry = master._complete.get(key)
    return [] if entry is None else [segment.node for segment in entry.memory]


def test_an_object_is_found_once_it_is_complete() -> None:
    """Between the start and the end of its writing it takes room, but nobody finds it."""
    _, master = store()
    assert master.put_start([1, 2], "a").placed[0][0] == 1
    assert master.exist([1, 2]) == [False, False]
    assert master.segments.used == 2
    master.put_end([1])
    master.put_revoke([2])
    assert master.exist([1, 2, 3]) == [True, False, False]
    assert master.segments.used == 1
    master.check()


def test_nobody_writes_what_is_there_or_being_written() -> None:
    """Both count as existing; what was begun 30 s ago and never completed is begun anew."""
    clock, master = store()
    put(master, 1)
    master.put_start([2], "a")
    answer = master.put_start([1, 2, 3], "b")
    assert (answer.existing, [key for key, _ in answer.placed]) == ([1, 2], [3])
    wait(clock, 30 * S)
    assert [key for key, _ in master.put_start([2], "b").placed] == [2]
    master.check()


def test_above_the_watermark_the_oldest_go() -> None:
    """96 of 100 are more than 95 %: at the next 10 ms tick 6 % of the objects go (0.96 - 0.95 + 0.05), oldest first."""
    clock, master = store()
    for key in range(96):
        put(master, key)
        wait(clock, 1)
    assert len(master) == 96
    wait(clock, 10 * MS)
    assert [key for key in range(96) if not master.exist([key])[0]] == [0, 1, 2, 3, 4, 5]
    assert (master.num_evicted, master.segments.all[0].evicted, master.segments.used) == (6, 6, 90)
    master.check()


def test_what_was_found_is_kept_for_its_lease() -> None:
    """Key 0 was looked up, so that its 5 s are later than the writing of all others; then it is the oldest again."""
    clock, master = store(capacity=10)
    put(master, *range(9))
    assert master.exist([0]) == [True]
    put(master, 9)
    wait(clock, 10 * MS)
    assert master.exist([1, 2])[0] is False
    assert nodes_of(master, 0) == ["a"]


def test_a_write_without_room_wakes_the_eviction() -> None:
    """The write fails; 5 % of 10 objects are one, which goes at the tick, and then the write fits."""
    clock, master = store(capacity=10, watermark=1.0)
    put(master, *range(10))
    assert master.put_start([10], "a").refused == [10]
    assert master.num_refused == 1
    wait(clock, 10 * MS)
    assert put(master, 10) == [10]
    assert master.exist([0, 1]) == [False, True]


def test_while_all_are_leased_nothing_can_go() -> None:
    """All ten were found at 0: until 5 s the store stays full, and the thread need not look before."""
    clock, master = store(capacity=10, watermark=1.0)
    put(master, *range(10))
    master.exist(range(10))
    assert master.put_start([10], "a").refused == [10]
    wait(clock, 5 * S - 1)
    assert master.put_start([10], "a").refused == [10]
    wait(clock, 1)
    assert put(master, 10) == [10]


def test_local_placement_prefers_the_writer() -> None:
    """Objects go to the writer's own segment until that is full, then to another one."""
    _, master = store(capacity=2, nodes="ab", watermark=1.0)
    put(master, 1, 2, 3, writer="b")
    assert [nodes_of(master, key) for key in (1, 2, 3)] == [["b"], ["b"], ["a"]]


def test_random_placement_spreads() -> None:
    """1,000 objects of one writer lie on four nodes about evenly; the same seed gives the same places."""
    counts = []
    for _ in range(2):
        _, master = store(capacity=1_000, nodes="abcd", placement="random")
        put(master, *range(1_000))
        counts.append([segment.used for segment in master.segments.all])
    assert counts[0] == counts[1]
    assert sum(counts[0]) == 1_000
    assert all(200 < count < 300 for count in counts[0])


def test_copies_lie_on_different_nodes() -> None:
    """Two copies of each; with one node up there is one copy, which is enough."""
    _, master = store(nodes="ab", replicas=2)
    put(master, 1)
    assert nodes_of(master, 1) == ["a", "b"]
    _, alone = store(nodes="a", replicas=2)
    put(alone, 1)
    assert nodes_of(alone, 1) == ["a"]
    master.check()


def test_a_lost_node_is_given_up_after_its_time_to_live() -> None:
    """For 10 s its object is listed although it cannot be read; then it is gone, and that with a second copy is not."""
    clock, master = store(nodes="ab")
    put(master, 1, writer="a")
    put(master, 2, writer="b")
    master.lose("a")
    assert master.exist([1, 2]) == [True, True]
    assert not master.segments.all[0].holds
    wait(clock, 10 * S)
    assert master.exist([1, 2]) == [False, True]
    assert (master.num_lost, master.segments.capacity, master.segments.used) == (1, 100, 1)
    master.check()


def test_a_node_that_comes_back_brings_an_empty_segment() -> None:
    """The old segment is given up all the same; what is written meanwhile goes to the new one."""
    clock, master = store(nodes="ab")
    put(master, 1, writer="a")
    master.lose("a")
    wait(clock, S)
    master.mount("a", 50)
    put(master, 2, writer="a")
    wait(clock, 10 * S)
    assert master.exist([1, 2]) == [False, True]
    assert [(s.node, s.mounted, s.used) for s in master.segments.all] == [
        ("a", False, 0),
        ("b", True, 0),
        ("a", True, 1),
    ]


def test_a_copy_on_disk_outlives_eviction() -> None:
    """Evicted from memory it is still found; when the disk has lost it too, it is gone."""
    clock, master = store(capacity=10, watermark=1.0)
    put(master, *range(10))
    segment = master.segments.all[0]
    assert master.add_disk(0, segment)
    assert not master.add_disk(77, segment)
    master.put_start([10], "a")
    wait(clock, 10 * MS)
    assert master.exist([0]) == [True]
    assert nodes_of(master, 0) == []
    assert master.segments.used == 9
    master.lose_disk(0)
    assert master.exist([0]) == [False]
    master.check()


def test_a_stopped_master_does_not_keep_the_clock_running() -> None:
    """With a lost node to give up and memory to evict, the clock ends where it was stopped."""
    clock, master = store(capacity=10)
    put(master, *range(10))
    master.lose("a")
    wait(clock, 1)
    master.stop()
    clock.run()
    assert clock.now == 1


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_segments_say_whose_they_are(order: str) -> None:
    """A node's segment is found by its name, whatever the order of mounting."""
    _, master = store(nodes=order)
    found = master.segments.of("b")
    assert isinstance(found, Segment)
    assert found.node == "b"
    assert master.segments.of("c") is None
