"""Several tenants on the same servers: the numbers of each, and how evenly they were served."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from kvsim.results.summary import frontend_ns, spread, summarize_requests


def summarize_tenants(requests: pd.DataFrame, quotas: Sequence[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
    """Each tenant's own numbers, in the order in which they first send something; [] with fewer than two.

    Definitions: those of :func:`kvsim.results.summary.summarize`, over the tenant's requests alone (its makespan
    too), and *slow-down*: E2E over E2E without queue time, of each finished request; 1 = nobody was waited for.
    (Feitelson and Rudolph, Metrics and Benchmarking for Parallel Job Scheduling, JSSPP 1998: response time over run
    time. What others in the same batch cost counts as run time here.)

    Args:
        requests: see :data:`kvsim.results.summary.REQUEST_COLUMNS`; with the column ``tenant``.
        quotas: what each tenant had of a shared store, see :class:`kvsim.results.records.QuotaTotals`.
    """
    if "tenant" not in requests.columns:
        return []
    owners = requests["tenant"].astype(str)
    names = list(dict.fromkeys(name for name in owners.tolist() if name))
    if len(names) < 2:
        return []
    stored = {each["tenant"]: _store(each) for each in quotas}
    found: list[dict[str, Any]] = []
    for name in names:
        own = requests[(owners == name).to_numpy()]
        found.append({"name": name, **summarize_requests(own), "slowdown": spread(_slowdowns(own), 1)})
        if name in stored:
            found[-1]["store"] = stored[name]
    return found


def summarize_fairness(tenants: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How even their hit rates and their mean slow-downs are, by Jain's index, and the extremes."""
    rates = [each["hit_rate"]["total"] for each in tenants if each["hit_rate"]["total"] is not None]
    slow = [each["slowdown"]["mean"] for each in tenants if each["slowdown"]["mean"] is not None]
    waits = [each["latency"]["ttft_ms"]["p90"] for each in tenants if each["latency"]["ttft_ms"]["p90"] is not None]
    return {
        "tenants": len(tenants),
        "hit_rate": {"jain": jain(rates), "lowest": min(rates, default=None), "highest": max(rates, default=None)},
        "slowdown": {"jain": jain(slow), "lowest": min(slow, default=None), "highest": max(slow, default=None)},
        "ttft_p90_ms": {"lowest": min(waits, default=None), "highest": max(waits, default=None)},
    }


def jain(shares: Sequence[float]) -> float | None:
    """Jain's fairness index: 1 = all have the same, 1/n = one has all; None where nobody has anything.

    (sum of x)^2 / (n x sum of x^2): Jain, Chiu and Hawe, A Quantitative Measure of Fairness and Discrimination for
    Resource Allocation in Shared Computer Systems, DEC-TR-301, 1984.
    """
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else None


def _slowdowns(requests: pd.DataFrame) -> np.ndarray[Any, np.dtype[np.float64]]:
    columns = ("arrival_ns", "first_scheduled_ns", "finish_ns", "load_wait_ns")
    arrival, scheduled, finish, load_wait = (requests[name].to_numpy(dtype=np.int64) for name in columns)
    whole, queue = finish - arrival, np.maximum(scheduled - arrival - load_wait - frontend_ns(requests), 0)
    counted = (requests["status"].astype(str) == "finished").to_numpy() & (scheduled >= 0) & (whole > queue)
    return np.asarray(whole[counted] / (whole - queue)[counted], dtype=np.float64)


def _store(quota: Mapping[str, Any]) -> dict[str, Any]:
    size = quota["chunk_bytes"]
    return {
        "quota_bytes": quota["quota_chunks"] * size,
        "used_bytes": quota["used_chunks"] * size,
        "used_peak_bytes": quota["used_chunks_peak"] * size,
        "evicted_chunks": quota["evicted_chunks"],
        "refused_chunks": quota["refused_chunks"],
    }
