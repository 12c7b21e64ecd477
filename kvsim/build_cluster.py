"""From a cluster's plan to servers behind a router."""

from __future__ import annotations

from functools import cache, partial
from typing import TextIO

from kvsim.build_network import fabric_of, nic_of
from kvsim.build_server import Server
from kvsim.build_store import StorePort, build_store
from kvsim.chain import BlockIds
from kvsim.clock import Clock
from kvsim.cluster.event_mail import EventMail
from kvsim.cluster.front import Front
from kvsim.cluster.routers.base import Router
from kvsim.cluster.together import add_faults, add_series, add_tiers, add_totals
from kvsim.cluster.views import Prompt, RouterSite
from kvsim.cluster_plan import ClusterPlan, MemberPlan
from kvsim.config import ClusterConfig, options_of
from kvsim.faults.clients import Clients
from kvsim.kv_events import KVEventListener, KVEventWriter
from kvsim.reception import Reception
from kvsim.registry import ROUTERS
from kvsim.results.records import InstanceRecord, RunRecord, Series
from kvsim.store.shared import SharedStore
from kvsim.store_plan import store_connector
from kvsim.trace.session import Session, Turn


class Cluster:
    """Servers, their router, and what becomes of them.

    Each server has its own memory, tiers, books and samples, as if it were alone; they share the clock, the list of
    requests, the clients and the numbers of the blocks. The router knows them in the order of their names, so the
    order in which the config lists them, and in which they are built, changes nothing.

    Args:
        record: of the whole run.
        kv_events: gets a line per batch of KV events.
        at_least_ns: the run will last so long at least.
    """

    def __init__(
        self,
        clock: Clock,
        plan: ClusterPlan,
        record: RunRecord,
        reception: Reception,
        clients: Clients | None,
        kv_events: TextIO | None,
        at_least_ns: int,
    ) -> None:
        cluster = plan.config.cluster
        assert cluster is not None
        self._reception, self._num_salts = reception, max(reception.num_salts, 1)
        self._members = sorted(plan.members, key=_in_order)
        self.store: SharedStore | None = None
        numbers = {member.name: number for number, member in enumerate(self._members)}
        mail = EventMail(len(numbers), getattr(cluster.router, "event_delay", 0))
        sizes = [member.plan.sizes for member in self._members]
        site = RouterSite(
            tuple(numbers),
            tuple(each.block_tokens for each in sizes),
            tuple(each.kv_tokens for each in sizes),
            plan.config.seed,
            self._block_hashes,
        )
        self.router: Router = ROUTERS.make(
            cluster.router.kind, [site], options_of(cluster.router), plan.config.python_path
        )

        router = self.router

        def listeners(name: str, rank: int) -> list[KVEventListener]:
            found: list[KVEventListener] = []
            if kv_events is not None:
                found.append(KVEventWriter(kv_events, rank, name))
            if router.hears_kv_events:
                found.append(mail.listener(numbers[name]))
            return found

        ports = self._store_ports(clock, cluster)
        block_ids, points = cache(BlockIds), plan.config.output.series_points
        self.servers = [
            Server(
                clock,
                member.plan,
                RunRecord(requests=record.requests, series=Series(points, at_least_ns)),
                reception,
                clients,
                name=member.name,
                kv_events=partial(listeners, member.name),
                block_ids=block_ids,
                store=ports.get(member.name),
                may_die=member.name in cluster.failing,
            )
            for member in plan.members
        ]
        by_name = {server.name: server for server in self.servers}
        self._by_number = [by_name[name] for name in numbers]
        front = Front(
            clock,
            plan.trace,
            reception,
            router,
            self._by_number,
            self._scope,
            mail,
            absent=[numbers[name] for name in cluster.absent],
            happenings=[(event.at, numbers[event.instance], event.action) for event in cluster.in_order],
        )
        self.submit, self._states = front.submit, front.members
        for server in self.servers:
            server.listen_to_first_tokens(front.on_first_token)

    def _store_ports(self, clock: Clock, config: ClusterConfig) -> dict[str, StorePort]:
        """The way of each instance to the store that they share; whoever is there at the start lends its memory."""
        _, nic = nic_of(config.network)
        fabric = fabric_of(clock, config.network)
        ports: dict[str, StorePort] = {}
        for member in self._members:
            self.store = self.store or build_store(clock, member.plan, fabric)
            if self.store is not None and store_connector(member.plan.config.connector) is not None:
                endpoint = fabric.endpoint(member.name, nic, config.network.nics_per_gpu * member.plan.sizes.ranks)
                port = ports[member.name] = StorePort(member.plan, self.store, endpoint)
                if member.name not in config.absent:
                    port.join()
        return ports

    def start(self) -> None:
        """Let instances come and go."""
        self._states.start()

    def stop(self) -> None:
        """All requests have ended."""
        self._states.stop()
        if self.store is not None:
            self.store.master.stop()

    def close(self, record: RunRecord) -> None:
        """The simulation is over, and the servers' books are closed: what they are together."""
        states = {server.name: state for server, state in zip(self._by_number, self._states.states, strict=True)}
        members = {member.name: member for member in self._members}
        record.notes += self._states.notes
        for server in self.servers:
            own, name = server.record, server.name
            group, hardware = members[name].group, members[name].hardware
            instance = InstanceRecord(name, group, hardware, own.series, own.totals, own.tiers, states[name])
            record.instances.append(instance)
            record.notes += [f"{name}: {line}" for line in own.notes]
            record.cautions += [f"{name}: {line}" for line in own.cautions]
        add_totals(record.totals, [each.totals for each in record.instances])
        add_faults(record.faults, [server.record.faults for server in self.servers])
        add_series(record.series, [each.series for each in record.instances])
        record.tiers = add_tiers(record.instances)

    def _scope(self, session: Session, turn: Turn) -> int:
        return turn.demands.adapter * self._num_salts + self._reception.salt_of(session)

    def _block_hashes(self, prompt: Prompt, instance: int) -> list[int]:
        adapter, salt = divmod(prompt.scope, self._num_salts)
        return self._by_number[instance].ranks[0].block_hashes(prompt.chain, adapter, salt)


def _in_order(member: MemberPlan) -> tuple[str, int]:
    """By the name's number, not its spelling."""
    return member.group, int(member.name.rpartition("-")[2])
