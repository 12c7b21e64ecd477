"""What a plan's points mean for whoever asked: the answer, how sure it is, what binds, and what is next to it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kvsim.plan.axes import CPU, NVME, STORE, Axis
from kvsim.plan.bounds import WorkingSet
from kvsim.plan.planner import Planned, counterpart
from kvsim.plan.rated import Rated, servers_of
from kvsim.plan.search import Point, neighbours
from kvsim.plan.slo import FINISHED, GOODPUT, Check
from kvsim.plan.words import amount, limit_name, money, more_or_less, size

Verdict = Literal["offload", "no_offload", "as_given", "nothing_meets_the_slo", "nothing_ran"]

BUSY_SHARE = 0.85
"""A GPU or a link that is busy for so much of the time is what limits, as queues grow without end at 1: our choice."""


BINDING_SHARE = 0.5
"""A limit of which so much is used up binds; with less it holds with twice the figure. Our choice."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A point one step away from the recommended one.

    Attributes:
        axis: on which.
        point: where.
        rated: None if it was not simulated: the budget was used up.
    """

    axis: str
    point: Point
    rated: Rated | None


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """What keeps a point from doing better.

    Attributes:
        check: the limit of the SLO that is closest to being missed; None if there are no figures.
        resource: one of queue, gpu_kv, gpu, load_link, store_link, tier, frontend, compute, none.
        text: both, in words.
    """

    check: Check | None
    resource: str
    text: str


@dataclass(frozen=True)
class Advice:
    """The answer to a plan.

    Attributes:
        verdict: in a word.
        text: the answer, in one to three sentences.
        reasons: why, and how sure that is, a sentence each.
        best: the recommended point, or the one closest to the SLO; None if nothing ran.
        bottleneck: of that point.
        neighbours: of that point, in the order of the axes.
        pareto: points that no other one beats in both cost and the first limit of the SLO, by rising cost.
    """

    verdict: Verdict
    text: str
    reasons: tuple[str, ...]
    best: Point | None
    bottleneck: Bottleneck | None
    neighbours: tuple[Neighbour, ...]
    pareto: tuple[Point, ...]

    @property
    def meets_slo(self) -> bool:
        """Whether there is a recommendation."""
        return self.verdict not in ("nothing_meets_the_slo", "nothing_ran")


def advise(planned: Planned) -> Advice:
    """Make sense of a plan's points."""
    best = planned.found.best
    pareto = pareto_front(planned)
    if best is None:
        reason = next((rated.reason for rated in planned.rated.values()), "the budget ended before the first point")
        text = f"Nothing could be simulated: {reason}."
        return Advice("nothing_ran", text, (), None, None, (), pareto)
    rated = planned.rated[best]
    near = tuple(
        Neighbour(planned.space.axes[axis].name, point, planned.rated.get(point))
        for axis, point in neighbours(planned.space, best)
    )
    bottleneck = find_bottleneck(rated)
    if not rated.is_met:
        text, reasons = _closest(planned, best), [bottleneck.text]
        verdict: Verdict = "nothing_meets_the_slo"
    else:
        verdict = _verdict(planned, best)
        text, reasons = _answer(planned, best, verdict), [*_why(planned, best, verdict), bottleneck.text]
    return Advice(verdict, text, (*reasons, *_how_sure(planned, near)), best, bottleneck, near, pareto)


def pareto_front(planned: Planned) -> tuple[Point, ...]:
    """Points, met or not, that no other beats in both USD per 1M output tokens and the first limit of the SLO."""
    usable = [
        (rated.usd_per_1m_tokens, rated.checks[0].strain, point)
        for point, rated in planned.rated.items()
        if not rated.failed and rated.checks and not any(check.key == FINISHED for check in rated.checks)
    ]
    front: list[Point] = []
    least = math.inf
    for usd, strain, point in sorted(usable):
        if strain < least and not math.isinf(usd):
            front.append(point)
            least = strain
    return tuple(front)


def find_bottleneck(rated: Rated) -> Bottleneck:
    """What binds at a point: the limit that is closest, and what the time goes into."""
    check = rated.worst
    if rated.failed or check is None:
        return Bottleneck(check, "none", f"There are no figures: {rated.reason}.")
    name = limit_name(check.key)
    how = f"{name} is missed" if not check.is_met else f"{name} binds"
    if check.is_met and not _binds(check):
        how = f"No limit binds, {name} is the closest"
    measured = "no figure" if check.measured is None else amount(check.key, check.measured)
    least = "at least " if check.key in (GOODPUT, FINISHED) else ""
    head = f"{how}: {measured} of {least}{amount(check.key, check.limit)}"
    resource, cause = _resource(rated.summary, check.key)
    return Bottleneck(check, resource, f"{head}; {cause}.")


