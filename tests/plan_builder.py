"""Small plans for tests: a trace of a few short sessions, and what may change around a run of it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sweep_builder import small_trace as short_sessions

from kvsim.api import run
from kvsim.config import RunConfig
from kvsim.errors import UserError
from kvsim.plan.plan_config import PlanTask, make_plan
from kvsim.plan.planner import Figures, Planned, carry_out
from kvsim.resolve import read_whole_trace_of
from kvsim.yamlfile import Document

RUN: Mapping[str, Any] = {
    "trace": {"path": "trace.jsonl.gz", "session_interval": "1s"},
    "model": "llama-3.1-8b",
    "engine": {"num_gpu_blocks_override": 1200, "max_model_len": 16384},
}


def small_trace(folder: Path, sessions: int = 6, turns: int = 6, seed: int = 1) -> Path:
    """Sessions of prompts of some thousand tokens; a run of it takes some hundredths of a second."""
    return short_sessions(folder, sessions, turns, seed, first=3000, added=600)


def task_of(folder: Path, run: Mapping[str, Any] | None = None, **content: Any) -> PlanTask:
    """A plan around `RUN`, with sections of it changed."""
    data = {"run": copy.deepcopy({**RUN, **(run or {})}), "slo": {"ttft_p90": "2s"}} | content
    return make_plan(Document("plan.yaml", data), folder, "plan")


class Serial:
    """Simulates in this process, every config once; may serve several plans with the same SLO keys."""

    def __init__(self, task: PlanTask) -> None:
        self._slo = task.slo
        self._trace = read_whole_trace_of(task.base)
        self._known: dict[str, Figures] = {}
        self.simulated = 0

    def __call__(self, configs: Sequence[RunConfig]) -> list[Figures]:
        return [self._figures(config) for config in configs]

    def _figures(self, config: RunConfig) -> Figures:
        key = config.model_copy(update={"name": None}).model_dump_json()
        if key not in self._known:
            self._known[key] = self._simulated(config)
        return self._known[key]

    def _simulated(self, config: RunConfig) -> Figures:
        self.simulated += 1
        try:
            result = run(config, trace=self._trace)
        except UserError as error:
            return Figures(reason=str(error))
        return Figures(result.summary, self._slo.of(result.requests))


def carried_out(task: PlanTask, runs: Serial | None = None, **more: Any) -> Planned:
    """A plan carried out in this process, against a clock that stands still."""
    return carry_out(task, read_whole_trace_of(task.base), runs or Serial(task), clock=lambda: 0.0, **more)
