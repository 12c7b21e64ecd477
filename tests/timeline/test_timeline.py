"""The timeline of a run: well-formed, true, the same from both engines, bounded, and without effect."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cluster_worlds import random_cluster
from fast_worlds import presets_read_once, random_world
from trace_format import check_events
from typer.testing import CliRunner
from worlds import MS, TraceBuilder, config, run

from kvsim.build import Simulation
from kvsim.cli import app
from kvsim.errors import UserError
from kvsim.resolve import resolve
from kvsim.results.records import RequestRecord, RunRecord
from kvsim.results.summary import digest
from kvsim.results.timeline import Count, Kept, Lifeline, Slice, Timeline, write_timeline
from kvsim.runner import requests_frame

Event = dict[str, Any]


def events_of(record: RunRecord) -> list[Event]:
    """Checked."""
    assert record.timeline is not None
    events = record.timeline.events()
    check_events(events)
    return events


def slices(events: list[Event], track: str) -> list[tuple[str, float, float]]:
    """Name, start and duration (us) of what one track of the only process shows."""
    (tid,) = (e["tid"] for e in events if e["name"] == "thread_name" and e["args"]["name"] == track)
    return [(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["tid"] == tid]


def two_sessions(**parts: Any) -> RunRecord:
    """A rival takes the GPU's 40 blocks from session a, whose second turn is loaded from CPU memory."""
    builder = TraceBuilder()
    builder.session("a", [(400, 1, 0), (16, 3, 100 * MS)])
    builder.session("b", [(600, 1, 0)], start_ns=30 * MS)
    cpu = {"kind": "offloading", "cpu_bytes_to_use": "1GiB"}
    output = {"timeline": True, **parts.pop("output", {})}
    return run(builder.build(), config(engine={"num_gpu_blocks_override": 41}, connector=cpu, output=output, **parts))[
        1
    ]


STEP = 1000.0 + 10
"""us of a step with one token."""


def test_steps_and_copies_of_a_small_run() -> None:
    """Each forward pass and each copy has its slice; three decoding steps in a row are three, one by one."""
    events = events_of(two_sessions())
    assert slices(events, "steps") == [
        ("prefill", 0.0, 3560.0),  # 256 of 400 tokens
        ("prefill", 3560.0, 2440.0),
        ("nothing to compute", 6000.0, 381.488),  # its last store is still on its way
        ("prefill", 30000.0, 3560.0),
        ("prefill", 33560.0, 3560.0),
        ("prefill", 37120.0, 1880.0),
        ("nothing to compute", 39000.0, 213.716),
        ("nothing to compute", 106000.0, 1247.157),  # the load of 23 blocks
        ("prefill", 107247.157, 1170.0),
        ("decode", 108417.157, STEP),
        ("decode", 109427.157, STEP),
    ]
    assert slices(events, "load stream") == [("load", 106000.0, 1247.157)]
    (load,) = (e for e in events if e["name"] == "load")
    assert load["args"] == {"bytes": 23 * 2**21, "queued_ms": 0.0, "blocks": 23, "request": "000002:a#1"}
    assert [start for _, start, _ in slices(events, "store stream")] == [
        3560.0, 6000.0, 33560.0, 37120.0, 39000.0, 108417.157,
    ]  # fmt: skip


def test_lifeline_of_a_request_that_is_loaded() -> None:
    """The second turn is loaded, then runs; its hits are those of the results."""
    events = [e for e in events_of(two_sessions()) if e.get("id2") == {"local": "000002:a#1"}]
    assert [(e["ph"], e["name"], e["ts"]) for e in events] == [
        ("b", "a", 106000.0),
        ("b", "loading", 106000.0),
        ("e", "loading", 107247.157),
        ("b", "running", 107247.157),
        ("e", "running", 110437.157),
        ("e", "a", 110437.157),
    ]
    assert events[0]["args"] == {
        "request": "000002:a#1", "turn": 1, "prompt_tokens": 417, "output_tokens": 3,
        "gpu_hit_tokens": 32, "offload_hit_tokens": 368, "status": "finished",
    }  # fmt: skip


