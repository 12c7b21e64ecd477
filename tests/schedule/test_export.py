"""`kvsim run --export-schedule`: what is written, which part of it, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from schedule_runs import exported
from worlds import MS, TraceBuilder, config

from kvsim.config import RunConfig
from kvsim.errors import UserError
from kvsim.resolve import resolve
from kvsim.results.schedule import Layout, Schedule, Way, check, read_schedule
from kvsim.runner import run_and_save
from kvsim.schedule_export import ScheduleExport
from kvsim.schedule_plan import check_exportable
from kvsim.trace.generate import GeneratorParameters, write_trace
from kvsim.trace.session import Trace

OFFLOADING: dict[str, Any] = {"kind": "offloading", "cpu_bytes_to_use": "400MiB"}


def two_turns() -> Trace:
    """One session that comes back when another has pushed it out of the GPU."""
    builder = TraceBuilder()
    builder.session("a", [(640, 16, 0), (64, 16, 40 * MS)])
    builder.session("b", [(1600, 16, 0)], start_ns=20 * MS)
    return builder.build()


def world(**parts: Any) -> RunConfig:
    """112 blocks of GPU, of which session b needs 101."""
    engine = {"num_gpu_blocks_override": 112, **parts.pop("engine", {})}
    return config(engine=engine, connector=parts.pop("connector", OFFLOADING), **parts)


def copies(schedule: Schedule) -> list[tuple[int, str, str | None, int, str | None, tuple[int, ...]]]:
    """(step, direction, request, blocks, behind, after) of each job."""
    return [
        (step.step, job.direction, job.request and job.request.split(":")[1], len(job.source), job.behind, job.after)
        for step in schedule.steps
        for job in step.jobs
    ]


def test_a_run_in_full() -> None:
    """What is pushed out of the GPU was stored behind the pass that computed it, and is loaded when it is wanted."""
    _, _, schedule = exported(two_turns(), world())
    assert schedule is not None
    check(schedule)
    stores_of_b = [(step, "store", "b#0", 16, "previous", ()) for step in range(19, 25)]
    assert copies(schedule) == [
        (1, "store", "a#0", 16, "previous", ()),
        (2, "store", "a#0", 16, "previous", ()),
        (3, "store", "a#0", 8, "previous", ()),
        *stores_of_b,
        (25, "store", "b#0", 4, "previous", ()),
        (40, "load", "a#1", 30, "this", (9,)),
        (42, "store", "a#1", 5, "previous", ()),
    ]
    header, steps = schedule.header, schedule.steps
    assert header.layout == Layout("per_layer_kv", 32, 8, 128, "bfloat16", 16, 32, 65536)
    assert (header.gpu_blocks, header.host_blocks, header.rank, header.tensor_parallel_size) == (112, 200, 0, 1)
    assert (header.way, header.vllm_version, header.link) == (Way("dma_batch", "dma_batch"), "0.33.0", "pcie5-h100")
    assert [step.step for step in steps if step.not_before_ns is not None] == [40]
    assert steps[40].not_before_ns == steps[40].start_ns == steps[39].end_ns + 1_850_000
    assert (steps[40].compute_ns, steps[40].end_ns, steps[41].start_ns) == (0, 66_175_509, 66_175_509)
    assert {step.step: step.after for step in steps if step.after} == {
        22: (2,),  # b's pass fills blocks that are still read, for all that a replay can know
        41: (10,),  # a's pass reads what was loaded
    }
    assert [len(step.writes) for step in steps if step.writes] == [16, 16, 8, *[16] * 6, 4, 5]
    load = steps[40].jobs[0]
    stored: dict[int, int] = {}
    for job in (job for step in steps for job in step.jobs if job.direction == "store"):
        stored.update(zip(job.destination, job.contents, strict=True))
    assert [stored[block] for block in load.source] == list(load.contents)
    assert load.bytes == 30 * 32 * 65536
    assert load.submitted_ns == load.started_ns < load.finished_ns


def test_older_releases_and_other_connectors_wait_otherwise() -> None:
    """Loads of 0.23.0 and of SimpleCPUOffloadConnector start with their step; the latter's stores follow its pass."""
    _, _, old = exported(two_turns(), world(engine={"vllm_version": "0.23.0"}))
    _, _, simple = exported(two_turns(), world(connector={"kind": "simple_cpu", "cpu_bytes_to_use": "400MiB"}))
    assert old is not None
    assert simple is not None
    assert old.header.layout.kind == "cross_layer"
    assert {(job[1], job[4]) for job in copies(old)} == {("store", "previous"), ("load", "previous")}
    assert {(job[1], job[4]) for job in copies(simple)} == {("store", "this"), ("load", "previous")}
    assert {job[2] for job in copies(simple)} == {None, "a#1"}, "a store is of all requests of its step"
    assert simple.header.host_blocks == 200


