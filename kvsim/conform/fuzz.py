"""Random worlds, live: what vLLM does on each, compared with ours; a world that differs is made small."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

from kvsim.conform.check import Outcome, check, profile_for
from kvsim.conform.client import LiveRecording, RecorderDied, RecordingFailed, record_here
from kvsim.conform.files import recording_bytes
from kvsim.conform.shrink import shrink
from kvsim.conform.worlds import Extensions, Scenario, world


@dataclass(frozen=True, slots=True)
class World:
    """One world to try."""

    seed: int
    extensions: Extensions = field(default_factory=Extensions)
    finish_order: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """What a world has shown."""

    seed: int
    outcome: Outcome | None  # None: vLLM broke, see `failure`
    failure: str = ""
    scenario: Scenario | None = None  # the small one, if it differs
    recording: LiveRecording | None = None

    def save(self, folder: Path) -> Path:
        """Write scenario and recording; the scenario's path."""
        assert self.scenario is not None
        folder.mkdir(parents=True, exist_ok=True)
        name, version = self.scenario["name"], self.recording.vllm if self.recording else "failed"
        path = folder / f"{name}-{version}.json"
        path.write_text(json.dumps(self.scenario, indent=1) + "\n")
        if self.recording is not None:
            target = folder / f"{name}-{version}.jsonl.gz"
            target.write_bytes(recording_bytes(self.recording.summary, self.recording.records))
        return path


def try_world(job: World) -> Finding:
    """Record and compare one world; a failing one is shrunk."""
    scenario = world(job.seed, job.extensions)
    try:
        recording = record_here(scenario)
    except RecorderDied as error:  # to start it again for each smaller world would take minutes
        return Finding(job.seed, None, str(error), scenario)
    except RecordingFailed as error:
        message = str(error)
        return Finding(job.seed, None, message, shrink(scenario, lambda candidate: _breaks(candidate, message)))
    outcome = _compare(scenario, recording, job)
    if outcome.difference is None:
        return Finding(job.seed, outcome)
    small = shrink(scenario, lambda candidate: _differs(candidate, job))
    try:
        recording = record_here(small)
    except RecordingFailed:  # it did not a moment ago: the first finding is worth more than a smaller one
        small = scenario
    return Finding(job.seed, _compare(small, recording, job), scenario=small, recording=recording)


def _compare(scenario: Scenario, recording: LiveRecording, job: World) -> Outcome:
    profile = profile_for(recording.vllm)
    outcome = check(scenario["name"], scenario, recording, profile=profile, finish_order=job.finish_order)
    return replace(outcome, name=f"world {job.seed} ({scenario['name']})")


def _differs(scenario: Scenario, job: World) -> bool:
    try:
        return _compare(scenario, record_here(scenario), job).difference is not None
    except RecordingFailed:
        return False


def _breaks(scenario: Scenario, message: str) -> bool:
    try:
        record_here(scenario)
    except RecordingFailed as error:
        return str(error).partition(":")[0] == message.partition(":")[0]
    return False
