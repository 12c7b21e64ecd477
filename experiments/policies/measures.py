# ruff: noqa: INP001 - beside the script that imports it
"""One point of the study: a policy on a workload, the cache alone or with GPU and time.

Not in the script itself: what a process remembers of a workload has to be found again by the next task.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from kvsim.build_policy import PlanView, replay_options
from kvsim.clock import Clock
from kvsim.config import RunConfig, load_config
from kvsim.plan.replay import CacheRequest, cache_requests, replay
from kvsim.registry import POLICIES
from kvsim.resolve import Plan, read_trace_of, resolve
from kvsim.results.summary import digest, summarize
from kvsim.runner import requests_frame, series_frame, simulate, totals_row

HERE = Path(__file__).resolve().parent
SHARED = Path(os.environ.get("KVSIM_SHARED", HERE.parents[2] / "shared"))
# Workload -> its files and the time between two starts of sessions.
WORKLOADS = {
    "swe-bench-like": (HERE.parents[1] / "traces" / "swe-bench-like-60.jsonl.gz", "10s"),
    "kv-cache-tester": (SHARED / "traces" / "kv-cache-tester", "60s"),
}


def config_of(workload: str, sessions: int | None, *overrides: str) -> RunConfig:
    """The config of a workload, cut to its first sessions."""
    path, interval = WORKLOADS[workload]
    cut = [] if sessions is None else [f"trace.max_sessions={sessions}"]
    return load_config(
        HERE / "agents.yaml",
        [f"trace.path={path}", f"trace.session_interval={interval}", "output.plots=false", *cut, *overrides],
    )


@lru_cache(maxsize=1)
def workload_of(workload: str, sessions: int | None) -> tuple[Plan, list[CacheRequest], Callable[[int, int], int]]:
    """Plan, requests and costs of a workload; a process plays it many times."""
    config = config_of(workload, sessions)
    plan = resolve(config, read_trace_of(config))
    factor: int = config.connector.block_size_factor  # type: ignore[union-attr]
    tokens = plan.sizes.block_tokens * factor
    requests = cache_requests(plan.trace, tokens, replay_options(config))
    return plan, requests, PlanView(Clock(), plan, factor).prefill_ns


def replayed(workload: str, sessions: int | None, cpu_gib: int, policy: str) -> dict[str, Any]:
    """The CPU tier alone."""
    plan, requests, prefill_ns = workload_of(workload, sessions)
    started, chunks = time.monotonic(), cpu_gib * 2**30 // plan.sizes.cpu_chunk_bytes
    found = replay(requests, chunks, POLICIES.find(policy), prefill_ns=prefill_ns)
    tokens = plan.sizes.cpu_chunk_bytes * plan.sizes.block_tokens // plan.sizes.gpu_block_bytes
    return {
        "workload": workload,
        "sessions": sessions or len(plan.trace.sessions),
        "cpu_gib": cpu_gib,
        "policy": policy,
        "hit_mtokens": round(found.hits * tokens / 1e6, 3),
        "hit_rate": round(found.hit_rate, 4),
        "stored_tib": round(found.stored * plan.sizes.cpu_chunk_bytes / 2**40, 3),
        "took_s": round(time.monotonic() - started, 1),
    }


def simulated(workload: str, sessions: int | None, gpu_blocks: int, cpu_gib: int, policy: str) -> dict[str, Any]:
    """With the GPU's cache in front, and time."""
    config = config_of(
        workload,
        sessions,
        f"engine.num_gpu_blocks_override={gpu_blocks}",
        f"connector.cpu_bytes_to_use={cpu_gib}GiB",
        f"connector.eviction_policy={policy}",
    )
    started = time.monotonic()
    plan, record = simulate(config)
    requests = requests_frame(record)
    found = summarize(requests, totals_row(record), series_frame(record))
    return {
        "workload": workload,
        "sessions": sessions or len(plan.trace.sessions),
        "gpu_blocks": gpu_blocks,
        "cpu_gib": cpu_gib,
        "policy": policy,
        "hit_mtokens": round(int((requests["local_hit_tokens"] + requests["external_hit_tokens"]).sum()) / 1e6, 3),
        "hit_rate": round(found["hit_rate"]["total"], 4),
        "of_it_gpu": round(found["hit_rate"]["local"], 4),
        "ttft_p50_s": round(found["latency"]["ttft_ms"]["p50"] / 1e3, 3),
        "ttft_p90_s": round(found["latency"]["ttft_ms"]["p90"] / 1e3, 3),
        "session_p50_min": round(found["sessions"]["time_s"]["p50"] / 60, 2),
        "output_tokens_per_s": round(found["throughput"]["output_tokens_per_s"], 1),
        "requests": found["requests"]["finished"],
        "digest": digest(requests)[:12],
        "took_s": round(time.monotonic() - started, 1),
    }