def test_files_are_jobs_too() -> None:
    """A file system behind CPU memory: what is stored is written on, what CPU memory has lost is read again."""
    tiers = [{"kind": "fs", "storage": "nvme-gen4"}]
    _, record, schedule = exported(
        two_turns(), world(connector={**OFFLOADING, "cpu_bytes_to_use": "210MiB", "tiers": tiers})
    )
    assert schedule is not None
    check(schedule)
    jobs = {job.job: job for step in schedule.steps for job in step.jobs}
    (read,) = [job for job in jobs.values() if job.direction == "read"]
    (load,) = [job for job in jobs.values() if job.direction == "load"]
    assert load.after[-1] == read.job
    assert read.request is None
    assert read.behind is None
    assert {jobs[name].direction for name in read.after} == {"write"}
    assert sum(job.bytes for job in jobs.values() if job.direction == "write") == record.tiers[0].write_bytes


def test_instant_copies_are_told_as_such() -> None:
    """The upper bound has copies that take no time."""
    _, _, schedule = exported(two_turns(), world(transfer={"kind": "instant"}))
    assert schedule is not None
    assert schedule.header.way == Way("instant", "instant")
    assert all(job.started_ns == job.finished_ns for step in schedule.steps for job in step.jobs)


@pytest.mark.parametrize(
    ("parts", "layout"),
    [
        (
            {"connector": {**OFFLOADING, "kv_layout": "per_layer"}},
            Layout("per_layer", 32, 8, 128, "bfloat16", 16, 64, 32768),
        ),
        (
            {"connector": {**OFFLOADING, "kv_layout": "cross_layer"}},
            Layout("cross_layer", 32, 8, 128, "bfloat16", 16, 1, 2**21),
        ),
        (
            {"hardware": {"tensor_parallel_size": 4}},
            Layout("per_layer_kv", 32, 2, 128, "bfloat16", 16, 32, 16384),
        ),
        (
            {"model": {"name": "llama-3.1-8b", "kv_cache_dtype": "fp8"}},
            Layout("per_layer_kv", 32, 8, 128, "fp8", 16, 32, 32768),
        ),
        (
            {"model": {"name": "deepseek-v2-lite"}},
            Layout("mla", 27, 1, 576, "bfloat16", 64, 27, 73728),
        ),
    ],
)  # fmt: skip
def test_layouts(parts: dict[str, Any], layout: Layout) -> None:
    """The header's layout is that of one rank, whichever model, layout and number of ranks."""
    _, _, schedule = exported(two_turns(), world(**parts))
    assert schedule is not None
    check(schedule)
    assert schedule.header.layout == layout


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"connector": {"kind": "none"}}, "connector.kind none: nothing is copied, expected offloading or simple_cpu"),
        ({"connector": {"kind": "lmcache"}}, "connector.kind lmcache: its copies have no blocks of a CPU pool"),
        ({"connector": {"kind": "example"}}, "connector.kind example: its copies have no blocks"),
        ({"connector": {**OFFLOADING, "tiers": [{"kind": "obj", "storage": "s3-lan"}]}}, "connector.tiers: kind obj"),
        ({"engine": {"data_parallel_size": 2}}, "engine.data_parallel_size: expected 1: every rank is an engine of"),
        ({"engine": {"async_scheduling": True}}, "engine.async_scheduling: expected false"),
        ({"engine": {"speculative": {"method": "ngram"}}}, "engine.speculative: expected null"),
        ({"trace": {"streaming_sessions": True}}, "trace.streaming_sessions: expected false"),
        ({"faults": {"restarts": ["1s"]}}, "faults: expected those of clients only"),
        ({"faults": {"cpu": {"load_failures": {"rate": 0.5}}}}, "faults: expected those of clients only"),
        ({"model": {"name": "gpt-oss-20b"}}, "gpt-oss-20b has several KV cache groups"),
        ({"model": {"name": "deepseek-v2-lite"}, "hardware": {"tensor_parallel_size": 2}}, "the 2 ranks keep one copy"),
    ],
)  # fmt: skip
def test_what_cannot_be_exported_is_named(parts: dict[str, Any], message: str) -> None:
    """Runs whose copies are not told block by block are refused before they start, by the key that is to blame."""
    plan = resolve(world(**parts), two_turns(), exports_schedule=True)
    with pytest.raises(UserError, match=f"^--export-schedule: {message}"):
        check_exportable(plan)


def test_the_reference_engine_is_taken() -> None:
    """The fast engine knows no block ids: auto takes the other one and says why, fast is an error."""
    plan = resolve(world(debug=False), two_turns(), exports_schedule=True)
    assert not plan.fast
    assert plan.notes[0] == "reference engine, because of --export-schedule (the fast engine has no block ids)"
    with pytest.raises(UserError, match=r"engine.kind: fast: expected reference \(or auto\) with --export-schedule"):
        resolve(world(debug=False, engine={"kind": "fast"}), two_turns(), exports_schedule=True)


def test_clients_that_leave_are_no_obstacle() -> None:
    """A request whose client goes while it is loaded leaves a sound schedule."""
    script = [{"request": 2, "after": "100us"}]
    _, record, schedule = exported(two_turns(), world(faults={"aborts": {"script": script}}))
    assert schedule is not None
    check(schedule)
    assert record.requests[2].status == "aborted"
    assert [job[1] for job in copies(schedule)].count("load") == 1


