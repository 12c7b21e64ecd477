"""Several servers behind a router: which ones, and what happens to them during a run."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from kvsim.checked import Component, Misfit, closest
from kvsim.config.fields import Name, Text, as_tuple
from kvsim.config.network import NetworkConfig
from kvsim.config.routers import RoundRobinRouter, RouterConfig
from kvsim.config.store import StoreConfig
from kvsim.units import Duration

MOST_INSTANCES = 10_000
SECTIONS = ("hardware", "engine", "connector", "step_time", "transfer", "frontend")
"""What a group may have differently."""
COMMON = frozenset({"seed", "trace", "model", "faults", "output", "python_path", "notes", "debug", "cluster"})
"""What it may not."""

ROUTERS = ("router", "decode_router")

Overrides = Annotated[dict[str, Any], Field(default_factory=dict)]


class InstanceGroup(Component):
    """Instances that are alike. A section here changes keys of the section above for them, or all with another kind."""

    name: Name = Field(description="its instances are name-0, name-1, ...")
    count: Annotated[int, Field(ge=1, le=MOST_INSTANCES)] = Field(1, description="how many")
    role: Literal["both", "prefill", "decode"] = Field(
        "both", description="prefill = prompts only, whose KV goes to an instance that decodes"
    )
    hardware: Overrides = Field(description="keys of hardware that differ")
    engine: Overrides = Field(description="keys of engine that differ")
    connector: Overrides = Field(description="keys of connector that differ")
    step_time: Overrides = Field(description="keys of step_time that differ")
    transfer: Overrides = Field(description="keys of transfer that differ")
    frontend: Overrides = Field(description="keys of frontend that differ")

    @model_validator(mode="before")
    @classmethod
    def _changes_only_servers(cls, value: object) -> object:
        common = [key for key in value if key in COMMON] if isinstance(value, dict) else []
        if common:
            raise Misfit(common[0], "is the same for all instances, expected only at the top level")
        return value

    @property
    def instances(self) -> list[str]:
        """Their names."""
        return [f"{self.name}-{number}" for number in range(self.count)]


class ClusterEvent(Component):
    """Something that happens to an instance."""

    at: Duration = Field(description="moment of the run")
    instance: Text = Field(description="its name, such as h100-3")
    action: Literal["join", "drain", "fail"] = Field(
        description="join = takes turns from now on (if it is the first event: it is not there before);"
        " drain = gets no new ones; fail = its requests fail, its memory is lost"
    )


# What may happen to an instance next; "absent" is one whose first event is to join.
_NEXT = {
    ("absent", "join"): "up",
    ("up", "drain"): "draining",
    ("up", "fail"): "failed",
    ("draining", "fail"): "failed",
    ("draining", "join"): "up",
    ("failed", "join"): "up",
}


class ClusterConfig(Component):
    """Instances on one clock, behind a router."""

    instances: Annotated[tuple[InstanceGroup, ...], BeforeValidator(as_tuple), Field(min_length=1)] = Field(
        description="groups of instances that are alike"
    )
    router: RouterConfig = Field(default_factory=RoundRobinRouter, description="which instance a turn goes to")
    decode_router: RouterConfig | None = Field(
        None, description="which decode instance a turn goes to, router = which prefill instance; null = as router"
    )
    instances_per_node: Annotated[int, Field(ge=1)] = Field(
        1,
        description="neighbours of a group that share a node: its memory's bandwidth and LMCache's server (lmcache_mp)",
    )
    network: NetworkConfig = Field(default_factory=NetworkConfig, description="NICs and the fabric between them")
    store: StoreConfig | None = Field(None, description="a store that all instances share; null = none")
    events: Annotated[tuple[ClusterEvent, ...], BeforeValidator(as_tuple)] = Field(
        (), description="instances that join, drain or fail during the run"
    )

    @model_validator(mode="before")
    @classmethod
    def _router_by_name(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        named = {key: {"kind": value[key]} for key in ROUTERS if isinstance(value.get(key), str)}
        return {**value, **named}

    @model_validator(mode="after")
    def _fits(self) -> ClusterConfig:
        names = self.names
        known = dict.fromkeys(names, 0)
        for name in names:
            known[name] += 1
            if known[name] > 1:
                raise Misfit("instances", f"two instances are called {name}, expected names of groups that differ")
        if len(names) > MOST_INSTANCES:
            raise Misfit("instances", f"{len(names)} instances, expected at most {MOST_INSTANCES}")
        for event in self.events:
            if event.instance not in known:
                guess = closest(event.instance, names)
                few = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
                hint = f", did you mean {guess}?" if guess else ""
                raise Misfit(
                    "events", f"instance {event.instance!r} is not in the cluster, expected one of {few}{hint}"
                )
        self._check_roles()
        for role, names in self.pools.items():
            (_, at_start), *later = self._num_up(names)
            what = f"no {role + ' ' if self.is_split else ''}instance takes requests"
            if not at_start:
                raise Misfit("events", f"{what} at the start, expected one that need not join first")
            if later and not later[-1][1]:
                at = later[-1][0] / 1e9
                raise Misfit("events", f"after {at:g} s {what} any more, expected one that stays or joins")
        return self

    @property
    def names(self) -> list[str]:
        """Of all instances."""
        return [name for group in self.instances for name in group.instances]

    @property
    def absent(self) -> set[str]:
        """Instances that are not there at the start: their first event is to join."""
        first: dict[str, str] = {}
        for event in self.in_order:
            first.setdefault(event.instance, event.action)
        return {name for name, action in first.items() if action == "join"}

    @property
    def failing(self) -> set[str]:
        """Instances that fail at some time."""
        return {event.instance for event in self.events if event.action == "fail"}

    @property
    def in_order(self) -> list[ClusterEvent]:
        """Events as they happen; those of one moment in the order in which they are written."""
        return sorted(self.events, key=lambda event: event.at)

    @property
    def is_split(self) -> bool:
        """Whether prefill and decode are apart."""
        return any(group.role != "both" for group in self.instances)

    @property
    def pools(self) -> dict[str, list[str]]:
        """Names of the instances of each role."""
        found: dict[str, list[str]] = {}
        for group in self.instances:
            found.setdefault(group.role, []).extend(group.instances)
        return found

    def _check_roles(self) -> None:
        if not self.is_split:
            if self.decode_router is not None:
                raise Misfit("decode_router", "expected none without instances of role prefill and decode")
            return
        for role in ("prefill", "decode"):
            if role not in self.pools:
                raise Misfit("instances", f"expected at least one of role {role} beside the others")
        if "both" in self.pools:
            name = next(group.name for group in self.instances if group.role == "both")
            raise Misfit("instances", f"expected role prefill or decode for {name}, because others have one")

    def _num_up(self, names: Collection[str]) -> Iterator[tuple[int, int]]:
        """(moment, instances of these that take requests from then on), the start first."""
        states = {name: "absent" if name in self.absent else "up" for name in names}
        up = sum(state == "up" for state in states.values())
        yield 0, up
        for event in (event for event in self.in_order if event.instance in states):
            state = states[event.instance]
            after = _NEXT.get((state, event.action))
            if after is None:
                raise Misfit(
                    "events",
                    f"{event.instance} cannot {event.action} at {event.at / 1e9:g} s: it is {state} then, expected"
                    f" {' or '.join(action for before, action in _NEXT if before == state)}",
                )
            up += (after == "up") - (state == "up")
            states[event.instance] = after
            yield event.at, up
