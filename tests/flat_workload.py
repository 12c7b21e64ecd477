"""A flat workload (each request asks for one chunk), and what libCacheSim makes of it."""

from __future__ import annotations

import random
from array import array
from pathlib import Path

SIZES = (50, 100, 200, 400, 800, 1600)
POLICIES = {  # ours -> libCacheSim's
    "lru": "LRU",
    "fifo": "FIFO",
    "sieve": "Sieve",
    "s3fifo": "S3FIFO",
    "arc_textbook": "ARC",
    "lfu": "LFU",
    "opt": "Belady",
}


def keys() -> list[int]:
    """10,000 requests for 6,000 keys whose popularity falls by a power law and drifts slowly."""
    rng = random.Random(20261130)
    return [(int(rng.paretovariate(0.4)) + at // 50) % 6000 for at in range(10_000)]


def libcachesim_hits(policy: str, size: int, folder: Path) -> int:
    """Hits that libCacheSim counts, by a policy's name here."""
    import libcachesim  # noqa: PLC0415 - an optional package

    asked = keys()
    next_use, last = [-1] * len(asked), dict[int, int]()
    for at in range(len(asked) - 1, -1, -1):
        next_use[at] = last.get(asked[at], -1)
        last[asked[at]] = at
    path = folder / "flat.oracleGeneral.bin"
    with path.open("wb") as file:  # u32 time, u64 id, u32 size, i64 next use
        for at, key in enumerate(asked):
            file.write(array("I", [at]).tobytes() + array("Q", [key + 1]).tobytes())
            file.write(array("I", [1]).tobytes() + array("q", [next_use[at]]).tobytes())
    reader = libcachesim.TraceReader(
        trace=str(path),
        trace_type=libcachesim.TraceType.ORACLE_GENERAL_TRACE,
        reader_init_params=libcachesim.ReaderInitParam(ignore_obj_size=True),
    )
    miss_ratio, _ = getattr(libcachesim, POLICIES[policy])(size).process_trace(reader)
    return round((1 - miss_ratio) * len(asked))
