"""Faults in whole runs: what a config says happens, and every request ends for a reason."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from worlds import TraceBuilder, config, run

from kvsim.results.findings import warnings
from kvsim.results.records import RunRecord
from kvsim.results.summary import summarize
from kvsim.runner import requests_frame, totals_row
from kvsim.trace.session import Trace

CPU = {"kind": "offloading", "cpu_bytes_to_use": "2GiB"}  # blocks of 2 MiB
SIMPLE = {"kind": "simple_cpu", "cpu_bytes_to_use": "2GiB"}
STEP_MS = 1_000_000


def returning() -> Trace:
    """Three sessions whose second prompts return after the others have taken the GPU's 79 blocks: loads."""
    builder = TraceBuilder()
    for number in range(3):
        start = number * 100_000_000
        builder.session(f"s{number}", [(512, 4, 0), (32, 4, 300_000_000), (32, 4, 300_000_000)], start)
    return builder.build()


def play(connector: dict[str, Any], faults: dict[str, Any], **options: Any) -> RunRecord:
    """`returning` under these faults."""
    settings = config(
        engine={"num_gpu_blocks_override": 80, "max_model_len": 900}, connector=connector, faults=faults, **options
    )
    return run(returning(), settings)[1]


def ends(record: RunRecord) -> dict[str, int]:
    """How many requests ended how."""
    return dict(Counter(entry.status for entry in record.requests))


@pytest.mark.parametrize("connector", [CPU, SIMPLE])
def test_without_faults_the_sessions_load(connector: dict[str, Any]) -> None:
    """The trace does what the other tests need: six prompts come back, and all find their KV in CPU memory."""
    record = play(connector, {})
    assert ends(record) == {"finished": 9}
    assert record.totals.load_jobs == 6
    assert record.faults.happened == {}


@pytest.mark.parametrize("connector", [CPU, SIMPLE])
@pytest.mark.parametrize(
    ("policy", "expected"), [("fail", {"finished": 8, "failed": 1}), ("recompute", {"finished": 9})]
)
def test_a_load_that_fails(connector: dict[str, Any], policy: str, expected: dict[str, int]) -> None:
    """The second load is lost: its request fails, or computes everything and takes longer for its first token."""
    sound = play(connector, {})
    record = play(connector | {"kv_load_failure_policy": policy}, {"cpu": {"load_failures": {"jobs": [1]}}})
    assert ends(record) == expected
    assert record.faults.failed_loads == record.faults.hit_requests == 1
    assert record.faults.lost_tokens == 320
    if policy == "recompute":
        waits = [[entry.first_token_ns - entry.arrival_ns for entry in r.requests] for r in (sound, record)]
        assert sum(late > early + 2 * STEP_MS for early, late in zip(*waits, strict=True)) == 1
    else:
        (failed,) = (entry for entry in record.requests if entry.status == "failed")
        assert failed.reason == "its KV could not be loaded"


@pytest.mark.parametrize("connector", [CPU, SIMPLE])
def test_stores_that_fail_leave_nothing_to_load(connector: dict[str, Any]) -> None:
    """Every store is lost: nothing is ever loaded, and nobody fails."""
    record = play(connector, {"cpu": {"store_failures": {"rate": 1.0}}})
    assert ends(record) == {"finished": 9}
    assert (record.totals.load_jobs, record.faults.failed_stores) == (0, record.totals.store_jobs)


@pytest.mark.parametrize("version", ["0.33.0", "0.23.0"])
def test_a_stalled_store_without_a_deadline_is_found_out(version: str) -> None:
    """vllm#49829: chunks that are being written for ever keep those waiting who want them; the run ends and says so."""
    faults = {"cpu": {"stalls": {"stores": [0]}}}
    settings = config(
        engine={"num_gpu_blocks_override": 80, "max_model_len": 900, "vllm_version": version},
        connector=CPU,
        faults=faults,
    )
    record = run(returning(), settings)[1]
    stuck = [entry for entry in record.requests if entry.status == "stuck"]
    assert stuck
    assert all("copies of tier cpu have stalled for ever" in entry.reason for entry in stuck)
    assert any("a copy is on its way" in entry.reason for entry in stuck)


def test_a_deadline_ends_a_stall() -> None:
    """Five seconds later the store has failed and everybody goes on."""
    record = play(CPU, {"cpu": {"stalls": {"stores": [0], "deadline": "5s"}}})
    assert ends(record) == {"finished": 9}
    assert (record.faults.stalled_jobs, record.faults.expired_jobs) == (1, 1)
    assert record.totals.end_ns > 5 * 10**9


@pytest.mark.parametrize("contents", ["kept", "lost"])
def test_a_cpu_tier_that_goes_away(contents: str) -> None:
    """The second prompts find nothing; the third ones find everything, or what was stored since."""
    record = play(CPU, {"outages": [{"start": "250ms", "end": "700ms", "contents": contents}]})
    assert ends(record) == {"finished": 9}
    by_turn = [sum(e.external_hit_tokens for e in record.requests if e.turn == turn) for turn in range(3)]
    assert by_turn[:2] == [0, 0]
    assert (by_turn[2] > 0) == (contents == "kept")
    assert record.faults.happened["outages"] == 1


