"""Sweep folders for the tests of reports: as `kvsim sweep` writes them, with figures of our own."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from run_builder import small_requests, small_series, small_totals

from kvsim.plan.outcome import Outcome, PointFiles
from kvsim.plan.sweep_results import results_frame, write_results
from kvsim.results.run import assemble


def sweep_at(
    folder: Path,
    rows: Sequence[tuple[dict[str, Any], dict[str, Any] | None]],
    rejected: Mapping[int, int] | None = None,
) -> Path:
    """A sweep's folder as `kvsim sweep` writes it: the labels of each point, and its figures (None = it failed).

    ``rejected``: how many of its seven requests a point refused as too long.
    """
    outcomes = []
    for number, (labels, figures) in enumerate(rows):
        summary = None if figures is None else point_summary(**figures)
        if summary is not None and (number_of := (rejected or {}).get(number)):
            reasons = {"rejected": {"prompt too long for max_model_len": number_of}}
            summary["requests"] |= {"rejected": number_of, "finished": 7 - number_of, "reasons": reasons}
        status, reason = ("ok", "") if summary is not None else ("failed", "does not fit")
        config = {
            "hardware": {"tensor_parallel_size": labels.get("hardware.tensor_parallel_size", 4)},
            "engine": {"data_parallel_size": 1},
        }
        config["connector"] = {"kind": "offloading", "eviction_policy": labels.get("connector.eviction_policy", "lru")}
        outcome = Outcome(f"{number:064d}", status, reason, yaml.safe_dump(config), summary)  # type: ignore[arg-type]
        PointFiles(folder / "points").put(outcome)
        outcomes.append(outcome)
    axes = list(dict.fromkeys(axis for labels, _ in rows for axis in labels))
    table = results_frame(axes, [None] * len(rows), [labels for labels, _ in rows], outcomes)
    write_results(table, folder)
    return folder


def point_summary(
    *, gib: int, hit_rate: float, ttft_s: float, rate: float, gpu_hit_rate: float = 0.2, trace: str = "t (10 sessions)"
) -> dict[str, Any]:
    """The summary of the small run, with other figures."""
    run = assemble(requests=small_requests(), series=small_series(), totals=small_totals(), config_text="")
    summary: dict[str, Any] = copy.deepcopy(run.summary)
    counts = summary["requests"]
    counts |= {"finished": counts["arrived"], "rejected": 0, "failed": 0, "stuck": 0, "reasons": {}}
    summary["hit_rate"] |= {"total": hit_rate, "local": gpu_hit_rate, "external": hit_rate - gpu_hit_rate}
    summary["latency"]["ttft_ms"] |= {"p50": 500 * ttft_s, "p90": 1000 * ttft_s, "p99": 2000 * ttft_s}
    summary["throughput"]["output_tokens_per_s"] = rate
    summary["tiers"]["cpu"]["capacity_bytes"] = gib * 2**30
    summary["tiers"]["gpu"]["capacity_bytes"] = 40 * 2**30
    summary["info"] = {"trace": trace, "model": "llama-3.1-70b", "hardware": "4 x h100-sxm"}
    return summary


SIZES_AND_POLICIES = [
    ({"connector.cpu_bytes_to_use": f"{gib}GiB", "connector.eviction_policy": policy},
     {"gib": gib, "hit_rate": hit_rate, "ttft_s": 8 * (1 - hit_rate), "rate": 100 + 100 * hit_rate})
    for policy, rates in {"lru": (0.3, 0.5, 0.7), "arc": (0.35, 0.45, 0.7), "opt": (0.45, 0.6, 0.75)}.items()
    for gib, hit_rate in zip((64, 128, 256), rates, strict=True)
]  # fmt: skip
"""Nine points: three sizes, three policies, one of which knows the future."""