def _binds(check: Check) -> bool:
    """Whether a limit that holds has little room left."""
    if check.key in (GOODPUT, FINISHED) and check.limit < 1:
        return (1 - (check.measured or 0.0)) / (1 - check.limit) >= BINDING_SHARE
    return check.strain >= BINDING_SHARE


def _resource(summary: Mapping[str, Any], key: str) -> tuple[str, str]:
    """The part that most of the time goes into, and why."""
    latency, busy = summary["latency"], summary["gpu"]["busy_share"] or 0.0
    preempted = summary["preemptions"]["count"]
    gpu = f"GPUs are busy {busy:.0%} of the time"
    for way, resource, word in (("h2d", "load_link", "loads"), ("d2h", "store_link", "stores")):
        share = max((server["transfers"][way]["busy_share"] or 0.0 for server in servers_of(summary)), default=0.0)
        if share >= BUSY_SHARE:
            return resource, f"the link that {word} KV is busy {share:.0%} of the time"
    for name, tier in summary["secondary_tiers"].items():
        if (tier["busy_share"] or 0.0) >= BUSY_SHARE:
            return "tier", f"tier {name} is busy {tier['busy_share']:.0%} of the time"
    ttft, queue, load = (latency[name]["p90"] for name in ("ttft_ms", "queue_ms", "load_wait_ms"))
    if key.startswith("tpot") or not ttft:
        what = f", {preempted:,} preemptions" if preempted else ""
        return ("gpu", f"{gpu}{what}") if busy >= BUSY_SHARE else ("compute", f"it is the time of the steps ({gpu})")
    if queue is not None and queue >= ttft / 2:
        held = summary["tiers"]["gpu"]["held"]["peak_share"] or 0.0
        waits = f"queue P90 is {amount('ttft', queue * 1e6)} ({gpu}"
        if held > 0.98 and busy < BUSY_SHARE:
            return "gpu_kv", f"{waits}, the GPU's KV pool was full at its peak, {preempted:,} preemptions)"
        return "queue", f"{waits}, {preempted:,} preemptions)"
    if load is not None and load >= ttft / 2:
        return "load_link", f"load wait P90 is {amount('ttft', load * 1e6)} of it ({gpu})"
    front = latency.get("frontend_ms", {}).get("p90")
    if front is not None and front >= ttft / 2:
        return "frontend", f"P90 of the time before the engine is {amount('ttft', front * 1e6)} of it (API servers)"
    waits = f"queue P90 {amount('ttft', (queue or 0) * 1e6)}, load wait P90 {amount('ttft', (load or 0) * 1e6)}"
    return "compute", f"{waits}, the rest is computing what no cache has; {gpu}"


def _verdict(planned: Planned, best: Point) -> Verdict:
    space = planned.space
    could = [name for name in (CPU, NVME, STORE) if space.has(name) and max(space.axes[space.place(name)].values)]
    if not could:
        return "as_given"
    takes = planned.rated[best].resources
    return "offload" if takes.dram_bytes or takes.nvme_bytes else "no_offload"


def _answer(planned: Planned, best: Point, verdict: Verdict) -> str:
    rated = planned.rated[best]
    worst = rated.worst
    assert worst is not None
    figures = ", ".join(
        f"{limit_name(check.key)} {amount(check.key, check.measured)} (limit {amount(check.key, check.limit)})"
        for check in rated.checks
        if check.measured is not None
    )
    takes = rated.resources
    parts = [f"{count} x {name}" for name, count in takes.gpus.items()]
    parts += [f"{size(takes.dram_bytes)} of CPU memory"] if takes.dram_bytes else []
    parts += [f"{size(takes.nvme_bytes)} of NVMe"] if takes.nvme_bytes else []
    what = f"{planned.space.name(best)} ({', '.join(parts)} in all)"
    head = "Don't offload" if verdict == "no_offload" else "Take"
    per_hour = money(rated.usd_per_hour(planned.task.prices))
    cost = f"{money(rated.usd_per_1m_tokens)} per 1M output tokens, {per_hour} per hour"
    lead = f"{head}: {what}." if verdict == "no_offload" else f"{head} {what}."
    return f"{lead} {figures}; {cost}.{_rejected(rated)}"


def _closest(planned: Planned, best: Point) -> str:
    rated = planned.rated[best]
    missed = ", ".join(
        f"{limit_name(check.key)} {'has no figure' if check.measured is None else amount(check.key, check.measured)}"
        f" (limit {amount(check.key, check.limit)})"
        for check in rated.checks
        if not check.is_met
    )
    return f"No point meets the SLO; the closest is {planned.space.name(best)}: {missed}.{_rejected(rated)}"


