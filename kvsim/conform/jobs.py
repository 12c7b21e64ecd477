"""Comparisons as units of work for another process. What is wrong with an input is returned: others go on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvsim.conform.check import Outcome, check, profile_for
from kvsim.conform.client import LiveRecording, RecordingFailed, record_here
from kvsim.conform.files import read_recording, read_scenario, recording_bytes
from kvsim.errors import UserError


@dataclass(frozen=True, slots=True)
class Pair:
    """A scenario file and its recording."""

    scenario: Path
    recording: Path
    finish_order: bool = False


def check_pair(pair: Pair) -> Outcome | UserError:
    """Read both files and compare."""
    try:
        scenario, recording = read_scenario(pair.scenario), read_recording(pair.recording)
        if scenario["name"] != recording.scenario:
            found = f"records scenario {recording.scenario!r}, expected {scenario['name']!r} ({pair.scenario})"
            raise UserError(f"{pair.recording}: {found}")
        profile = profile_for(recording.vllm)
        return check(scenario["name"], scenario, recording, profile=profile, finish_order=pair.finish_order)
    except UserError as error:
        return error


@dataclass(frozen=True, slots=True)
class Live:
    """A scenario file to be recorded now."""

    scenario: Path
    keep: Path | None = None  # file for the recording
    finish_order: bool = False


def check_live(job: Live) -> Outcome | UserError:
    """Record with this process's recorder and compare, under the nearest profile if there is none of that version."""
    try:
        scenario = read_scenario(job.scenario)
        try:
            recording = record_here(scenario)
        except RecordingFailed as error:
            raise UserError(f"{job.scenario}: vLLM broke off: {error}") from None
        if job.keep is not None:
            _keep(job.keep, recording)
        profile = profile_for(recording.vllm)
        return check(scenario["name"], scenario, recording, profile=profile, finish_order=job.finish_order)
    except UserError as error:
        return error


def _keep(path: Path, recording: LiveRecording) -> None:
    try:
        path.write_bytes(recording_bytes(recording.summary, recording.records))
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None
