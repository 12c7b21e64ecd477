"""What a link profile says about a schedule: the same passes and copies, in the same order, with its times.

The model of the link is that of the simulator: a stream of stores and one of loads, each first in first out; while both
are busy each runs at its share, and passes are slowed down by the copies beside them. The engine is that of a replay:
it begins a step when those passes are over that were over in the simulation, takes no time itself, and waits for what
a pass has to wait for before it launches it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from hwreplay.cells import DIRECTION_OF
from hwreplay.result import Way
from hwreplay.timeline import JobTime, PassTime, Timeline
from kvsim.errors import UserError
from kvsim.profile import PPM, LinkProfile, Pieces
from kvsim.results.schedule import Job, Schedule, Step, in_order


@dataclass(slots=True)
class _Pass:
    """A launched forward pass: ``work`` = ns that it would still take undisturbed."""

    step: Step
    place: int
    work: float
    start: float | None = None


@dataclass(slots=True)
class _Copy:
    """A job on its stream: ``work`` = ns that it would still take alone, once it runs."""

    job: Job
    behind: int | None  # place of the pass that it waits for
    work: float
    speed: float  # while the other direction is busy too
    start: float | None = None


def predict(schedule: Schedule, profile: LinkProfile, way: Way, pieces: Mapping[int, Pieces] | None = None) -> Timeline:
    """When everything would run on a link.

    Jobs of files take as long as they were simulated to; a profile does not know them.

    Args:
        schedule: passes, copies and who waits for whom.
        profile: of the link.
        way: in which all copies are made.
        pieces: descriptors of jobs; without, each block has the pieces of the schedule's layout.

    Raises:
        UserError: the profile does not know the way, or something waits for what never comes.
    """
    if not profile.has(way):
        raise UserError(f"link profile {profile.name} has no section {way}, which is how the copies were made")
    return _Player(schedule, profile, way, pieces or {}).play()


class _Player:
    def __init__(self, schedule: Schedule, profile: LinkProfile, way: Way, pieces: Mapping[int, Pieces]) -> None:
        self._steps, self._profile, self._way, self._pieces = schedule.steps, profile, way, pieces
        self._layout = schedule.header.layout
        self._origin = schedule.steps[0].start_ns if schedule.steps else 0
        self._slowed = PPM / profile.slowdown_ppm(way)
        self._now = 0.0
        self._place = 0  # of the step whose turn it is
        self._todo: deque[Job | None] | None = None  # what is left of it (None = its pass); None = it has not begun
        self._compute: deque[_Pass] = deque()  # launched and not over
        self._over: set[int] = set()  # places of passes that are over, and of steps without one
        self._previous: int | None = None  # place of the pass that was launched last before this step
        self._before: int | None = None  # place of the pass that was launched last
        self._streams: dict[str, deque[_Copy]] = {"load": deque(), "store": deque()}
        self._waiting: dict[int, tuple[Job, int | None]] = {}  # of files
        self._files: list[tuple[float, int, Job, float]] = []  # end, number, job, start
        self._done: set[int] = set()
        self._passes: dict[int, PassTime] = {}
        self._jobs: dict[int, JobTime] = {}

    def play(self) -> Timeline:
        """Until everything is over."""
        while True:
            while self._begin():
                pass
            if not self._advance():
                break
        if self._place < len(self._steps) or any(self._streams.values()) or self._waiting:
            stuck = self._steps[min(self._place, len(self._steps) - 1)].step
            raise UserError(f"schedule: step {stuck} waits for what never comes, expected a schedule that kvsim wrote")
        return Timeline(self._passes, dict(sorted(self._jobs.items())), round(self._now))

    def _begin(self) -> bool:
        """Whatever can begin now without time passing; whether there was anything."""
        changed = self._engine()
        if self._compute and self._compute[0].start is None:
            self._compute[0].start = self._now
        for stream in self._streams.values():
            if stream and stream[0].start is None and self._ready(stream[0].job, stream[0].behind):
                stream[0].start = self._now
                changed = True
        for number, (job, behind) in list(self._waiting.items()):
            if self._ready(job, behind):
                took = job.finished_ns - (job.submitted_ns if job.started_ns is None else job.started_ns)
                heapq.heappush(self._files, (self._now + took, number, job, self._now))
                del self._waiting[number]
                changed = True
        return changed

    def _engine(self) -> bool:
        """One thing that the engine can do now: begin a step, submit a job, launch a pass."""
        if self._place >= len(self._steps):
            return False
        step = self._steps[self._place]
        if self._todo is None:
            if self._now < self._earliest() or any(each.step.end_ns <= step.start_ns for each in self._compute):
                return False
            self._todo, self._previous = deque(in_order(step)), self._before
        elif not self._todo:
            self._todo = None
            self._place += 1
        elif self._todo[0] is not None:
            self._submit(self._todo.popleft())
        else:
            if not self._done.issuperset(step.after):
                return False
            self._todo.popleft()
            if step.compute_ns:
                self._compute.append(_Pass(step, self._place, float(step.compute_ns)))
                self._before = self._place
        return True

    def _earliest(self) -> float:
        """Nothing of the step whose turn it is was there before."""
        not_before = self._steps[self._place].not_before_ns
        return 0.0 if not_before is None else float(not_before - self._origin)

    def _submit(self, job: Job | None) -> None:
        assert job is not None  # the caller looked
        behind = {None: None, "previous": self._previous, "this": self._before}[job.behind]
        direction = DIRECTION_OF.get(job.direction)
        if direction is None:
            self._waiting[job.job] = job, behind
            return
        pieces = self._pieces.get(job.job) or Pieces(self._layout.piece_bytes, len(job.source) * self._layout.pieces)
        alone = self._profile.batch_ns(self._way, direction, (pieces,))
        speed = self._profile.shared_ppm(self._way, direction) / PPM
        self._streams[job.direction].append(_Copy(job, behind, float(alone), speed))

    def _ready(self, job: Job, behind: int | None) -> bool:
        return (behind is None or behind in self._over) and self._done.issuperset(job.after)

    def _running(self) -> list[_Copy]:
        return [stream[0] for stream in self._streams.values() if stream and stream[0].start is not None]

    def _advance(self) -> bool:
        """To the next instant at which something ends or may begin; False if there is none."""
        copies = self._running()
        speeds = [copy.speed if len(copies) > 1 else 1.0 for copy in copies]
        pass_speed = self._slowed if copies else 1.0
        waits = [copy.work / speed for copy, speed in zip(copies, speeds, strict=True)]
        if self._compute:
            waits.append(self._compute[0].work / pass_speed)
        if self._place < len(self._steps) and self._todo is None and self._earliest() > self._now:
            waits.append(self._earliest() - self._now)
        if self._files:
            waits.append(self._files[0][0] - self._now)
        if not waits:
            return False
        elapsed = max(0.0, min(waits))
        self._now += elapsed
        for copy, speed in zip(copies, speeds, strict=True):
            copy.work -= elapsed * speed
            if copy.work < 1e-6:  # ns: what is left is rounding
                self._streams[copy.job.direction].popleft()
                assert copy.start is not None  # it ran
                self._finish(copy.job, copy.start)
        while self._files and self._files[0][0] <= self._now:
            _, _, job, start = heapq.heappop(self._files)
            self._finish(job, start)
        if self._compute:
            running = self._compute[0]
            running.work -= elapsed * pass_speed
            if running.work < 1e-6:
                self._compute.popleft()
                self._over.add(running.place)
                assert running.start is not None  # it ran
                self._passes[running.step.step] = PassTime(running.step.step, round(running.start), round(self._now))
        return True

    def _finish(self, job: Job, start: float) -> None:
        self._done.add(job.job)
        self._jobs[job.job] = JobTime(job.job, job.direction, round(start), round(self._now))
