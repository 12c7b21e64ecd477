"""One point, run in whatever process it is handed to; the trace stays there for the next one."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from kvsim.config import RunConfig, dump_config
from kvsim.errors import UserError
from kvsim.plan.outcome import Outcome, PointFiles, Status
from kvsim.plan.point_key import Digests
from kvsim.registry import user_code
from kvsim.resolve import read_whole_trace_of
from kvsim.runner import run_of, simulate
from kvsim.trace.session import Trace

TRACES_KEPT = 2
"""A point's trace and the one before: points come sorted by trace, and a large trace takes gigabytes."""

TraceKey = tuple[str, str, str, bool]
_traces: OrderedDict[TraceKey, Trace] = OrderedDict()


class Measure(Protocol):
    """Figures of a run that are not in its summary. Picklable, as it is called where the run is."""

    @property
    def name(self) -> str:
        """Part of the result's key: another name, other figures."""
        ...

    def of(self, requests: pd.DataFrame) -> dict[str, float | None]:
        """The figures of a run with these requests."""
        ...


@dataclass(frozen=True, slots=True)
class Task:
    """A point to run.

    Attributes:
        key: of its result.
        trace_digest: of its trace's files, when the key was made.
        folder: where it is kept as soon as it is finished, if that folder can be reached from there.
        parent: the process whose end is the worker's own: it finishes its point, keeps it and leaves; None = nobody's.
        measure: further figures that are wanted.
    """

    key: str
    config: RunConfig
    trace_digest: str
    folder: Path | None = None
    parent: int | None = None
    measure: Measure | None = None

    @property
    def trace_key(self) -> TraceKey:
        """Of the trace as it is read: equal for points that can share it."""
        trace = self.config.trace
        return (self.trace_digest, trace.kind, trace.outputs_return, trace.spread_arrivals)


def run_task(task: Task) -> Outcome:
    """Run a point and keep its outcome; whatever happens is an outcome."""
    outcome = _outcome_of(task)
    if task.folder is not None and task.folder.is_dir():
        PointFiles(task.folder).put(outcome)
    if task.parent is not None and os.getppid() != task.parent:
        os._exit(0)  # nobody waits for more
    return outcome


def _outcome_of(task: Task) -> Outcome:
    text = dump_config(task.config)
    try:
        run = run_of(*simulate(task.config, trace=_trace_of(task)))
        summary, measured = run.summary, {} if task.measure is None else task.measure.of(run.requests)
    except UserError as error:
        return Outcome(task.key, "failed", str(error), text, None)
    except MemoryError:
        _traces.clear()
        return Outcome(
            task.key, "failed", "out of memory: fewer jobs at a time, blocks or sessions would fit", text, None
        )
    except Exception as error:  # noqa: BLE001 - one point's fault, ours or that of a class of the user's, is its row
        own = " in the code that module:Class names" if user_code(error) else ""
        return Outcome(task.key, "failed", f"{type(error).__name__}{own}: {' '.join(str(error).split())}", text, None)
    status, reason = _judged(summary["requests"])
    return Outcome(task.key, status, reason, text, summary, measured)


def _judged(counts: Mapping[str, Any]) -> tuple[Status, str]:
    """What became of a point whose run came to its end, and why, by the requests of its summary."""
    if counts["stuck"]:
        why = next(iter(counts["reasons"]["stuck"]))
        return "stuck", f"{counts['stuck']} of {counts['arrived']} requests had not ended: {why}"
    if counts["finished"] or not counts["arrived"]:
        return "ok", ""
    ends = {"rejected": "were rejected", "failed": "failed", "aborted": "were given up by their clients"}
    end = max(ends, key=lambda each: counts[each])
    why = next(iter(counts["reasons"][end]))
    return "unserved", f"no request finished: {counts[end]} of {counts['arrived']} {ends[end]}: {why}"


def _trace_of(task: Task) -> Trace:
    """The task's trace, read once.

    Raises:
        UserError: it cannot be read, or is not what it was when the sweep began.
    """
    if task.trace_key in _traces:
        _traces.move_to_end(task.trace_key)
        return _traces[task.trace_key]
    while len(_traces) >= TRACES_KEPT:
        _traces.popitem(last=False)
    trace = read_whole_trace_of(task.config)
    if Digests().of_trace(task.config) != task.trace_digest:
        raise UserError(f"{task.config.trace.path[0]}: the trace was changed while the sweep ran")
    _traces[task.trace_key] = trace
    return trace
