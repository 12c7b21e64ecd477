"""Runs side by side: which numbers are worth comparing, and how each run differs from the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pandas as pd

from kvsim.results.run import Run

Unit = Literal["count", "share", "ms", "s", "per_s", "tokens", "bytes", "memory_bytes", "gb_per_s", "ratio"]
"""``bytes`` are shown in GB (1e9: traffic), ``memory_bytes`` in GiB (2**30: capacity)."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of a summary: where it is, what it is called, and which way is better."""

    group: str
    label: str
    path: tuple[str, ...]
    unit: Unit
    better: Literal["higher", "lower", ""] = ""

    @property
    def key(self) -> str:
        """Dotted path in ``summary.json``."""
        return ".".join(self.path)

    def of(self, summary: Mapping[str, Any]) -> float | int | None:
        """The value in a summary; None where there is none."""
        value: Any = summary
        for step in self.path:
            if isinstance(value, list):  # of parts that have names
                value = next((part for part in value if part["name"] == step), None)
            else:
                value = value.get(step) if isinstance(value, Mapping) else None
        return value if isinstance(value, int | float) else None


def _percentiles(group: str, label: str, path: tuple[str, str], unit: Unit, which: Sequence[str]) -> list[Metric]:
    names = {"mean": "mean", "p50": "P50", "p90": "P90", "p99": "P99"}
    return [Metric(group, f"{label} {names[what]}", (*path, what), unit, "lower") for what in which]


_ALL = ("mean", "p50", "p90", "p99")

METRICS: tuple[Metric, ...] = (
    Metric("Requests", "Arrived", ("requests", "arrived"), "count"),
    Metric("Requests", "Finished", ("requests", "finished"), "count", "higher"),
    Metric("Requests", "Rejected", ("requests", "rejected"), "count", "lower"),
    Metric("Requests", "Failed", ("requests", "failed"), "count", "lower"),
    Metric("Requests", "Given up by clients", ("requests", "aborted"), "count", "lower"),
    Metric("Requests", "Not ended", ("requests", "stuck"), "count", "lower"),
    Metric("Requests", "Preemptions", ("preemptions", "count"), "count", "lower"),
    Metric("Token hit rate", "Total", ("hit_rate", "total"), "share", "higher"),
    Metric("Token hit rate", "GPU cache", ("hit_rate", "local"), "share", "higher"),
    Metric("Token hit rate", "Offload tiers", ("hit_rate", "external"), "share", "higher"),
    *_percentiles("Latency", "TTFT", ("latency", "ttft_ms"), "ms", _ALL),
    *_percentiles("Latency", "TPOT", ("latency", "tpot_ms"), "ms", _ALL),
    *_percentiles("Latency", "E2E", ("latency", "e2e_s"), "s", _ALL),
    *_percentiles("Latency", "Queue time", ("latency", "queue_ms"), "ms", ("p50", "p90")),
    *_percentiles("Latency", "Load wait", ("latency", "load_wait_ms"), "ms", ("p50", "p90")),
    *_percentiles("Latency", "Session time", ("sessions", "time_s"), "s", ("p50", "p90")),
    Metric("Throughput", "Makespan", ("throughput", "makespan_s"), "s", "lower"),
    Metric("Throughput", "Requests/s", ("throughput", "requests_per_s"), "per_s", "higher"),
    Metric("Throughput", "Input tokens/s", ("throughput", "input_tokens_per_s"), "per_s", "higher"),
    Metric("Throughput", "Output tokens/s", ("throughput", "output_tokens_per_s"), "per_s", "higher"),
    Metric("Throughput", "Total tokens/s", ("throughput", "total_tokens_per_s"), "per_s", "higher"),
    Metric("GPU and links", "GPU busy", ("gpu", "busy_share"), "share"),
    Metric("GPU and links", "GPU idle for loads", ("gpu", "stall_s"), "s", "lower"),
    Metric("GPU and links", "Loaded (H2D)", ("transfers", "h2d", "bytes"), "bytes"),
    Metric("GPU and links", "Stored (D2H)", ("transfers", "d2h", "bytes"), "bytes"),
    Metric("GPU and links", "Stored, never loaded", ("transfers", "unused_store_bytes"), "bytes", "lower"),
    Metric("GPU and links", "H2D busy", ("transfers", "h2d", "busy_share"), "share"),
    Metric("GPU and links", "D2H busy", ("transfers", "d2h", "busy_share"), "share"),
    Metric("GPU and links", "H2D rate while busy", ("transfers", "h2d", "gb_per_s_busy"), "gb_per_s"),
    Metric("GPU and links", "D2H rate while busy", ("transfers", "d2h", "gb_per_s_busy"), "gb_per_s"),
    Metric("KV tiers", "GPU size", ("tiers", "gpu", "capacity_bytes"), "memory_bytes"),
    Metric("KV tiers", "GPU held, peak", ("tiers", "gpu", "held", "peak_share"), "share"),
    Metric("KV tiers", "GPU evicted blocks", ("tiers", "gpu", "evicted_blocks"), "count"),
    Metric("KV tiers", "CPU size", ("tiers", "cpu", "capacity_bytes"), "memory_bytes"),
    Metric("KV tiers", "CPU used, peak", ("tiers", "cpu", "used", "peak_share"), "share"),
    Metric("KV tiers", "CPU used, end", ("tiers", "cpu", "used", "end_share"), "share"),
    Metric("KV tiers", "CPU evicted blocks", ("tiers", "cpu", "evicted_blocks"), "count"),
    Metric("KV tiers", "CPU refused stores", ("tiers", "cpu", "cannot_store"), "count", "lower"),
)
"""What tables and reports show, in order."""

