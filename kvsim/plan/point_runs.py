"""Simulates a plan's points, as a sweep does: side by side, each of them once, and kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvsim.config import RunConfig
from kvsim.plan.outcome import Outcome
from kvsim.plan.planner import Figures
from kvsim.plan.point_key import Digests
from kvsim.plan.pool import evaluate
from kvsim.plan.slo import Slo


class PointRuns:
    """See `kvsim.plan.planner.Runs`.

    Args:
        slo: what is measured.
        folder: where outcomes are kept; what is there already is not simulated again. None = nowhere.
        jobs: processes; None = one per CPU.
    """

    def __init__(self, slo: Slo, folder: Path | None = None, jobs: int | None = None) -> None:
        self._slo, self._folder, self._jobs = slo, folder, jobs
        self._digests = Digests()

    def __call__(self, configs: Sequence[RunConfig]) -> Sequence[Figures]:
        """Figures of each config, in order."""
        if not configs:
            return []
        jobs = self._jobs if len(configs) > 1 else 1  # of one alone this process need not send itself the trace
        found = dict(evaluate(configs, folder=self._folder, jobs=jobs, digests=self._digests, measure=self._slo))
        return [_figures(found[place]) for place in range(len(configs))]


def _figures(outcome: Outcome) -> Figures:
    if outcome.summary is None:
        return Figures(reason=outcome.reason, key=outcome.key)
    return Figures(outcome.summary, outcome.measured, key=outcome.key)  # requests that got stuck miss the SLO
