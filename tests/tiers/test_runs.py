"""Whole runs with secondary tiers: small worlds in which CPU memory is too small and storage is not."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from worlds import MS, TraceBuilder, config, random_config, random_trace, run

from kvsim.config import OffloadingConnectorConfig
from kvsim.results.findings import warnings
from kvsim.results.records import RunRecord, as_row
from kvsim.results.summary import digest, summarize
from kvsim.runner import requests_frame, series_frame, tiers_frame
from kvsim.trace.session import Trace

MIB = 2**20  # a block of 16 tokens has 2 MiB here


def _summary(record: RunRecord) -> dict[str, Any]:
    tiers = [as_row(tier) for tier in record.tiers]
    return summarize(requests_frame(record), as_row(record.totals), series_frame(record), tiers, tiers_frame(record))


def _rivals(count: int = 6, turns: int = 4) -> Trace:
    """Sessions of 640 tokens and more that take turns, so that each has lost its KV when it comes back."""
    builder = TraceBuilder()
    for i in range(count):
        builder.session(f"s{i}", [(640, 1, 0)] + [(32, 1, 400 * MS)] * (turns - 1), start_ns=i * 50 * MS)
    return builder.build()


def _run(trace: Trace, tiers: list[dict[str, Any]], **connector: Any) -> RunRecord:
    """GPU of 1,280 tokens, CPU of 2,048 tokens unless told otherwise, one request at a time."""
    settings = config(
        engine={"num_gpu_blocks_override": 81, "max_num_seqs": 1},
        connector={"kind": "offloading", "cpu_bytes_to_use": "256MiB", "tiers": tiers} | connector,
        step_time={"kind": "fixed", "per_step": "1ms", "per_token": "100us"},
    )
    return run(trace, settings)[1]


def test_storage_brings_back_what_cpu_memory_has_lost() -> None:
    """6 sessions of 40 blocks and more exceed CPU memory (128 blocks): its hits come back from the file system."""
    without, with_fs = _run(_rivals(), []), _run(_rivals(), [{"kind": "fs"}])
    hits = [sum(e.external_hit_tokens for e in record.requests) for record in (without, with_fs)]
    assert hits == [0, 18 * 640 + 6 * (32 + 64)]
    tier = with_fs.tiers[0]
    assert tier.hit_tokens == hits[1]
    assert sum(e.secondary_hit_tokens for e in with_fs.requests) == hits[1]
    assert tier.read_bytes == hits[1] // 16 * 2 * MIB
    assert tier.write_bytes == tier.used_chunks * 2 * MIB  # nothing is written twice


def test_a_request_waits_for_lookup_storage_and_link() -> None:
    """The second turn waits for the file system's answer, 40 chunks from storage, then 40 blocks over the link."""
    builder = TraceBuilder()
    builder.session("a", [(640, 1, 0), (16, 1, 2_000 * MS)])
    builder.session("b", [(1_200, 1, 0)], start_ns=100 * MS)
    builder.session("c", [(1_200, 1, 0)], start_ns=500 * MS)
    slow = {"kind": "fs", "read_bandwidth": "100MB/s", "latency": "0s"}
    record = _run(builder.build(), [slow], cpu_bytes_to_use="200MiB")
    again = record.requests[-1]
    assert again.request_id.endswith("a#1")
    assert again.secondary_hit_tokens == 640
    reading_ns = 40 * (2 * MIB * 10)  # one thread, 10 ns per byte
    waited_ns = again.first_scheduled_ns - again.arrival_ns
    assert reading_ns + 41 * 5_000 < waited_ns < reading_ns + 41 * 5_000 + 10 * MS  # the link, and steps' ends


def test_object_store_keeps_what_the_file_system_has_no_room_for() -> None:
    """Behind a full file system, the object store serves the rest; each hit is counted where it came from."""
    tiers = [{"kind": "fs", "capacity": "100MiB"}, {"kind": "obj", "storage": "s3-lan"}]
    record = _run(_rivals(), tiers)
    fs, obj = record.tiers
    assert fs.refused_chunks > 0
    assert fs.used_chunks == 50
    assert obj.hit_tokens > 0
    assert fs.hit_tokens + obj.hit_tokens == sum(e.external_hit_tokens for e in record.requests)
    (line,) = [line for line in warnings(_summary(record)) if "was full" in line]
    assert line.startswith("Tier fs was full (0.1 GiB)")


def test_a_tier_that_reads_slowly_is_worse_than_none_and_says_so() -> None:
    """At 60 MB/s a token takes 2 ms, computing one 0.1 ms: the mean TTFT is worse than without the tier."""
    slow = {"kind": "fs", "read_bandwidth": "60MB/s"}
    without, with_fs = _run(_rivals(), []), _run(_rivals(), [slow])
    ttft = [_summary(record)["latency"]["ttft_ms"]["mean"] for record in (without, with_fs)]
    assert ttft[1] > 5 * ttft[0]
    (line,) = [line for line in warnings(_summary(with_fs)) if line.startswith("Tier fs brings")]
    assert line.startswith("Tier fs brings 457 tokens/s when it is asked (0.06 GB/s); the GPU computes ")
    assert line.endswith("its hits take longer than computing them again.")


