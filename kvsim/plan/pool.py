"""Many configs, run side by side: each result is computed once, kept at once, and never lost.

A worker keeps a point's outcome itself, as soon as it has it; where it cannot reach the folder (on another machine), we
do when it arrives. So whoever is killed, at whatever moment, takes with it only points that were not finished.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from kvsim.config import RunConfig, dump_config
from kvsim.plan.outcome import Outcome, PointFiles
from kvsim.plan.point_key import Digests, key_of
from kvsim.plan.task import Measure, Task, run_task
from kvsim.plan.workers import Backend, WorkerDied, Workers, connected

Progress = Callable[[int, int], None]


def evaluate(
    points: Sequence[RunConfig],
    *,
    folder: Path | None = None,
    jobs: int | None = None,
    backend: Backend = "loky",
    address: str | None = None,
    retry_failed: bool = False,
    progress: Progress | None = None,
    digests: Digests | None = None,
    measure: Measure | None = None,
) -> Iterator[tuple[int, Outcome]]:
    """Run configs, and give each outcome with the number of its point as soon as it is there.

    What is in the folder already is not run again, and equal configs are run once. Processes stay for the next call
    with the traces that they have read (with backend loky, for five minutes).

    Args:
        points: what to run; names and output folders do not matter.
        folder: where outcomes are kept, a file each; None = nowhere.
        jobs: processes at a time; None = one per CPU, or all that a cluster has. 1 = in this process, which no point
            may then kill.
        backend: loky = processes of this machine; dask or ray = those of a cluster.
        address: of its scheduler. Traces must lie at the same paths there; the folder need not be there.
        retry_failed: run points again that are not ok.
        progress: called with how many of how many points have an outcome.
        digests: of files that were read before.
        measure: figures that are wanted besides the summary.

    Raises:
        UserError: a file that a config names is missing, the backend cannot be used, or the folder not be written. What
            is wrong with a single point is its outcome.
    """
    digests = digests or Digests()
    kept = PointFiles(None if folder is None else folder.absolute())
    places: dict[str, list[int]] = {}
    for place, config in enumerate(points):
        places.setdefault(key_of(config, digests, measure.name if measure else ""), []).append(place)
    done = 0
    missing: list[str] = []
    for key, same in places.items():
        outcome = kept.get(key)
        if outcome is None or (retry_failed and not outcome.ok):
            missing.append(key)
            continue
        done += len(same)
        yield from ((place, outcome) for place in same)
    if progress is not None:
        progress(done, len(points))
    if not missing:
        return
    with connected(jobs, backend, address) as workers:
        kept.make_folder()
        parent = os.getpid() if workers.are_children else None
        configs = {key: points[places[key][0]] for key in missing}
        tasks = [
            Task(key, config, digests.of_trace(config), kept.folder, parent, measure) for key, config in configs.items()
        ]
        for outcome in _run(sorted_by_trace(tasks), workers, kept):
            kept.put(outcome)
            done += len(places[outcome.key])
            if progress is not None:
                progress(done, len(points))
            yield from ((place, outcome) for place in places[outcome.key])


def sorted_by_trace(tasks: Iterable[Task]) -> list[Task]:
    """The same, those with the same trace together, otherwise in their order: a worker has few traces in memory."""
    groups: dict[object, list[Task]] = {}
    for task in tasks:
        groups.setdefault(task.trace_key, []).append(task)
    return [task for group in groups.values() for task in group]


def _run(tasks: Sequence[Task], workers: Workers, kept: PointFiles) -> Iterator[Outcome]:
    """Outcomes of all tasks. If a worker dies, what was being run is run again one by one, to see whose fault it is."""
    left = {task.key: task for task in tasks}
    while left:
        taken: list[Task] = []
        try:
            for outcome in workers.map(run_task, _noted(list(left.values()), taken)):
                del left[outcome.key]
                yield outcome
        except WorkerDied:
            for task in taken:
                if left.pop(task.key, None) is not None:
                    yield _run_alone(task, workers, kept)


def _noted(tasks: Iterable[Task], taken: list[Task]) -> Iterator[Task]:
    for task in tasks:
        taken.append(task)
        yield task


def _run_alone(task: Task, workers: Workers, kept: PointFiles) -> Outcome:
    finished = kept.get(task.key)  # the worker may have died just after
    if finished is not None and finished.ok:
        return finished
    try:
        return workers.alone(run_task, task)
    except WorkerDied:
        why = "its process was killed, twice: most likely memory ran out; fewer jobs at a time, or sessions, may fit"
        return Outcome(task.key, "failed", why, dump_config(task.config), None)
