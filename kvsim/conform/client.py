"""A live recorder in a process of its own, which may run in another Python than ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvsim.conform.files import Recording
from kvsim.errors import UserError

SCRIPT = Path(__file__).resolve().parent / "live" / "record.py"

RESTART_AFTER = 250
"""Scenarios after which a recorder is started afresh: vLLM does not give all memory back."""

_PATIENCE_SECONDS = 10  # for a recorder to end when nobody talks to it any more
_SHOWN_ERROR = 300  # characters of what a broken recorder said last


class RecordingFailed(Exception):
    """vLLM, or our hold on it, broke on one scenario."""


class RecorderDied(RecordingFailed):
    """The whole process ended."""


@dataclass(frozen=True, slots=True)
class LiveRecording(Recording):
    """A recording with all that its first line says."""

    summary: dict[str, Any]


class LiveRecorder:
    """vLLM's scheduler on a CPU. It is imported once and records as many scenarios as are given.

    Args:
        python: interpreter that has torch (and vLLM, unless `source` is given).
        source: folder of an unpacked vLLM wheel.
        hash_seed: PYTHONHASHSEED of the recorder; the order of vLLM's sets depends on it.

    Raises:
        UserError: there is no torch, no vLLM, or one that is too different.
    """

    def __init__(self, python: str | None = None, source: Path | None = None, hash_seed: int = 0) -> None:
        if source is not None and not (source / "vllm" / "__init__.py").is_file():
            raise UserError(f"--vllm-source {source}: holds no vllm/__init__.py, expected an unpacked vLLM wheel")
        self._python = python or sys.executable
        command = [self._python, str(SCRIPT)]
        if source is not None:
            command += ["--vllm-source", str(source.resolve())]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the interpreter that the user names
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, encoding="utf-8",
                env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
            )  # fmt: skip
        except OSError as error:
            self._errors.close()
            raise UserError(f"--python {self._python}: cannot be run ({error.strerror})") from None
        try:
            self.vllm = self._greeting()
        except UserError:
            self.close()
            raise

    def _greeting(self) -> str:
        """The version that it tells."""
        hello: object = None
        try:
            hello = self._receive()
        except ValueError:  # not JSON
            pass
        except RecorderDied as error:
            raise UserError(str(error)) from None
        if isinstance(hello, dict):
            if "fatal" in hello:
                raise UserError(f"{hello['fatal']} (choose with --vllm-source DIR and --python PYTHON)")
            if isinstance(hello.get("vllm"), str):
                return str(hello["vllm"])
        raise UserError(f"--python {self._python}: is no Python that can run the recorder")

    def record(self, scenario: dict[str, Any]) -> LiveRecording:
        """What vLLM does on a scenario.

        Raises:
            RecordingFailed: it broke.
            RecorderDied: the process did.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(scenario) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._gone() from None
        answer = self._receive()
        if "error" in answer:
            raise RecordingFailed(answer["error"])
        summary = answer["summary"]
        return LiveRecording(
            summary["vllm"], summary["scenario"], summary["deadlock"], answer["records"], summary=summary
        )

    def close(self) -> None:
        """End the process."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        try:
            self._process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._gone()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _gone(self) -> RecorderDied:
        code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        last = said[-1][:_SHOWN_ERROR] if said else "without a word"
        return RecorderDied(f"the recorder ({self._python}) ended with exit code {code}: {last}")


@dataclass(slots=True)
class _Source:
    """The recorder of this process, which may be replaced by a fresh one."""

    python: str | None
    source: Path | None
    hash_seed: int
    recorder: LiveRecorder | None = None
    recorded: int = 0

    def record(self, scenario: dict[str, Any]) -> LiveRecording:
        if self.recorder is not None and self.recorded >= RESTART_AFTER:
            self.recorder.close()
            self.recorder = None
        if self.recorder is None:
            self.recorder, self.recorded = LiveRecorder(self.python, self.source, self.hash_seed), 0
        self.recorded += 1
        try:
            return self.recorder.record(scenario)
        except RecorderDied:
            self.recorder.close()
            self.recorder = None
            raise


_process: dict[str, _Source] = {}


def start_recorder(python: str | None, source: Path | None, hash_seed: int) -> None:
    """Initializer of a process that records. vLLM is imported with the first scenario."""
    _process["source"] = _Source(python, source, hash_seed)


def record_here(scenario: dict[str, Any]) -> LiveRecording:
    """Record with the recorder of this process.

    Raises:
        RecordingFailed: vLLM broke on it.
        UserError: there is no recorder to be had.
    """
    return _process["source"].record(scenario)
