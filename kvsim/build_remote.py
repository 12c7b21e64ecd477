"""From a plan to what an instance has in the network, and to connectors that use it."""

from __future__ import annotations

from kvsim.config import NixlConnectorConfig
from kvsim.connectors.alarm import Alarm
from kvsim.connectors.base import KVConnector
from kvsim.connectors.exchange import Exchange, KVShape, Port
from kvsim.connectors.handshakes import Handshakes
from kvsim.connectors.nixl import NixlConnector
from kvsim.connectors.nixl_worker import NixlWorker
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
        self._parts: list[NixlConnector | NixlWorker] = []  # of the engine built last

    def connector(self, site: Site) -> KVConnector:
        """The scheduler side of a new engine; it brings its worker side."""
        plan, config = self._plan, self._plan.config.connector
        assert isinstance(config, NixlConnectorConfig)
        sizes, clock = plan.sizes, self._exchange.clock
        piece = sizes.block_bytes // regions(plan.config, plan.model, sizes.groups.layers)
        shape = KVShape(sizes.block_tokens, sizes.gpu_block_bytes, max(1, piece))
        port = Port(self._name, self.endpoint, self.totals, shape)
        uses_host_buffer = config.kv_buffer_device == "cpu"
        worker = NixlWorker(
            port,
            self._exchange,
            Handshakes(self._exchange, config.handshake, self.totals),
            wake=site.wake,
            alarm=Alarm(clock, site.wake),
            lease_ns=config.kv_lease_duration,
            host=site.gpu_copier() if uses_host_buffer else None,
        )
        connector = NixlConnector(
            clock,
            port,
            worker,
            block_size=sizes.block_tokens,
            lease_ns=config.kv_lease_duration,
            uses_host_buffer=uses_host_buffer,
            alarm=Alarm(clock, site.wake),
        )
        self._exchange.join(worker)
        self._parts = [connector, worker]
        return connector

    def lose(self) -> None:
        """The engine built last has died."""
        for part in self._parts:
            part.close()
            if isinstance(part, NixlWorker):
                self._exchange.leave(part)

    def settle(self) -> NetworkTotals:
        """The totals, complete."""
        self._exchange.settle(self.endpoint, self.totals)
        return self.totals
