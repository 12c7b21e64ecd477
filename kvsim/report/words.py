"""Two sentences that say what a run, or a comparison of runs, came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvsim.report.format import change, duration, number, percent
from kvsim.report.points import Point, refuse_more
from kvsim.report.sections import what_it_takes
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


def describe_points(points: Sequence[Point], baseline: Point, best: Point) -> str:
    """Many choices in two sentences: what was simulated, and what the best one gives against the first.

    Then what was no choice, and what the best one rejects.
    """
    return " ".join([_what(points, baseline), _choice(points, baseline, best), *_left_out(points, best)])


def refusal(points: Sequence[Point]) -> str:
    """A sentence about points that reject more requests than others; "" without any."""
    more = refuse_more(points)
    if not more:
        return ""
    shares = sorted({each.rejected_share for each in more})
    how_many = " to ".join(percent(share) for share in dict.fromkeys((shares[0], shares[-1])))
    who = f"{number(len(more))} of {number(len(points))} configurations"
    return (
        f"Left out: {who} that reject more requests than others ({how_many}), so that their figures are over the rest."
    )


def _left_out(points: Sequence[Point], best: Point) -> list[str]:
    found = [text] if (text := refusal(points)) else []
    future = [each for each in points if each.knows_the_future]
    if future and not best.knows_the_future:
        policies = " or ".join(dict.fromkeys(each.policy for each in future))
        found.append(f"Left out: {number(len(future))} with policy {policies}, which knows the future.")
    rejected, arrived = best.rejected
    if rejected:
        found.append(f"{best.name} rejects {number(rejected)} of {number(arrived)} requests.")
    return found


def _what(points: Sequence[Point], baseline: Point) -> str:
    info = (baseline.summary or {}).get("info", {})
    what = [info[key] for key in ("model",) if key in info]
    infos = [(each.summary or {}).get("info", {}) for each in (baseline, *points)]
    where = list(dict.fromkeys(filter(None, (each.get("hardware") or each.get("cluster") for each in infos))))
    if len(where) > 3:
        where[2:] = [f"{len(where) - 2} others"]
    what += [f"on {' or '.join(where)}"] if where else []
    gpus = sorted({each.gpus for each in points if each.gpus})
    what += [f"({gpus[0]} to {gpus[-1]} GPUs)"] if len(gpus) > 1 else []
    what += [f"serving {info['trace']}"] if "trace" in info else []
    failed = sum(each.summary is None for each in points)
    lost = f" ({number(failed)} of them failed)" if failed else ""
    subject = " ".join(what) or "a server"
    return f"{number(len(points))} configurations of {subject} were simulated{lost}."


def _choice(points: Sequence[Point], baseline: Point, best: Point) -> str:
    rated = [each for each in points if each.limits]
    good = sum(bool(each.meets_slo) for each in rated)
    cost = what_it_takes(best)
    cost = f" {cost}" if cost else ""
    gain = _gain(baseline, best)
    if rated and not best.meets_slo:
        missed = ", ".join(f"{each.key} {each.measured}" for each in best.limits if not each.is_met)
        nobody = "None of those that are a choice" if good else "None of them"
        return f"{nobody} meets the SLO; {best.name} has the lowest P90 time to first token ({missed}): {gain}."
    if rated:
        how_many = f" ({number(good)} of {number(len(rated))} meet it)" if len(rated) > 1 else ""
        return f"The smallest that meets the SLO{how_many} is {best.name}{cost}: {gain}."
    if best is baseline:
        return f"The first of them, {best.name}, is the best already: {gain}."
    return f"The best is {best.name}{cost}: {gain}."


def _gain(baseline: Point, best: Point) -> str:
    """P90 TTFT and throughput, against the first point's."""
    parts: list[str] = []
    for what, unit, before, after in (
        ("a P90 time to first token of", "ms", baseline.ttft_p90_ms, best.ttft_p90_ms),
        ("an output throughput of", "per_s", baseline.output_tokens_per_s, best.output_tokens_per_s),
    ):
        if after is None:
            continue
        text = duration(after) if unit == "ms" else f"{number(after)} tokens/s"
        if best is not baseline and before:
            shift = change(after - before, after / before, "ms" if unit == "ms" else "per_s")
            old = duration(before) if unit == "ms" else number(before)
            text += f" against {old} in {baseline.name} ({shift})" if not parts else f" against {old} ({shift})"
        parts.append(f"{what} {text}")
    return " and ".join(parts) or "nothing finished"


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
