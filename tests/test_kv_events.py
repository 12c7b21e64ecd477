"""KV events: what routers are told, compared with what the real vLLM publishes."""

from __future__ import annotations

import gzip
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from command_line import kvsim
from worlds import MS, TraceBuilder, config

from kvsim.build import Simulation
from kvsim.conform.scenario import Conformance
from kvsim.kv_events import GPU, AllBlocksCleared, KVEventLog, KVEventPublisher, KVEventWriter, as_dict
from kvsim.resolve import resolve
from kvsim.trace.generate import GeneratorParameters, write_trace

GOLDEN = Path(__file__).parent / "golden"
RECORDED = sorted((GOLDEN / "kv_events").glob("*/*.jsonl.gz"))

Batch = dict[str, Any]


def batches_of(scenario: Path, version: str) -> list[Batch]:
    """Our events on a scenario: contents by name, the step in ``ts``, the number of tokens for the tokens."""
    world = Conformance(json.loads(scenario.read_text()), version)
    scheduler, names, found = world.engine.scheduler, world.recorder.labels.names, []
    scheduler.kv.pool.kv_events = log = KVEventLog(GPU)
    connector = scheduler.connector
    if connector is not None:
        connector.enable_kv_events()
    after_step = world._after_step

    def collect() -> None:
        events = [*log.take(), *(connector.take_events() if connector is not None else ())]
        if events:
            found.append({"ts": world.recorder.step.number, "events": [named(as_dict(e), names) for e in events]})
        after_step()

    world._after_step = collect
    world.run()
    return found


def ordered(batch: Batch) -> Batch:
    """Chunks that are stored together in order of their names: vLLM names them in the order of a set."""
    events: list[dict[str, Any]] = []
    together: list[dict[str, Any]] = []
    for event in batch["events"]:
        if event.get("block_size") == 0:
            together.append({**event, "block_hashes": sorted(event["block_hashes"])})
            continue
        events += [*sorted(together, key=str), event]
        together = []
    return {**batch, "events": [*events, *sorted(together, key=str)]}


def named(event: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """An event as the recorder writes it."""
    event["block_hashes"] = [names[content] for content in event["block_hashes"]]
    if event.get("parent_block_hash") is not None:
        event["parent_block_hash"] = names[event["parent_block_hash"]]
    if "token_ids" in event:
        event["token_ids"] = len(event["block_hashes"]) * event["block_size"] if event["token_ids"] is None else 0
    return {key: value for key, value in event.items() if value is not None}


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: f"{path.parent.name}-{path.name.partition('.')[0]}")
def test_the_events_are_those_of_the_real_one(path: Path) -> None:
    """Every batch of every step, every event in its order, every field."""
    name, version = path.name.partition(".")[0], path.parent.name
    theirs = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    ours = batches_of(GOLDEN / "scenarios" / f"{name}.json", version)
    for ours_then, theirs_then in zip(ours, theirs, strict=False):
        assert ordered(ours_then) == ordered(theirs_then)
    assert len(ours) == len(theirs)


def simulated(**parts: Any) -> tuple[Simulation, list[Batch]]:
    """A prompt that is pushed out of the GPU and comes back, and what was published."""
    builder = TraceBuilder()
    builder.session("a", [(400, 1, 0), (16, 1, 100 * MS)])
    builder.session("b", [(600, 1, 0)], start_ns=30 * MS)
    file = io.StringIO()
    settings = config(**{"engine": {"num_gpu_blocks_override": 41}, **parts})
    simulation = Simulation(resolve(settings, builder.build()), kv_events=file)
    simulation.run()
    return simulation, [json.loads(line) for line in file.getvalue().splitlines()]