def test_quiet_steps_are_one_slice_of_the_fast_engine() -> None:
    """What the fast engine jumps over is one slice that says how many steps it stands for."""
    events = events_of(two_sessions(debug=False))
    assert slices(events, "steps")[-1] == ("decode, 2 steps", 108417.157, 2 * STEP)
    (quiet,) = (e for e in events if e["name"] == "decode, 2 steps")
    assert {key: quiet["args"][key] for key in ("steps", "decode_tokens", "gpu_ms")} == {
        "steps": 2, "decode_tokens": 2, "gpu_ms": 2.02,
    }  # fmt: skip


def test_window_cuts() -> None:
    """Only what is in the window is shown, cut at its edges; counters have their value from its beginning on."""
    window = {"timeline_from": "34ms", "timeline_until": "38ms"}
    events = events_of(two_sessions(output=window))
    assert slices(events, "steps") == [("prefill", 34000.0, 3120.0), ("prefill", 37120.0, 880.0)]
    times = [e["ts"] for e in events if e["ph"] != "M"]
    assert (min(times), max(times)) == (34000.0, 38000.0)
    (running,) = (e for e in events if e["name"] == "requests")
    assert (running["ts"], running["args"]) == (34000.0, {"running": 1, "loading": 0, "waiting": 0})


@pytest.mark.parametrize("seed", range(24))
def test_both_engines_show_the_same_and_nothing_changes(seed: int) -> None:
    """Of random worlds both engines show the same requests, copies, steps and tokens; the digest is that without."""
    with presets_read_once():
        world = random_world(seed)
        output = world.config.output.model_copy(update={"timeline": True})
        plan = resolve(world.config.model_copy(update={"output": output}), world.trace)
        plain = resolve(world.config, world.trace)
    assert plan.fast
    fast, reference = Simulation(plan).run(), Simulation(replace(plan, fast=False)).run()
    assert digest(requests_frame(fast)) == digest(requests_frame(Simulation(plain).run()))
    shown = [events_of(record) for record in (fast, reference)]
    assert timed(shown[0]) == timed(shown[1])
    sums = [[sum(e["args"].get(key, 0) for e in events if e["ph"] == "X") for key in TOKENS] for events in shown]
    assert sums[0] == sums[1]
    assert sums[0][0] == fast.totals.steps


TOKENS = ("steps", "prefill_tokens", "decode_tokens")


def timed(events: list[Event]) -> list[str]:
    """What does not depend on how many steps are one slice."""
    kept = [
        e for e in events if e["ph"] in "be" or e["name"] == "requests" or (e["ph"] == "X" and "bytes" in e["args"])
    ]
    return sorted(json.dumps(e) for e in kept)


@pytest.mark.parametrize(
    "parts",
    [
        {"engine": {"async_scheduling": True}},
        {"engine": {"speculative": {"method": "ngram", "num_speculative_tokens": 3}}},
        {"engine": {"data_parallel_size": 2}},
        {"connector": {"kind": "simple_cpu", "cpu_bytes_to_use": "1GiB"}},
        {"connector": {"kind": "lmcache", "chunk_size": 64, "local_disk": {"max_local_disk_size": "1GiB"}}},
        {"connector": {"kind": "example"}},
        {"faults": {"restarts": ["35ms"], "restart_time": "5ms"}},
    ],
    ids=lambda parts: next(iter(next(iter(parts.values())))),
)
def test_other_engines_and_connectors(parts: dict[str, Any]) -> None:
    """What only the reference engine simulates has a well-formed timeline too, with all requests, and no effect."""
    builder = TraceBuilder()
    for number in range(4):
        builder.session(f"s{number}", [(300, 5, 0), (40, 9, 3 * MS)], start_ns=number * 4 * MS)
    trace = builder.build()
    engine = {"num_gpu_blocks_override": 60} | parts.get("engine", {})
    shown = config(**{**parts, "engine": engine, "debug": False, "output": {"timeline": True}})
    _, record = run(trace, shown)
    events = events_of(record)
    begun = {e["id2"]["local"] for e in events if e["ph"] == "b"}
    assert begun >= {entry.request_id for entry in record.requests if entry.status == "finished"}
    _, plain = run(trace, shown.model_copy(update={"output": config().output}))
    assert digest(requests_frame(record)) == digest(requests_frame(plain))