def _rejected(rated: Rated) -> str:
    """How many requests a point sends away, if any."""
    count, of = rated.rejected
    return f" {count:,} of {of:,} requests are rejected." if count else ""


def _why(planned: Planned, best: Point, verdict: Verdict) -> list[str]:
    """Why to offload, or why not."""
    found: list[str] = []
    bounds, rated = planned.bounds, planned.rated[best]
    if bounds.working_set is not None:
        keep, pool = bounds.working_set.distinct_bytes, bounds.working_set.gpu_bytes
        if bounds.working_set.fits_the_gpu:
            found.append(
                f"All different KV of the trace ({size(keep)}) fits the KV pool of one instance's GPUs ({size(pool)})."
            )
        elif verdict == "offload":
            found.append(
                f"The trace has {size(keep)} of different KV, the GPUs of an instance hold {size(pool)}: an LRU cache"
                f" of that size serves {bounds.working_set.gpu_hit_rate:.0%} of the prompt blocks, one without limit"
                f" {bounds.working_set.max_hit_rate:.0%}.{_knees(bounds.working_set)}"
            )
    if bounds.break_even is not None:
        even = bounds.break_even
        words = "faster" if even.ratio >= 1 else "slower"
        times = even.ratio if even.ratio >= 1 else 1 / even.ratio
        found.append(
            f"Loading a prompt of {even.tokens:,} tokens takes {amount('ttft', even.load_ns)}, computing it"
            f" {amount('ttft', even.compute_ns)}: loading is {times:.1f} times {words}."
        )
    other = counterpart(planned.space, best)
    if other is not None and other in planned.rated:
        there = planned.rated[other]
        memory = planned.space.labels(other)[CPU]
        against = "Without CPU memory" if memory == "0" else f"With {memory} of CPU memory"
        if there.failed:
            found.append(f"{against} the point cannot be run: {there.reason}.")
        else:
            check = rated.checks[0]
            theirs = next((each for each in there.checks if each.key == check.key), None)
            value = "n/a" if theirs is None or theirs.measured is None else amount(check.key, theirs.measured)
            change = more_or_less(rated.usd_per_1m_tokens, there.usd_per_1m_tokens)
            found.append(
                f"{against} {limit_name(check.key)} is {value}, a million output tokens cost"
                f" {money(there.usd_per_1m_tokens)} ({change}) and the SLO is {'met' if there.is_met else 'missed'}."
            )
    return found


def _knees(keep: WorkingSet) -> str:
    """Where one LRU cache for everything begins to buy clearly less."""
    if not keep.knees:
        return ""
    knees = ", ".join(f"{size(at)} ({rate:.0%})" for at, rate in keep.knees)
    return f" One cache for all of it buys clearly less beyond {knees}."


def _how_sure(planned: Planned, near: tuple[Neighbour, ...]) -> list[str]:
    """What was simulated, and what that proves."""
    found, count = planned.found, len(planned.rated)
    lines: list[str] = []
    if found.is_exhaustive:
        all_of = f"All {count} points of the space were" if count > 1 else "The one point of the space was"
        lines.append(f"{all_of} simulated.")
    elif found.is_local_best:
        among = f"all {len(near)} neighbours of this one are among them, and none is better"
        if len(near) == 1:
            among = "the one neighbour of this one is among them, and is not better"
        lines.append(f"{_points(count)} simulated; {among}." if near else f"{_points(count)} simulated.")
    else:
        missing = sum(each.rated is None for each in near)
        lines.append(
            f"The budget ended the search after {count} point{'s' * (count != 1)}; not simulated: {missing} of the"
            f" {len(near)} neighbour{'s' * (len(near) != 1)} of this one."
        )
    if not found.is_complete and found.is_local_best and not found.is_exhaustive:
        lines.append("The budget ended the search early: points farther away may be better.")
    failed = [rated for rated in planned.rated.values() if rated.failed]
    if failed:
        some = "1 point" if len(failed) == 1 else f"{len(failed)} points"
        lines.append(f"{some} could not be run, {'the first ' * (len(failed) > 1)}because: {failed[0].reason}.")
    gaps = [axis for axis in planned.space.axes if _has_gaps(axis)]
    if gaps:
        tried = "; ".join(f"{axis.name} {_listed(axis.labels)}" for axis in gaps)
        lines.append(f"What lies between the values of the space was not tried: {tried}.")
    return lines


def _points(count: int) -> str:
    return "1 point was" if count == 1 else f"{count} points were"


def _has_gaps(axis: Axis) -> bool:
    """Whether there are sizes or counts between the values."""
    return axis.monotone and any(abs(right - left) > 1 for left, right in itertools.pairwise(axis.values))


def _listed(labels: Sequence[str]) -> str:
    return ", ".join(labels if len(labels) <= 8 else (*labels[:3], "...", *labels[-2:]))
