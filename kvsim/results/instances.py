"""The instances of a cluster: the numbers of each, and how evenly they were loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from kvsim.results.summary import SERIES_COLUMNS, summarize

INSTANCE_COLUMNS: Mapping[str, str] = {"time_ns": "int64", "instance": "str"} | {
    name: kind for name, kind in SERIES_COLUMNS.items() if name != "time_ns"
}
"""``instances.parquet``: the samples of each instance, as in ``series.parquet``."""


@dataclass(frozen=True)
class InstanceTables:
    """What one instance has left; its requests name it in the column ``instance``.

    Attributes:
        state: at the end of the run: up, draining, failed, or absent if it never joined.
        series: see :data:`kvsim.results.summary.SERIES_COLUMNS`.
        tiers, tier_series: see :func:`kvsim.results.summary.summarize`.
        role: both, prefill or decode.
        network: see :class:`kvsim.results.records.NetworkTotals`; None = it uses none.
        parts: of a prefill instance: a row for each turn that it has prefilled, which ends with the first token.
    """

    name: str
    group: str
    hardware: str
    state: str
    totals: Mapping[str, int]
    series: pd.DataFrame
    tiers: Sequence[Mapping[str, Any]]
    tier_series: pd.DataFrame | None = None
    role: str = "both"
    network: Mapping[str, int] | None = None
    parts: pd.DataFrame | None = None


def instances_frame(instances: Sequence[InstanceTables]) -> pd.DataFrame:
    """The samples of all instances, one after the other."""
    if not instances:
        return pd.DataFrame({name: pd.Series([], dtype=kind) for name, kind in INSTANCE_COLUMNS.items()})
    frames = [each.series.assign(instance=each.name)[list(INSTANCE_COLUMNS)] for each in instances]
    return pd.concat(frames, ignore_index=True)


def summarize_instances(requests: pd.DataFrame, instances: Sequence[InstanceTables]) -> list[dict[str, Any]]:
    """Each instance's own summary, with its name, in their order."""
    of = requests.groupby("instance", sort=False).indices
    found = []
    for each in instances:
        own = requests.iloc[of.get(each.name, [])] if each.parts is None else each.parts
        head = {"name": each.name, "group": each.group, "hardware": each.hardware, "state": each.state}
        if each.role != "both":
            head["role"] = each.role
        found.append(head | summarize(own, each.totals, each.series, each.tiers, each.tier_series))
        if each.role == "decode":
            found[-1]["hit_rate"] |= dict.fromkeys(("local", "external", "total"))  # those are of prefill instances
        if each.network is not None:
            found[-1]["network"] = dict(each.network)
    return found


def summarize_cluster(router: str, instances: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How evenly the instances were loaded.

    ``busiest``: GPU time of the busiest one over their mean; ``most_requests`` likewise; hit rates of the extremes.
    """
    busy = [each["totals"]["gpu_busy_ns"] for each in instances]
    requests = [each["requests"]["arrived"] for each in instances]
    rates = [each["hit_rate"]["total"] for each in instances if each["hit_rate"]["total"] is not None]
    return {
        "router": router,
        "instances": len(instances),
        "busiest": _over_mean(busy),
        "most_requests": _over_mean(requests),
        "hit_rate": {"lowest": min(rates, default=None), "highest": max(rates, default=None)},
    }


def _over_mean(values: Sequence[int]) -> float | None:
    total = sum(values)
    return max(values) * len(values) / total if total else None
