"""Two sentences that say what a run, or a comparison of runs, came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvsim.report.format import change, duration, number, percent
from kvsim.results.compare import METRIC, labels
from kvsim.results.run import Run


def describe(summary: Mapping[str, Any]) -> str:
    """A run in two sentences: how many requests at what speed, and what the caches served."""
    counts, hits = summary["requests"], summary["hit_rate"]
    arrived, finished = counts["arrived"], counts["finished"]
    if not arrived:
        return "No request arrived. There is nothing to report."
    if not finished:
        return (
            f"None of the {number(arrived)} requests that arrived finished, so there is no latency or "
            "throughput. The warnings below say what became of them."
        )
    p90, rate = summary["latency"]["ttft_ms"]["p90"], summary["throughput"]["output_tokens_per_s"]
    who = f"All {number(finished)}" if finished == arrived else f"{number(finished)} of {number(arrived)}"
    text = f"{who} requests finished in {duration(1000 * summary['throughput']['makespan_s'])} of simulated time"
    speed = [f"a P90 time to first token of {duration(p90)}"] if p90 is not None else []
    speed += [f"{number(rate)} output tokens/s"] if rate is not None else []
    text += f", with {' and '.join(speed)}. " if speed else ". "
    if hits["total"] is None:
        return text + "They had no prompt tokens, so there is no hit rate."
    if not hits["external"] and not summary["tiers"]["cpu"]["capacity_blocks"]:
        return text + (
            f"Of the prompt tokens {percent(hits['total'])} came from the GPU's own prefix cache; the GPU "
            f"had to compute the other {percent(1 - hits['total'])}."
        )
    return text + (
        f"Of the prompt tokens {percent(hits['total'])} came from a cache ({percent(hits['local'])} from "
        f"the GPU, {percent(hits['external'])} from the offload tiers); the GPU had to compute the other "
        f"{percent(1 - hits['total'])}."
    )


def describe_comparison(runs: Sequence[Run]) -> str:
    """Several runs in two sentences: the fastest one against the first, and their hit rates."""
    names = labels(runs)
    if len(runs) < 2:
        return describe(runs[0].summary)
    first = _fastest(runs, names)
    hit = METRIC["hit_rate.total"]
    rates = [(name, hit.of(run.summary)) for name, run in zip(names, runs, strict=True)]
    parts = [f"{percent(share)} in {name}" for name, share in rates if share is not None]
    if not parts:
        return f"{first} None of the runs admitted a request, so there is no hit rate."
    listed = ", ".join(parts[:-1]) + " and " + parts[-1] if len(parts) > 1 else parts[0]
    return f"{first} Caches served {listed} of the prompt tokens."


def _fastest(runs: Sequence[Run], names: Sequence[str]) -> str:
    """The run with the lowest P90 TTFT against the first; or the slowest, where the first is the fastest."""
    times = [METRIC["latency.ttft_ms.p90"].of(run.summary) for run in runs]
    known = [(time, index) for index, time in enumerate(times) if time is not None]
    before = times[0]
    if before is None or len(known) < 2:
        return "Too few of these runs finished requests to compare their latency."
    role, (after, other) = "lowest", min(known)
    if not other:
        role, (after, other) = "highest", max(known)
    if after == before:
        return f"All these runs have the same P90 time to first token, {duration(before)}."
    shift = change(after - before, after / before if before else None, "ms")
    text = (
        f"{names[other]} has the {role} P90 time to first token, {duration(after)} against "
        f"{duration(before)} in {names[0]} ({shift})"
    )
    slow, fast = (METRIC["throughput.output_tokens_per_s"].of(runs[index].summary) for index in (0, other))
    if slow and fast is not None:
        shift = change(fast - slow, fast / slow, "per_s")
        text += f", and an output throughput of {number(fast)} against {number(slow)} tokens/s ({shift})"
    return text + "."
