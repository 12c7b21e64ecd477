"""A machine whose link profile is known: what probes and replays of it would write down, exactly or with noise."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

from hwreplay.result import (
    CopyCell,
    DeviceInfo,
    DuplexCell,
    Integrity,
    JobResult,
    LayoutRecord,
    OverlapCell,
    ProbeResult,
    RunResult,
    ScheduleRef,
    Spread,
    StepResult,
    Way,
    write_probe,
    write_run,
)
from kvsim.profile import PPM, LinkProfile, Pieces

GPU = DeviceInfo(
    kind="cuda", device="NVIDIA Test", driver="580.1", cuda="13.0", torch="2.11", python="3.12", cpu="Xeon",
    kernel="6.1", date="2026-11-29",
)  # fmt: skip
HOST = DeviceInfo(
    kind="host", device="EPYC Test", driver="", cuda="", torch="", python="3.11", cpu="EPYC Test", kernel="6.1",
    date="2026-11-29",
)  # fmt: skip
LAYOUT = LayoutRecord("cross_layer", 2, 2, 64, "bfloat16", 16, 1, 16384)
KIB = 1024

Noise = Callable[[int], int]


def exact(ns: int) -> int:
    """No noise."""
    return ns


def noisy(seed: int, width: float = 0.1) -> Noise:
    """Every time is up to ``width`` longer or shorter."""
    rng = random.Random(seed)
    return lambda ns: max(1, round(ns * rng.uniform(1 - width, 1 + width)))


def spread_of(ns: int, samples: int = 9) -> Spread:
    """A time without spread."""
    return Spread(ns, ns, ns, samples)


def copies(
    profile: LinkProfile,
    way: Way = "dma_batch",
    backend: str = "memcpy_batch",
    sizes: Sequence[int] = (4 * KIB, 24 * KIB, 28 * KIB, 2048 * KIB),
    counts: Sequence[int] = (1, 16, 256, 4096),
    noise: Noise = exact,
    most_bytes: int = 2**40,
) -> tuple[CopyCell, ...]:
    """The grid of a probe."""
    cells = []
    for direction in ("h2d", "d2h"):
        path = profile.h2d if direction == "h2d" else profile.d2h
        assert path is not None
        submit = {"dma_batch": path.submit.used, "kernel": profile.kernel.launch.used if profile.kernel else 0}.get(
            way, 0
        )
        for size in sizes:
            for count in counts:
                if size * count > most_bytes:
                    continue
                whole = profile.batch_ns(way, direction, (Pieces(size, count),))  # type: ignore[arg-type]
                job = noise(whole)
                link = max(1, job - submit)
                cells.append(
                    CopyCell(
                        backend,
                        way,
                        direction,
                        way != "pageable",
                        True,
                        size,
                        count,  # type: ignore[arg-type]
                        spread_of(link),
                        spread_of(job),
                        spread_of(submit),
                    )
                )
    return tuple(cells)


def duplex(profile: LinkProfile, way: Way = "dma_batch", backend: str = "memcpy_batch") -> tuple[DuplexCell, ...]:
    """Each direction while the other is busy all the time: 64 MiB."""
    size, count = 2048 * KIB, 32
    alone = [profile.batch_ns(way, direction, (Pieces(size, count),)) for direction in ("h2d", "d2h")]
    speeds = [profile.shared_ppm(way, direction) / PPM for direction in ("h2d", "d2h")]
    both = [ns / speed for ns, speed in zip(alone, speeds, strict=True)]
    return (DuplexCell(backend, way, size, count, *(spread_of(round(ns)) for ns in (*alone, *both))),)


def overlap(factor: float, way: Way = "dma_batch", backend: str = "memcpy_batch") -> tuple[OverlapCell, ...]:
    """Compute that takes ``factor`` times as long beside copies."""
    return (
        OverlapCell(
            backend, way, "h2d", "gemm", spread_of(1_000_000), spread_of(round(1_000_000 * factor)),
            spread_of(5_000_000), spread_of(5_000_000),
        ),
    )  # fmt: skip


def probe(device: DeviceInfo = GPU, **parts: object) -> ProbeResult:
    """A probe of these parts."""
    return ProbeResult(device=device, started="2026-11-29T10:00:00+00:00", mode="full", **parts)  # type: ignore[arg-type]


def job(
    number: int, direction: str, started: int, ns: int, count: int = 1, size: int = 16384, submit: int = 1
) -> JobResult:
    """A job of a replay; the file tier's jobs have one descriptor."""
    return JobResult(
        number, direction, count, size, count * size, submit, started, started, started + ns, started + ns  # type: ignore[arg-type]
    )  # fmt: skip


def run(
    jobs: Sequence[JobResult],
    steps: Sequence[StepResult] = (StepResult(0, 0, 10, 10, 10),),
    device: DeviceInfo = GPU,
    backend: str = "memcpy_batch",
    way: Way = "dma_batch",
    sha256: str = "0",
    repeat: int = 0,
    scaled: float = 1.0,
) -> RunResult:
    """A replay with these jobs."""
    end = max([step.end_ns for step in steps] + [job.finished_ns for job in jobs])
    return RunResult(
        device, backend, way, ScheduleRef("s.jsonl", sha256, "r", "pcie5-h100", scaled), LAYOUT,
        "2026-11-29T10:00:00+00:00", repeat, tuple(steps), tuple(jobs), Integrity(1, 16384, None), end,
    )  # fmt: skip


def jobs_one_by_one(
    profile: LinkProfile, counts: Sequence[int], size: int = 16384, noise: Noise = exact
) -> list[JobResult]:
    """A load, then a store, and so on, never two at once."""
    out: list[JobResult] = []
    now = 0
    for count in counts:
        for direction, way in (("load", "h2d"), ("store", "d2h")):
            ns = noise(profile.batch_ns("dma_batch", way, (Pieces(size, count),)))  # type: ignore[arg-type]
            out.append(job(len(out), direction, now, ns, count, size))
            now += ns + 1000
    return out


def save(folder: Path, *results: ProbeResult | RunResult) -> list[Path]:
    """Write results as probe0.json, run1.json and so on."""
    paths = []
    for index, result in enumerate(results):
        if isinstance(result, ProbeResult):
            paths.append(folder / f"probe{index}.json")
            write_probe(paths[-1], result)
        else:
            paths.append(folder / f"run{index}.json")
            write_run(paths[-1], result)
    return paths
