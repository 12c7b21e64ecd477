"""A store's client on a clock: what operations take, what they move, and what becomes of those that fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvsim.clock import Clock
from kvsim.network import Fabric, Nic
from kvsim.store.client import ClientCosts, Shape, StoreClient
from kvsim.store.disks import DiskSpeed
from kvsim.store.master import Master, MasterRules
from kvsim.store.segments import Segments
from kvsim.store.shared import NodeRoom, SharedStore

US, MS, S = 1_000, 1_000_000, 1_000_000_000
BLOCK = 1_000_000  # bytes: 1 ms at 1 GB/s
DISK = DiskSpeed(500_000_000, 250_000_000, 100 * US)


class World:
    """Instances a, b and c with a NIC of 1 GB/s each; objects are written to their writer's node."""

    def __init__(
        self,
        shape: Shape | None = None,
        costs: ClientCosts | None = None,
        rules: MasterRules | None = None,
        room: NodeRoom | None = None,
        disk: DiskSpeed | None = None,
        shared_room: int = 0,
    ) -> None:
        self.clock = clock = Clock()
        self.fabric = Fabric(clock)
        self.master = Master(clock, Segments("local"), rules)
        self.store = SharedStore(
            clock, self.master, self.fabric, room or NodeRoom(1_000), BLOCK, disk, shared_room=shared_room
        )
        nic = Nic(1_000_000_000)
        self.clients = {
            name: StoreClient(
                self.store, self.fabric.endpoint(name, nic, 1), shape or Shape(10, 100_000), costs or ClientCosts()
            )
            for name in "abc"
        }
        for client in self.clients.values():
            self.store.join(client.endpoint)

    def do(self, operation: Any) -> Any:
        """Run it to its end; what it returns."""
        return self.clock.run(until=self.clock.process(operation))

    def write(self, name: str, keys: Sequence[int]) -> bool:
        """Whether all of them were written."""
        complete: bool = self.do(self.clients[name].write(keys))
        return complete

    def read(self, name: str, keys: Sequence[int]) -> list[int]:
        """Places of those that failed."""
        failed: list[int] = self.do(self.clients[name].read(keys))
        return failed


def test_bytes_take_their_time_and_are_counted() -> None:
    """4 MB are written in 4 ms, and read by another instance in 4 ms."""
    world = World()
    assert world.write("a", [1, 2, 3, 4])
    assert world.clock.now == 4 * MS
    assert world.read("b", [1, 2, 3, 4]) == []
    assert world.clock.now == 8 * MS
    assert world.clients["a"].counts.bytes == {"h2d": 0, "d2h": 4 * BLOCK}
    assert world.clients["b"].counts.bytes == {"h2d": 4 * BLOCK, "d2h": 0}
    assert world.fabric.endpoints["a"].bytes_sent == 8 * BLOCK  # its own node's memory is behind its NIC, too


def test_the_host_takes_its_time_first() -> None:
    """Reading 2 blocks: 20 descriptors of 3 us, a question of 100 us and 2 x 5 us; writing ends with a second one."""
    world = World(costs=ClientCosts(rpc=100 * US, key=5 * US, descriptor=3 * US))
    world.write("a", [1, 2])
    assert world.clock.now == 60 * US + 110 * US + 2 * MS + 110 * US
    started = world.clock.now
    world.read("b", [1, 2])
    assert world.clock.now - started == 60 * US + 110 * US + 2 * MS
    assert world.clients["b"].count_lookup(7) == 135 * US


def test_ranks_that_hold_the_same_store_once_and_load_all() -> None:
    """Four ranks: 4 blocks are written once, one by each, and each rank reads all four."""
    world = World(Shape(10, 100_000, readers=4), ClientCosts(descriptor=1 * US))
    world.write("a", [1, 2, 3, 4])
    assert world.clock.now == 10 * US + 4 * MS
    started = world.clock.now
    world.read("b", [1, 2, 3, 4])
    assert world.clock.now - started == 40 * US + 16 * MS
    assert world.clients["b"].counts.bytes["h2d"] == 16 * BLOCK


def test_blocks_of_several_nodes_come_at_once() -> None:
    """One block from a and one from b share the reader's NIC; each of two readers of one node gets half of it."""
    world = World()
    world.write("a", [1])
    world.write("b", [2])
    started = world.clock.now
    world.read("c", [1, 2])
    assert world.clock.now - started == 2 * MS
    started = world.clock.now
    both = [world.clock.process(world.clients[name].read([1])) for name in "bc"]
    world.clock.run(until=world.clock.all_of(both))
    assert world.clock.now - started == 2 * MS


def test_what_is_gone_fails_at_once() -> None:
    """The second of three was never written; its place is told."""
    world = World()
    world.write("a", [1, 3])
    assert world.read("b", [1, 2, 3]) == [1]
    assert world.clients["b"].counts.failed_reads == 1


def test_what_somebody_else_is_writing_is_not_written() -> None:
    """Both write blocks 1 and 2 at once: one of them moves the bytes, the other is done at once, and so is the job."""
    world = World()
    first = world.clock.process(world.clients["a"].write([1, 2]))
    second = world.clock.process(world.clients["b"].write([1, 2]))
    assert world.clock.run(until=second)
    assert world.clock.now == 0
    assert world.clock.run(until=first)
    assert world.clients["b"].counts.existing == 2
    assert world.clients["b"].counts.bytes["d2h"] == 0


