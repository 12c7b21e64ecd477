"""Carries out a plan: bounds the space, searches it, and keeps every point that was simulated."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from kvsim.config import RunConfig
from kvsim.errors import UserError
from kvsim.plan.axes import CPU, NVME, REPLICAS, SESSIONS, STORE
from kvsim.plan.bounds import Bounds, Floor, find_bounds, too_long
from kvsim.plan.objective import Objective
from kvsim.plan.plan_config import PlanTask
from kvsim.plan.prices import Resources, resources_of
from kvsim.plan.rated import Rated, enough_cpu_bytes, enough_nvme_bytes, rate
from kvsim.plan.search import Budget, Found, Point, Score, Verdict, search
from kvsim.plan.slo import FINISHED
from kvsim.plan.space import Space
from kvsim.resolve import with_max_sessions
from kvsim.steptime.gpu import load_gpu
from kvsim.trace.session import Trace


@dataclass(frozen=True, slots=True)
class Figures:
    """What came of one config.

    Attributes:
        summary: of the run; empty if it failed.
        measured: what `kvsim.plan.slo.Slo.of` made of its requests.
        reason: why it failed, or empty.
        key: of the stored result, if it was stored.
    """

    summary: Mapping[str, Any] = field(default_factory=dict)
    measured: Mapping[str, float | None] = field(default_factory=dict)
    reason: str = ""
    key: str = ""


class Runs(Protocol):
    """Simulates configs, in parallel if it can, and answers in their order."""

    def __call__(self, configs: Sequence[RunConfig]) -> Sequence[Figures]:
        """Figures of each."""
        ...


@dataclass(frozen=True)
class Planned:
    """A plan carried out.

    Attributes:
        task: what was asked.
        space: with sizes that cannot help left out.
        bounds: what was known before anything was simulated.
        objective: scores points.
        rated: of every point that was simulated with all sessions, in that order.
        thinned: of those simulated with fewer.
        found: how the search ended.
    """

    task: PlanTask
    space: Space
    bounds: Bounds
    objective: Objective
    rated: Mapping[Point, Rated]
    thinned: Mapping[Point, Rated]
    found: Found

    def score(self, point: Point) -> Score:
        """Of a point that was simulated."""
        return self.objective.score(self.rated[point], self.space.value(point, SESSIONS))


def carry_out(
    task: PlanTask,
    trace: Trace,
    runs: Runs,
    *,
    width: int = 1,
    progress: Callable[[int, int], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Planned:
    """Search a plan's space.

    Args:
        task: the plan.
        trace: as the base names it, with all sessions.
        runs: simulates.
        width: points that `runs` simulates at a time.
        progress: called with points simulated and allowed.
        clock: seconds, for the plan's budget of time.

    Raises:
        UserError: the base does not fit model, GPU or trace, or a GPU has no price.
    """
    started = clock()
    space, bounds = find_bounds(task.space, trace)
    used: set[str] = set()
    for config in space.check():  # a price that is missing should not be found out after minutes
        resources = resources_of(config)
        task.prices.per_hour(resources)
        used.update(resources.gpus)
    idle = [name for name in task.config.prices.gpu_hour if load_gpu(name).name not in used]
    notes = [f"prices.gpu_hour.{name} has no effect: GPUs here are {', '.join(sorted(used))}" for name in idle]
    bounds = replace(bounds, notes=(*bounds.notes, *notes))
    limit_s = task.config.budget.time / 1e9

    def time_left() -> float:
        return 1 - (clock() - started) / limit_s

    budget = Budget(task.config.budget.points, time_left)
    sessions = min(len(trace.sessions), task.base.trace.max_sessions or len(trace.sessions))
    judge = _Judge(task, space, bounds, runs, with_max_sessions(trace, sessions), budget, progress)
    exhaustive = task.config.budget.search == "exhaustive"
    found = search(judge, judge.evaluate, budget, width=width, exhaustive=exhaustive, corners=without_memory(space))
    other = None if found.best is None else counterpart(space, found.best)
    if other is not None and other not in judge.rated and budget.room():
        judge.evaluate([other], 1.0)  # so that the answer can say what offloading is worth
    return Planned(task, space, bounds, judge.objective, judge.rated, judge.thinned, found)


def without_memory(space: Space) -> list[Point]:
    """Points with the least memory beside the GPUs, for every number of replicas: behind a router more may hurt.

    A router that believes to know what each server keeps sends sessions elsewhere where servers keep more.
    """
    if not space.has(REPLICAS) or space.has(SESSIONS) or not any(space.has(name) for name in (CPU, NVME, STORE)):
        return []
    place = space.place(REPLICAS)
    rest = tuple(
        length - 1 if more and axis.name not in (CPU, NVME, STORE) else 0
        for axis, length, more in zip(space.axes, space.lengths, space.monotone, strict=True)
    )
    counts = range(space.lengths[place])
    return list(dict.fromkeys(space.canonical((*rest[:place], at, *rest[place + 1 :])) for at in counts))


def counterpart(space: Space, point: Point) -> Point | None:
    """The same point without CPU memory; for one without, that with the least of it. None if there is no choice."""
    if not space.has(CPU) or len(space.axes[space.place(CPU)].values) < 2:
        return None
    place = space.place(CPU)
    least = 0 if space.axes[place].values[0] else 1
    other = space.canonical((*point[:place], 0 if point[place] else least, *point[place + 1 :]))
    return None if other == space.canonical(point) else other


class _Judge:
    """The space as the search sees it, and what it simulates."""

    def __init__(
        self, task: PlanTask, space: Space, bounds: Bounds, runs: Runs, played: Trace, budget: Budget,
        progress: Callable[[int, int], None] | None,
    ) -> None:  # fmt: skip
        self._task, self._space, self._runs = task, space, runs
        self._played, self._longest = played, bounds.longest
        self._sessions = len(played.sessions)
        self._too_long: dict[int | None, int | None] = {}
        self._floor = bounds.floor or Floor(0.0, 0)
        self._resources: dict[Point, Resources | None] = {}
        self._budget, self._progress = budget, progress
        self.objective = Objective(task.config.objective, task.prices)
        self.rated: dict[Point, Rated] = {}
        self.thinned: dict[Point, Rated] = {}

    @property
    def lengths(self) -> tuple[int, ...]:
        return self._space.lengths

    @property
    def monotone(self) -> tuple[bool, ...]:
        return self._space.monotone

    def canonical(self, point: Point) -> Point:
        return self._space.canonical(point)

    def bound(self, low: Point, verdict: Verdict) -> Score:
        """See `Objective.bound`."""
        high, resources = verdict.subject, self._resources_of(low)
        assert isinstance(high, Rated)
        if resources is None:
            return (float("-inf"),)
        return self.objective.bound(resources, high, self._space.value(low, SESSIONS))

    def floor(self, low: Point) -> Score:
        """See `Objective.floor`."""
        resources, least = self._resources_of(low), self._floor
        if resources is None:
            return (float("-inf"),)
        return self.objective.floor(resources, least.makespan_s, least.output_tokens, self._space.value(low, SESSIONS))

    def _resources_of(self, point: Point) -> Resources | None:
        """None if its parts do not fit together, so that nothing can be said."""
        if point not in self._resources:
            try:
                self._resources[point] = resources_of(self._space.config(self._space.canonical(point)))
            except UserError:
                self._resources[point] = None
        return self._resources[point]

    def evaluate(self, points: Sequence[Point], share: float) -> list[Verdict | None]:
        """Simulate points with a share of the sessions; None for those that there is no time left for."""
        verdicts: list[Verdict | None] = []
        configs: list[tuple[Point, RunConfig]] = []
        sessions = None if share == 1 else max(1, round(share * self._sessions))
        found: dict[Point, Rated] = {}
        for point in points:
            try:
                configs.append((point, self._space.config(point, sessions)))
            except UserError as error:
                found[point] = Rated(self._task.base, resources_of(self._task.base), str(error), share=share)
        for (point, config), figures in zip(configs, self._runs([config for _, config in configs]), strict=True):
            found[point] = self._judged(config, figures, share, self._refused_everywhere(sessions))
        for point in points:
            (self.rated if share == 1 else self.thinned)[point] = found[point]
            verdicts.append(self._verdict(point, found[point]))
        if self._progress is not None:
            self._progress(self._budget.used + len(points), self._budget.points)
        return verdicts

    def _refused_everywhere(self, sessions: int | None) -> int | None:
        """Requests of so many sessions that no point of the space serves; None if that cannot be said."""
        if self._longest is not None and sessions not in self._too_long:
            self._too_long[sessions] = too_long(with_max_sessions(self._played, sessions), self._longest)
        return self._too_long.get(sessions)

    def _judged(self, config: RunConfig, figures: Figures, share: float, refused: int | None) -> Rated:
        if figures.reason:
            return Rated(config, resources_of(config), figures.reason, share=share, key=figures.key)
        rated = rate(config, figures.summary, figures.measured, self._task.slo, self._task.prices, share, refused)
        return replace(rated, key=figures.key)

    def _verdict(self, point: Point, rated: Rated) -> Verdict:
        if rated.failed:
            return Verdict(float("inf"), failed=True, subject=rated)
        score = self.objective.score(rated, self._space.value(point, SESSIONS))
        refuses = any(check.key == FINISHED and not check.is_met for check in rated.checks)
        return Verdict(rated.strain, score, refuses=refuses, enough=self._enough(rated), subject=rated)

    def _enough(self, rated: Rated) -> dict[int, int]:
        """Sizes that would have done, by the number of their axis."""
        found: dict[int, int] = {}
        for name, most in ((CPU, enough_cpu_bytes), (NVME, enough_nvme_bytes)):
            size = most(rated.summary) if self._space.has(name) else None
            if size is not None:
                place = self._space.place(name)
                values = self._space.axes[place].values
                at = next((index for index, value in enumerate(values) if value >= size), None)
                if at is not None:
                    found[place] = at
        return found
