"""Small worlds for tests: traces from a few numbers, random workloads, and runs of them."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from kvsim.build import Simulation
from kvsim.chain import ROOT, PrefixTree
from kvsim.cluster_plan import ClusterPlan, resolve_run
from kvsim.config import OffloadingConnectorConfig, RunConfig, tier_names
from kvsim.resolve import Plan
from kvsim.results.findings import warnings
from kvsim.results.records import RunRecord, as_row
from kvsim.results.summary import summarize
from kvsim.runner import requests_frame, series_frame
from kvsim.trace.session import Session, SubAgent, Trace, Turn

MS = 1_000_000


@dataclass
class TraceBuilder:
    """Sessions whose prompts grow: each turn keeps some of the last prompt and adds fresh tokens."""

    outputs_return: bool = True

    def __post_init__(self) -> None:
        self.tree = PrefixTree()
        self._common = ROOT
        self._sessions: list[tuple[str, int | None, list[tuple[Any, int, int, int, list[Any]]]]] = []

    def common_prefix(self, tokens: int) -> None:
        """All sessions start with the same tokens."""
        self._common = self.tree.grow(ROOT, 0, tokens)

    def session(
        self,
        name: str,
        turns: list[tuple[int, int, int]],
        start_ns: int | None = None,
        keep: int | None = None,
    ) -> None:
        """``turns``: (new tokens, output tokens, think ns); ``keep``: tokens of the common prefix it uses."""
        leaf = self._common
        length = leaf.num_tokens if keep is None else min(keep, leaf.num_tokens)
        rows = []
        for new, out, think in turns:
            prompt = length + new
            content = prompt + (out if self.outputs_return else 0)
            leaf = self.tree.grow(leaf, min(length, leaf.num_tokens), content - min(length, leaf.num_tokens))
            rows.append((leaf, prompt, out, think, []))
            length = content
        self._sessions.append((name, start_ns, rows))

    def build(self) -> Trace:
        """The trace."""
        sessions = tuple(
            Session(name, start, tuple(self._turn(*row) for row in rows)) for name, start, rows in self._sessions
        )
        return Trace("test", "sessions", 1, sessions, self.outputs_return, (), self.tree)

    def _turn(self, leaf: Any, prompt: int, out: int, think: int, agents: list[SubAgent]) -> Turn:
        return Turn(prompt, out, self.tree.chain(leaf, leaf.num_tokens), prompt, 0, think, subagents=tuple(agents))


def config(**parts: Any) -> RunConfig:
    """A config for traces that are handed in: Llama-3.1-8B on one H100, 1 ms per step, 10 us per token."""
    base: dict[str, Any] = {
        "trace": {"path": "unused", "session_interval": "0", "max_think_time": None},
        "model": {"name": "llama-3.1-8b"},
        "engine": {"num_gpu_blocks_override": 200, "max_model_len": 2048, "max_num_batched_tokens": 256,
                   "max_num_seqs": 16},
        "step_time": {"kind": "fixed", "per_step": "1ms", "per_token": "10us"},
        "debug": True,
    }  # fmt: skip
    for key, value in parts.items():
        base[key] = {**base[key], **value} if isinstance(base.get(key), dict) and isinstance(value, dict) else value
    return RunConfig.model_validate(base)


def run(trace: Trace, settings: RunConfig) -> tuple[Plan | ClusterPlan, RunRecord]:
    """Simulate a trace under a config."""
    plan = resolve_run(settings, trace)
    return plan, Simulation(plan).run()


def summary(record: RunRecord) -> dict[str, Any]:
    """The summary of a run, as its folder would hold it, with its warnings."""
    measures = summarize(requests_frame(record), as_row(record.totals), series_frame(record))
    return measures | {"warnings": warnings(measures)}


def random_trace(rng: random.Random) -> Trace:
    """A few sessions with a common prefix, block-edge lengths, one-token outputs and sub-agents."""
    builder = TraceBuilder(outputs_return=rng.random() < 0.7)
    builder.common_prefix(rng.choice([0, 0, 16, 40, 128, 300]) or 1)
    for i in range(rng.randint(1, 7)):
        turns = []
        for _ in range(rng.randint(1, 5)):
            new = rng.choice([1, 15, 16, 17, 32, rng.randint(1, 400), rng.randint(1, 900)])
            out = rng.choice([1, 1, 2, 16, rng.randint(1, 60)])
            turns.append((new, out, rng.choice([0, 0, MS, rng.randint(0, 60 * MS)])))
        start = rng.choice([None, None, rng.randint(0, 50 * MS)])
        builder.session(f"s{i}", turns, start, keep=rng.choice([None, 0, 16, 33]))
    trace = builder.build()
    if len(trace.sessions) > 2 and rng.random() < 0.5:  # the last session becomes a sub-agent of the first
        first, agent = trace.sessions[0], trace.sessions[-1]
        at = rng.randrange(len(first.turns))
        sub = SubAgent("agent", rng.random() < 0.7, agent.turns)
        turns = tuple(replace(t, subagents=(sub,)) if i == at else t for i, t in enumerate(first.turns))
        trace = replace(trace, sessions=(replace(first, turns=turns), *trace.sessions[1:-1]))
    return trace


def random_config(rng: random.Random) -> RunConfig:
    """Limits small enough that everything is scarce."""
    blocks = rng.choice([40, 64, 100, 200, 400])
    engine = {
        "num_gpu_blocks_override": blocks,
        "max_num_batched_tokens": rng.choice([32, 64, 256, 2048]),
        "max_num_seqs": rng.choice([1, 2, 8, 16]),
        "vllm_version": rng.choice(["0.33.0", "0.33.0", "0.23.0"]),
        "scheduling_policy": rng.choice(["fcfs", "fcfs", "priority"]),
        "long_prefill_token_threshold": rng.choice([0, 0, 40]),
        "enable_prefix_caching": rng.random() < 0.9,
        "scheduler_reserve_full_isl": rng.random() < 0.9,
        "enable_chunked_prefill": rng.random() < 0.85,
    }
    if not engine["enable_chunked_prefill"]:
        engine["max_num_batched_tokens"] = 2048
    engine["max_num_batched_tokens"] = max(engine["max_num_batched_tokens"], engine["max_num_seqs"])
    connector: dict[str, Any] = {"kind": "none"}
    if rng.random() < 0.8:
        factor = rng.choice([1, 1, 2, 4])
        connector = {
            "kind": "offloading",
            "cpu_bytes_to_use": f"{rng.choice([8, 40, 150, 2000]) * factor * 2}MiB",  # blocks of 2 MiB
            "eviction_policy": rng.choice(["lru", "arc"]),
            "block_size_factor": factor,
            "offload_prompt_only": rng.random() < 0.7,
            "store_threshold": rng.choice([0, 0, 2]),
            "kv_layout": rng.choice(["auto", "cross_layer", "per_layer_kv", "per_layer"]),
        }
    if rng.random() < 0.2:
        size = f"{rng.choice([4, 40, 150, 2000]) * 2}MiB"
        connector = {"kind": "simple_cpu", "cpu_bytes_to_use": size, "lazy_offload": rng.random() < 0.5}
    return config(
        engine=engine,
        connector=connector,
        hardware={"tensor_parallel_size": rng.choice([1, 2])},
        output={"series_points": rng.choice([2, 3, 5, 2000])},
        transfer={"kind": rng.choice(["profile", "profile", "instant"])},
        step_time={"kind": "fixed", "per_step": rng.choice(["10us", "1ms"]), "per_token": "1us"},
    )


def random_faults(rng: random.Random, settings: RunConfig) -> RunConfig:
    """The same config with a few kinds of faults in it."""
    faults: dict[str, Any] = {"restart_time": rng.choice(["0", "5ms", "300ms"])}
    if settings.connector.kind != "none":
        faults["cpu"] = _medium_faults(rng, ["0", "1ms", "20ms", "400ms"])
        faults["failed_copies"] = rng.choice(["reported", "reported", "reported", "fatal"])
    if isinstance(settings.connector, OffloadingConnectorConfig):
        names = tier_names(settings.connector.tiers)
        faults["tiers"] = [{"tier": name, **_medium_faults(rng, ["5ms", "50ms"])} for name in names]
        faults["outages"] = [
            {**_span(rng), "tier": name, "contents": rng.choice(["kept", "lost"])}
            for name in ["cpu", "cpu", *names]
            if rng.random() < 0.35
        ]
    if rng.random() < 0.35:
        faults["restarts"] = [f"{rng.randint(0, 400)}ms" for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.5:
        script = [{"request": n, "after": f"{rng.randint(0, 50)}ms"} for n in rng.sample(range(15), rng.randint(0, 3))]
        faults["aborts"] = {"rate": rng.choice([0.0, 0.2, 0.5]), "within": "80ms", "script": script}
    if rng.random() < 0.2:
        faults["client_timeout"] = rng.choice(["20ms", "200ms"])
    data = settings.model_dump(mode="json") | {"faults": faults, "seed": rng.randrange(1000)}
    if settings.connector.kind != "none":
        data["connector"]["kv_load_failure_policy"] = rng.choice(["fail", "recompute", "recompute"])
    return RunConfig.model_validate(data)


def _medium_faults(rng: random.Random, deadlines: list[str]) -> dict[str, Any]:
    faults = {"load_failures": _losses(rng), "store_failures": _losses(rng)}
    if rng.random() < 0.5:
        faults["stalls"] = {
            "deadline": rng.choice(deadlines),
            "load_rate": rng.choice([0.0, 0.1]),
            "store_rate": rng.choice([0.0, 0.1]),
            "loads": rng.sample(range(8), rng.randint(0, 2)),
            "stores": rng.sample(range(8), 1),
        }
    return faults


def _losses(rng: random.Random) -> dict[str, Any]:
    if rng.random() < 0.4:
        return {}
    chosen: dict[str, Any] = {"rate": rng.choice([0.0, 0.01, 0.1, 0.5])}
    if rng.random() < 0.3:
        chosen["windows"] = [_span(rng)]
    if rng.random() < 0.4:
        chosen["jobs"] = rng.sample(range(12), rng.randint(1, 4))
    return chosen


def _span(rng: random.Random) -> dict[str, str]:
    start = rng.randint(0, 200)
    return {"start": f"{start}ms", "end": f"{start + rng.randint(1, 300)}ms"}
