"""The fault campaign: a slice of what `make faults` plays."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest


def _campaign() -> ModuleType:
    path = Path(__file__).with_name("campaign.py")
    spec = importlib.util.spec_from_file_location("fault_campaign", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


campaign = _campaign()


@pytest.mark.parametrize("first", range(0, 48, 12))
def test_no_script_leaks_or_loses_a_request(first: int) -> None:
    """Every invariant holds at every step, and every request is accounted for."""
    assert [verdict.problem for verdict in map(campaign.run, range(first, first + 12))] == [""] * 12


def test_the_slice_has_all_kinds_of_faults() -> None:
    """A campaign in which nothing goes wrong would prove nothing."""
    faults: Counter[str] = Counter()
    statuses: Counter[str] = Counter()
    for verdict in map(campaign.run, range(48)):
        faults.update(verdict.faults)
        statuses.update(verdict.requests)
    kinds = {
        "failed_loads",
        "failed_stores",
        "stalled_jobs",
        "expired_jobs",
        "outages",
        "engine_deaths",
        "hit_requests",
    }
    assert kinds <= set(faults)
    assert {"finished", "failed", "aborted"} <= set(statuses)


def test_a_script_plays_the_same_every_time() -> None:
    """Faults are drawn from the seed alone."""
    for seed in range(6):
        assert campaign.run(seed) == campaign.run(seed)


def test_what_is_read_unwritten_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a scheduler that ignores failed loads the witness objects within a few scripts."""
    monkeypatch.setattr("kvsim.load_failures.LoadFailures.find", lambda *_: [])
    problems = [campaign.run(seed).problem for seed in range(24)]
    assert any("which does not hold its block" in problem for problem in problems)