FRONTEND_METRICS = tuple(_percentiles("Latency", "Frontend", ("latency", "frontend_ms"), "ms", _ALL))
"""What they show beside other latencies where the time before the scheduler counts."""

CLUSTER_METRICS: tuple[Metric, ...] = (
    Metric("Cluster", "Instances", ("cluster", "instances"), "count"),
    Metric("Cluster", "Busiest / mean", ("cluster", "busiest"), "ratio", "lower"),
    Metric("Cluster", "Most requests / mean", ("cluster", "most_requests"), "ratio", "lower"),
    Metric("Cluster", "Hit rate, lowest", ("cluster", "hit_rate", "lowest"), "share", "higher"),
    Metric("Cluster", "Hit rate, highest", ("cluster", "hit_rate", "highest"), "share", "higher"),
)
"""What they show of clusters."""


NETWORK_METRICS: tuple[Metric, ...] = (
    Metric("Network", "Remote wait P50", ("network", "remote_wait_ms", "p50"), "ms", "lower"),
    Metric("Network", "Remote wait P99", ("network", "remote_wait_ms", "p99"), "ms", "lower"),
    Metric("Network", "Remote tokens", ("network", "remote_tokens"), "tokens"),
    Metric("Network", "Decode's own hits", ("network", "decode_hit_tokens"), "tokens"),
    Metric("Network", "Received", ("network", "received_bytes"), "bytes"),
    Metric("Network", "Time of a transfer", ("network", "transfer_ms"), "ms", "lower"),
    Metric("Network", "Rate of a transfer", ("network", "gb_per_s"), "gb_per_s", "higher"),
    Metric("Network", "Busiest NICs, in", ("network", "busy_share"), "share"),
    Metric("Network", "Failed transfers", ("network", "totals", "failed_transfers"), "count", "lower"),
    Metric("Network", "Expired requests", ("network", "totals", "expired_requests"), "count", "lower"),
)
"""What they show where KV goes from instance to instance."""


