"""How the worker sides of engines reach each other: who is there under which name, and what is being read where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kvsim.clock import Clock
from kvsim.network import Endpoint, Fabric, Flow
from kvsim.results.records import NetworkTotals


@dataclass(frozen=True, slots=True)
class KVShape:
    """How an engine keeps KV, as far as another one has to know.

    Attributes:
        block_tokens: of a block.
        block_bytes: of a block on all ranks.
        piece_bytes: of a block on one rank that lie together; the size of a message.
    """

    block_tokens: int
    block_bytes: int
    piece_bytes: int

    def message_bytes(self, other: KVShape) -> int:
        """Size of a message between two engines: what lies together on both sides.

        vLLM 0.33.0 nixl/base_worker.py (_build_fa_local, _build_fa_remote): with another TP size the heads of a block
        are split, with another block size its tokens.
        """
        tokens = min(self.block_tokens, other.block_tokens)
        return min(each.piece_bytes * tokens // each.block_tokens for each in (self, other))


class Peer(Protocol):
    """The worker side of an engine, as that of another one reaches it: by messages, which take their time."""

    port: Port

    def on_read(self, request_id: str) -> None:
        """Somebody has read all KV of this request, or needs none of it."""
        ...

    def on_heartbeat(self, request_ids: Sequence[str]) -> None:
        """Somebody still waits to read these."""
        ...


@dataclass(eq=False, slots=True)
class Port:
    """An engine's place in the network.

    ``totals`` and ``endpoint`` are the instance's and outlive its engines.
    """

    instance: str
    endpoint: Endpoint
    totals: NetworkTotals
    shape: KVShape
    engine_id: str = ""
    flows: dict[Flow, int] = field(default_factory=dict)  # on their way to here, and how many blocks each has


class Exchange:
    """All engines of a cluster that speak with each other, and the network between them."""

    def __init__(self, clock: Clock, fabric: Fabric) -> None:
        self.clock, self.fabric = clock, fabric
        self._peers: dict[str, Peer] = {}  # by engine id
        self._counts: dict[str, int] = {}  # engines that each instance has had
        self._readers: dict[tuple[str, str], int] = {}  # (engine id, request id) -> blocks that are being read

    def join(self, peer: Peer) -> None:
        """An engine is there; it gets an id of its own, which no later engine of its instance has."""
        port = peer.port
        number = self._counts[port.instance] = self._counts.get(port.instance, -1) + 1
        port.engine_id = f"{port.instance}#{number}"
        self._peers[port.engine_id] = peer
        self.fabric.recover(port.endpoint)

    def leave(self, peer: Peer) -> None:
        """It has died: what flows from or to it fails, and nobody reaches it any more."""
        port = peer.port
        if self._peers.pop(port.engine_id, None) is not None:
            self.fabric.fail(port.endpoint)

    def find(self, engine_id: str) -> Peer | None:
        """The engine, if it lives."""
        return self._peers.get(engine_id)

    def tell(self, engine_id: str, say: Callable[[Peer], None]) -> None:
        """A small message; lost if the engine is not there when it arrives."""

        def arrive() -> None:
            peer = self._peers.get(engine_id)
            if peer is not None:
                say(peer)

        self.fabric.tell(arrive)

    def readers(self, engine_id: str, request_id: str) -> int:
        """Blocks of this request that are on their way out of its engine."""
        return self._readers.get((engine_id, request_id), 0)

    def move(
        self,
        source: Port,
        target: Port,
        request_id: str,
        blocks: int,
        num_bytes: int,
        on_done: Callable[[bool], None],
        *,
        blocks_per_message: int = 1,
    ) -> Flow:
        """Move KV from one engine to another.

        Args:
            source: whose blocks are read.
            target: whose blocks are written, and whose books count it.
            request_id: what the request is called at the source.
            blocks: of the target, for the books.
            num_bytes: of all ranks.
            on_done: told once whether it has arrived.
            blocks_per_message: pieces of so many blocks are one message.
        """
        key, totals, started = (source.engine_id, request_id), target.totals, self.clock.now

        def done(flow: Flow) -> None:
            del target.flows[flow]
            if blocks:
                self._readers[key] -= blocks
                if not self._readers[key]:
                    del self._readers[key]
            if flow.failed:
                totals.failed_transfers += 1
                totals.blocks_failed += blocks
            else:
                totals.blocks_received += blocks
                totals.transfer_ns += self.clock.now - started
            on_done(not flow.failed)

        totals.transfers += 1
        totals.blocks_wanted += blocks
        if blocks:
            self._readers[key] = self._readers.get(key, 0) + blocks
        message = source.shape.message_bytes(target.shape) * blocks_per_message
        flow = self.fabric.send(source.endpoint, target.endpoint, num_bytes, message_bytes=message, on_done=done)
        target.flows[flow] = blocks
        return flow

    def miss(self, target: Port, blocks: int, on_done: Callable[[bool], None]) -> None:
        """As `move`, from an engine that is not there any more: it fails when the first byte should have come."""
        target.totals.transfers += 1
        target.totals.blocks_wanted += blocks

        def fail() -> None:
            target.totals.failed_transfers += 1
            target.totals.blocks_failed += blocks
            on_done(False)

        self.clock.alarm(target.endpoint.nic.setup_ns + self.fabric.latency_ns, fail)

    def is_down(self, engine_id: str) -> bool:
        """Whether nobody answers at the address of this engine; another one may have taken over."""
        return self.fabric.endpoints[engine_id.rpartition("#")[0]].is_down

    def settle(self, port_endpoint: Endpoint, totals: NetworkTotals) -> None:
        """Complete an instance's totals."""
        totals.nics, totals.line_bytes_per_s = port_endpoint.nics, port_endpoint.bytes_per_s
        totals.sent_bytes, totals.received_bytes = port_endpoint.bytes_sent, port_endpoint.bytes_received
        totals.failed_bytes = port_endpoint.bytes_failed
        totals.busy_out_ns, totals.busy_in_ns = port_endpoint.busy_out_ns, port_endpoint.busy_in_ns
