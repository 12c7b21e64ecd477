"""Small sweeps for tests: a trace of a few short sessions, a run of it, and files that say what changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvsim.config import RunConfig, make_config
from kvsim.plan.sweep import SweepResult, run_sweep
from kvsim.plan.sweep_file import read_sweep
from kvsim.trace.generate import GeneratorParameters, write_trace
from kvsim.yamlfile import Document, dump_yaml

RUN: dict[str, Any] = {
    "trace": {"path": "trace.jsonl.gz", "session_interval": "200ms"},
    "model": "llama-3.1-8b",
    "engine": {"num_gpu_blocks_override": 280, "max_model_len": 4400},
    "connector": {"kind": "offloading", "cpu_bytes_to_use": "1GiB"},
}


def small_trace(
    folder: Path, sessions: int = 3, turns: int = 4, seed: int = 1, first: int = 2000, added: int = 400
) -> Path:
    """Short sessions: `first` tokens, and `added` more in each turn; a run takes some hundredths of a second."""
    path = folder / "trace.jsonl.gz"
    wanted = GeneratorParameters(
        sessions=sessions,
        median_turns=turns,
        seed=seed,
        first_context_tokens=first,
        shared_prefix_tokens=500,
        added_tokens=added,
    )
    write_trace(path, wanted)
    return path


def config_of(folder: Path, **changes: Any) -> RunConfig:
    """The run, with sections changed."""
    data = {key: dict(value) if isinstance(value, dict) else value for key, value in RUN.items()} | changes
    return make_config(Document("config", data), folder)


def write_sweep(folder: Path, **content: Any) -> Path:
    """A sweep's file; without base or run it is of `RUN`."""
    path = folder / "sweep.yaml"
    run = {} if {"base", "run"} & content.keys() else {"run": RUN}
    path.write_text(dump_yaml(run | content), encoding="utf-8")
    return path


def swept(file: Path, folder: Path, jobs: int = 1, overrides: Sequence[str] = (), **more: Any) -> SweepResult:
    """A sweep that was run."""
    return run_sweep(read_sweep(file), folder, jobs=jobs, overrides=overrides, **more)


def identities(folder: Path) -> dict[str, tuple[int, int]]:
    """Every stored point with the identity of its file: whatever is written again gets another."""
    found = {path: path.stat() for path in (folder / "points").glob("*.json")}
    return {path.name: (stat.st_ino, stat.st_mtime_ns) for path, stat in found.items()}