def test_each_instance_of_a_cluster_is_a_process() -> None:
    """Instances have tracks of their own, and each request is shown where it was served."""
    world = random_cluster(3, kind="round_robin")
    output = world.config.output.model_copy(update={"timeline": True})
    cluster = {"instances": [{"name": "a", "count": 2}], "router": {"kind": "round_robin"}}
    data = world.config.model_dump(mode="json") | {"cluster": cluster, "output": output.model_dump(mode="json")}
    record = Simulation(replace(world, config=type(world.config).model_validate(data)).plan()).run()
    events = events_of(record)
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert sorted(names.values()) == ["a-0", "a-1"]
    where = {e["args"]["request"]: names[e["pid"]] for e in events if e["ph"] == "b" and "args" in e}
    assert where == {entry.request_id: entry.instance for entry in record.requests if entry.first_scheduled_ns >= 0}
    assert set(where.values()) == {"a-0", "a-1"}


def test_prefill_and_decode_parts_are_shown_where_they_ran() -> None:
    """With prefill and decode apart a turn has a lifeline in each of both instances, and is loaded in the second."""
    builder = TraceBuilder()
    builder.session("s", [(300, 4, 0)])
    groups = [{"name": "p", "role": "prefill"}, {"name": "d", "role": "decode"}]
    settings = config(connector={"kind": "nixl"}, cluster={"instances": groups}, output={"timeline": True})
    _, record = run(builder.build(), settings)
    events = events_of(record)
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    states = [(names[e["pid"]], e["name"]) for e in events if e["ph"] == "b"]
    assert states == [("p-0", "s"), ("p-0", "running"), ("d-0", "s"), ("d-0", "loading"), ("d-0", "running")]


def storage_tracks(record: RunRecord) -> set[str]:
    """Names of the tracks of a tier."""
    return {e["args"]["name"] for e in events_of(record) if e["name"] == "thread_name"} - {
        "steps", "store stream", "load stream",
    }  # fmt: skip


def test_storage_tiers_have_a_lane_for_each_job_at_a_time() -> None:
    """Jobs of a tier that overlap are on different lanes; bytes shown are the bytes moved."""
    builder = TraceBuilder()
    for number in range(4):
        builder.session(f"s{number}", [(400, 1, 0), (16, 1, 60 * MS)], start_ns=number * MS)
    disk = {"kind": "fs", "read_bandwidth": "1GB/s", "write_bandwidth": "1GB/s"}
    cpu = {"kind": "offloading", "cpu_bytes_to_use": "60MiB", "tiers": [disk]}
    settings = config(engine={"num_gpu_blocks_override": 60}, connector=cpu, output={"timeline": True})
    _, record = run(builder.build(), settings)
    assert storage_tracks(record) >= {"fs write 1", "fs write 2"}
    (tier,) = record.tiers
    moved = {"read": 0, "write": 0}
    for event in events_of(record):
        if event["ph"] == "X" and event["name"] in moved:
            moved[event["name"]] += event["args"]["bytes"]
    assert tier.write_bytes > 0
    assert moved == {"read": tier.read_bytes, "write": tier.write_bytes}


# -- bounded
@pytest.mark.parametrize("most", [100, 150, 1000])
def test_size_is_bounded_and_what_is_missing_is_told(most: int) -> None:
    """However much happens, no more events are written than allowed, each kind has some, and the rest is named."""
    builder = TraceBuilder()
    for number in range(30):
        builder.session(f"s{number}", [(300, 20, 0)] * 5, start_ns=number * MS)
    cpu = {"kind": "offloading", "cpu_bytes_to_use": "1GiB"}
    output = {"timeline": True, "timeline_max_events": most}
    _, record = run(builder.build(), config(connector=cpu, output=output))
    events = events_of(record)
    timed_events = [e for e in events if e["ph"] != "M"]
    assert 0.5 * most < len(timed_events) <= most
    assert {e["ph"] for e in timed_events} == {"X", "C", "b", "e"}
    assert record.timeline is not None
    assert any("steps" in line and "shown" in line for line in record.timeline.dropped)
    (label,) = (e["args"]["labels"] for e in events if e["name"] == "process_labels")
    assert label.startswith("sampled: steps: ")


def test_kept_is_an_even_sample() -> None:
    """Of any number of entries every stride-th is kept, from the first one on, and never more than the limit."""
    for most in (2, 3, 10):
        for count in range(60):
            kept: Kept[int] = Kept(most)
            for number in range(count):
                if kept.take_next():
                    kept.add(number)
            assert kept.entries == list(range(0, count, kept.stride))
            assert len(kept.entries) <= most
            assert kept.num_seen == count


