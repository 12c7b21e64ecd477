"""The instances of a cluster, a row each, for the terminal and for HTML alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvsim.report.format import value
from kvsim.results.compare import Unit

_COLUMNS: tuple[tuple[str, tuple[str, ...], Unit], ...] = (
    ("Requests", ("requests", "arrived"), "count"),
    ("Hit rate", ("hit_rate", "total"), "share"),
    ("TTFT P50", ("latency", "ttft_ms", "p50"), "ms"),
    ("TTFT P90", ("latency", "ttft_ms", "p90"), "ms"),
    ("Output tok/s", ("throughput", "output_tokens_per_s"), "per_s"),
    ("GPU busy", ("gpu", "busy_share"), "share"),
)
HEADER: tuple[str, ...] = ("Instance", "GPUs", *(title for title, _, _ in _COLUMNS), "State")


def instance_rows(summary: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A row per instance under :data:`HEADER`; none if the run had no cluster."""
    return [
        (each["name"], each["hardware"], *(_cell(each, path, unit) for _, path, unit in _COLUMNS), _state(each))
        for each in summary.get("instances", ())
    ]


def _state(instance: Mapping[str, Any]) -> str:
    return f"{instance['role']}, {instance['state']}" if "role" in instance else str(instance["state"])


def _cell(summary: Mapping[str, Any], path: tuple[str, ...], unit: Unit) -> str:
    found: Any = summary
    for key in path:
        found = found[key]
    return value(found, unit)
