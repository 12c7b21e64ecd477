"""Predicted against measured: every job and every forward pass of one schedule, over one or several replays.

A job's time is from when it began on its stream to its last byte, on both sides. An error is predicted over measured,
minus 1. Several replays are repeats: each number is computed for each of them; the median and the range are shown.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hwreplay.evidence import Run, intact, same_device
from hwreplay.intervals import Covered
from hwreplay.pairs import Pair, Rate, Repeated, Row, pairs_of, rates_of, repeated, rows_of
from hwreplay.predict import predict
from hwreplay.result import DeviceInfo, RunResult, read_run
from hwreplay.timeline import Timeline, measured, simulated
from kvsim.errors import UserError
from kvsim.profile import LinkProfile, Pieces
from kvsim.results.schedule import Schedule, read_schedule


@dataclass(frozen=True, slots=True)
class Whole:
    """A number of the whole run, predicted and measured; None = there is none."""

    predicted: float | None
    measured: Repeated | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that the tables, the plots and the page show."""

    schedule: str
    run: str
    model: str
    predicted_by: str
    device: DeviceInfo
    backend: str
    files: tuple[str, ...]
    rows: tuple[Row, ...]
    rates: tuple[Rate, ...]
    makespan_ns: Whole
    makespan_error: Repeated
    hidden_share: Whole
    undisturbed: Repeated | None  # passes without copies beside them: time over the time asked for
    pairs: tuple[Pair, ...]
    cautions: tuple[str, ...]
    predicted: Timeline
    measured: tuple[Timeline, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain data, times in ns, errors as parts of what was measured."""
        plain = ("schedule", "run", "model", "predicted_by", "backend", "files", "makespan_error", "cautions", "rates")
        document: dict[str, Any] = {"format": "hwreplay-comparison", "version": 1, "device": asdict(self.device)}
        document |= {name: _plain(getattr(self, name)) for name in plain}
        document |= {name: asdict(getattr(self, name)) for name in ("makespan_ns", "hidden_share")}
        document["undisturbed_passes"] = None if self.undisturbed is None else asdict(self.undisturbed)
        document["rows"] = [asdict(row) for row in self.rows]
        document["jobs"] = [asdict(pair) for pair in self.pairs if pair.direction is not None]
        passes = [pair for pair in self.pairs if pair.direction is None]
        document["steps"] = {  # by column: there may be many
            "step": [pair.number for pair in passes],
            "predicted_ns": [pair.predicted_ns for pair in passes],
            **{
                f"measured_{part}_ns": [getattr(pair.measured_ns, part) for pair in passes]
                for part in ("median", "low", "high")
            },
        }
        return document


def compare_files(schedule: Path, results: Sequence[Path], profile: LinkProfile | None = None) -> Comparison:
    """Compare a schedule's times, or those that a profile gives it, with replays of it.

    Args:
        schedule: the file that was replayed.
        results: replays, each a repeat of the others.
        profile: predicts anew instead of the schedule's own times.

    Raises:
        UserError: a file cannot be read; a replay is of another schedule, another device or backend than the first,
            copied wrong bytes, lacks jobs or was scaled and no profile is given; there is nothing to compare.
    """
    if not results:
        raise UserError("compare: no results given, expected files of hwreplay run")
    plan = read_schedule(schedule)
    digest = sha256_of(schedule)
    jobs = {job.job for step in plan.steps for job in step.jobs}
    runs = [Run(path.name, intact(read_run(path), str(path))) for path in results]
    for path, run in zip(results, runs, strict=True):
        _check_schedule(run.result, path, schedule, digest, jobs)
    for path, run in zip(results[1:], runs[1:], strict=True):
        if not same_device(run.result.device, runs[0].result.device):
            raise UserError(
                f"{path}: measured on {run.result.device.label}, expected {runs[0].result.device.label} as "
                f"{results[0]}: repeats are of one device"
            )
        if run.result.backend != runs[0].result.backend:
            raise UserError(
                f"{path}: copied by {run.result.backend}, expected {runs[0].result.backend} as {results[0]}: repeats "
                "are of one backend"
            )
    if profile is None:
        _check_unscaled(plan, runs[0].result, results[0])
    return compare(plan, runs, profile, schedule.name)


def compare(plan: Schedule, runs: Sequence[Run], profile: LinkProfile | None, name: str) -> Comparison:
    """As `compare_files`, of what was read and checked."""
    first = runs[0].result
    by_number = {job.job: job for job in first.jobs}
    if profile is None:
        predicted, predicted_by = simulated(plan), f"the simulated run, link {plan.header.link}"
    else:
        pieces = {job.job: Pieces(job.descriptor_bytes, job.descriptors) for job in first.jobs}
        predicted, predicted_by = predict(plan, profile, first.way, pieces), f"link profile {profile.name}"
    lines = tuple(measured(run.result) for run in runs)
    pairs = pairs_of(predicted, lines, by_number)
    if not pairs:
        raise UserError(f"{name}: no job or pass has both a predicted and a measured time")
    makespans = [line.makespan_ns for line in lines]
    undisturbed = [ratio for ratio in (_undisturbed(run.result) for run in runs) if ratio is not None]
    hidden = [share for share in (line.hidden_share() for line in lines) if share is not None]
    return Comparison(
        schedule=name,
        run=plan.header.run,
        model=plan.header.model,
        predicted_by=predicted_by,
        device=max((run.result.device for run in runs), key=lambda device: device.date),
        backend=first.backend,
        files=tuple(run.file for run in runs),
        rows=tuple(rows_of(pairs, lines)),
        rates=tuple(rates_of(pairs, lines)),
        makespan_ns=Whole(predicted.makespan_ns, repeated(makespans)),
        makespan_error=repeated([predicted.makespan_ns / max(1, span) - 1 for span in makespans]),
        hidden_share=Whole(predicted.hidden_share(), repeated(hidden) if hidden else None),
        undisturbed=repeated(undisturbed) if undisturbed else None,
        pairs=tuple(pairs),
        cautions=tuple(_cautions(plan, runs, predicted, profile)),
        predicted=predicted,
        measured=lines,
    )


def _undisturbed(run: RunResult) -> float | None:
    """How much longer passes take than they should, without any copy: what no link profile can predict."""
    copying = Covered((job.started_ns, job.finished_ns) for job in run.jobs)
    ratios = [
        step.compute_measured_ns / step.compute_ns
        for step in run.steps
        if step.compute_ns and not copying.within(step.start_ns, step.end_ns)
    ]
    return statistics.median(ratios) if ratios else None


def sha256_of(path: Path) -> str:
    """Digest of a file's bytes, as a replay writes it down."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_schedule(run: RunResult, path: Path, schedule: Path, digest: str, expected: set[int]) -> None:
    if run.schedule.sha256 != digest:
        raise UserError(
            f"{path}: is of another schedule: sha256 {run.schedule.sha256:.12} ({run.schedule.path}), expected "
            f"{digest:.12} of {schedule}"
        )
    found = {job.job for job in run.jobs}
    if found != expected:
        number = min(found ^ expected)
        what = "has no job" if number in expected else "has the unknown job"
        raise UserError(f"{path}: {what} {number}: {len(found):,} jobs, expected the {len(expected):,} of {schedule}")


def _check_unscaled(plan: Schedule, run: RunResult, path: Path) -> None:
    if run.schedule.scaled != 1 or "scaled_from" in (plan.header.filter or {}):
        raise UserError(
            f"{path}: blocks were made smaller for the replay, the schedule's times are of whole ones: --profile "
            "predicts the times of what was replayed"
        )


def _cautions(plan: Schedule, runs: Sequence[Run], predicted: Timeline, profile: LinkProfile | None) -> Iterable[str]:
    first = runs[0].result
    if first.device.kind == "host":
        yield "Copies were made by host threads on a CPU, no GPU: these are not the times of any GPU."
    if profile is not None and (profile.kind == "host") != (first.device.kind == "host"):
        yield f"Link profile {profile.name} is of {profile.device}, the replay of {first.device.label}."
    ways = {plan.header.way.load, plan.header.way.store}
    if profile is None and ways != {first.way}:
        simulated_ways = " and ".join(sorted(ways))
        yield f"Simulated copies go by {simulated_ways}, the replayed ones by {first.way} ({first.backend})."
    missing = plan.num_jobs - len(predicted.jobs)
    if missing:
        yield f"{missing:,} jobs have no simulated start and are left out."
    yield from dict.fromkeys(note for run in runs for note in run.result.notes)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | None) else asdict(value)