@pytest.mark.parametrize("version", ["0.33.0", "0.23.0"])
def test_who_listens_knows_what_is_where(version: str) -> None:
    """Adding what is stored and taking away what is removed gives the contents of the GPU's pool and of the CPU."""
    simulation, batches = simulated(
        engine={"num_gpu_blocks_override": 41, "vllm_version": version},
        connector={"kind": "offloading", "cpu_bytes_to_use": "60MiB"},
    )
    held: dict[str, Counter[int]] = {"GPU": Counter(), "CPU": Counter()}
    for batch in batches:
        for event in batch["events"]:
            change = 1 if event["type"] == "BlockStored" else -1
            for content in event["block_hashes"]:
                held[event["medium"]][content] += change
    assert min(min(counts.values()) for counts in held.values()) == 0
    pool = simulation.instance.scheduler.kv.pool
    assert sorted(held["GPU"].elements()) == sorted(content for content in pool.hashes if content >= 0)
    connector = simulation.instance.scheduler.connector
    assert connector is not None
    assert held["CPU"].total() == connector.num_offloaded_chunks == 30
    assert connector.num_evicted_chunks > 0


@pytest.mark.parametrize("wanted", [True, False])
def test_a_tier_publishes_if_it_is_told_to(wanted: bool) -> None:
    """What a bounded file system holds, by adding and taking away; nothing unless enable_kv_events says so."""
    tier = {"kind": "fs", "enable_kv_events": wanted, "capacity": "100MiB", "eviction": "lru"}
    connector = {"kind": "offloading", "cpu_bytes_to_use": "400MiB", "tiers": [tier]}
    simulation, batches = simulated(connector=connector)
    held: Counter[int] = Counter()
    kinds: Counter[str] = Counter()
    for event in (event for batch in batches for event in batch["events"] if event["medium"] == "STORAGE"):
        kinds[event["type"]] += 1
        for content in event["block_hashes"]:
            held[content] += 1 if event["type"] == "BlockStored" else -1
    assert held.total() == (simulation.record.tiers[0].used_chunks if wanted else 0)
    assert set(kinds) == ({"BlockStored", "BlockRemoved"} if wanted else set())


def test_a_batch_is_a_step() -> None:
    """The first step stores the first 16 blocks of the prompt (256 tokens in 3.56 ms), with all of vLLM's fields."""
    _, batches = simulated()
    first, second = batches[:2]
    assert (first["ts"], first["data_parallel_rank"], len(first["events"])) == (0.00356, 0, 1)
    event = first["events"][0]
    hashes = event.pop("block_hashes")
    assert event == {
        "type": "BlockStored", "parent_block_hash": None, "token_ids": None, "block_size": 16, "lora_id": None,
        "medium": "GPU", "lora_name": None, "extra_keys": [None] * 16, "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }  # fmt: skip
    assert second["events"][0]["parent_block_hash"] == hashes[-1]
    assert second["events"][0]["block_size"] * len(second["events"][0]["block_hashes"]) == 144
    assert as_dict(AllBlocksCleared()) == {"type": "AllBlocksCleared"}


def test_nothing_is_written_about_nothing() -> None:
    """A step without events has no line."""
    file = io.StringIO()
    KVEventPublisher([list], [KVEventWriter(file)]).publish(5)
    assert file.getvalue() == ""


def test_a_run_writes_them_if_asked(tmp_path: Path) -> None:
    """`output.kv_events` adds a file to the run folder and changes nothing else."""
    write_trace(tmp_path / "trace.jsonl.gz", GeneratorParameters(sessions=1, seed=3))
    (tmp_path / "run.yaml").write_text(
        "trace: {path: trace.jsonl.gz, max_sessions: 1}\nmodel: llama-3.1-8b\noutput: {plots: false}\n"
        "engine: {num_gpu_blocks_override: 9000}\nconnector: {kind: simple_cpu}\n"
    )
    digests = []
    for wanted in ("false", "true"):
        done = kvsim("run", "run.yaml", "--json", "-o", wanted, "--set", f"output.kv_events={wanted}", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        digests.append(json.loads(done.stdout)["digest"])
    assert digests[0] == digests[1]
    assert not (tmp_path / "false" / "kv_events.jsonl").exists()
    lines = (tmp_path / "true" / "kv_events.jsonl").read_text().splitlines()
    media = {event["medium"] for line in lines for event in json.loads(line)["events"]}
    assert media == {"GPU", "CPU"}
    times = [json.loads(line)["ts"] for line in lines]
    assert times == sorted(times)
