"""The sessions of a run, a row each: how long they took, what the caches served, how long they waited."""

from __future__ import annotations

import numpy as np
import pandas as pd

SESSION_COLUMNS = (
    "session", "requests", "finished", "start_s", "time_s", "prompt_tokens", "output_tokens", "gpu_hit_rate",
    "offload_hit_rate", "ttft_p50_ms", "ttft_max_ms", "load_wait_s", "preemptions",
)  # fmt: skip
"""Columns of `sessions_frame`; a session has its sub-agents' requests with it."""


def sessions_frame(requests: pd.DataFrame) -> pd.DataFrame:
    """One row per session, in order of first arrival; NaN where there is nothing to measure.

    ``time_s``: first arrival to last finish, of sessions all of whose requests finished. Hit rates are over the prompt
    tokens of admitted requests, TTFT over finished ones, as in `kvsim.results.summary`.
    """
    status = requests["status"].astype(str)
    finished = (status == "finished") & (requests["finish_ns"] >= 0)
    admitted = requests["first_scheduled_ns"] >= 0
    spoke = finished & (requests["first_token_ns"] >= 0)
    wait = (requests["first_token_ns"] - requests["arrival_ns"]).astype("float64") / 1e6
    frame = pd.DataFrame(
        {
            "session": requests["session"].astype(str),
            "requests": 1,
            "finished": finished.astype("int64"),
            "arrival": requests["arrival_ns"],
            "finish": requests["finish_ns"],
            "prompt_tokens": requests["prompt_tokens"],
            "output_tokens": requests["output_tokens"],
            "looked_up": requests["prompt_tokens"].where(admitted, 0),
            "gpu": requests["local_hit_tokens"].where(admitted, 0),
            "offload": requests["external_hit_tokens"].where(admitted, 0),
            "ttft": wait.where(spoke, np.nan),
            "load_wait": requests["load_wait_ns"],
            "preemptions": requests["preemptions"],
        }
    )
    groups = frame.groupby("session", sort=False)
    sums = groups[
        ["requests", "finished", "prompt_tokens", "output_tokens", "looked_up", "gpu", "offload", "load_wait",
         "preemptions"]
    ].sum()  # fmt: skip
    first, last = groups["arrival"].min(), groups["finish"].max()
    whole = sums["finished"] == sums["requests"]
    looked_up = sums["looked_up"].astype("float64").replace(0.0, np.nan)
    zero = int(first.min()) if len(first) else 0
    found = pd.DataFrame(
        {
            "session": sums.index.astype(str),
            "requests": sums["requests"].to_numpy(),
            "finished": sums["finished"].to_numpy(),
            "start_s": ((first - zero) / 1e9).to_numpy(),
            "time_s": ((last - first) / 1e9).where(whole, np.nan).to_numpy(),
            "prompt_tokens": sums["prompt_tokens"].to_numpy(),
            "output_tokens": sums["output_tokens"].to_numpy(),
            "gpu_hit_rate": (sums["gpu"] / looked_up).to_numpy(),
            "offload_hit_rate": (sums["offload"] / looked_up).to_numpy(),
            "ttft_p50_ms": groups["ttft"].median().to_numpy(),
            "ttft_max_ms": groups["ttft"].max().to_numpy(),
            "load_wait_s": (sums["load_wait"] / 1e9).to_numpy(),
            "preemptions": sums["preemptions"].to_numpy(),
        },
        columns=list(SESSION_COLUMNS),
    )
    return found.sort_values("start_s", kind="stable", ignore_index=True)
