"""KV that went from instance to instance: how much, how fast, and how long requests waited for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd


def summarize_network(
    requests: pd.DataFrame, instances: Sequence[Mapping[str, Any]], span_s: float | None
) -> dict[str, Any] | None:
    """Of a whole cluster; None if nobody uses the network.

    Definitions:

    - *Remote tokens*: of prompts, that decode instances got from prefill instances; *decode hits*: those that they had.
    - *Remote wait*: time parked until that KV was there, over requests that waited.
    - *Transfer*: mean time from submission to the last byte; *rate*: bytes received over that time, all transfers.
    - *Busy*: time in which anything was on its way into an instance, of the busiest one, over the span of the run.

    Args:
        requests: see :data:`kvsim.results.summary.REQUEST_COLUMNS`; with the columns of disaggregated prefill.
        instances: their summaries.
        span_s: of the run.
    """
    parts = [each["network"] for each in instances if "network" in each]
    if not parts:
        return None
    total = {name: sum(int(part[name]) for part in parts) for name in parts[0]}
    waits = requests["remote_wait_ns"].to_numpy(dtype=np.int64)
    waits = waits[waits > 0]
    arrived = total["transfers"] - total["failed_transfers"]
    busiest = max(int(part["busy_in_ns"]) for part in parts)
    p50, p90, p99 = (float(p) / 1e6 for p in np.percentile(waits, [50, 90, 99])) if len(waits) else (None,) * 3
    return {
        "remote_tokens": int(requests["remote_tokens"].sum()),
        "decode_hit_tokens": int(requests["decode_hit_tokens"].sum()),
        "remote_wait_ms": {
            "count": len(waits),
            "mean": float(waits.mean()) / 1e6 if len(waits) else None,
            "p50": p50,
            "p90": p90,
            "p99": p99,
        },
        "received_bytes": total["received_bytes"],
        "transfer_ms": total["transfer_ns"] / arrived / 1e6 if arrived else None,
        "gb_per_s": total["received_bytes"] / total["transfer_ns"] if total["transfer_ns"] else None,
        "busy_share": busiest / 1e9 / span_s if span_s else None,
        "totals": total,
    }
