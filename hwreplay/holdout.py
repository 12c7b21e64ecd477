"""Jobs of replays against a fitted profile: what they say about it, and what they can add to it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hwreplay.cells import DIRECTION_OF, DIRECTIONS, Direction
from hwreplay.errors import Errors, errors_of
from hwreplay.evidence import Evidence, Run
from hwreplay.intervals import Covered, beside
from hwreplay.result import JobResult, RunResult
from hwreplay.sections import slowdown_of
from kvsim.errors import UserError
from kvsim.profile import PPM, LinkProfile, Pieces

LEAST_JOBS = 5
"""Fewer jobs or steps than this say nothing."""
BESIDE = 0.3
"""A job or a step ran beside copies if they cover this part of its time."""


@dataclass(frozen=True, slots=True)
class Check:
    """Jobs of one replay in one direction: ``held_out`` = the profile was fitted without them."""

    file: str
    direction: Direction
    held_out: bool
    errors: Errors


@dataclass(frozen=True, slots=True)
class DuplexShares:
    """Speed of h2d and d2h while both are busy, as parts of their speeds alone, and how many jobs say so."""

    shares: tuple[float, float]
    jobs: int


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Factor on forward passes; how many ran beside copies and how many apart."""

    factor: float
    beside: int
    apart: int


def cross_checked(
    evidence: Evidence, profile: LinkProfile, refit: Callable[[Evidence], LinkProfile]
) -> Iterator[Check]:
    """Check a profile with the jobs of each replay.

    Where probes gave the times, the jobs are held out as they are. Where the jobs themselves did, each replay is
    checked against a profile of the other replays; a single one can only be checked against itself.

    Args:
        evidence: what the profile was fitted to.
        profile: to check.
        refit: makes the profile of other evidence.
    """
    for run in evidence.runs:
        way = run.result.way
        if run.result.backend != evidence.backends.get(way):
            continue
        probed = any(cell.link_ns is not None for direction in DIRECTIONS for cell in evidence.cells(way, direction))
        judged, held_out = profile, probed
        if not probed and len(evidence.runs_of(way)) > 1:
            try:
                judged, held_out = refit(evidence.without(run)), True
            except UserError:  # the others lack a direction
                held_out = False
        yield from _checks(run, judged, held_out=held_out)


def expected_ns(profile: LinkProfile, run: RunResult, job: JobResult, both: float = 0.0) -> int | None:
    """Time of a job by a profile; None if it does not use the link or the profile does not know its way.

    Args:
        profile: to ask.
        run: the job's.
        job: a job.
        both: part of its time during which the other direction is busy.
    """
    direction = DIRECTION_OF.get(job.direction)
    if direction is None or not profile.has(run.way):
        return None
    alone = profile.batch_ns(run.way, direction, (Pieces(job.descriptor_bytes, job.descriptors),))
    speed = profile.shared_ppm(run.way, direction) / PPM
    return round(alone / (1 - both * (1 - speed)))


def duplex_from_jobs(runs: Sequence[RunResult], profile: LinkProfile) -> DuplexShares | None:
    """Both directions' speeds while both are busy, from jobs that partly ran beside one of the other direction.

    Args:
        runs: of the way dma_batch.
        profile: whose times are those of jobs alone.
    """
    found: dict[Direction, list[float]] = {"h2d": [], "d2h": []}
    for run in runs:
        for job, both in zip(run.jobs, beside(run.jobs), strict=True):
            alone = expected_ns(profile, run, job)
            if both >= BESIDE and alone is not None:
                work = alone / (job.finished_ns - job.started_ns)
                found[DIRECTION_OF[job.direction]].append((work - (1 - both)) / both)
    if min(len(speeds) for speeds in found.values()) < LEAST_JOBS:
        return None
    h2d, d2h = (min(1.0, max(0.05, statistics.median(found[direction]))) for direction in DIRECTIONS)
    return DuplexShares((h2d, d2h), sum(len(speeds) for speeds in found.values()))


def slowdown_from_steps(runs: Sequence[RunResult]) -> Slowdown | None:
    """How much copies slow forward passes down, from passes beside copies against passes without any."""
    apart: list[float] = []
    together: list[tuple[float, float]] = []
    for run in runs:
        copying = Covered((job.started_ns, job.finished_ns) for job in run.jobs if job.direction in DIRECTION_OF)
        for step in run.steps:
            if step.compute_ns < 1 or step.compute_measured_ns < 1:
                continue
            ratio = step.compute_measured_ns / step.compute_ns
            covered = copying.share(step.start_ns, step.end_ns)
            if covered >= BESIDE:
                together.append((ratio, covered))
            elif covered <= 0.01:
                apart.append(ratio)
    if min(len(apart), len(together)) < LEAST_JOBS:
        return None
    usual = statistics.median(apart)
    factors = [slowdown_of(max(1.0, ratio / usual), covered) for ratio, covered in together]
    return Slowdown(max(1.0, statistics.median(factors)), len(together), len(apart))


def _checks(run: Run, profile: LinkProfile, *, held_out: bool) -> Iterator[Check]:
    result = run.result
    pairs: dict[Direction, list[tuple[float, float]]] = {"h2d": [], "d2h": []}
    for job, both in zip(result.jobs, beside(result.jobs), strict=True):
        expected = expected_ns(profile, result, job, both)
        if expected is not None:
            pairs[DIRECTION_OF[job.direction]].append((expected, job.finished_ns - job.started_ns))
    for direction, found in pairs.items():
        errors = errors_of(found)
        if errors is not None:
            yield Check(run.file, direction, held_out, errors)
