"""Runs and points of sweeps as one kind of thing: a choice of settings, and what came of it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from kvsim.report.format import memory, shorten
from kvsim.results.compare import METRIC, labels
from kvsim.results.run import Run
from kvsim.results.sweep import Sweep
from kvsim.units import parse_size

_TTFT, _RATE = METRIC["latency.ttft_ms.p90"], METRIC["throughput.output_tokens_per_s"]
_DRAM = METRIC["tiers.cpu.capacity_bytes"]
_NO_CHOICE = frozenset({"name", "notes", "output", "debug", "python_path"})
"""Sections of a config that say nothing about the server."""
KNOW_THE_FUTURE = frozenset({"opt", "opt_bypass", "belady", "optimum"})
"""Policies that nobody can run: a bound for the others, and never a choice. kvsim's are opt and opt_bypass."""
MANY = 60
"""Characters of a point's name in a table."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit of an SLO beside what a point gave: finished texts."""

    key: str
    limit: str
    measured: str
    is_met: bool


@dataclass(frozen=True)
class Point:
    """One choice.

    Attributes:
        axes: what sets it apart from the others, by short name.
        summary: None if it failed.
        config: as it was run; empty where that is not known.
        run: with its tables, if there are any.
        limits: of the SLO, if one was given.
    """

    name: str
    axes: Mapping[str, str | float | None]
    summary: Mapping[str, Any] | None
    config: Mapping[str, Any]
    status: str = "ok"
    reason: str = ""
    run: Run | None = None
    limits: tuple[Limit, ...] = field(default=())

    @property
    def meets_slo(self) -> bool | None:
        """None where no SLO was given."""
        return all(each.is_met for each in self.limits) if self.limits else None

    @property
    def ttft_p90_ms(self) -> float | None:
        """Of finished requests."""
        return None if self.summary is None else _TTFT.of(self.summary)

    @property
    def output_tokens_per_s(self) -> float | None:
        """Of finished requests."""
        return None if self.summary is None else _RATE.of(self.summary)

    @property
    def dram_bytes(self) -> int:
        """CPU memory for KV; 0 without."""
        return 0 if self.summary is None else int(_DRAM.of(self.summary) or 0)

    @property
    def storage_bytes(self) -> int:
        """Of all tiers behind it that have a limit."""
        tiers = {} if self.summary is None else self.summary.get("secondary_tiers", {})
        return sum(int(each.get("capacity_bytes") or 0) for each in tiers.values())

    @property
    def rejected(self) -> tuple[int, int]:
        """How many of how many requests no server took."""
        counts = {} if self.summary is None else self.summary.get("requests", {})
        return int(counts.get("rejected") or 0), int(counts.get("arrived") or 0)

    @property
    def rejected_share(self) -> float:
        """Of the requests that arrived."""
        rejected, arrived = self.rejected
        return rejected / arrived if arrived else 0.0

    @property
    def knows_the_future(self) -> bool:
        """Whether its eviction policy cannot be had."""
        return self.policy.lower() in KNOW_THE_FUTURE

    @property
    def gpus(self) -> int:
        """Of all instances; 0 where the config is not known."""
        return _gpus(self.config)

    @property
    def policy(self) -> str:
        """Eviction policy of the CPU tier; "" without one."""
        connector = self.config.get("connector")
        named = [str(text) for axis, text in self.axes.items() if axis.endswith("policy") and text is not None]
        own = str(connector.get("eviction_policy", "")) if isinstance(connector, Mapping) else ""
        return named[0] if named else own


def points_of(runs: Sequence[Run], sweeps: Sequence[Sweep]) -> list[Point]:
    """All points, runs first. A lone sweep has its own axes; else they are what the configs differ in."""
    found = [
        Point(name, {}, run.summary, _parsed(run.config_text), run=run)
        for name, run in zip(labels(runs), runs, strict=True)
    ]
    for sweep in sweeps:
        prefix = f"{sweep.name}: " if len(sweeps) > 1 or runs else ""
        is_grid = len(sweep.points) == math.prod(
            len({str(each.labels.get(axis)) for each in sweep.points}) for axis in sweep.axes
        )
        for each in sweep.points:
            config = _parsed(each.config_text)
            axes = {_short(axis, sweep.axes): _label(_of_base(config, axis, own)) for axis, own in each.labels.items()}
            own_axes = [_short(axis, sweep.axes) for axis, own in each.labels.items() if is_grid or own is not None]
            has_name = not each.name.startswith("point ")
            point = Point("", axes, each.summary, config, each.status, each.reason)
            name = each.name if has_name or not axes else series_name(point, own_axes) or "the base"
            found.append(replace(point, name=prefix + name))
    if runs or len(sweeps) > 1:
        return _with_differences(found)
    return found


