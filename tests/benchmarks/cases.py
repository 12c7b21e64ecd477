"""What `make bench` measures: every case is a run's config, and how many replicas share its trace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvsim.trace.generate import GeneratorParameters

REPO = Path(__file__).resolve().parents[2]
MOONCAKE = Path("mooncake") / "conversation_trace.jsonl.gz"
BUNDLE = Path("kv-cache-tester")
DEMO_TRACE = REPO / "traces" / "swe-bench-like-60.jsonl.gz"

# Longer than Llama 3.1 was made for: requests of any length are served.
ANY_LENGTH = 1_048_576
SESSIONS = (100, 300, 1_000, 3_000, 10_000)
CONTEXTS = (4_096, 8_192, 16_384, 32_768, 65_536, 131_072, 262_144)
# A cut that the reference engine needs two minutes for, with CPU memory and NVMe.
CUT_SESSIONS = 28

GROUPS = {
    "a": "pool: ns per block reference",
    "b": "Mooncake conversation trace on 1, 4, 8 replicas",
    "c": "kv-cache-tester bundle, 60 sessions",
    "d": "610 generated SWE-bench-like sessions of about 80 turns; d33: as published, 33 turns",
    "e": "scaling: with the number of short sessions (e-s), with the context's length (e-c)",
    "f": "whole `kvsim run`: results, plots and report included",
    "r": "reference engine: demo and Mooncake",
    "x": "fast and reference engine on a cut of the bundle",
}
DEFAULT_GROUPS = ("a", "b", "c", "d", "e", "f")
QUICK = ("a", "b-1", "c-none", "e-s-100", "e-s-300", "e-s-1000")


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement.

    Attributes:
        name: group and details, joined by hyphens.
        config: the run's config; None for a pool.
        replicas: how many share the trace.
        pool: which pool, if no config.
        needs: files that the config reads.
        generated: what to generate, if the trace is not recorded; its path is filled in.
        whole: measured is `kvsim run`, from outside.
    """

    name: str
    config: dict[str, Any] | None = None
    replicas: int = 1
    pool: str = ""
    needs: tuple[Path, ...] = ()
    generated: GeneratorParameters | None = None
    whole: bool = False


def cpu(size: str = "512GB", **more: Any) -> dict[str, Any]:
    """A connector with CPU memory of so many bytes over all ranks."""
    return {"kind": "offloading", "cpu_bytes_to_use": size, **more}


def tiers(cpu_and_nvme: str) -> dict[str, dict[str, Any]]:
    """No tier, CPU, and CPU with NVMe, whose CPU memory may have to be larger.

    With 512 GB, agent sessions whose contexts come back from NVMe evict each other's promoted prefixes for ever, as in
    vLLM 0.33.0.
    """
    nvme = {"kind": "fs", "storage": "nvme-gen4", "capacity": "8TB"}
    return {"none": {"kind": "none"}, "cpu": cpu(), "nvme": cpu(cpu_and_nvme, tiers=[nvme])}


def config_of(name: str, trace: dict[str, Any], connector: dict[str, Any], **engine: Any) -> dict[str, Any]:
    """A run of Llama 3.1 70B on four H100."""
    return {
        "name": name,
        "trace": trace,
        "model": "llama-3.1-70b",
        "hardware": {"gpu": "h100-sxm", "tensor_parallel_size": 4},
        "engine": {"max_model_len": ANY_LENGTH, **engine},
        "connector": connector,
    }


def closed_loop(path: Path | None = None, interval: str = "60s") -> dict[str, Any]:
    """Sessions that start one after another and pause 60 s at most."""
    trace = {"session_interval": interval, "max_think_time": "60s"}
    return trace if path is None else {"path": str(path), **trace}


def all_cases(shared: Path) -> Iterator[Case]:
    """All there is, group by group. ``shared``: folder of recorded traces, which may be missing."""
    yield Case("a-reference", pool="reference")
    yield Case("a-extent", pool="extent")
    yield from _recorded(shared)
    yield from _generated()
    yield from _scaling()
    mooncake, bundle = shared / MOONCAKE, shared / BUNDLE
    plain = config_of("f-mooncake", {"path": str(mooncake)}, {"kind": "none"})
    yield Case("f-mooncake-none", plain, needs=(mooncake,), whole=True)
    nvme = tiers("1500GB")["nvme"]
    yield Case("f-bundle-nvme", config_of("f", closed_loop(bundle), nvme), needs=(bundle,), whole=True)
    yield from _reference(shared)