def test_kinds_that_need_little_leave_their_share_to_others() -> None:
    """Three slices of one track stay when another has a thousand; together they are no more than allowed."""
    timeline = Timeline(100)
    process = timeline.process("p")
    for name, count in (("few", 3), ("many", 1000)):
        for number in range(count):
            if process.track(name).take_next():
                process.track(name).add(Slice(number, number + 1, "x", {}))
    names = [e["tid"] for e in timeline.events() if e["ph"] == "X"]
    assert names.count(1) == 3
    assert 90 <= names.count(2) <= 97
    assert timeline.dropped == [f"p: many: {names.count(2)} of 1,000 shown"]


def test_a_lifeline_that_fits_nowhere_is_dropped() -> None:
    """A request of more states than there is room for is left out, and the file says so."""
    timeline = Timeline(100)
    process = timeline.process("p")
    states = [(2 * number, "running") for number in range(200)]
    assert process.lifelines.take_next()
    process.lifelines.add(Lifeline(RequestRecord("r", "s", "", 0, 0, 10), states, 400))
    process.counter("c").add(Count(0, {"x": 1}))
    process.counter("c").num_seen = 1
    assert [e["ph"] for e in timeline.events() if e["ph"] != "M"] == ["C"]
    assert timeline.dropped == ["p: lifelines: 0 of 1 shown"]


# -- files and the command
def test_file_is_json_and_times_are_microseconds(tmp_path: Path) -> None:
    """The file is one JSON object, an event a line; nanoseconds are thousandths of its times."""
    timeline = Timeline(100)
    timeline.process("p").track("t").add(Slice(1_234_567, 1_234_568, "x", {"n": 1}))
    assert write_timeline(tmp_path / "timeline.json", timeline) == 1
    found = json.loads((tmp_path / "timeline.json").read_text())
    assert found["displayTimeUnit"] == "ms"
    assert found["otherData"]["dropped"] == []
    assert found["traceEvents"][-1] == {
        "ph": "X", "name": "x", "pid": 1, "tid": 1, "ts": 1234.567, "dur": 0.001, "args": {"n": 1},
    }  # fmt: skip


@pytest.fixture
def run_yaml(tmp_path: Path) -> Path:
    """A run of two requests."""
    lines = [
        {"session_id": f"s{number}", "input_length": 100, "output_length": 5, "timestamp": number, "hash_ids": [number]}
        for number in range(2)
    ]
    (tmp_path / "trace.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    path = tmp_path / "run.yaml"
    path.write_text(
        "trace: {path: trace.jsonl, kind: mooncake}\nmodel: llama-3.1-8b\nengine: {num_gpu_blocks_override: 500}\n"
        "output: {plots: false}\n"
    )
    return path


def test_command_writes_and_names_the_file(run_yaml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--timeline-until` alone asks for a timeline; its path is printed, and a note says how many events it has."""
    monkeypatch.chdir(run_yaml.parent)
    done = CliRunner().invoke(app, ["run", str(run_yaml), "-o", "out", "--timeline-until", "1h", "--json"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert said["timeline"] == "out/timeline.json"
    events = json.loads((run_yaml.parent / "out" / "timeline.json").read_text())["traceEvents"]
    check_events(events)
    count = sum(e["ph"] != "M" for e in events)
    assert f"timeline.json: {count} events, for ui.perfetto.dev" in " ".join(said["notes"])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            ["--timeline-from", "10"],
            r"^--timeline-from 10: \S+ expected a time with its unit, such as 30ms, 60s or 1.5h, found the plain",
        ),
        (["--timeline-from", "9s", "--timeline-until", "9s"], "expected a time after timeline_from"),
        (["--timeline", "--set", "output.timeline_max_events=5"], "expected at least 100, found 5"),
    ],
)
def test_wrong_windows_are_one_line(run_yaml: Path, options: list[str], expected: str) -> None:
    """A window that is none is refused before anything is simulated, and nothing is written."""
    with pytest.raises(UserError, match=expected):
        CliRunner().invoke(
            app, ["run", str(run_yaml), "-o", str(run_yaml.parent / "out"), *options], catch_exceptions=False
        )
    assert not (run_yaml.parent / "out").exists()
