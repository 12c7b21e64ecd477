"""From a cluster's plan to servers behind a router."""

from __future__ import annotations

from functools import cache, partial
from typing import TextIO

from kvsim.build_remote import Remote
from kvsim.build_server import Node, Server
from kvsim.build_store import StorePort, build_store, quota_totals
from kvsim.chain import BlockIds
from kvsim.clock import Clock
from kvsim.cluster.desk import Desk
from kvsim.cluster.event_mail import EventMail
from kvsim.cluster.front import Front
from kvsim.cluster.proxy import Pool, Proxy
from kvsim.cluster.routers.base import Router
from kvsim.cluster.together import add_faults, add_series, add_tiers, add_totals
from kvsim.cluster.views import Prompt, RouterSite
from kvsim.cluster_plan import ClusterPlan, MemberPlan
from kvsim.config import ClusterConfig, options_of
from kvsim.connectors.exchange import Exchange
from kvsim.faults.clients import Clients
from kvsim.kv_events import KVEventListener, KVEventWriter
from kvsim.network import Fabric
from kvsim.network_plan import REMOTE, NetworkPlan
from kvsim.reception import Reception
from kvsim.registry import ROUTERS
from kvsim.resolve import Plan
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
        self._tenants = plan.config.trace.tenants
        self._members = sorted(plan.members, key=_in_order)
        self.store: SharedStore | None = None
        numbers = {member.name: number for number, member in enumerate(self._members)}
        sizes = [member.plan.sizes for member in self._members]
        site = RouterSite(
            tuple(numbers),
            tuple(each.block_tokens for each in sizes),
            tuple(each.kv_tokens for each in sizes),
            plan.config.seed,
            self._block_hashes,
        )
        wanted = [cluster.router, cluster.decode_router or cluster.router][: 1 + cluster.is_split]
        routers: list[Router] = [
            ROUTERS.make(each.kind, [site], options_of(each), plan.config.python_path) for each in wanted
        ]
        mails = [EventMail(len(numbers), getattr(each, "event_delay", 0)) for each in wanted]
        self.router = routers[0]

        def listeners(name: str, rank: int) -> list[KVEventListener]:
            found: list[KVEventListener] = []
            if kv_events is not None:
                found.append(KVEventWriter(kv_events, rank, name))
            found += [
                mail.listener(numbers[name])
                for router, mail in zip(routers, mails, strict=True)
                if router.hears_kv_events
            ]
            return found

        self._remotes: dict[str, Remote] = {}
        ports: dict[str, StorePort] = {}
        if plan.network is not None:
            fabric = Fabric(clock, plan.network.latency_ns, plan.network.oversubscription)
            self._remotes = self._network(clock, plan, plan.network, fabric)
            ports = self._store_ports(clock, cluster, fabric)
        block_ids, points = cache(BlockIds), plan.config.output.series_points
        nodes = _nodes(clock, self._members, cluster.instances_per_node)
        self.servers = [
            Server(
                clock,
                member.plan,
                RunRecord(requests=record.requests, series=Series(points, at_least_ns), timeline=record.timeline),
                reception,
                clients,
                name=member.name,
                kv_events=partial(listeners, member.name),
                block_ids=block_ids,
                store=ports.get(member.name),
                may_die=member.name in cluster.failing,
                remote=self._remotes.get(member.name),
                node=nodes.get(member.name),
                turn=2 * numbers[member.name],
            )
            for member in plan.members
        ]
        by_name = {server.name: server for server in self.servers}
        self._by_number = [by_name[name] for name in numbers]
        absent = [numbers[name] for name in cluster.absent]
        happenings = [(event.at, numbers[event.instance], event.action) for event in cluster.in_order]
        front: Front | Proxy
        self._prefill: Pool | None = None
        if cluster.is_split:
            pools = [
                Pool(role, sorted(numbers[name] for name in cluster.pools[role]), Desk(clock, router, mail))
                for role, router, mail in zip(("prefill", "decode"), routers, mails, strict=True)
            ]
            self._prefill = pools[0]
            front = Proxy(
                clock,
                plan.trace,
                reception,
                pools[0],
                pools[1],
                self._by_number,
                self._scope,
                pairs=any(member.plan.config.connector.kind == "p2p_nccl" for member in plan.members),
                absent=absent,
                happenings=happenings,
            )
        else:
            front = Front(
                clock,
                plan.trace,
                reception,
                self.router,
                self._by_number,
                self._scope,
                mails[0],
                absent=absent,
                happenings=happenings,
            )
        self.submit, self._states = front.submit, front.members
        for server in self.servers:
            server.listen_to_first_tokens(front.on_first_token)

    def _network(self, clock: Clock, plan: ClusterPlan, network: NetworkPlan, fabric: Fabric) -> dict[str, Remote]:
        """Every instance's place in the network, if anybody uses it."""
        exchange = Exchange(clock, fabric)
        return {
            member.name: Remote(
                _handing_over(member.plan), exchange, member.name, network.nic, network.nics_of(member.gpus)
            )
            for member in plan.members
        }

    def _store_ports(self, clock: Clock, config: ClusterConfig, fabric: Fabric) -> dict[str, StorePort]:
        """The way of each instance to the store that they share; whoever is there at the start lends its memory."""
        ports: dict[str, StorePort] = {}
        for turn, member in enumerate(self._members):
            self.store = self.store or build_store(clock, member.plan, fabric)
            if self.store is not None and store_connector(member.plan.config.connector) is not None:
                endpoint = self._remotes[member.name].endpoint
                port = ports[member.name] = StorePort(member.plan, self.store, endpoint, 2 * turn)
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
            instance.role = members[name].role
            if name in self._remotes:
                instance.network = self._remotes[name].settle()
            if self._prefill is not None and instance.role == "prefill":
                instance.parts = self._prefill.parts.get(self._by_number.index(server), [])
            record.instances.append(instance)
            record.notes += [f"{name}: {line}" for line in own.notes]
            record.cautions += [f"{name}: {line}" for line in own.cautions]
        add_totals(record.totals, [each.totals for each in record.instances])
        add_faults(record.faults, [server.record.faults for server in self.servers])
        add_series(record.series, [each.series for each in record.instances])
        record.tiers = add_tiers(record.instances)
        if self.store is not None:
            record.quotas = quota_totals(self.store, self._tenants)

    def _scope(self, session: Session, turn: Turn) -> int:
        return turn.demands.adapter * self._num_salts + self._reception.salt_of(session)

    def _block_hashes(self, prompt: Prompt, instance: int) -> list[int]:
        adapter, salt = divmod(prompt.scope, self._num_salts)
        return self._by_number[instance].ranks[0].block_hashes(prompt.chain, adapter, salt)


def _nodes(clock: Clock, members: list[MemberPlan], per_node: int) -> dict[str, Node]:
    """The node of each instance, if nodes have several."""
    shared: dict[tuple[str, int], Node] = {}
    found: dict[str, Node] = {}
    for member in members if per_node > 1 else ():
        group, number = _in_order(member)
        place = group, number // per_node
        shared[place] = found[member.name] = shared.get(place) or Node(clock, member.plan)
    return found


def _in_order(member: MemberPlan) -> tuple[str, int]:
    """By the name's number, not its spelling."""
    return member.group, int(member.name.rpartition("-")[2])


def _handing_over(plan: Plan) -> Plan:
    """The plan of the part of a MultiConnector that hands KV over; others as they are."""
    return next((part for part in plan.parts if part.config.connector.kind in REMOTE), plan)
