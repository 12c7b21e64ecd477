"""Cuts of real traces, with memories small enough that they are full all the time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvsim.config import RunConfig
from kvsim.resolve import read_trace_of
from kvsim.trace.session import Trace

MOONCAKE = ("mooncake/conversation_trace.jsonl.gz",)
SESSIONS = tuple(f"kv-cache-tester/trace_{number:04}.json.gz" for number in (3, 10, 14, 17))
FS = {"kind": "fs", "storage": "nvme-gen4", "capacity": "60GiB", "eviction": "lru"}
OBJ = {"kind": "obj", "storage": "s3-lan", "io_threads": 16}


@dataclass(frozen=True)
class Cut:
    """The first sessions of a trace, and of each the first turns, on Llama-3.1-8B and an H100."""

    name: str
    files: tuple[str, ...]
    sessions: int
    turns: int
    gpu_blocks: int
    connector: dict[str, Any] = field(default_factory=lambda: {"kind": "none"})
    interval: str = "2s"

    def __str__(self) -> str:
        return self.name

    def config(self, traces: Path) -> RunConfig:
        """``traces``: the folder of all of them."""
        return RunConfig.model_validate(
            {
                "trace": {
                    "path": [str(traces / file) for file in self.files],
                    "session_interval": self.interval,
                    "max_think_time": self.interval,
                    "max_sessions": self.sessions,
                },
                "model": {"name": "llama-3.1-8b"},
                "engine": {"num_gpu_blocks_override": self.gpu_blocks, "max_model_len": 131_072},
                "connector": self.connector,
            }
        )

    def trace(self, config: RunConfig) -> Trace:
        """Read and cut."""
        trace = read_trace_of(config)
        short = tuple(replace(session, turns=session.turns[: self.turns]) for session in trace.sessions)
        return replace(trace, sessions=short)


def _offloading(cpu: str, **more: Any) -> dict[str, Any]:
    return {"kind": "offloading", "cpu_bytes_to_use": cpu, **more}


SMALL = (
    Cut("mooncake", MOONCAKE, 250, 1, 10_000),
    Cut("mooncake-cpu-arc", MOONCAKE, 200, 1, 8_000, _offloading("50GiB", eviction_policy="arc")),
    Cut("mooncake-fs", MOONCAKE, 100, 1, 5_000, _offloading("24GiB", tiers=[FS])),
    Cut("sessions-cpu", SESSIONS, 4, 10, 9_000, _offloading("20GiB")),
    Cut("sessions-fs-obj", SESSIONS, 4, 5, 6_000, _offloading("12GiB", tiers=[FS, OBJ])),
    Cut("sessions-outputs", SESSIONS, 4, 4, 9_000, _offloading("20GiB", offload_prompt_only=False)),
)
LARGE = tuple(
    replace(cut, name=f"{cut.name}-large", sessions=cut.sessions * 6 if cut.turns == 1 else 4, turns=cut.turns * 4)
    for cut in SMALL
)