def _recorded(shared: Path) -> Iterator[Case]:
    mooncake, bundle = shared / MOONCAKE, shared / BUNDLE
    for replicas in (1, 4, 8):
        for tier, connector in tiers("512GB").items():
            name = f"b-{replicas}-{tier}"
            config = config_of(name, {"path": str(mooncake)}, connector, max_model_len=131_072)
            yield Case(name, config, replicas, needs=(mooncake,))
    for tier, connector in tiers("1500GB").items():
        yield Case(f"c-{tier}", config_of(f"c-{tier}", closed_loop(bundle), connector), needs=(bundle,))


def _generated() -> Iterator[Case]:
    # At most 60 at a time: more of the long ones outrun the engine, and the contexts of all of them even 1.5 TB.
    trace = closed_loop() | {"max_concurrent_sessions": 60}
    long = GeneratorParameters(median_turns=80, added_tokens=1_100)
    for group, parameters in (("d", long), ("d33", GeneratorParameters())):
        for tier, connector in tiers("1500GB").items():
            name = f"{group}-{tier}"
            yield Case(name, config_of(name, trace, connector), generated=parameters)


def _scaling() -> Iterator[Case]:
    """The load stays the same: more sessions take longer to arrive, and longer ones arrive less often."""
    connector = tiers("512GB")["nvme"]
    for sessions in SESSIONS:
        parameters = short_sessions(sessions, 4_096)
        yield Case(f"e-s-{sessions}", config_of("e-s", closed_loop(interval="4s"), connector), generated=parameters)
    for context in CONTEXTS:
        parameters = short_sessions(100, context)
        trace = closed_loop(interval=f"{context / 1_024:g}s")
        yield Case(f"e-c-{context}", config_of("e-c", trace, connector), generated=parameters)


def short_sessions(sessions: int, context: int) -> GeneratorParameters:
    """Sessions of five turns that end with about so many tokens; answers of a hundred tokens, whatever the context."""
    return GeneratorParameters(
        sessions=sessions,
        median_turns=5,
        first_context_tokens=context // 2,
        shared_prefix_tokens=context // 4,
        added_tokens=context // 8,
        input_output_ratio=context * 0.75 / 100,
    )


def _reference(shared: Path) -> Iterator[Case]:
    mooncake, bundle = shared / MOONCAKE, shared / BUNDLE
    demo = {"path": str(DEMO_TRACE), "session_interval": "10s", "max_concurrent_sessions": 12}
    lru, arc = cpu("192GiB"), cpu("192GiB", eviction_policy="arc")
    for name, connector in {"no-offload": {"kind": "none"}, "cpu-lru": lru, "cpu-arc": arc}.items():
        config = config_of(f"r-demo-{name}", demo, connector, max_model_len=262_144, kind="reference")
        yield Case(f"r-demo-{name}", config)
    for name, connector in {"none": {"kind": "none"}, "cpu": lru}.items():
        config = config_of("r-mooncake", {"path": str(mooncake)}, connector, max_model_len=262_144, kind="reference")
        yield Case(f"r-mooncake-{name}", config, needs=(mooncake,))
    files = [str(path) for path in sorted(bundle.glob("*.json.gz"))[:CUT_SESSIONS]]
    for tier, connector in tiers("1500GB").items():
        for kind in ("fast", "reference"):
            config = config_of(f"x-{tier}", closed_loop() | {"path": files}, connector, kind=kind)
            yield Case(f"x-{tier}-{kind}", config, needs=(bundle,))


def chosen(cases: Iterator[Case], only: list[str]) -> list[Case]:
    """Cases whose names are, or begin with, one of these words."""
    return [case for case in cases if any(case.name == word or case.name.startswith(f"{word}-") for word in only)]
