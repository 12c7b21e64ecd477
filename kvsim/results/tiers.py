"""The numbers of the secondary tiers of a run, and whether they kept up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

TIER_COLUMNS: Mapping[str, str] = {"time_ns": "int64", "tier": "str"} | dict.fromkeys(
    (
        "used_bytes",
        "write_backlog_bytes",
        "read_queue_bytes",
        "read_bytes",
        "write_bytes",
        "busy_ns",
        "hit_tokens",
    ),
    "int64",
)
"""``tiers.parquet``: a row per sample and secondary tier; the first three values are now, the others cumulative."""


def summarize_tiers(
    tiers: Sequence[Mapping[str, Any]],
    series: pd.DataFrame | None,
    totals: Mapping[str, int],
    span_ns: int | None,
) -> dict[str, Any]:
    """Each secondary tier by its name: hits, bytes, waiting, backlog, occupancy.

    Definitions:

    - *Hit rate*: tokens that requests loaded after this tier had brought them to CPU memory, at their first admission,
      over the prompt tokens of all admitted requests.
    - *Wait*: from the submission of a job until a thread took it. *Rate*: bytes over the time in which at least one
      read (write) was wanted.
    - *Backlog*: bytes handed over for writing and not written yet. They are pinned in CPU memory for so long.
    - *Write amplification*: bytes written over bytes that the GPU stored to CPU memory. *Read back*: bytes read over
      bytes written.

    Args:
        tiers: totals of each tier (:class:`kvsim.results.records.TierTotals` as rows).
        series: :data:`TIER_COLUMNS`.
        totals: of the run.
        span_ns: first arrival to the end of the run.
    """
    return {str(tier["name"]): _one(tier, series, totals, span_ns) for tier in tiers}


def _one(
    tier: Mapping[str, Any], series: pd.DataFrame | None, totals: Mapping[str, int], span_ns: int | None
) -> dict[str, Any]:
    chunk = tier["chunk_bytes"]
    capacity = tier["capacity_chunks"] * chunk or None
    peak = tier["used_chunks_peak"] * chunk
    return {
        "kind": tier["kind"],
        "device": tier["device"],
        "capacity_bytes": capacity,
        "hit_tokens": tier["hit_tokens"],
        "hit_rate": _div(tier["hit_tokens"], totals.get("prompt_tokens")),
        "read": _way(tier, "read"),
        "write": _way(tier, "write"),
        "lookup": {
            "chunks": tier["lookup_keys"],
            "mean_ms": _div(tier["lookup_ns"] / 1e6, tier["lookup_batches"] or tier["lookup_keys"]),
        },
        "used": {
            "peak_bytes": peak,
            "peak_share": _div(peak, capacity),
            "end_bytes": tier["used_chunks"] * chunk,
        },
        "backlog": {
            "peak_bytes": tier["backlog_peak_bytes"],
            "end_bytes": tier["backlog_bytes"],
            "cpu_share": _div(tier["backlog_peak_bytes"], _cpu_bytes(totals)),
            "grows": _grows(series, str(tier["name"])),
        },
        "deduplicated_chunks": tier["deduplicated_chunks"],
        "refused_chunks": tier["refused_chunks"],
        "evicted_chunks": tier["evicted_chunks"],
        "write_amplification": _div(tier["write_bytes"], totals.get("d2h_bytes")),
        "read_back": _div(tier["read_bytes"], tier["write_bytes"]),
        "busy_share": _div(tier["busy_ns"], span_ns),
    }


def _way(tier: Mapping[str, Any], way: str) -> dict[str, float | int | None]:
    moved, wanted_ns = tier[f"{way}_bytes"], tier[f"{way}_wanted_ns"]
    return {
        "jobs": tier[f"{way}_jobs"],
        "bytes": moved,
        "wanted_s": wanted_ns / 1e9,
        "gb_per_s": _div(moved, wanted_ns),  # bytes per ns = GB per s
        "mean_wait_ms": _div(tier[f"{way}_wait_ns"] / 1e6, tier[f"{way}_tasks"]),
    }


def _grows(series: pd.DataFrame | None, name: str) -> bool | None:
    """Whether the backlog is larger in each third of the run than in the one before, and is never worked off.

    The run ends when the last request does, so a backlog that is left at its end was growing under load.
    """
    if series is None or not len(series):
        return None
    mine = series[series["tier"] == name]
    if len(mine) < 6:
        return None
    backlog = mine["write_backlog_bytes"].to_numpy(dtype=np.float64)
    time = mine["time_ns"].to_numpy(dtype=np.float64)
    edges = np.linspace(time[0], time[-1], 4)[1:3]
    thirds = np.split(backlog, np.searchsorted(time, edges))
    if not all(map(len, thirds)):
        return None  # nothing happened for so long that no sample was taken
    first, second, third = (part.mean() for part in thirds)
    return bool(0 < first < second < third and backlog[-1] > first)


def _cpu_bytes(totals: Mapping[str, int]) -> int | None:
    blocks, size = totals.get("num_cpu_blocks"), totals.get("cpu_block_bytes")
    return blocks * size if blocks and size else None


def _div(value: float | None, by: float | None) -> float | None:
    return float(value / by) if value is not None and by is not None and by > 0 else None
