"""A shared store as a whole: its master, the nodes that lend memory and disks, and the network between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvsim.clock import Clock
from kvsim.network import Endpoint, Fabric
from kvsim.store.disks import DiskSpeed, NodeDisk
from kvsim.store.master import Master
from kvsim.store.segments import Segment


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """What a node lends, in objects."""

    memory: int
    disk: int = 0


class SharedStore:
    """Nodes join and are lost; clients (`kvsim.store.client`) find here where objects lie and how to get there.

    Args:
        room: what each node lends.
        object_bytes: of one object, all shards of a block.
        disk: speed of a node's disk, where nodes lend some.
        shared_room: objects on a file system of all nodes, which has that speed as a whole, instead of their disks.
        instant: disks take no time.
    """

    def __init__(
        self,
        clock: Clock,
        master: Master,
        fabric: Fabric,
        room: NodeRoom,
        object_bytes: int,
        disk: DiskSpeed | None = None,
        *,
        shared_room: int = 0,
        instant: bool = False,
    ) -> None:
        self.clock, self.master, self.fabric = clock, master, fabric
        self.room, self.object_bytes, self._disk_speed, self._instant = room, object_bytes, disk, instant
        self._endpoints: dict[str, Endpoint] = {}
        self.disks: dict[Segment, NodeDisk] = {}
        self._shared: Segment | None = None
        if disk is not None and shared_room:
            self._shared = Segment(-1, "", 0, shared_room, is_shared=True)
            self.disks[self._shared] = NodeDisk(clock, master, self._shared, disk, object_bytes, instant=instant)

    @property
    def has_disks(self) -> bool:
        """Whether nodes lend disks of their own (Mooncake: enable_offload)."""
        return self._disk_speed is not None and self.room.disk > 0

    @property
    def line_rates(self) -> list[int]:
        """Bytes per second of the NICs of each node that has joined."""
        return [endpoint.bytes_per_s for endpoint in self._endpoints.values()]

    def join(self, endpoint: Endpoint) -> None:
        """A node is there, with empty memory."""
        self._endpoints[endpoint.name] = endpoint
        self.fabric.recover(endpoint)
        disk = self.room.disk if self.has_disks else 0
        segment = self.master.mount(endpoint.name, self.room.memory, disk)
        if disk and self._disk_speed is not None:
            self.disks[segment] = NodeDisk(
                self.clock, self.master, segment, self._disk_speed, self.object_bytes, instant=self._instant
            )

    def lose(self, node: str) -> None:
        """A node is gone, with all that it held."""
        segment = self.master.segments.of(node)
        if segment is None:
            return
        self.master.lose(node)
        self.fabric.fail(self._endpoints[node])
        if segment in self.disks:
            self.disks[segment].close()

    def endpoint_of(self, segment: Segment) -> Endpoint:
        """How to get to what a segment holds."""
        return self._endpoints[segment.node]

    def offload(self, placed: Sequence[tuple[int, list[Segment]]]) -> None:
        """Objects have been written: their nodes write them to disk, too."""
        if self._shared is not None:
            self.disks[self._shared].offload([key for key, _ in placed])
        if not self.has_disks:
            return
        by_node: dict[Segment, list[int]] = {}
        for key, segments in placed:
            if segments:  # none of them has been lost since
                by_node.setdefault(segments[0], []).append(key)
        for segment, keys in by_node.items():
            if segment.holds:
                self.disks[segment].offload(keys)
