"""Small deterministic runs for the tests of results and reports: one by hand, one lifelike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from kvsim.results.run import Run, assemble
from kvsim.results.runfolder import RunFolder, load_run
from kvsim.results.summary import REQUEST_COLUMNS, SERIES_COLUMNS

MS, S = 10**6, 10**9
MIB = 2**20


def requests_of(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """A requests table; what a row leaves out is that of a finished request that waited for nothing."""
    default: dict[str, Any] = {
        "session": "s0",
        "stream": "",
        "turn": 0,
        "status": "finished",
        "reason": "",
        "arrival_ns": 0,
        "first_scheduled_ns": 0,
        "first_token_ns": -1,
        "finish_ns": -1,
        "prompt_tokens": 0,
        "output_tokens": 0,
        "local_hit_tokens": 0,
        "external_hit_tokens": 0,
        "load_wait_ns": 0,
        "preemptions": 0,
    }
    full = [{"request_id": f"r{index}"} | default | row for index, row in enumerate(rows)]
    return pd.DataFrame(full, columns=list(REQUEST_COLUMNS)).astype(dict(REQUEST_COLUMNS))


def series_of(rows: list[dict[str, int]]) -> pd.DataFrame:
    """A series table; what a row leaves out is zero."""
    return pd.DataFrame([dict.fromkeys(SERIES_COLUMNS, 0) | row for row in rows], columns=list(SERIES_COLUMNS)).astype(
        "int64"
    )


def small_requests() -> pd.DataFrame:
    """Seven requests of four sessions, every status once or more, all numbers easy to check by hand."""
    return requests_of(
        [
            {
                "session": "a",
                "arrival_ns": 1 * S,
                "first_scheduled_ns": 1 * S + 10 * MS,
                "first_token_ns": 1 * S + 100 * MS,
                "finish_ns": 2 * S + 100 * MS,
                "prompt_tokens": 1000,
                "output_tokens": 11,
            },
            {
                "session": "b",
                "arrival_ns": 2 * S,
                "first_scheduled_ns": 2 * S + 30 * MS,
                "first_token_ns": 2 * S + 300 * MS,
                "finish_ns": 2 * S + 300 * MS,
                "prompt_tokens": 500,
                "output_tokens": 1,
                "local_hit_tokens": 200,
            },
            {
                "session": "a",
                "turn": 1,
                "arrival_ns": 3 * S,
                "first_scheduled_ns": 3 * S + 50 * MS,
                "first_token_ns": 3 * S + 500 * MS,
                "finish_ns": 5 * S + 500 * MS,
                "prompt_tokens": 1500,
                "output_tokens": 21,
                "local_hit_tokens": 600,
                "external_hit_tokens": 400,
                "load_wait_ns": 20 * MS,
                "preemptions": 2,
            },
            {"session": "c", "arrival_ns": 3 * S, "first_scheduled_ns": -1, "prompt_tokens": 9000}
            | {"status": "rejected", "reason": "prompt longer than max_model_len"},
            {"session": "c", "turn": 1, "arrival_ns": 4 * S, "first_scheduled_ns": -1, "prompt_tokens": 9100}
            | {"status": "rejected", "reason": "prompt longer than max_model_len"},
            {"session": "b", "turn": 1, "arrival_ns": 4 * S, "first_scheduled_ns": 4 * S + 110 * MS}
            | {"status": "failed", "reason": "load failed", "prompt_tokens": 1000, "finish_ns": 5 * S}
            | {"external_hit_tokens": 400, "load_wait_ns": 40 * MS},
            {"session": "d", "arrival_ns": 5 * S, "first_scheduled_ns": -1, "prompt_tokens": 700}
            | {"status": "stuck", "reason": "never fits"},
        ]
    )


def small_totals() -> dict[str, int]:
    """Counters to go with :func:`small_requests`: the run ends at 11 s, 10 s after the first arrival."""
    return {
        "end_ns": 11 * S,
        "steps": 40,
        "gpu_busy_ns": 4 * S,
        "stall_ns": S // 2,
        "h2d_bytes": 20 * 10**9,
        "d2h_bytes": 30 * 10**9,
        "h2d_busy_ns": 1 * S,
        "d2h_busy_ns": 2 * S,
        "load_jobs": 2,
        "store_jobs": 6,
        "gpu_evicted_blocks": 5,
        "cpu_evicted_blocks": 7,
        "cannot_store": 2,
        "stored_blocks": 1000,
        "unused_stored_blocks": 250,
        "num_gpu_blocks": 100,
        "num_cpu_blocks": 400,
        "cpu_used_blocks_peak": 300,
        "gpu_used_blocks_peak": 80,
        "block_tokens": 16,
        "gpu_block_bytes": 2 * MIB,
        "cpu_block_bytes": 2 * MIB,
    }


def small_series() -> pd.DataFrame:
    """Two samples to go with :func:`small_requests`."""
    return series_of(
        [
            {"time_ns": 2 * S, "running": 2, "gpu_used_blocks": 80, "gpu_cached_blocks": 95}
            | {"cpu_used_blocks": 300, "prompt_tokens": 1500, "local_hit_tokens": 200},
            {"time_ns": 11 * S, "waiting": 1, "gpu_used_blocks": 10, "gpu_cached_blocks": 60}
            | {"cpu_used_blocks": 200, "prompt_tokens": 4000, "local_hit_tokens": 800}
            | {"external_hit_tokens": 800, "gpu_busy_ns": 4 * S},
        ]
    )


def big_run(folder: Path, offload: bool = True, requests: int = 400, name: str = "") -> Run:
    """A lifelike run folder: 40 agent sessions over some minutes, with or without a CPU tier."""
    random = np.random.default_rng(7)
    sessions = 40
    start = np.sort(random.integers(0, 300 * S, sessions))
    rows: list[dict[str, Any]] = []
    context, clock = np.full(sessions, 6000), start.copy()
    outputs = random.integers(20, 400, (sessions, requests))
    steps = random.integers(100, 3000, (sessions, requests))
    turns = [0] * sessions
    quota = requests // sessions
    for index in range(requests):
        session = int(np.argmin(np.where(np.array(turns) < quota, clock, np.iinfo(np.int64).max)))
        prompt = int(context[session])
        turn = turns[session]
        turns[session] += 1
        local = prompt - prompt % 16 - 400 if turn and index % 3 else 480 if index else 0
        external = prompt - prompt % 16 - 800 - local if turn and offload and local == 480 else 0
        queue = int(random.exponential(0.15 if offload else 0.6) * S)
        load = external * 131072 // 50 if external else 0  # 128 KiB of KV a token at 50 GB/s
        first = queue + load + (prompt - local - external) * S // 20000 + 15 * MS
        output = int(outputs[session, turn])
        decode = (output - 1) * int(random.integers(9, 16)) * MS
        arrival = int(clock[session])
        rows.append(
            {
                "session": f"session-{session:02d}",
                "turn": turn,
                "arrival_ns": arrival,
                "first_scheduled_ns": arrival + queue,
                "first_token_ns": arrival + first,
                "finish_ns": arrival + first + decode,
                "prompt_tokens": prompt,
                "output_tokens": output,
                "local_hit_tokens": max(local, 0),
                "external_hit_tokens": max(external, 0),
                "load_wait_ns": load,
                "preemptions": int(index % 29 == 0),
            }
        )
        context[session] += output + int(steps[session, turn])
        clock[session] = arrival + first + decode + int(random.exponential(8) * S)
    frame = requests_of(sorted(rows, key=lambda row: int(row["arrival_ns"])))
    series = _series(frame, offload)
    end = series.iloc[-1]
    totals = {
        "end_ns": int(end["time_ns"]),
        "steps": 52_113,
        "gpu_busy_ns": int(end["gpu_busy_ns"]),
        "stall_ns": 3 * S if offload else 0,
        "h2d_bytes": int(end["h2d_bytes"]),
        "d2h_bytes": int(end["d2h_bytes"]),
        "h2d_busy_ns": int(end["h2d_busy_ns"]),
        "d2h_busy_ns": int(end["d2h_busy_ns"]),
        "load_jobs": 131 if offload else 0,
        "store_jobs": 388 if offload else 0,
        "gpu_evicted_blocks": 91_004,
        "cpu_evicted_blocks": 20_001 if offload else 0,
        "cannot_store": 3 if offload else 0,
        "num_gpu_blocks": 18_000,
        "num_cpu_blocks": 65_536 if offload else 0,
        "cpu_used_blocks_peak": int(series["cpu_used_blocks"].max()),
        "gpu_used_blocks_peak": int(series["gpu_used_blocks"].max()),
        "block_tokens": 16,
        "gpu_block_bytes": 2 * MIB,
        "cpu_block_bytes": 2 * MIB,
    }
    target = folder / (name or ("cpu-128GiB" if offload else "baseline"))
    with RunFolder.create(target) as writing:
        writing.write(
            assemble(
                requests=frame,
                series=series,
                totals=totals,
                config_text="model: Qwen/Qwen3-32B\ngpu: H100\noffload:\n  cpu_bytes: 128GiB\n  policy: lru\n",
                notes=[
                    "GPU KV capacity is estimated; the range is 17,100 to 18,900 blocks (source: ours).",
                    "PCIe bandwidth of 55 GB/s comes from the profile h100-pcie5 (https://example.com/measured).",
                ],
                info={"Trace": "swe-40 <synthetic>", "Model": "Qwen/Qwen3-32B, TP 4", "GPU": "H100 SXM 80 GB"},
            )
        )
    return load_run(target)


def _series(requests: pd.DataFrame, offload: bool) -> pd.DataFrame:
    end = int(requests["finish_ns"].max()) + 2 * S
    rows = []
    for time in range(0, end + 1, 2 * S):
        here = requests[requests["arrival_ns"] <= time]
        scheduled = here[here["first_scheduled_ns"] <= time]
        running = scheduled[scheduled["finish_ns"] > time]
        loading = running[running["first_scheduled_ns"] + running["load_wait_ns"] > time]
        prompt = int(scheduled["prompt_tokens"].sum())
        local, external = (int(scheduled[f"{k}_hit_tokens"].sum()) for k in ("local", "external"))
        stored = (prompt - local - external) * 131072 if offload else 0
        held = int(running["prompt_tokens"].sum()) // 16
        done = scheduled[scheduled["finish_ns"] <= time]
        rows.append(
            {
                "time_ns": time,
                "running": len(running) - len(loading),
                "waiting": len(here) - len(scheduled),
                "loading": len(loading),
                "gpu_used_blocks": min(held, 18_000),
                "gpu_cached_blocks": min(prompt // 16, 17_900),
                "cpu_used_blocks": min((prompt - local - external) // 16, 65_536) if offload else 0,
                "prompt_tokens": prompt,
                "local_hit_tokens": local,
                "external_hit_tokens": external,
                "output_tokens": int(done["output_tokens"].sum()),
                "h2d_bytes": external * 131072,
                "d2h_bytes": stored,
                "h2d_busy_ns": external * 131072 // 50,
                "d2h_busy_ns": stored // 52,
                "gpu_busy_ns": time * 8 // 10,
                "preemptions": int(scheduled["preemptions"].sum()),
            }
        )
    return series_of(rows)