TENANTS_METRICS: tuple[Metric, ...] = (
    Metric("Tenants", "Tenants", ("fairness", "tenants"), "count"),
    Metric("Tenants", "Fairness of hits", ("fairness", "hit_rate", "jain"), "ratio", "higher"),
    Metric("Tenants", "Fairness, slow-down", ("fairness", "slowdown", "jain"), "ratio", "higher"),
    Metric("Tenants", "Hit rate, lowest", ("fairness", "hit_rate", "lowest"), "share", "higher"),
    Metric("Tenants", "Hit rate, highest", ("fairness", "hit_rate", "highest"), "share"),
    Metric("Tenants", "Slow-down, lowest", ("fairness", "slowdown", "lowest"), "ratio"),
    Metric("Tenants", "Slow-down, highest", ("fairness", "slowdown", "highest"), "ratio", "lower"),
    Metric("Tenants", "TTFT P90, highest", ("fairness", "ttft_p90_ms", "highest"), "ms", "lower"),
)
"""What they show where there are several tenants."""

TENANT_COLUMNS: tuple[Metric, ...] = (
    Metric("", "Requests", ("requests", "arrived"), "count"),
    Metric("", "Hit rate", ("hit_rate", "total"), "share", "higher"),
    Metric("", "TTFT P50", ("latency", "ttft_ms", "p50"), "ms", "lower"),
    Metric("", "TTFT P90", ("latency", "ttft_ms", "p90"), "ms", "lower"),
    Metric("", "Slow-down", ("slowdown", "mean"), "ratio", "lower"),
    Metric("", "Input tokens", ("throughput", "input_tokens"), "tokens"),
    Metric("", "Output tokens", ("throughput", "output_tokens"), "tokens"),
)
"""What they show of each tenant, in the tenant's part of the summary."""

MOST_TENANTS = 8
"""With more than that in all, a comparison shows the extremes only."""


def metrics_of(summaries: Sequence[Mapping[str, Any]]) -> list[Metric]:
    """What these runs have to show: :data:`METRICS` without tiers that no run has, and each secondary tier's own.

    Of clusters also how evenly their instances were loaded, of several tenants how evenly they were served.
    """
    names = dict.fromkeys(name for summary in summaries for name in summary.get("secondary_tiers", {}))
    shown = [metric for metric in METRICS if is_shown(metric, summaries)]
    if any("frontend_ms" in summary["latency"] for summary in summaries):
        place = next(number for number, metric in enumerate(shown) if metric.path[0] == "sessions")
        shown[place:place] = FRONTEND_METRICS
    of_clusters = CLUSTER_METRICS if any("cluster" in summary for summary in summaries) else ()
    of_clusters += NETWORK_METRICS if any("network" in summary for summary in summaries) else ()
    of_clusters += TENANTS_METRICS if any("fairness" in summary for summary in summaries) else ()
    return [*shown, *of_clusters, *(metric for name in names for metric in _tier_metrics(name, summaries))]


def _tier_metrics(name: str, summaries: Sequence[Mapping[str, Any]]) -> list[Metric]:
    group, at = f"Tier {name}", ("secondary_tiers", name)
    metrics = [
        Metric(group, "Token hit rate", (*at, "hit_rate"), "share", "higher"),
        Metric(group, "Read", (*at, "read", "bytes"), "bytes"),
        Metric(group, "Written", (*at, "write", "bytes"), "bytes"),
        Metric(group, "Read rate", (*at, "read", "gb_per_s"), "gb_per_s", "higher"),
        Metric(group, "Write rate", (*at, "write", "gb_per_s"), "gb_per_s", "higher"),
        Metric(group, "Wait to read", (*at, "read", "mean_wait_ms"), "ms", "lower"),
        Metric(group, "Wait to write", (*at, "write", "mean_wait_ms"), "ms", "lower"),
        Metric(group, "Lookup", (*at, "lookup", "mean_ms"), "ms", "lower"),
        Metric(group, "Device busy", (*at, "busy_share"), "share"),
        Metric(group, "Write backlog, peak", (*at, "backlog", "peak_bytes"), "bytes", "lower"),
        Metric(group, "Write amplification", (*at, "write_amplification"), "ratio"),
        Metric(group, "Used, peak", (*at, "used", "peak_bytes"), "memory_bytes"),
        Metric(group, "Used, peak share", (*at, "used", "peak_share"), "share"),
        Metric(group, "Evicted chunks", (*at, "evicted_chunks"), "count"),
        Metric(group, "Refused chunks", (*at, "refused_chunks"), "count", "lower"),
    ]
    return [metric for metric in metrics if any(metric.of(summary) is not None for summary in summaries)]


