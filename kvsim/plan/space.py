"""The space of a plan: every point is a config, and several points may be the same one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from kvsim.config import RunConfig, make_config
from kvsim.errors import UserError
from kvsim.overrides import Change, dotted_keys
from kvsim.plan.axes import (
    CPU,
    FACTOR,
    GPU_BLOCKS,
    GPU_MEMORY,
    MAX_SEQS,
    NVME,
    PD,
    POLICY,
    REPLICAS,
    ROUTER,
    SESSIONS,
    STORE,
    Axis,
)
from kvsim.plan.search import Point
from kvsim.policy_plan import FORESIGHT
from kvsim.steptime.model import load_model
from kvsim.store_plan import disk_of
from kvsim.tier_plan import storages_of
from kvsim.units import format_size
from kvsim.yamlfile import Document

DEFAULT_ROUTER = "prefix_aware"
"""Before several instances where neither the base nor the space says which one: a router for caches."""

_ENGINE_KEYS = {
    GPU_BLOCKS: ("num_gpu_blocks_override", "kv_cache_memory_bytes"),
    GPU_MEMORY: ("kv_cache_memory_bytes", "num_gpu_blocks_override"),
}
"""The key that an axis sets, and the one that would speak against it."""
_MEMORY_KINDS = ("none", "offloading", "simple_cpu", "mooncake_store", "multi")


@dataclass(frozen=True)
class Space:
    """Axes around a base config.

    Attributes:
        base: what all points have in common.
        axes: in the order of a point's indices.
        source: names the plan, for messages.
        folder: what paths in the axes' values are relative to.
    """

    base: RunConfig
    axes: tuple[Axis, ...]
    source: str = "plan"
    folder: Path = Path()

    @property
    def lengths(self) -> tuple[int, ...]:
        """Values on each axis."""
        return tuple(len(axis.values) for axis in self.axes)

    @property
    def monotone(self) -> tuple[bool, ...]:
        """Which axes have more on their right."""
        return tuple(axis.monotone for axis in self.axes)

    def has(self, name: str) -> bool:
        """Whether there is such an axis."""
        return name in self._places

    def value(self, point: Point, name: str, default: Any = None) -> Any:
        """What a point has on an axis."""
        at = self._places.get(name)
        return default if at is None else self.axes[at].values[point[at]]

    def place(self, name: str) -> int:
        """The number of an axis."""
        return self._places[name]

    @cached_property
    def _places(self) -> Mapping[str, int]:
        return {axis.name: at for at, axis in enumerate(self.axes)}

    def labels(self, point: Point) -> dict[str, str]:
        """A point in words; axes that mean nothing at it have a dash."""
        idle = self._idle(point)
        return {
            axis.name: "-" if axis.name in idle else axis.labels[index]
            for axis, index in zip(self.axes, point, strict=True)
        }

    def canonical(self, point: Point) -> Point:
        """The point with the first value on every axis that means nothing at it."""
        idle = self._idle(point)
        return tuple(0 if axis.name in idle else index for axis, index in zip(self.axes, point, strict=True))

    def _idle(self, point: Point) -> set[str]:
        """Axes that change nothing at this point."""
        idle: set[str] = set()
        if not self._has_cpu(point):
            idle |= {NVME, POLICY, FACTOR}
        pd = self.value(point, PD) or {"prefill": 1, "decode": 1}
        if self._instances(point) * max(pd.values()) == 1:
            idle.add(ROUTER)
        return idle

    def _has_cpu(self, point: Point) -> bool:
        return bool(self.value(point, CPU, 1))

    def _instances(self, point: Point) -> int:
        cluster = self.base.cluster
        return int(self.value(point, REPLICAS, len(cluster.names) if cluster is not None else 1))

    def capped(self, name: str, size: int) -> Space:
        """The same without sizes of an axis beyond the first one that holds so many bytes."""
        if not self.has(name):
            return self
        return replace(self, axes=tuple(axis.up_to(size) if axis.name == name else axis for axis in self.axes))

    def config(self, point: Point, sessions: int | None = None) -> RunConfig:
        """The config of a point.

        Args:
            point: any.
            sessions: play only the first so many of the trace.

        Raises:
            UserError: its parts do not fit together; it names the point.
        """
        data = self.base.model_dump(mode="json")
        data["name"] = None
        data["output"] |= {"folder": None, "plots": False, "kv_events": False}
        changes: list[Change] = []
        for axis, index in zip(self.axes, point, strict=True):
            if "." in axis.name:
                place = f"{self.source}: space.{axis.name}"
                changes.append(Change(dotted_keys(axis.name, place), axis.values[index], place, self.folder))
        self._set_engine(data, point)
        data["connector"] = self._connector(point)
        data["cluster"] = self._cluster(point)
        if self.has(SESSIONS):
            data["trace"]["max_concurrent_sessions"] = self.value(point, SESSIONS)
        if sessions is not None:
            most = data["trace"]["max_sessions"]
            data["trace"]["max_sessions"] = sessions if most is None else min(most, sessions)
        try:
            return make_config(Document(self.source, data), self.folder, changes, self.name(point))
        except UserError as error:
            raise UserError(f"{self.name(point)}: {error}") from None

    def name(self, point: Point) -> str:
        """A name for the point's run."""
        labels = self.labels(point)
        words = [f"{name} {label}" for name, label in labels.items() if label != "-"]
        return ", ".join(words).replace("/", " ") or "base"

    def check(self) -> list[RunConfig]:
        """See that the axes suit the base, and that each of their values alone does.

        Returns:
            The configs with one value of one axis each, all others at their first.

        Raises:
            UserError: an axis that has nothing to change, one that the base's parts do not allow, or a bad value.
        """
        self._check_axes()
        first = tuple(0 for _ in self.axes)
        most = tuple(len(axis.values) - 1 if axis.monotone else 0 for axis in self.axes)
        found = [self.config(self.canonical(first)), self.config(self.canonical(most))]
        others = (  # at the most of everything, where every axis means something
            (*most[:place], index, *most[place + 1 :])
            for place, axis in enumerate(self.axes)
            for index in range(1, len(axis.values))
        )
        found += [self.config(self.canonical(point)) for point in others]
        for config in found:
            self._check_parts(config)
        return found

    def _check_parts(self, config: RunConfig) -> None:
        """A model or storage that is not there, or a policy that nobody can have, is a mistake and no bad point."""
        groups = () if config.cluster is None else config.cluster.instances
        for each in [config.of_group(number) for number in range(len(groups))] or [config]:
            parts = getattr(each.connector, "connectors", (each.connector,))
            store = None if config.cluster is None else config.cluster.store
            try:
                load_model(each.model.name, each.model.kv_cache_dtype)
                for part in parts:
                    storages_of(part)
                if store is not None:
                    disk_of(store)
            except UserError as error:
                raise UserError(f"{self.source}: {config.name}: {error}") from None
            for part in parts:
                policy = getattr(part, "eviction_policy", None)
                if policy in FORESIGHT:
                    raise UserError(
                        f"{self.source}: eviction_policy: {policy} knows the future ({FORESIGHT[policy]}): expected one"
                        " that a server can have, as a plan says what to buy (kvsim sweep shows how far it is from it)"
                    )

    def _check_axes(self) -> None:
        kind = self.base.connector.kind
        touching = [name for name in (CPU, NVME, STORE, POLICY, FACTOR, PD) if self.has(name)]
        if touching and kind not in _MEMORY_KINDS:
            raise UserError(
                f"{self.source}: space.{touching[0]}: expected a base with connector {', '.join(_MEMORY_KINDS[:3])},"
                f" found {kind}"
            )
        if kind == "multi" and touching:
            raise UserError(f"{self.source}: space.{touching[0]}: expected a base without a MultiConnector")
        if kind == "simple_cpu":
            for name in (NVME, POLICY, FACTOR):
                if self.has(name):
                    raise UserError(f"{self.source}: space.{name}: connector simple_cpu has none, expected offloading")
        if kind != "offloading" and not self.has(CPU):
            for name in (NVME, POLICY, FACTOR):
                if self.has(name):
                    raise UserError(
                        f"{self.source}: space.{name}: expected cpu beside it, or a base with connector offloading"
                    )
        cluster = self.base.cluster
        if cluster is not None and self.has(REPLICAS) and (len(cluster.instances) > 1 or cluster.events):
            raise UserError(
                f"{self.source}: space.{REPLICAS}: expected a base with one group of instances, without events"
            )
        if cluster is not None and self.has(PD):
            raise UserError(f"{self.source}: space.{PD}: expected a base without a cluster")
        if self.has(ROUTER) and cluster is None and not self.has(REPLICAS) and not self.has(PD):
            raise UserError(f"{self.source}: space.{ROUTER}: expected replicas beside it: there is one instance")

    # Sections of the config

    def _set_engine(self, data: dict[str, Any], point: Point) -> None:
        engine = data["engine"]
        for name, (key, other) in _ENGINE_KEYS.items():
            if self.has(name):
                value = self.value(point, name)
                engine[key] = format_size(value) if name == GPU_MEMORY else value
                engine[other] = None
        if self.has(MAX_SEQS):
            engine["max_num_seqs"] = self.value(point, MAX_SEQS)

    def _connector(self, point: Point) -> dict[str, Any]:
        """What a server's KV goes to: nothing, one connector, or several as vLLM's MultiConnector."""
        parts = [self._local(point), self._shared(point)]
        if self.value(point, PD) is not None:
            parts.insert(0, {"kind": "nixl"})
        used = [part for part in parts if part is not None]
        if not used:
            return {"kind": "none"}
        return used[0] if len(used) == 1 else {"kind": "multi", "connectors": used}

    def _local(self, point: Point) -> dict[str, Any] | None:
        """The connector with CPU memory, and storage behind it."""
        base: dict[str, Any] = self.base.connector.model_dump(mode="json")
        if not self.has(CPU) and base["kind"] == "none":
            return None
        if base["kind"] == "mooncake_store" and (self.has(STORE) or not self.has(CPU)):
            return None if self.has(STORE) else base
        if self.has(CPU):
            size = self.value(point, CPU)
            if not size:
                return None
            if base["kind"] not in ("offloading", "simple_cpu"):
                base = {"kind": "offloading"}
            base["cpu_bytes_to_use"] = format_size(size)
            if base["kind"] == "simple_cpu":
                base["cpu_bytes_to_use_per_rank"] = None
        if self.has(POLICY):
            base |= {"eviction_policy": self.value(point, POLICY), "eviction_policy_options": {}}
        if self.has(FACTOR):
            base |= {"block_size_factor": self.value(point, FACTOR), "block_size": None}
        if self.has(NVME):
            base["tiers"] = self._tiers(point, base.get("tiers", []))
        return base

    def _tiers(self, point: Point, tiers: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The base's tiers with the plan's file system in place of theirs, first."""
        others = [tier for tier in tiers if tier["kind"] != "fs"]
        size = self.value(point, NVME)
        if not size:
            return others
        template = next((tier for tier in tiers if tier["kind"] == "fs"), {"kind": "fs"})
        options = dict(self.axes[self.place(NVME)].options)
        return [{**template, **options, "capacity": format_size(size)}, *others]

    def _shared(self, point: Point) -> dict[str, Any] | None:
        if not self.value(point, STORE, 0):
            return None
        base: dict[str, Any] = self.base.connector.model_dump(mode="json")
        return base if base["kind"] == "mooncake_store" else {"kind": "mooncake_store"}

    def _cluster(self, point: Point) -> dict[str, Any] | None:
        base = self.base.cluster
        count, pd, store = self._instances(point), self.value(point, PD), self.value(point, STORE, 0)
        if base is None and count == 1 and pd is None and not store:
            return None
        data: dict[str, Any] = {} if base is None else base.model_dump(mode="json")
        if pd is not None:
            data["instances"] = [{"name": role, "role": role, "count": pd[role] * count} for role in pd]
        elif base is None:
            data["instances"] = [{"name": "replica", "count": count}]
        elif self.has(REPLICAS):
            data["instances"][0]["count"] = count
        if self.has(ROUTER):
            data["router"] = self.value(point, ROUTER)
        elif base is None:
            data["router"] = {"kind": DEFAULT_ROUTER}
        if self.has(STORE):
            data["store"] = None
        if store:
            template = {} if base is None or base.store is None else base.store.model_dump(mode="json")
            options = dict(self.axes[self.place(STORE)].options)
            data["store"] = {**template, **options, "memory_per_node": format_size(store)}
        return data
