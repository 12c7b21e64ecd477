"""What a config with a cluster means: a plan for each group of instances."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from kvsim.config import ClusterConfig, RunConfig
from kvsim.errors import ConfigError, UserError
from kvsim.fast_plan import hears_kv_events
from kvsim.network_plan import REMOTE, NetworkPlan, kinds_of, plan_network
from kvsim.resolve import Plan, resolve
from kvsim.schedule_export import OPTION
from kvsim.store_plan import StoreLayout, check_one_layout, store_connector
from kvsim.trace.session import Trace

USES_NETWORK = frozenset({*REMOTE, "mooncake_store"})


@dataclass(frozen=True, slots=True)
class MemberPlan:
    """One instance."""

    name: str
    group: str
    plan: Plan

    @property
    def role(self) -> str:
        """Of its group: both, prefill or decode."""
        cluster = self.plan.config.cluster
        assert cluster is not None
        return next(group.role for group in cluster.instances if group.name == self.group)

    @property
    def gpus(self) -> int:
        """How many it has."""
        return self.plan.config.hardware.tensor_parallel_size * self.plan.config.engine.data_parallel_size

    @property
    def hardware(self) -> str:
        """Its GPUs."""
        return hardware_of(self.plan)


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """A config with everything looked up: instances behind a router."""

    config: RunConfig
    members: tuple[MemberPlan, ...]  # in the order of the config
    network: NetworkPlan | None  # None = nobody uses it
    notes: tuple[str, ...]  # the first ones say which engine
    cautions: tuple[str, ...]

    @property
    def trace(self) -> Trace:
        """What is played; of all groups the same."""
        return self.members[0].plan.trace

    @property
    def fast(self) -> bool:
        """Whether the fast engine runs all instances."""
        return all(member.plan.fast for member in self.members)

    def with_reference_engine(self, reason: str) -> ClusterPlan:
        """The same, on the engine that executes every step."""
        return self.changed(lambda plan: plan.with_reference_engine(reason))

    def changed(self, change: Callable[[Plan], Plan]) -> ClusterPlan:
        """The same with every group's plan changed."""
        plans = {member.group: change(member.plan) for member in self.members}
        return _together(self.config, plans)


def resolve_run(config: RunConfig, trace: Trace, *, exports_schedule: bool = False) -> Plan | ClusterPlan:
    """See `kvsim.resolve.resolve`; of a cluster, every group is resolved.

    Raises:
        ConfigError: what does not fit; it names the group.
    """
    if config.cluster is None:
        return resolve(config, trace, exports_schedule=exports_schedule)
    if exports_schedule:
        raise UserError(f"{OPTION}: cluster: expected none: a schedule is that of one server")
    plans: dict[str, Plan] = {}
    for number, group in enumerate(config.cluster.instances):
        try:
            plans[group.name] = resolve(config.of_group(number), trace)
        except ConfigError as error:
            raise ConfigError(f"cluster.instances.{number} ({group.name}): {error}") from None
        except UserError as error:  # already with its place
            raise ConfigError(str(error)) from None
    _check_failing(config, plans)
    _check_split(config, plans)
    _check_nodes(config, plans)
    outputs = [plan.config.engine.structured_output for plan in plans.values()]
    if any(output != outputs[0] for output in outputs):
        raise ConfigError("cluster.instances: expected the same engine.structured_output in all groups")
    sharing = {name: plan.store for name, plan in plans.items() if store_connector(plan.config.connector) is not None}
    if sharing:
        _check_sharing(sharing)
        plans = _on_one_engine(plans, sharing)
    elif config.cluster.store is not None:
        raise ConfigError("cluster.store: no instance uses it, expected connector.kind mooncake_store")
    return _together(config, plans)


def _check_sharing(layouts: dict[str, StoreLayout]) -> None:
    try:
        check_one_layout(layouts)
    except UserError as error:
        raise ConfigError(str(error)) from None


def _on_one_engine(plans: dict[str, Plan], sharing: dict[str, StoreLayout]) -> dict[str, Plan]:
    """Who share a store name its objects alike: all by the run, or none."""
    if all(plans[name].fast for name in sharing):
        return plans
    slow = next(name for name in sharing if not plans[name].fast)
    reason = f"group {slow} shares a store and needs it"
    return {
        name: plan.with_reference_engine(reason) if plan.fast and name in sharing else plan
        for name, plan in plans.items()
    }


def _check_failing(config: RunConfig, plans: dict[str, Plan]) -> None:
    assert config.cluster is not None
    for group in config.cluster.instances:
        failing = sorted(config.cluster.failing.intersection(group.instances))
        if failing and plans[group.name].config.engine.data_parallel_size > 1:
            raise ConfigError(
                f"cluster.events: {failing[0]} fails, expected engine.data_parallel_size 1 for instances that fail:"
                " ranks that die are not simulated"
            )


