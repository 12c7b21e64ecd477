"""The numbers of one run: what became of the requests, and how long it took them.

Time goes in as integer nanoseconds and comes out as floats with the unit in the key (``_ms``, ``_s``). Every
value that does not exist (the mean of nothing, the share of an empty tier) is ``None``, never zero and never
NaN.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from kvsim.results.tiers import summarize_tiers

Ints = npt.NDArray[np.int64]

STATUSES = ("finished", "rejected", "failed", "aborted", "stuck")
FAULT = "fault_"  # begins the names of totals about faults; those that did not happen are left out
_ROWS_AT_A_TIME = 4096  # that become texts for the digest: bounded memory for any number of requests
_TEXT = "str"
_INT = "int64"

REQUEST_COLUMNS: Mapping[str, str] = {
    "request_id": _TEXT,
    "session": _TEXT,
    "stream": _TEXT,
    "turn": _INT,
    "status": _TEXT,
    "reason": _TEXT,
    "arrival_ns": _INT,
    "first_scheduled_ns": _INT,
    "first_token_ns": _INT,
    "finish_ns": _INT,
    "prompt_tokens": _INT,
    "output_tokens": _INT,
    "local_hit_tokens": _INT,
    "external_hit_tokens": _INT,
    "load_wait_ns": _INT,
    "preemptions": _INT,
}
"""``requests.parquet``: one row per request in arrival order; times are -1 where the event never came."""

SERIES_COLUMNS: Mapping[str, str] = dict.fromkeys(
    (
        "time_ns",
        "running",
        "waiting",
        "loading",
        "gpu_used_blocks",
        "gpu_cached_blocks",
        "cpu_used_blocks",
        "prompt_tokens",
        "local_hit_tokens",
        "external_hit_tokens",
        "output_tokens",
        "h2d_bytes",
        "d2h_bytes",
        "h2d_busy_ns",
        "d2h_busy_ns",
        "gpu_busy_ns",
        "preemptions",
    ),
    _INT,
)
"""``series.parquet``: samples in time order; the first seven are values now, the others cumulative."""


def summarize(
    requests: pd.DataFrame,
    totals: Mapping[str, int],
    series: pd.DataFrame | None = None,
    tiers: Sequence[Mapping[str, Any]] = (),
    tier_series: pd.DataFrame | None = None,
) -> dict[str, Any]:
    """Condense a run into a nested dict of plain numbers that ``json`` can write.

    Definitions:

    - *Token hit rate*: tokens found in a cache when a request was first admitted, over the prompt tokens of
      all admitted requests (those that were scheduled at least once, whatever became of them). ``local`` is
      the GPU prefix cache, ``external`` what the connector found beyond it; ``total`` is their sum.
    - *TTFT, TPOT, E2E* as in ``vllm bench serve``, over finished requests: first token - arrival;
      (finish - first token) / (output tokens - 1) where there is more than one output token; finish -
      arrival.
    - *Queue time*: first scheduled - arrival, less the time parked while KV was loaded and the time before the engine
      heard of it, over admitted requests. *Load wait*: the former, over admitted requests with an external hit.
      *Frontend*: the latter (of both sides, where prefill and decode are apart); only if there is any.
    - *Throughput*: tokens and requests of finished requests over the makespan, first arrival to last finish.
    - *Shares of time* (GPU busy, stall, links): over the span, first arrival to the end of the run.
    - *Session time*: first arrival to last finish, sub-agents included, over sessions whose requests all
      finished.
    - Percentiles interpolate linearly (numpy's default).

    Args:
        requests: One row per request, :data:`REQUEST_COLUMNS`.
        totals: The engine's counters, kept as they are under ``totals``; a missing one makes its metrics
            ``None``.
        series: Samples over time, :data:`SERIES_COLUMNS`; without them the values at the end are ``None``.
        tiers: Totals of the secondary tiers, see :func:`kvsim.results.tiers.summarize_tiers`.
        tier_series: Their samples over time.

    Raises:
        ValueError: A column is missing or a status is unknown (a fault of the caller, not of the user).
    """
    requests = _checked(requests)
    arrival, finished = _ints(requests, "arrival_ns"), _finished(requests)
    end_ns = totals.get("end_ns")
    span_ns = end_ns - int(arrival.min()) if end_ns is not None and len(arrival) else None
    return {
        **_of_requests(requests),
        "gpu": {
            "steps": totals.get("steps"),
            "span_s": _div(span_ns, 1e9),
            "busy_s": _div(totals.get("gpu_busy_ns"), 1e9),
            "busy_share": _div(totals.get("gpu_busy_ns"), span_ns),
            "stall_s": _div(totals.get("stall_ns"), 1e9),
            "stall_share": _div(totals.get("stall_ns"), span_ns),
        },
        "transfers": {
            "h2d": _link(totals, "h2d", span_ns),
            "d2h": _link(totals, "d2h", span_ns),
            "load_jobs": totals.get("load_jobs"),
            "store_jobs": totals.get("store_jobs"),
            **_store_use(totals),
        },
        "tiers": _tiers(totals, series),
        "secondary_tiers": summarize_tiers(tiers, tier_series, totals, span_ns),
        "sessions": _sessions(requests, finished),
        "faults": {key.removeprefix(FAULT): int(value) for key, value in totals.items() if key.startswith(FAULT)},
        "totals": {key: int(value) for key, value in totals.items()},
    }


def summarize_requests(requests: pd.DataFrame) -> dict[str, Any]:
    """The part of `summarize` that requests tell: of some of them, as if there were no others."""
    return _of_requests(_checked(requests))


def _of_requests(requests: pd.DataFrame) -> dict[str, Any]:
    arrival, finish = _ints(requests, "arrival_ns"), _ints(requests, "finish_ns")
    finished, admitted = _finished(requests), _ints(requests, "first_scheduled_ns") >= 0
    preempted = _ints(requests, "preemptions")
    makespan_ns = int(finish[finished].max()) - int(arrival.min()) if finished.any() else None
    return {
        "requests": _counts(requests, admitted),
        "hit_rate": _hit_rate(requests, admitted),
        "latency": _latency(requests, finished, admitted),
        "throughput": _throughput(requests, finished, makespan_ns),
        "preemptions": {"count": int(preempted.sum()), "requests": int((preempted > 0).sum())},
    }


def _finished(requests: pd.DataFrame) -> npt.NDArray[np.bool_]:
    status = requests["status"].astype(str).to_numpy(dtype=object)
    return np.asarray(status == "finished", dtype=bool) & (_ints(requests, "finish_ns") >= 0)


def digest(requests: pd.DataFrame) -> str:
    """SHA-256 (hex) of the per-request results, the same under any library version.

    Hashed is UTF-8 text: a line with the names of :data:`REQUEST_COLUMNS`, then a line per request in the
    order given, fields apart by tabs, integers in decimal and strings as ASCII JSON. Other columns do not
    count, but for ``instance``, in a cluster.
    """
    requests = _checked(requests)
    columns = dict(REQUEST_COLUMNS)
    if "instance" in requests.columns and any(requests["instance"].tolist()):
        columns["instance"] = _TEXT
    sha = hashlib.sha256("\t".join(columns).encode() + b"\n")
    for start in range(0, len(requests), _ROWS_AT_A_TIME):
        some = requests.iloc[start : start + _ROWS_AT_A_TIME]
        fields: list[list[str]] = []
        for name, kind in columns.items():
            if kind == _TEXT:
                fields.append([json.dumps(str(value)) for value in some[name].tolist()])
            else:
                fields.append([str(value) for value in _ints(some, name).tolist()])
        for row in zip(*fields, strict=True):
            sha.update("\t".join(row).encode() + b"\n")
    return sha.hexdigest()


def _checked(requests: pd.DataFrame) -> pd.DataFrame:
    if not len(requests.columns) and not len(requests):
        return pd.DataFrame({name: pd.Series([], dtype=kind) for name, kind in REQUEST_COLUMNS.items()})
    missing = [name for name in REQUEST_COLUMNS if name not in requests.columns]
    if missing:
        raise ValueError(f"requests lack the columns {', '.join(missing)}")
    unknown = sorted(set(requests["status"].astype(str).tolist()) - set(STATUSES))
    if unknown:
        raise ValueError(f"unknown request status {unknown[0]!r}, expected one of {', '.join(STATUSES)}")
    return requests


def _ints(frame: pd.DataFrame, name: str) -> Ints:
    return frame[name].to_numpy(dtype=np.int64)


def frontend_ns(requests: pd.DataFrame) -> Ints:
    """Time of each request before the engine heard of it (that of the prefill, if there are two)."""
    if "frontend_ns" not in requests.columns:  # of an older run
        return np.zeros(len(requests), dtype=np.int64)
    return _ints(requests, "frontend_ns")


def _div(value: float | None, by: float | None) -> float | None:
    """The quotient, or None where one side is missing or the divisor is not positive."""
    return float(value / by) if value is not None and by is not None and by > 0 else None


def _times(count: int | None, size: int | None) -> int | None:
    return count * size if count is not None and size is not None else None


def spread(values_ns: npt.NDArray[Any], unit_ns: float) -> dict[str, float | int | None]:
    """Count, mean and percentiles of some values, in a unit of so many ns; None where there is no value."""
    if not len(values_ns):
        return {"count": 0, "mean": None, "p50": None, "p90": None, "p99": None}
    p50, p90, p99 = (float(p) / unit_ns for p in np.percentile(values_ns, [50, 90, 99]))
    mean = float(values_ns.mean()) / unit_ns
    return {"count": len(values_ns), "mean": mean, "p50": p50, "p90": p90, "p99": p99}


def _counts(requests: pd.DataFrame, admitted: npt.NDArray[np.bool_]) -> dict[str, Any]:
    status = requests["status"].astype(str).tolist()
    counts: dict[str, Any] = {"arrived": len(status)} | {name: status.count(name) for name in STATUSES}
    counts["admitted"] = int(admitted.sum())
    reasons: dict[str, dict[str, int]] = {name: {} for name in STATUSES if name != "finished"}
    for name, reason in zip(status, requests["reason"].astype(str).tolist(), strict=True):
        if name != "finished":
            reasons[name][reason or "unknown"] = reasons[name].get(reason or "unknown", 0) + 1
    # Most frequent first, ties by name: the order of the rows must not show.
    counts["reasons"] = {
        name: dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))
        for name, found in reasons.items()
        if found
    }
    return counts


def _hit_rate(requests: pd.DataFrame, admitted: npt.NDArray[np.bool_]) -> dict[str, Any]:
    prompt = int(_ints(requests, "prompt_tokens")[admitted].sum())
    local = int(_ints(requests, "local_hit_tokens")[admitted].sum())
    external = int(_ints(requests, "external_hit_tokens")[admitted].sum())
    return {
        "prompt_tokens": prompt,
        "local_hit_tokens": local,
        "external_hit_tokens": external,
        "local": _div(local, prompt),
        "external": _div(external, prompt),
        "total": _div(local + external, prompt),
    }


def _latency(
    requests: pd.DataFrame, finished: npt.NDArray[np.bool_], admitted: npt.NDArray[np.bool_]
) -> dict[str, Any]:
    arrival, scheduled = _ints(requests, "arrival_ns"), _ints(requests, "first_scheduled_ns")
    first, finish = _ints(requests, "first_token_ns"), _ints(requests, "finish_ns")
    output = _ints(requests, "output_tokens")
    spoke = finished & (first >= 0)
    several = spoke & (output > 1)
    load_wait, frontend = _ints(requests, "load_wait_ns"), frontend_ns(requests)
    loaded = admitted & (_ints(requests, "external_hit_tokens") > 0)
    decode = _ints(requests, "decode_frontend_ns") if "decode_frontend_ns" in requests.columns else 0
    in_front = frontend + decode
    return {
        "ttft_ms": spread((first - arrival)[spoke], 1e6),
        "tpot_ms": spread((finish - first)[several] / (output[several] - 1), 1e6),
        "e2e_s": spread((finish - arrival)[finished], 1e9),
        "queue_ms": spread(np.maximum(scheduled - arrival - load_wait - frontend, 0)[admitted], 1e6),
        "load_wait_ms": spread(load_wait[loaded], 1e6),
        **({"frontend_ms": spread(in_front[admitted], 1e6)} if in_front.any() else {}),
    }


def _throughput(
    requests: pd.DataFrame, finished: npt.NDArray[np.bool_], makespan_ns: int | None
) -> dict[str, float | int | None]:
    makespan_s = _div(makespan_ns, 1e9)
    read = int(_ints(requests, "prompt_tokens")[finished].sum())
    written = int(_ints(requests, "output_tokens")[finished].sum())
    return {
        "makespan_s": makespan_s,
        "input_tokens": read,
        "output_tokens": written,
        "requests_per_s": _div(int(finished.sum()), makespan_s),
        "input_tokens_per_s": _div(read, makespan_s),
        "output_tokens_per_s": _div(written, makespan_s),
        "total_tokens_per_s": _div(read + written, makespan_s),
    }


def _link(totals: Mapping[str, int], way: str, span_ns: int | None) -> dict[str, float | int | None]:
    """One direction: bytes moved, busy share of the span, GB/s (1e9) while busy and over the span."""
    moved, busy_ns = totals.get(f"{way}_bytes"), totals.get(f"{way}_busy_ns")
    return {
        "bytes": moved,
        "busy_s": _div(busy_ns, 1e9),
        "busy_share": _div(busy_ns, span_ns),
        "gb_per_s_busy": _div(moved, busy_ns),  # bytes per ns = GB per s
        "gb_per_s_average": _div(moved, span_ns),
    }


def _store_use(totals: Mapping[str, int]) -> dict[str, float | int | None]:
    """Stores that no load has asked for: blocks, their share of all stores, and of the bytes that stores moved."""
    stored, unused = totals.get("stored_blocks"), totals.get("unused_stored_blocks")
    if not stored and totals.get("store_jobs"):
        stored = unused = None  # the connector does not count
    moved = _times(totals.get("d2h_bytes"), unused)
    return {
        "stored_blocks": stored,
        "unused_stored_blocks": unused,
        "unused_store_share": _div(unused, stored),
        "unused_store_bytes": moved // max(stored, 1) if moved is not None and stored is not None else None,
    }


def _tiers(totals: Mapping[str, int], series: pd.DataFrame | None) -> dict[str, Any]:
    def now(column: str, what: str) -> int | None:
        if series is None or column not in series.columns or not len(series):
            return None
        values = _ints(series, column)
        return int(values.max() if what == "peak" else values[-1])

    def use(tier: str, peak: int | None, end: int | None) -> dict[str, float | int | None]:
        found: dict[str, float | int | None] = {}
        block_bytes, capacity = totals.get(f"{tier}_block_bytes"), totals.get(f"num_{tier}_blocks")
        for when, blocks in (("peak", peak), ("end", end)):
            found[f"{when}_blocks"] = blocks
            found[f"{when}_bytes"] = _times(blocks, block_bytes)
            found[f"{when}_share"] = _div(blocks, capacity)
        return found

    def head(tier: str) -> dict[str, Any]:
        blocks, block_bytes = totals.get(f"num_{tier}_blocks"), totals.get(f"{tier}_block_bytes")
        evicted = totals.get(f"{tier}_evicted_blocks")
        return {
            "capacity_blocks": blocks,
            "capacity_bytes": _times(blocks, block_bytes),
            "evicted_blocks": evicted,
        }

    held = use("gpu", totals.get("gpu_used_blocks_peak"), now("gpu_used_blocks", "end"))
    cached = use("gpu", now("gpu_cached_blocks", "peak"), now("gpu_cached_blocks", "end"))
    used = use("cpu", totals.get("cpu_used_blocks_peak"), now("cpu_used_blocks", "end"))
    return {
        "gpu": head("gpu") | {"held": held, "cached": cached},
        "cpu": head("cpu") | {"used": used, "cannot_store": totals.get("cannot_store")},
    }


def _sessions(requests: pd.DataFrame, finished: npt.NDArray[np.bool_]) -> dict[str, Any]:
    frame = pd.DataFrame(
        {
            "session": requests["session"].astype(str).to_numpy(dtype=object),
            "arrival": _ints(requests, "arrival_ns"),
            "finish": _ints(requests, "finish_ns"),
            "finished": finished,
        }
    )
    grouped = frame.groupby("session", sort=True)
    whole = grouped["finished"].all().to_numpy(dtype=bool)
    last, first = grouped["finish"].max(), grouped["arrival"].min()
    times = (last - first).to_numpy(dtype=np.int64)[whole]
    slowest = int(times.argmax()) if len(times) else None
    return {
        "count": len(whole),
        "complete": int(whole.sum()),
        "time_s": spread(times, 1e9),
        "slowest": None if slowest is None else str(last.index[whole][slowest]),
    }