def test_an_engine_that_dies() -> None:
    """What runs fails, what arrives meanwhile fails, what comes later starts from nothing."""
    record = play(CPU, {"restarts": ["105ms"], "restart_time": "200ms"})
    reasons = Counter(entry.reason for entry in record.requests if entry.status == "failed")
    assert reasons == {"the engine died": 1, "the engine was down": 1}
    later = [entry for entry in record.requests if entry.arrival_ns > 305_000_000]
    assert later[0].local_hit_tokens == later[0].external_hit_tokens == 0
    assert record.faults.engine_deaths == 1
    assert all(entry.status == "finished" for entry in later)


def test_a_failed_copy_may_be_fatal() -> None:
    """As in vLLM's own connectors, whose workers assert that copies succeed: the engine ends, and comes back."""
    record = play(CPU, {"cpu": {"store_failures": {"jobs": [0]}}, "failed_copies": "fatal", "restart_time": "1ms"})
    assert record.faults.engine_deaths == 1
    assert record.faults.failed_stores == 1
    assert Counter(entry.status for entry in record.requests)["failed"] <= 1


@pytest.mark.parametrize("connector", [{"kind": "none"}, CPU, SIMPLE])
def test_clients_that_go_away(connector: dict[str, Any]) -> None:
    """One goes while it computes, one when it is over already; a turn that was given up is followed by the next."""
    script = [{"request": 0, "after": "2ms"}, {"request": 3, "after": "1s"}]
    record = play(connector, {"aborts": {"script": script}})
    assert ends(record) == {"aborted": 1, "finished": 8}
    first = record.requests[0]
    assert (first.status, first.reason) == ("aborted", "client went away")
    assert first.finish_ns - first.arrival_ns <= 4 * STEP_MS
    assert record.faults.client_aborts == 1


def test_a_client_timeout_is_for_everybody() -> None:
    """No request lives longer than that and one step; the clock does not run on for timeouts of finished requests."""
    record = play(CPU, {"client_timeout": "6ms"})
    assert set(ends(record)) == {"finished", "aborted"}
    assert max(entry.finish_ns - entry.arrival_ns for entry in record.requests) <= 10 * STEP_MS
    assert {entry.reason for entry in record.requests if entry.status == "aborted"} == {"client timeout"}
    sound, patient = play(CPU, {}), play(CPU, {"client_timeout": "900s"})
    assert patient.totals.end_ns == sound.totals.end_ns


def test_the_summary_counts_and_the_findings_tell() -> None:
    """Faults that happened are in the summary, and a reader is told what they cost."""
    record = play(
        CPU, {"cpu": {"load_failures": {"jobs": [1]}}, "aborts": {"script": [{"request": 0, "after": "2ms"}]}}
    )
    summary = summarize(requests_frame(record), totals_row(record))
    assert summary["requests"]["aborted"] == summary["requests"]["failed"] == 1
    assert summary["faults"]["failed_loads"] == summary["faults"]["client_aborts"] == 1
    told = " ".join(warnings(summary))
    assert "were given up by their clients (reason: client went away)" in told
    assert "failed (reason: its KV could not be loaded)" in told
    assert "KV loads lost 20 blocks in 1 copies" in told


def test_equal_seeds_give_equal_faults() -> None:
    """Another seed loses other blocks."""
    faults = {"cpu": {"load_failures": {"rate": 0.05}}}
    lost = [play(CPU | {"kv_load_failure_policy": "recompute"}, faults, seed=s).faults.happened for s in (1, 1, 2)]
    assert lost[0] == lost[1] != lost[2]


def test_a_request_whose_load_failed_may_wait_for_itself() -> None:
    """With less than twice its blocks on the GPU, as in vLLM (golden z-load-fails-stuck): the run ends and says why."""
    builder = TraceBuilder()
    builder.session("s0", [(512, 4, 0), (32, 4, 500_000_000)], 0)
    builder.session("s1", [(955, 4, 0)], 100_000_000)
    settings = config(
        engine={"num_gpu_blocks_override": 61, "max_model_len": 960},
        connector=CPU | {"kv_load_failure_policy": "recompute"},
        faults={"cpu": {"load_failures": {"jobs": [0]}}},
    )
    _, record = run(builder.build(), settings)
    assert ends(record) == {"finished": 2, "stuck": 1}
    (stuck,) = (entry for entry in record.requests if entry.status == "stuck")
    assert "holds 0 GPU blocks, needs 35 more, 60 of 60 are free, 35 are reserved" in stuck.reason


def test_a_reader_is_told_what_vllm_would_do() -> None:
    """Its own connectors end the engine where a copy fails; a run that does not says so."""
    faults = {"cpu": {"load_failures": {"jobs": [0]}}}
    assert any("faults.failed_copies: fatal" in note for note in play(CPU, faults).notes)
    assert not any("failed_copies" in note for note in play(CPU, faults | {"failed_copies": "fatal"}).notes)
    assert not any("failed_copies" in note for note in play(CPU, {}).notes)