def _check_nodes(config: RunConfig, plans: dict[str, Plan]) -> None:
    """Only LMCache's server is simulated as shared by neighbours, who may not die: it would have to unlock theirs."""
    assert config.cluster is not None
    count = config.cluster.instances_per_node
    if count == 1:
        return
    for group in config.cluster.instances:
        if "lmcache_mp" not in kinds_of(plans[group.name].config.connector):
            raise ConfigError(
                f"cluster.instances_per_node: {count}: expected 1 for {group.name}, whose connector is"
                f" {plans[group.name].config.connector.kind}: only the server of lmcache_mp is shared"
            )
        if group.count % count:
            raise ConfigError(
                f"cluster.instances_per_node: {count}: {group.name} has {group.count} instances, expected a multiple"
            )
        failing = sorted(config.cluster.failing.intersection(group.instances))
        if failing:
            raise ConfigError(
                f"cluster.events: {failing[0]} fails, expected cluster.instances_per_node 1 for instances that fail:"
                " what they leave locked in a shared server is not simulated"
            )


def _check_split(config: RunConfig, plans: dict[str, Plan]) -> None:
    """Both sides must speak the same protocol, with blocks that fit.

    vLLM 0.33.0 nixl/base_worker.py (post_process_device_kv_on_receive): blocks of a decode instance are as large as
    those of a prefill instance, or a multiple of it.
    """
    assert config.cluster is not None
    if not config.cluster.is_split:
        return
    by_role: dict[str, list[str]] = {"prefill": [], "decode": []}
    for group in config.cluster.instances:
        by_role[group.role].append(group.name)
    for prefill, decode in product(by_role["prefill"], by_role["decode"]):
        kinds = [_handing_over(plans[name]) for name in (prefill, decode)]
        if kinds[0] != kinds[1]:
            raise ConfigError(
                f"cluster.instances: {prefill} has connector {kinds[0]} and {decode} has {kinds[1]}, expected the same"
            )
        ours, theirs = (plans[name].sizes.block_tokens for name in (decode, prefill))
        if kinds[0] in {"mooncake", "p2p_nccl"} and ours != theirs:
            raise ConfigError(
                f"cluster.instances: blocks of {decode} have {ours} tokens, expected the {theirs} of {prefill} with"
                f" connector {kinds[0]}"
            )
        if ours % theirs:
            raise ConfigError(
                f"cluster.instances: blocks of {decode} have {ours} tokens, expected a multiple of the {theirs} of"
                f" {prefill}"
            )


def _handing_over(plan: Plan) -> str:
    """The connector, or of a MultiConnector's the one, that hands KV over."""
    kind = plan.config.connector.kind
    return min(kinds_of(plan.config.connector) & set(REMOTE), default=kind)


def hardware_of(plan: Plan) -> str:
    """The GPUs of a server."""
    gpus = plan.config.hardware.tensor_parallel_size * plan.config.engine.data_parallel_size
    return f"{gpus} x {plan.gpu.name}"


def _together(config: RunConfig, plans: dict[str, Plan]) -> ClusterPlan:
    assert config.cluster is not None
    members = [
        MemberPlan(name, group.name, plans[group.name])
        for group in config.cluster.instances
        for name in group.instances
    ]
    network = None
    if any(kinds_of(plan.config.connector) & USES_NETWORK for plan in plans.values()):
        try:
            network = plan_network(config.cluster.network)
        except UserError as error:
            raise ConfigError(str(error)) from None
    notes = [
        *_merged({name: plan.notes for name, plan in plans.items()}),
        _about_routers(config.cluster),
        *_about_events(config),
        *_about_nodes(config.cluster),
        *(network.notes if network is not None else ()),
    ]
    cautions = _merged({name: plan.cautions for name, plan in plans.items()})
    return ClusterPlan(config, tuple(members), network, tuple(notes), tuple(cautions))


def _about_routers(cluster: ClusterConfig) -> str:
    means = "busy times of all of them are means"
    if not cluster.is_split:
        return f"{len(cluster.names)} instances behind router {cluster.router.kind}; {means}"
    routers = {"prefill": cluster.router, "decode": cluster.decode_router or cluster.router}
    pools = [f"{len(cluster.pools[role])} {role} instances behind router {each.kind}" for role, each in routers.items()]
    return f"{' and '.join(pools)}, which hand KV over; {means}; hits are those of the prefill instances"


def _about_nodes(cluster: ClusterConfig) -> list[str]:
    count = cluster.instances_per_node
    nodes = len(cluster.names) // count
    shared = f"{count} instances share a node, its host memory and its LMCache server: {nodes} servers in all"
    return [f"{shared}; its memory is counted with the first of them"] if count > 1 else []


def _about_events(config: RunConfig) -> list[str]:
    assert config.cluster is not None
    router = config.cluster.router
    if hears_kv_events(config):
        delay = getattr(router, "event_delay", 0) / 1e6
        return [f"the router hears the instances' KV events, each {delay:g} ms after its step (assumed)"]
    if getattr(router, "index", "") == "history":
        return ["the router guesses what instances keep from what it has sent there: it hears no KV events"]
    return []


def _merged(lines: dict[str, tuple[str, ...]]) -> list[str]:
    """Lines of all groups once, others with the group that they are about; in the order of the groups."""
    found: list[str] = []
    for group, own in lines.items():
        for line in own:
            is_common = all(line in others for others in lines.values())
            text = line if is_common else f"{group}: {line}"
            if text not in found:
                found.append(text)
    return found