def _with_differences(points: Sequence[Point]) -> list[Point]:
    flat = [dict(_flat(each.config)) for each in points]
    keys = dict.fromkeys(key for each in flat for key in each)
    varied = [key for key in keys if _tells_apart([each.get(key) for each in flat])]
    return [
        replace(point, axes={_short(key, varied): _label(own.get(key)) for key in varied})
        for point, own in zip(points, flat, strict=True)
    ]


def _of_base(config: Mapping[str, Any], axis: str, own: str | float | None) -> Any:
    """A point's own value on an axis; where it sets none, what its config has there."""
    at: Any = config if own is None else own
    for step in axis.split(".") if own is None else ():
        at = at.get(step) if isinstance(at, Mapping) else None
    return at


def _tells_apart(values: Sequence[Any]) -> bool:
    """Whether two of those who have it differ in it; what only one kind of connector has says no more than that."""
    return len({str(_label(value)) for value in values if value is not None}) > 1


def best_of(points: Sequence[Point]) -> Point | None:
    """The choice to recommend.

    With an SLO: of those that meet it, the one with the fewest GPUs, then the least memory, then the least storage.
    Without one, or if nobody meets it: the lowest P90 of TTFT, then the most output. Whoever rejects more requests
    than another is no choice: the figures are over those that were served. Nor is a policy that knows the future.
    """
    known = _choices(points)
    if not known:
        return None
    least = min(each.rejected_share for each in known)
    known = [each for each in known if each.rejected_share <= least]
    good = [each for each in known if each.meets_slo]
    if good:
        return min(good, key=lambda each: (each.gpus, each.dram_bytes, each.storage_bytes, each.ttft_p90_ms))
    return min(known, key=lambda each: (each.ttft_p90_ms, -(each.output_tokens_per_s or 0)))


def worth_choosing(points: Sequence[Point]) -> list[bool]:
    """Of each point, whether it may be had and rejects no more requests than others that may be."""
    known = _choices(points)
    least = min((each.rejected_share for each in known), default=1.0)
    return [any(each is other for other in known) and each.rejected_share <= least for each in points]


def refuse_more(points: Sequence[Point]) -> list[Point]:
    """Those that reject a larger share of their requests than one that could be chosen."""
    least = min((each.rejected_share for each in _choices(points)), default=1.0)
    return [each for each in points if each.rejected_share > least]


def _choices(points: Sequence[Point]) -> list[Point]:
    known = [each for each in points if each.ttft_p90_ms is not None and each.status == "ok"]
    return [each for each in known if not each.knows_the_future] or known


def baseline_of(points: Sequence[Point]) -> Point | None:
    """What the others are compared with: the first run; of sweeps the first point without offloading, or the first.

    Of sweeps one that rejects more than others is taken only if there is nothing else.
    """
    known = [each for each in points if each.summary is not None]
    if not known or known[0].run is not None:
        return next(iter(known), None)
    more = {id(each) for each in refuse_more(points)}
    known = [each for each in known if id(each) not in more] or known
    plain = [each for each in known if not each.dram_bytes and not each.storage_bytes]
    return (plain or known)[0]


def varied_axes(points: Sequence[Point]) -> list[str]:
    """Axes on which these points differ."""
    axes = dict.fromkeys(axis for each in points for axis in each.axes)
    return [axis for axis in axes if len({each.axes.get(axis) for each in points}) > 1]


def series_name(point: Point, axes: Sequence[str]) -> str:
    """Its values on these axes; numbers with the axis they are on."""
    parts = []
    for axis in axes:
        value = point.axes.get(axis)
        parts.append(value if isinstance(value, str) else f"{axis} {_text(value)}")
    return ", ".join(parts)


