"""The live recorder: its parts alone, and with vLLM where `make conform-live` has fetched it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvsim.conform.client import LiveRecorder
from kvsim.conform.compare import first_difference
from kvsim.conform.files import read_recording, read_scenario
from kvsim.conform.worlds import Extensions, world

Conform = Callable[..., subprocess.CompletedProcess[str]]

REPO = Path(__file__).resolve().parent.parent.parent
LIVE = REPO / "kvsim" / "conform" / "live"
GOLDEN = REPO / "tests" / "golden"
PYTHON = Path(os.environ.get("KVSIM_LIVE_PYTHON", REPO / ".venv-live" / "bin" / "python"))
VERSIONS = ("0.33.0", "0.23.0")
VLLM = Path(os.environ.get("KVSIM_LIVE_VLLM", REPO / ".vllm"))


def script(name: str) -> ModuleType:
    """A module of the recorder, which is no part of our package."""
    spec = importlib.util.spec_from_file_location(f"live_{name}", LIVE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Blocks:
    def __init__(self, ids: list[int]) -> None:
        self.block_ids = ids


def test_copies_are_done_in_order_and_after_their_delay() -> None:
    """A copy is ready its delay after its step, not before the one ahead in its direction; waited for, at once."""
    copies = script("copies")
    log: list[Any] = []
    engine = copies.OffloadingCopies(copies.Lanes(3, 0), lambda job: job, log)
    engine.submit_load(0, Blocks([1]), Blocks([2]))
    engine.submit_store(1, Blocks([3]), Blocks([4]))
    assert engine.get_finished() == [1]
    copies.CLOCK.step = 2
    engine.submit_load(2, Blocks([5]), Blocks([6]))
    assert engine.get_finished() == []
    copies.CLOCK.step = 3
    assert engine.get_finished() == [0]
    engine.wait([2, 7])
    assert engine.get_finished() == [2]
    assert log == [["load", 0, [1], [2]], ["store", 1, [3], [4]], ["load", 2, [5], [6]], ["wait", 2]]


def test_events_of_simple_copies() -> None:
    """The stand-in for a CUDA event happens in its step, or when somebody synchronizes with it."""
    copies = script("copies")
    events: list[Any] = []
    backend = copies.SimpleCopies(copies.Lanes(1, 2), [])
    backend.launch_copy([1], [2], is_store=True, event_idx=4, events_list=events, wait_event=None)
    ((index, event),) = events
    assert (index, event.query()) == (4, False)
    copies.CLOCK.step = 2
    assert event.query()
    later = copies.ReadyAt(9)
    later.synchronize()
    assert later.query()


def test_stand_ins_take_everything() -> None:
    """A package that is not installed can be imported, subclassed, called, and used in type expressions."""
    code = """
import stubs
stubs.install()
import xgrammar.kernels as kernels
from openai.types import Chat
class Mine(Chat.Message): pass
assert Chat | None and Mine(1, a=2).anything.else_(3) is not None
@kernels.jit(inline=True)
def f(): return 5
assert f() == 5
try:
    import absent_package
except ImportError:
    pass
else:
    raise AssertionError
"""
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-S", "-c", code], cwd=LIVE, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def source_of(version: str) -> Path:
    """The unpacked wheel, if there is one."""
    source = VLLM / version
    if not PYTHON.exists() or not source.is_dir():
        pytest.skip(f"vLLM {version} absent: make conform-live fetches it")
    return source


@pytest.mark.vllm
@pytest.mark.parametrize("version", VERSIONS)
def test_the_recorder_reproduces_recordings(version: str) -> None:
    """What was recorded once is recorded again, several scenarios by one process."""
    recorder = LiveRecorder(str(PYTHON), source_of(version))
    assert recorder.vllm == version
    for name in ("h18-tier", "h10-arc", "x-simple-lazy-preempt", "h10-arc"):
        golden = read_recording(GOLDEN / "recordings" / recorder.vllm / f"{name}.jsonl.gz")
        live = recorder.record(read_scenario(GOLDEN / "scenarios" / f"{name}.json"))
        assert first_difference(golden.records, live.records) is None
        assert live.deadlock == golden.deadlock
    recorder.close()


@pytest.mark.vllm
@pytest.mark.parametrize("version", VERSIONS)
def test_extensions_are_equal(conform: Conform, tmp_path: Path, version: str) -> None:
    """Aborts, several tiers and the file system tier do in vLLM what they do in our engine."""
    drawn = Extensions(aborts=True, tiers=True, file_tier=True)
    worlds = [world(seed, drawn) for seed in range(60)]
    chosen = [w for w in worlds if w["connector"].get("tier") == "fs"][:3]
    chosen += [w for w in worlds if "tiers" in w["connector"]][:3]
    assert any("abort" in session for w in chosen for session in w["sessions"])
    for number, scenario in enumerate(chosen):
        (tmp_path / f"{number}.json").write_text(json.dumps(scenario))
    source = source_of(version)
    done = conform("--live", "-j", 1, *sorted(tmp_path.glob("*.json")), "--python", PYTHON, "--vllm-source", source)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
