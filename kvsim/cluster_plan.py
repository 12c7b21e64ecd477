"""What a config with a cluster means: a plan for each group of instances."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kvsim.config import RunConfig
from kvsim.copy_plan import ASSUMED
from kvsim.errors import ConfigError, UserError
from kvsim.fast_plan import hears_kv_events
from kvsim.nics import load_nic
from kvsim.resolve import Plan, resolve
from kvsim.store_plan import StoreLayout, check_one_layout, store_connector
from kvsim.trace.session import Trace


@dataclass(frozen=True, slots=True)
class MemberPlan:
    """One instance."""

    name: str
    group: str
    plan: Plan

    @property
    def hardware(self) -> str:
        """Its GPUs."""
        return hardware_of(self.plan)


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """A config with everything looked up: instances behind a router."""

    config: RunConfig
    members: tuple[MemberPlan, ...]  # in the order of the config
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


def resolve_run(config: RunConfig, trace: Trace) -> Plan | ClusterPlan:
    """See `kvsim.resolve.resolve`; of a cluster, every group is resolved.

    Raises:
        ConfigError: what does not fit; it names the group.
    """
    if config.cluster is None:
        return resolve(config, trace)
    plans: dict[str, Plan] = {}
    for number, group in enumerate(config.cluster.instances):
        try:
            plans[group.name] = resolve(config.of_group(number), trace)
        except ConfigError as error:
            raise ConfigError(f"cluster.instances.{number} ({group.name}): {error}") from None
        except UserError as error:  # already with its place
            raise ConfigError(str(error)) from None
    _check_failing(config, plans)
    outputs = [plan.config.engine.structured_output for plan in plans.values()]
    if any(output != outputs[0] for output in outputs):
        raise ConfigError("cluster.instances: expected the same engine.structured_output in all groups")
    sharing = {name: plan.store for name, plan in plans.items() if store_connector(plan.config.connector) is not None}
    nic_lines = _about_network(config)
    if sharing:
        _check_sharing(sharing)
    elif config.cluster.store is not None:
        raise ConfigError("cluster.store: no instance uses it, expected connector.kind mooncake_store")
    found = _together(config, plans)
    return replace(found, notes=(*found.notes, *nic_lines)) if sharing else found


def _about_network(config: RunConfig) -> list[str]:
    """What is assumed about the network, unless the config gives it."""
    assert config.cluster is not None
    network = config.cluster.network
    try:
        profile = load_nic(network.nic)
    except UserError as error:
        raise ConfigError(f"cluster.network.nic: {error}") from None
    given = {"bandwidth": network.bandwidth, "setup": network.setup, "latency": network.latency}
    lines = [line for line in profile.assumptions() if given.get(line.partition(":")[0]) is None]
    return [f"{ASSUMED}{profile.name} {line}" for line in lines]


def _check_sharing(layouts: dict[str, StoreLayout]) -> None:
    try:
        check_one_layout(layouts)
    except UserError as error:
        raise ConfigError(str(error)) from None


def _check_failing(config: RunConfig, plans: dict[str, Plan]) -> None:
    assert config.cluster is not None
    for group in config.cluster.instances:
        failing = sorted(config.cluster.failing.intersection(group.instances))
        if failing and plans[group.name].config.engine.data_parallel_size > 1:
            raise ConfigError(
                f"cluster.events: {failing[0]} fails, expected engine.data_parallel_size 1 for instances that fail:"
                " ranks that die are not simulated"
            )


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
    notes = [
        *_merged({name: plan.notes for name, plan in plans.items()}),
        f"{len(members)} instances behind router {config.cluster.router.kind}; busy times of all of them are means",
        *_about_events(config),
    ]
    cautions = _merged({name: plan.cautions for name, plan in plans.items()})
    return ClusterPlan(config, tuple(members), tuple(notes), tuple(cautions))


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
