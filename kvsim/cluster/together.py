"""What instances have written down, taken together: totals, tiers and samples of the whole cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from kvsim.data_parallel import sum_samples, sum_totals
from kvsim.results.records import FaultTotals, InstanceRecord, Sample, Series, TierSample, TierTotals, Totals

_NAMES = frozenset({"name", "kind", "device", "chunk_bytes"})


def add_totals(target: Totals, parts: Sequence[Totals]) -> None:
    """Counts add up, times during which something is busy are means, peaks are those of each instance, summed up."""
    sum_totals(target, parts)
    # Blocks of instances may differ in size: the mean, so that capacities in bytes are right.
    for kind in ("gpu", "cpu"):
        blocks = getattr(target, f"num_{kind}_blocks")
        size = sum(getattr(part, f"num_{kind}_blocks") * getattr(part, f"{kind}_block_bytes") for part in parts)
        setattr(target, f"{kind}_block_bytes", size // blocks if blocks else 0)


def add_tiers(instances: Sequence[InstanceRecord]) -> list[TierTotals]:
    """Secondary tiers of equal names as one, each with an instance's part of it."""
    found: dict[str, list[TierTotals]] = {}
    for instance in instances:
        for tier in instance.tiers:
            found.setdefault(tier.name, []).append(tier)
    together = []
    for same in found.values():
        total = replace(same[0])
        for each in fields(TierTotals):
            if each.name not in _NAMES:
                setattr(total, each.name, sum(getattr(tier, each.name) for tier in same))
        if any(not tier.capacity_chunks for tier in same):
            total.capacity_chunks = 0  # no limit
        total.busy_ns //= len(same)
        together.append(total)
    return together


def add_faults(target: FaultTotals, parts: Sequence[FaultTotals]) -> None:
    """All that has gone wrong."""
    for each in fields(FaultTotals):
        setattr(target, each.name, sum(getattr(part, each.name) for part in parts))


def add_series(target: Series, parts: Sequence[Series]) -> None:
    """Each instance's samples are a step function; theirs is the sum, on the grid of the coarsest of them.

    An instance samples when a step of its own ends, so at a point of the grid its last sample counts, which is at most
    an interval and a step old.
    """
    end_ns = max(part.samples[-1].time_ns for part in parts)
    target.interval_ns = interval = max(part.interval_ns for part in parts)
    places = [0] * len(parts)
    for time_ns in [*range(interval, end_ns, interval), end_ns]:
        now: list[Sample] = []
        for number, part in enumerate(parts):
            samples, place = part.samples, places[number]
            while place < len(samples) and samples[place].time_ns <= time_ns:
                place += 1
            places[number] = place
            if place:
                now.append(samples[place - 1])
        if now:
            target.samples.append(_sum_at(time_ns, now, len(parts)))
    target.due_ns = end_ns


def _sum_at(time_ns: int, samples: Sequence[Sample], num_instances: int) -> Sample:
    total = sum_samples(samples, num_instances)
    total.time_ns = time_ns
    tiers: dict[str, list[TierSample]] = {}
    for sample in samples:
        for tier in sample.tiers:
            tiers.setdefault(tier.tier, []).append(tier)
    total.tiers = tuple(_sum_tier(time_ns, same, num_instances) for same in tiers.values())
    return total


def _sum_tier(time_ns: int, samples: Sequence[TierSample], num_instances: int) -> TierSample:
    total = replace(samples[0], time_ns=time_ns)
    for each in fields(TierSample):
        if each.name not in ("time_ns", "tier"):
            setattr(total, each.name, sum(getattr(sample, each.name) for sample in samples))
    total.busy_ns //= num_instances
    return total