def _each_tenant(summaries: Sequence[Mapping[str, Any]]) -> list[Metric]:
    """The columns of each tenant as rows, if there are few."""
    names = dict.fromkeys(each["name"] for summary in summaries for each in summary.get("tenants", ()))
    if len(names) > MOST_TENANTS:
        return []
    return [
        replace(column, group=f"Tenant {name}", path=("tenants", name, *column.path))
        for name in names
        for column in TENANT_COLUMNS
    ]


METRIC: Mapping[str, Metric] = {metric.key: metric for metric in (*METRICS, *FRONTEND_METRICS, *NETWORK_METRICS)}


@dataclass(frozen=True, slots=True)
class Row:
    """One metric over all runs; differences and ratios are to the first run (None where undefined)."""

    metric: Metric
    values: tuple[float | int | None, ...]
    differences: tuple[float | int | None, ...]
    ratios: tuple[float | None, ...]


def compare(runs: Sequence[Run]) -> list[Row]:
    """What several runs have to show, each with the difference (value - first) and the ratio (value / first)."""
    rows, summaries = [], [run.summary for run in runs]
    for metric in (*metrics_of(summaries), *_each_tenant(summaries)):
        values = tuple(metric.of(run.summary) for run in runs)
        first = values[0] if values else None
        rows.append(
            Row(
                metric,
                values,
                tuple(None if value is None or first is None else value - first for value in values),
                tuple(None if value is None or not first else value / first for value in values),
            )
        )
    return rows


def compare_frame(runs: Sequence[Run]) -> pd.DataFrame:
    """The comparison as a table, a row per metric; per run ``<name>``, ``<name> diff``, ``<name> ratio``."""
    columns: dict[str, list[Any]] = {"metric": [], "unit": []}
    names = labels(runs)
    for name in names:
        columns |= {name: [], f"{name} diff": [], f"{name} ratio": []}
    for row in compare(runs):
        columns["metric"].append(row.metric.key)
        columns["unit"].append(row.metric.unit)
        for name, value, difference, ratio in zip(names, row.values, row.differences, row.ratios, strict=True):
            columns[name].append(value)
            columns[f"{name} diff"].append(difference)
            columns[f"{name} ratio"].append(ratio)
    return pd.DataFrame(columns)


def labels(runs: Sequence[Run]) -> list[str]:
    """A unique name for each run: the folder's, with its parent's where two are alike, else numbered."""
    names = [run.name for run in runs]
    names = [f"{run.path.parent.name}/{run.name}" if names.count(run.name) > 1 else run.name for run in runs]
    seen: dict[str, int] = {}
    unique = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        unique.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return unique


def mismatches(runs: Sequence[Run]) -> list[str]:
    """Sentences that say which runs did not serve the same requests as the first.

    Two requests are the same when session, stream, turn and prompt length agree; a name proves nothing.
    """
    if not runs:
        return []
    names = labels(runs)
    first, *others = (_workload(run.requests) for run in runs)
    different = [
        f"{name} ({len(requests & first):,} of its {len(requests):,} requests)"
        for name, requests in zip(names[1:], others, strict=True)
        if requests != first
    ]
    if not different:
        return []
    return [
        (
            f"These runs share only a part of their requests with {names[0]}, which has {len(first):,}: "
            f"{', '.join(different)}. Differences are not due to the configuration alone."
        )
    ]


def is_shown(metric: Metric, summaries: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a metric says something about any of these runs: those of a tier that no run has do not."""
    if metric.path[:2] != ("tiers", "cpu"):
        return True
    return any(METRIC["tiers.cpu.capacity_bytes"].of(summary) != 0 for summary in summaries)


def _workload(requests: pd.DataFrame) -> set[tuple[str, str, int, int]]:
    columns = [requests[name].tolist() for name in ("session", "stream", "turn", "prompt_tokens")]
    return set(zip(*columns, strict=True))