def test_a_full_store_refuses() -> None:
    """Room for 2 on each of three nodes: 6 of 7 blocks are written, and the job is not complete."""
    world = World(room=NodeRoom(2), rules=MasterRules(watermark=1.0))
    assert not world.write("a", range(7))
    assert world.clients["a"].counts.refused == 1
    assert world.master.exist(range(7)) == [True] * 6 + [False]
    world.master.check()


def test_a_lease_that_ends_under_way_loses_the_blocks() -> None:
    """Leases of 3 ms, 4 ms of bytes: what arrives may have been overwritten, and counts as failed."""
    world = World(rules=MasterRules(lease_ns=3 * MS))
    world.write("a", [1, 2, 3, 4])
    assert world.read("b", [1, 2, 3, 4]) == [0, 1, 2, 3]
    assert world.read("b", [1, 2]) == []


def test_a_node_that_is_lost_under_way() -> None:
    """A is lost 1 ms after the start: its block fails, that of b arrives; what c writes to itself is not hit."""
    world = World()
    world.write("a", [1, 4])
    world.write("b", [2])
    world.clock.alarm(MS, lambda: world.store.lose("a"))
    assert world.read("c", [1, 2, 4]) == [0, 2]
    assert world.clients["c"].counts.bytes["h2d"] == BLOCK
    assert world.read("c", [1]) == [0]  # listed for 10 s, and cannot be read
    assert world.write("c", [3])


def test_a_write_to_a_node_that_is_lost() -> None:
    """C has no room, so its block goes to a, which is lost under way: it was never written."""
    world = World(room=NodeRoom(1), rules=MasterRules(watermark=1.0))
    world.write("b", [1])
    world.write("c", [2])
    world.clock.alarm(500 * US, lambda: world.store.lose("a"))
    assert not world.write("c", [3])
    assert world.master.exist([3]) == [False]
    assert world.fabric.endpoints["c"].bytes_failed == BLOCK
    world.master.check()


def test_disks_are_written_behind_and_read_when_memory_has_lost_it() -> None:
    """At 10 of 10 a block is evicted; it comes from the disk: 100 us + 2 ms, and then over the network, 1 ms."""
    world = World(room=NodeRoom(10, disk=100), rules=MasterRules(watermark=1.0), disk=DISK)
    world.write("a", range(10))
    world.clock.run(until=S)  # 40 ms for the disk
    world.write("a", range(10, 31))  # the last one finds no room on any node
    world.clock.run(until=2 * S)
    parts = {part.on_disk: list(part.places) for part in world.master.locate([0, 1, 2]).parts}
    assert parts == {True: [0, 1], False: [2]}
    started = world.clock.now
    assert world.read("b", [0]) == []
    assert world.clock.now - started == 100 * US + 2 * MS + MS
    assert world.clients["b"].counts.disk_bytes == BLOCK
    world.master.check()


def test_a_full_disk_forgets_what_it_got_first() -> None:
    """Of six blocks a disk with room for four has the last four."""
    world = World(room=NodeRoom(100, disk=4), disk=DISK)
    world.write("a", range(6))
    world.clock.run(until=S)
    assert [world.master._complete[key].disk is not None for key in range(6)] == [False] * 2 + [True] * 4
    (segment, disk), *_ = world.store.disks.items()
    assert (segment.disk_used, disk.num_deleted, disk.bytes["d2h"]) == (4, 2, 6 * BLOCK)


def test_reads_are_cut_where_a_staging_buffer_is_full() -> None:
    """1,280 MiB x 0.9 / (1,003,520 + 8,192 B) = 1,193 blocks: 2,000 take two batches, each with a question of 1 ms."""
    world = World(costs=ClientCosts(rpc=MS), room=NodeRoom(3_000, disk=3_000), disk=DISK)
    world.write("a", range(2_000))
    started = world.clock.now
    assert world.read("b", range(2_000)) == []
    assert world.clock.now - started == 2 * MS + 2_000 * MS


def test_a_shared_file_system_is_read_by_the_reader_itself() -> None:
    """No network: 100 us + 2 ms for the file, and 3 ms to copy it up; it is there after its writer's node is lost."""
    world = World(room=NodeRoom(10), rules=MasterRules(client_ttl_ns=S), disk=DISK, shared_room=5)
    reader = world.clients["b"]
    reader._copy_up = lambda objects: objects * 3 * MS
    world.write("a", [1, 2])
    world.clock.run(until=S)
    world.store.lose("a")
    world.clock.run(until=3 * S)
    assert world.master.exist([1, 2]) == [True, True]
    started, sent = world.clock.now, world.fabric.endpoints["a"].bytes_sent
    assert world.read("b", [1]) == []
    assert world.clock.now - started == 100 * US + 2 * MS + 3 * MS
    assert world.fabric.endpoints["a"].bytes_sent == sent
    world.master.check()


def test_each_rank_reads_its_own_copy_of_a_file() -> None:
    """Two ranks with the same KV: the owner's disk is read twice, 2 x 2 ms, and both copies cross the network."""
    world = World(Shape(10, 100_000, readers=2), room=NodeRoom(1, disk=9), rules=MasterRules(watermark=1.0), disk=DISK)
    world.write("a", [1])
    world.clock.run(until=S)
    world.write("a", [2, 3, 4])  # no room for the last one: the first goes
    world.clock.run(until=2 * S)
    started = world.clock.now
    assert world.read("b", [1]) == []
    assert world.clock.now - started == 100 * US + 4 * MS + 2 * MS
