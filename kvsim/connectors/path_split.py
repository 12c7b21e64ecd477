"""One prefix over two paths at once: how much by which, so that the later of the two ends as early as possible."""

from __future__ import annotations

from dataclasses import dataclass

NS = 10**9


@dataclass(frozen=True, slots=True)
class Path:
    """What a worker can know of a way on which KV comes to it.

    Attributes:
        line_bytes_per_s: line rate of all senders together, or of the receiver if that is less, with nobody else there.
        efficiency_ppm: part of it that messages of this path reach.
        block_bytes: of a block, all ranks.
        setup_ns: until the first byte.
        block_ns: of the host for each block, before the first byte.
        flows: senders; the receiver's NICs are shared by flows.
    """

    line_bytes_per_s: int
    efficiency_ppm: int
    block_bytes: int
    setup_ns: int = 0
    block_ns: int = 0
    flows: int = 1

    def ns_per_block(self, line_bytes_per_s: int) -> float:
        """Time of one more block, with so much of the line."""
        rate = line_bytes_per_s * self.efficiency_ppm / 1_000_000
        return self.block_ns + self.block_bytes * NS / rate

    def ends_ns(self, blocks: int, outstanding_bytes: int, line_bytes_per_s: int) -> float:
        """When so many blocks are there, behind what was asked for before; 0 if there are none."""
        if not blocks:
            return 0.0
        rate = line_bytes_per_s * self.efficiency_ppm / 1_000_000
        return self.setup_ns + outstanding_bytes * NS / rate + blocks * self.ns_per_block(line_bytes_per_s)


def shares(first: Path, second: Path, whole: int) -> tuple[int, int]:
    """What two paths into the same NICs each get of their line rate, if flows share it max-min fairly."""
    wanted = [min(path.line_bytes_per_s, whole) for path in (first, second)]
    if sum(wanted) <= whole:
        return wanted[0], wanted[1]
    fair = whole * first.flows // (first.flows + second.flows)
    if wanted[0] <= fair:
        return wanted[0], whole - wanted[0]
    if wanted[1] <= whole - fair:
        return whole - wanted[1], wanted[1]
    return fair, whole - fair


def best_split(
    store: Path, peer: Path, blocks: int, in_store: int, own_bytes_per_s: int, outstanding: tuple[int, int] = (0, 0)
) -> int:
    """Blocks that the store should bring; the peer brings the others.

    Args:
        store: brings a prefix.
        peer: has all of them, and always brings the last one.
        blocks: how many are wanted.
        in_store: how many the store has, from the first on.
        own_bytes_per_s: line rate of the NICs where both arrive.
        outstanding: bytes that have been asked for on each path and are not there.
    """
    most = min(in_store, blocks - 1)
    if most <= 0:
        return 0
    store_line, peer_line = shares(store, peer, own_bytes_per_s)
    alone = min(peer.line_bytes_per_s, own_bytes_per_s)

    def ends_ns(count: int) -> float:
        if not count:
            return peer.ends_ns(blocks, outstanding[1], alone)
        return max(
            store.ends_ns(count, outstanding[0], store_line), peer.ends_ns(blocks - count, outstanding[1], peer_line)
        )

    # One side grows with the count, the other falls: the best is next to where they meet, or at an end.
    slope = store.ns_per_block(store_line) + peer.ns_per_block(peer_line)
    gap = peer.ends_ns(blocks, outstanding[1], peer_line) - store.ends_ns(1, outstanding[0], store_line)
    meet = int(gap / slope) + 1
    around = (min(max(count, 1), most) for count in range(meet - 1, meet + 2))
    return min((0, *around), key=lambda count: (ends_ns(count), count))
