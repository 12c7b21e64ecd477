"""From a plan to a simulation: a clock, who sends, who serves, and what is left when it is over."""

from __future__ import annotations

from typing import TextIO

from kvsim.build_cluster import Cluster
from kvsim.build_faults import clients_of
from kvsim.build_policy import replay_options, tenants_of
from kvsim.build_server import Server
from kvsim.clock import Clock
from kvsim.cluster_plan import ClusterPlan
from kvsim.engine import NoProgressError
from kvsim.errors import UserError
from kvsim.garbage import rarely_collected
from kvsim.instance import Instance
from kvsim.kv_events import KVEventWriter
from kvsim.reception import Reception
from kvsim.resolve import Plan, Progress
from kvsim.results.records import RunRecord, Series
from kvsim.results.timeline import Timeline
from kvsim.trace.replay import Submit, play, shortest_ns

NS = 10**9
LONGEST_NS = 2**63 - 1  # what a results table can hold


class Simulation:
    """A plan on a clock. `run` plays it to the end and returns what it wrote down.

    Args:
        plan: what to simulate: a server, or a cluster of them.
        progress: told how many of how many requests have ended.
        kv_events: gets a line per batch of KV events.
    """

    def __init__(
        self, plan: Plan | ClusterPlan, progress: Progress | None = None, kv_events: TextIO | None = None
    ) -> None:
        self.plan, self.clock = plan, Clock()
        self._options = replay_options(plan.config)
        at_least_ns = shortest_ns(plan.trace, self._options)
        self.record = RunRecord(
            series=Series(plan.config.output.series_points, at_least_ns),
            notes=list(plan.notes),
            cautions=list(plan.cautions),
            timeline=_timeline(plan),
        )
        self._progress, self._total, self._done = progress, plan.trace.num_requests, 0
        tenants, tenant_of = plan.config.trace.tenants, tenants_of(plan.config, plan.trace)
        reception = Reception(self.clock, self.record.requests, self._request_ended, tenants, tenant_of)
        clients = clients_of(self.clock, plan.config.faults, plan.config.seed)
        self.cluster: Cluster | None = None
        self._submit: Submit
        if isinstance(plan, ClusterPlan):
            self.cluster = Cluster(self.clock, plan, self.record, reception, clients, kv_events, at_least_ns)
            self.servers, self._submit = self.cluster.servers, self.cluster.submit
            return
        server = Server(
            self.clock,
            plan,
            self.record,
            reception,
            clients,
            kv_events=lambda rank: [] if kv_events is None else [KVEventWriter(kv_events, rank)],
            on_death=self._restart_later,
        )
        self.servers, self._submit = [server], server.submit

    def run(self) -> RunRecord:
        """Play the whole trace. Ends when nothing can happen or move any more: requests left then are stuck.

        Raises:
            UserError: time runs for centuries.
        """
        # Whoever arrives at the instant of a fault comes behind it.
        for server in self.servers:
            server.faults.start(server.kill)
        if self.cluster is not None:
            self.cluster.start()
        play(self.clock, self.plan.trace, self._submit, self._options)
        try:
            with rarely_collected():
                self.clock.run()
        except NoProgressError as error:
            self.record.cautions.append(f"The simulation was stopped: {error}.")
        if self.clock.now > LONGEST_NS:
            raise UserError(
                f"simulated time ends after {self.clock.now // (NS * 86_400 * 365)} years, expected at most 292:"
                " look at trace.time_scale, max_think_time, step_time and frontend"
            )
        for server in self.servers:
            server.close(server.faults.explain_hang())
        if self.cluster is not None:
            self.cluster.close(self.record)
        unsent = self._total - len(self.record.requests)
        if unsent > 0:
            self.record.notes.append(
                f"{unsent} of {self._total} requests were never sent: their sessions got stuck before"
            )
        return self.record

    @property
    def instances(self) -> list[Instance]:
        """All ranks of all servers."""
        return [rank for server in self.servers for rank in server.ranks]

    @property
    def instance(self) -> Instance:
        """The only rank, or the first."""
        return self.servers[0].ranks[0]

    def _restart_later(self) -> None:
        """Another engine takes over after a while."""
        if self._done < self._total:
            (server,) = self.servers
            self.clock.alarm(self.plan.config.faults.restart_time, server.restart)

    def _request_ended(self) -> None:
        self._done += 1
        if self._done == self._total:
            for server in self.servers:
                server.faults.stop()
            if self.cluster is not None:
                self.cluster.stop()
        if self._progress is not None:
            self._progress(self._done, self._total)


def _timeline(plan: Plan | ClusterPlan) -> Timeline | None:
    """An empty one, if one is wanted."""
    wanted = plan.config.output
    if not wanted.timeline:
        return None
    servers = [member.plan for member in plan.members] if isinstance(plan, ClusterPlan) else [plan]
    engines = sum(each.config.engine.data_parallel_size for each in servers)
    return Timeline(wanted.timeline_max_events, wanted.timeline_from, wanted.timeline_until, engines)