# -- files
@pytest.fixture
def settings(tmp_path: Path) -> RunConfig:
    """A run of a few generated sessions."""
    write_trace(tmp_path / "trace.jsonl.gz", GeneratorParameters(sessions=2, median_turns=4, seed=3))
    trace = {"path": str(tmp_path / "trace.jsonl.gz"), "session_interval": "1s"}
    return RunConfig.model_validate(
        {
            "name": "two",
            "trace": trace,
            "model": {"name": "llama-3.1-8b"},
            "engine": {"num_gpu_blocks_override": 9000},
            "connector": {"kind": "offloading", "cpu_bytes_to_use": "40GiB"},
            "output": {"plots": False},
        }
    )


def test_run_and_schedule_are_written_together(settings: RunConfig, tmp_path: Path) -> None:
    """The schedule belongs to the run by its digest, the summary says so, and it lies where it was wanted."""
    saved = run_and_save(settings, tmp_path / "run", export=ScheduleExport(tmp_path / "s.jsonl.gz"))
    schedule = read_schedule(tmp_path / "s.jsonl.gz")
    check(schedule)
    assert (schedule.header.digest, schedule.header.run) == (saved.summary["digest"], "two")
    jobs, steps, size = schedule.num_jobs, len(schedule.steps), schedule.bytes / 1e9
    assert (
        f"exported schedule: {jobs:,} copies in {steps:,} steps, {size:,.3g} GB on each rank" in saved.summary["notes"]
    )
    inside = ScheduleExport(tmp_path / "run" / "schedule.jsonl", end_ns=10 * 10**9)
    run_and_save(settings, tmp_path / "run", overwrite=True, export=inside)
    part = read_schedule(tmp_path / "run" / "schedule.jsonl")
    assert part.header.filter is not None
    assert {step.start_ns < 10 * 10**9 for step in part.steps} == {True}
    assert 0 < part.num_jobs < jobs
    run_and_save(settings, tmp_path / "run", overwrite=True)
    assert not (tmp_path / "run" / "schedule.jsonl").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("s.json", "expected a schedule's name that ends in .jsonl or .jsonl.gz"),
        ("none/s.jsonl", "there is no folder"),
        ("old.jsonl", "is there already; expected a new name, or --overwrite to replace it"),
        ("run/other.jsonl", "expected schedule.jsonl or schedule.jsonl.gz inside the run folder"),
    ],
)
def test_wrong_places_are_told_before_the_run(settings: RunConfig, tmp_path: Path, name: str, message: str) -> None:
    """A place that will not do is an error before anything is simulated, and nothing is left."""
    (tmp_path / "old.jsonl").write_text("old")
    with pytest.raises(UserError, match=message):
        run_and_save(settings, tmp_path / "run", export=ScheduleExport(tmp_path / name))
    assert {path.name for path in tmp_path.iterdir()} == {"old.jsonl", "trace.jsonl.gz"}


def test_a_run_without_the_wanted_copies_leaves_nothing(settings: RunConfig, tmp_path: Path) -> None:
    """Where no copy is left, neither schedule nor run folder appear."""
    export = ScheduleExport(tmp_path / "s.jsonl", requests=("nobody",))
    with pytest.raises(UserError, match="request 'nobody' has no job"):
        run_and_save(settings, tmp_path / "run", export=export)
    assert {path.name for path in tmp_path.iterdir()} == {"trace.jsonl.gz"}


def test_options_become_an_export() -> None:
    """Times and sizes carry their units."""
    wanted = ScheduleExport.from_options(Path("s.jsonl"), "10s", "1min", ["a", "b"], "20GB")
    assert wanted == ScheduleExport(Path("s.jsonl"), 10 * 10**9, 60 * 10**9, ("a", "b"), 20 * 10**9)
    assert ScheduleExport.from_options(None, None, None, [], None) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((None, "10s", None, None, None), "--schedule-from: expected --export-schedule beside it"),
        ((None, None, None, ["a"], None), "--schedule-request: expected --export-schedule beside it"),
        ((Path("s.jsonl"), "10", None, None, None), "--schedule-from: expected a time with its unit"),
        ((Path("s.jsonl"), None, None, None, "-3GB"), "--schedule-max-bytes: expected a size .* not negative"),
    ],
)  # fmt: skip
def test_wrong_options_are_named(options: tuple[Any, ...], message: str) -> None:
    """A value that is none is told with its option."""
    with pytest.raises(UserError, match=message):
        ScheduleExport.from_options(*options)


def test_an_empty_stretch_of_time_is_refused(tmp_path: Path) -> None:
    """The end of the wanted part must lie behind its start."""
    with pytest.raises(UserError, match="--schedule-until: expected a time after --schedule-from"):
        ScheduleExport(tmp_path / "s.jsonl", 5, 5).check(tmp_path / "run", frozenset(), overwrite=False)
