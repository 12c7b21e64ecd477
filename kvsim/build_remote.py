"""From a plan to what an instance has in the network, and to connectors that use it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from kvsim.config import MooncakeConnectorConfig, NixlConnectorConfig, P2pNcclConnectorConfig
from kvsim.connectors.alarm import Alarm
from kvsim.connectors.base import KVConnector
from kvsim.connectors.exchange import Exchange, KVShape, Port
from kvsim.connectors.handshakes import Handshakes
from kvsim.connectors.nixl import NixlConnector
from kvsim.connectors.nixl_worker import NixlWorker
from kvsim.connectors.p2p_nccl import P2pNcclConnector, P2pNcclWorker
from kvsim.connectors.path_split import Path
from kvsim.connectors.push_worker import MOONCAKE, NIXL_PUSH, RECEIVER_PATIENCE_NS, PushRules, PushWorker
from kvsim.connectors.site import Site
from kvsim.network import Endpoint, Nic
from kvsim.network_plan import regions
from kvsim.resolve import Plan
from kvsim.results.records import NetworkTotals


class Remote:
    """One instance in the network; its engines come and go.

    Args:
        name: of the instance, and of its endpoint.
        nics: how many it has.
    """

    def __init__(self, plan: Plan, exchange: Exchange, name: str, nic: Nic, nics: int) -> None:
        self._plan, self._exchange, self._name = plan, exchange, name
        self.endpoint: Endpoint = exchange.fabric.endpoint(name, nic, nics)
        self.totals = NetworkTotals()
        self._port: Port | None = None
        self._parts: list[NixlConnector | NixlWorker | P2pNcclWorker] = []  # of the engine built last

    def connector(self, site: Site) -> KVConnector:
        """The scheduler side of a new engine; it brings its worker side."""
        plan, config = self._plan, self._plan.config.connector
        sizes, clock, exchange = plan.sizes, self._exchange.clock, self._exchange
        piece = sizes.block_bytes // regions(plan.config, plan.model, sizes.groups.layers)
        shape = KVShape(sizes.block_tokens, sizes.gpu_block_bytes, max(1, piece))
        port = Port(self._name, self.endpoint, self.totals, shape)
        self._port = port
        if isinstance(config, P2pNcclConnectorConfig):
            sender = P2pNcclWorker(port, exchange, sizes.groups.layers, site.wake)
            exchange.join(sender)
            self._parts = [sender]
            return P2pNcclConnector(sender)
        assert isinstance(config, NixlConnectorConfig | MooncakeConnectorConfig)
        handshakes = Handshakes(exchange, config.handshake, self.totals)
        rules: PushRules | None
        if isinstance(config, MooncakeConnectorConfig):
            lease_ns, uses_host_buffer = config.abort_request_timeout, False
            rules = replace(MOONCAKE, writers=config.num_workers, patience_ns=lease_ns + RECEIVER_PATIENCE_NS)
        else:
            lease_ns, uses_host_buffer = config.kv_lease_duration, config.kv_buffer_device == "cpu"
            rules = NIXL_PUSH if config.mode == "push" else None
        make: Callable[..., NixlWorker] = NixlWorker if rules is None else partial(PushWorker, rules=rules)
        worker = make(
            port,
            exchange,
            handshakes,
            wake=site.wake,
            alarm=Alarm(clock, site.wake),
            lease_ns=lease_ns,
            host=site.gpu_copier() if uses_host_buffer else None,
        )
        is_mooncake = isinstance(config, MooncakeConnectorConfig)
        connector = NixlConnector(
            clock,
            port,
            worker,
            block_size=sizes.block_tokens,
            lease_ns=lease_ns,
            uses_host_buffer=uses_host_buffer,
            alarm=Alarm(clock, site.wake),
            beats=not is_mooncake,
            answers_at_once=is_mooncake,
        )
        self._exchange.join(worker)
        self._parts = [connector, worker]
        return connector

    @property
    def engine_id(self) -> str:
        """Of the engine built last."""
        return "" if self._port is None else self._port.engine_id

    def path_from(self, engine_id: str) -> Path | None:
        """The way on which KV comes from an engine to the one built last; None = it is not there."""
        peer, port = self._exchange.find(engine_id), self._port
        if peer is None or port is None:
            return None
        theirs, ours, size = peer.port.endpoint, port.endpoint, peer.port.shape.message_bytes(port.shape)
        return Path(
            min(theirs.bytes_per_s, ours.bytes_per_s),
            min(theirs.nic.efficiency_ppm(size), ours.nic.efficiency_ppm(size)),
            port.shape.block_bytes,
            max(theirs.nic.setup_ns, ours.nic.setup_ns) + self._exchange.fabric.latency_ns,
        )

    def lose(self) -> None:
        """The engine built last has died."""
        for part in self._parts:
            part.close()
            if not isinstance(part, NixlConnector):
                self._exchange.leave(part)

    def settle(self) -> NetworkTotals:
        """The totals, complete."""
        self._exchange.settle(self.endpoint, self.totals)
        return self.totals