def test_a_tier_that_writes_slowly_fills_cpu_memory_and_says_so() -> None:
    """At 50 MB/s storage falls behind: chunks wait in CPU memory, which cannot evict them and refuses stores."""
    record = _run(_rivals(), [{"kind": "fs", "write_bandwidth": "50MB/s"}])
    assert record.totals.cannot_store > 0
    assert record.tiers[0].backlog_peak_bytes > 200 * MIB
    (line,) = [line for line in warnings(_summary(record)) if "cannot keep up" in line]
    assert line.startswith("Tier fs cannot keep up with what is stored: it writes 0.05 GB/s, up to 0.2 GiB (")


def test_the_example_tier_is_the_upper_bound() -> None:
    """An instant tier gives the hits of storage behind a network, and better TTFTs."""
    fs, example = _run(_rivals(), [{"kind": "fs", "storage": "nfs"}]), _run(_rivals(), [{"kind": "example"}])
    assert example.tiers[0].hit_tokens == fs.tiers[0].hit_tokens
    times = [_summary(record)["latency"]["ttft_ms"]["mean"] for record in (fs, example)]
    assert times[1] < times[0]


def test_a_bounded_tier_evicts() -> None:
    """With eviction, a tier of 60 chunks never holds more and refuses nothing."""
    record = _run(_rivals(), [{"kind": "fs", "capacity": f"{60 * 2}MiB", "eviction": "lru"}])
    tier = record.tiers[0]
    assert tier.used_chunks_peak <= 60
    assert (tier.refused_chunks, tier.evicted_chunks > 0) == (0, True)


def test_lookups_hold_up_the_scheduler_of_the_old_release() -> None:
    """0.23.0 looks into the file system inside the scheduler: with 1 ms for each file the engine computes later."""
    path = Path(__file__).parent / "slow-lookup.storage.yaml"
    times = []
    for version in ("0.33.0", "0.23.0"):
        settings = config(
            engine={"num_gpu_blocks_override": 81, "max_num_seqs": 1, "vllm_version": version},
            connector={
                "kind": "offloading", "cpu_bytes_to_use": "256MiB", "tiers": [{"kind": "fs", "storage": str(path)}]
            },
        )  # fmt: skip
        builder = TraceBuilder()
        builder.session("a", [(640, 1, 0)])
        _, record = run(builder.build(), settings)
        times.append(record.requests[0].first_scheduled_ns)
    # New: all 40 files are asked in the background, 40 ms. Old: the first one is missing, that is all one needs.
    assert times == [40 * MS, 0]
    assert record.requests[0].first_token_ns > MS


@pytest.mark.parametrize("seed", range(60))
def test_random_worlds_with_tiers_are_accounted_for(seed: int) -> None:
    """Every request ends or is named as stuck (vLLM's own livelock); bytes and hits agree; the digest repeats."""
    rng = random.Random(5_000 + seed)
    trace, base = random_trace(rng), random_config(rng)
    choices: list[dict[str, Any]] = [
        {"kind": "fs", "storage": rng.choice(["nvme-gen4", "nfs", "sata-ssd"]), "n_read_threads": rng.choice([1, 16])},
        {"kind": "fs", "capacity": "64MiB", "eviction": rng.choice(["none", "lru"]), "write_bandwidth": "30MB/s"},
        {"kind": "obj", "storage": rng.choice(["s3", "s3-lan"])},
        {"kind": "example"},
    ]
    connector = {
        "kind": "offloading",
        "cpu_bytes_to_use": f"{rng.choice([40, 150, 2000]) * 2}MiB",
        "eviction_policy": rng.choice(["lru", "arc"]),
        "offload_prompt_only": rng.random() < 0.7,
        "tiers": rng.sample(choices, rng.choice([1, 2])),
    }
    settings = base.model_copy(update={"connector": OffloadingConnectorConfig.model_validate(connector)})
    records = [run(trace, settings)[1] for _ in range(2)]
    assert digest(requests_frame(records[0])) == digest(requests_frame(records[1]))
    assert records[0].tiers == records[1].tiers
    record = records[0]
    statuses = Counter(e.status for e in record.requests)
    assert statuses.keys() <= {"finished", "rejected", "stuck"}
    assert bool(statuses["stuck"]) == any("no progress" in line for line in record.cautions)
    chunk = record.totals.cpu_block_bytes
    for tier in record.tiers:
        assert tier.read_bytes % chunk == tier.write_bytes % chunk == 0
        assert tier.backlog_bytes <= tier.backlog_peak_bytes
        assert tier.busy_ns <= record.totals.end_ns
        if not statuses["stuck"]:
            assert tier.backlog_bytes == 0
    assert sum(e.secondary_hit_tokens for e in record.requests) == sum(tier.hit_tokens for tier in record.tiers)
    assert all(e.secondary_hit_tokens <= e.external_hit_tokens for e in record.requests)