def size_axis(points: Sequence[Point]) -> tuple[str, list[int]] | None:
    """What grows from point to point: the name of a tier, and its bytes for each point. None if nothing does."""
    names = dict.fromkeys(name for each in points if each.summary for name in each.summary.get("secondary_tiers", {}))
    candidates: list[tuple[str, list[int]]] = [("CPU memory", [each.dram_bytes for each in points])]
    for name in names:
        tiers = [each.summary.get("secondary_tiers", {}) if each.summary else {} for each in points]
        candidates.append((f"tier {name}", [int(tier.get(name, {}).get("capacity_bytes") or 0) for tier in tiers]))
    gpu = METRIC["tiers.gpu.capacity_bytes"]
    candidates.append(("GPU memory for KV", [int((each.summary and gpu.of(each.summary)) or 0) for each in points]))
    name, sizes = max(candidates, key=lambda item: len(set(item[1])))
    return (name, sizes) if len(set(sizes)) > 1 else None


def other_axes(points: Sequence[Point], sizes: Sequence[float]) -> list[str]:
    """Varied axes that say more than a size does: those that have several values at one size.

    Not the size in other words: 64GiB in each of two servers, 128GiB in one, and nothing without a connector.
    """
    others = []
    for axis in varied_axes(points):
        if "cpu" in axis and all(_is_size(point.axes.get(axis), point.dram_bytes) for point in points):
            continue
        by_size: dict[float, set[object]] = {}
        for point, size in zip(points, sizes, strict=True):
            by_size.setdefault(size, set()).add(point.axes.get(axis))
        if any(len(found) > 1 for found in by_size.values()):
            others.append(axis)
    return others


def _is_size(label: str | float | None, memory_bytes: int) -> bool:
    try:
        size = None if label is None else parse_size(label)
    except ValueError:
        return False
    return not memory_bytes if not size else memory_bytes > 0 and memory_bytes % size == 0


def size_text(size_bytes: int) -> str:
    """``64 GiB``, ``1.5 TiB``; "none" for nothing."""
    if not size_bytes:
        return "none"
    for unit, unit_bytes in (("TiB", 2**40), ("GiB", 2**30)):
        if size_bytes >= unit_bytes:
            return f"{size_bytes / unit_bytes:.3g} {unit}" if size_bytes < 1000 * unit_bytes else memory(size_bytes)
    return memory(size_bytes)


def short_name(point: Point, width: int = MANY) -> str:
    """Its name, cut in the middle where it is too long."""
    return shorten(point.name, width)


def _parsed(text: str) -> Mapping[str, Any]:
    try:
        found = yaml.safe_load(text) if text else {}
    except yaml.YAMLError:
        return {}
    return found if isinstance(found, Mapping) else {}


def _flat(config: Mapping[str, Any], under: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in config.items():
        if not under and key in _NO_CHOICE:
            continue
        name = f"{under}{key}"
        found += _flat(value, f"{name}.") if isinstance(value, Mapping) and value else [(name, value)]
    return found


def _short(axis: str, among: Sequence[str]) -> str:
    """The last part of a dotted key, or as many as tell it from the others."""
    parts = axis.split(".")
    for count in range(1, len(parts)):
        short = ".".join(parts[-count:])
        if sum(other == short or other.endswith(f".{short}") for other in among) == 1:
            return short
    return axis


def _label(value: Any) -> str | float | None:
    if value is None or (isinstance(value, int | float | str) and not isinstance(value, bool)):
        return value
    if isinstance(value, list):
        return ", ".join(_of_list(each) for each in value) or "none"
    return json.dumps(value, ensure_ascii=False)


def _of_list(value: Any) -> str:
    """A part of a list by its name or kind, if it has one."""
    if isinstance(value, Mapping):
        return str(value.get("name") or value.get("kind") or json.dumps(value, ensure_ascii=False))
    return str(_label(value))


def _text(value: str | float | None) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) and math.isfinite(value) else str(value)


def _gpus(config: Mapping[str, Any]) -> int:
    cluster = config.get("cluster")
    groups = cluster.get("instances") if isinstance(cluster, Mapping) else None
    if not isinstance(groups, list):
        return _of_server(config, {})
    return sum(int(group.get("count") or 1) * _of_server(config, group) for group in groups if isinstance(group, dict))


def _of_server(config: Mapping[str, Any], group: Mapping[str, Any]) -> int:
    count = 1
    for section, key in (("hardware", "tensor_parallel_size"), ("engine", "data_parallel_size")):
        own = group.get(section) if isinstance(group.get(section), Mapping) else {}
        base = config.get(section)
        if not isinstance(base, Mapping):
            return 0
        found = (own or {}).get(key, base.get(key, 1))
        count *= found if isinstance(found, int) else 1
    return count
