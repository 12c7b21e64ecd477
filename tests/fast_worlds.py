"""Random small worlds that both engines play: aimed at what makes it hard to jump over steps.

Traces branch anywhere, repeat each other's prompts and read what others are generating; limits make everything scarce;
times are round numbers, so that things happen at the same instant. A world is made from its seed alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import worlds

from kvsim.chain import ROOT, Leaf, PrefixTree
from kvsim.config import FrontendConfig, RunConfig, tier_names
from kvsim.profile import load_link
from kvsim.storage import load_storage
from kvsim.trace.session import Session, SubAgent, Trace, Turn

MS = 1_000_000
HERE = str(Path(__file__).parent)
MIB = 2**20
TOKEN_BYTES = 2**17  # KV of a token of Llama-3.1-8B
SHAPES = ("mixed", "forest", "twins", "forks", "decodes", "returns", "returns", "echoes")
TURNS = {
    "forest": (1, 4),
    "twins": (1, 2),
    "forks": (1, 3),
    "decodes": (1, 2),
    "returns": (2, 6),
    "echoes": (1, 3),
}  # of a session


@dataclass(frozen=True)
class World:
    """What both engines play."""

    seed: int
    shape: str  # of its trace
    trace: Trace
    config: RunConfig
    num_priorities: int  # requests have so many different ones


def random_world(seed: int, *, scale: int = 1) -> World:
    """The world of a seed. ``scale``: so many times as many sessions, and room for them."""
    rng = random.Random(f"fast {seed} {scale}")
    shape = rng.choice(SHAPES)
    trace = worlds.random_trace(rng) if shape == "mixed" else Forest(rng, shape, scale).trace()
    return World(seed, shape, trace, _random_config(rng, shape, scale), rng.choice([1, 1, 3]))


def with_frontend(config: RunConfig, seed: int) -> RunConfig:
    """The same with API servers in front, whose times are round, too."""
    rng = random.Random(f"frontend {seed}")
    times = {"request_time": rng.choice(["0", "10us", "1ms"]), "token_time": rng.choice(["1us", "10us", "100us"])}
    frontend = FrontendConfig.model_validate(times | {"api_servers": rng.choice([1, 1, 2, 5])})
    return config.model_copy(update={"frontend": frontend})


def with_tier_faults(world: World) -> World:
    """The same with everything going wrong that can happen to CPU memory and to tiers, of which most have some."""
    rng, config = random.Random(f"tier faults {world.seed}"), world.config
    data = config.model_dump(mode="json")
    size, blocks = config.engine.block_size or 16, config.engine.num_gpu_blocks_override or 0
    if rng.random() < 0.5:  # with contexts that go round through all memories
        world = replace(world, shape="returns", trace=Forest(rng, "returns", rng.choice([1, 2])).trace())
    if config.connector.kind != "offloading" or rng.random() < 0.3:
        data["connector"] = _offloading(rng, world.shape, size, blocks * size)
        data["engine"]["enable_prefix_caching"] = True
    connector = data["connector"]
    if not connector.get("tiers") and rng.random() < 0.85:
        chunk = size * connector["block_size_factor"] * TOKEN_BYTES
        connector["tiers"] = [_tier(rng, chunk) for _ in range(rng.choice([1, 1, 2, 3]))]
    connector["kv_load_failure_policy"] = rng.choice(["fail", "recompute"])
    if rng.random() < 0.7:  # soon everything has to come from behind CPU memory
        data["engine"] |= {"num_gpu_blocks_override": rng.choice([500, 700, 900]) // size, "max_model_len": 2048}
        tokens = max(rng.choice([500, 700, 1000]), 2 * size * connector["block_size_factor"])
        connector["cpu_bytes_to_use"] = f"{-(-tokens * TOKEN_BYTES // MIB)}MiB"
        for tier in connector.get("tiers", ()):
            if tier["kind"] != "example":
                tier["read_bandwidth"] = rng.choice(["1GB/s", "10GB/s"])
    names = tier_names(RunConfig.model_validate(data).connector.tiers)  # type: ignore[union-attr]
    faults = data["faults"]
    faults["tiers"] = [{"tier": name, **_medium_faults(rng)} for name in names if rng.random() < 0.7]
    if rng.random() < 0.25:
        faults["cpu"] = _medium_faults(rng)
        faults["failed_copies"] = rng.choice(["reported", "fatal"])
    faults["outages"] = [
        {**_span(rng), "tier": name, "contents": rng.choice(["kept", "lost"])}
        for name in ["cpu", *names, *names]
        if rng.random() < 0.3
    ]
    if rng.random() < 0.3:
        faults["restarts"] = [_moment(rng) for _ in range(rng.randint(1, 3))]
        faults["restart_time"] = rng.choice(["0", "1ms", "5ms", "50ms"])
    return replace(world, config=RunConfig.model_validate(data))


def _medium_faults(rng: random.Random) -> dict[str, Any]:
    found: dict[str, Any] = {"load_failures": _losses(rng)}
    if rng.random() < 0.6:  # what was never written cannot fail to be read
        found["store_failures"] = _losses(rng)
    if rng.random() < 0.4:
        found["stalls"] = {
            "deadline": rng.choice(["0", "1ms", "5ms", "7500us", "50ms"]),
            "load_rate": rng.choice([0.0, 0.1, 0.3]),
            "store_rate": rng.choice([0.0, 0.1, 0.3]),
            "loads": rng.sample(range(6), rng.randint(0, 2)),
            "stores": rng.sample(range(10), rng.randint(0, 2)),
        }
        if rng.random() < 0.3:
            found["stalls"]["windows"] = [_span(rng)]
    return found


def _losses(rng: random.Random) -> dict[str, Any]:
    if rng.random() < 0.35:
        return {}
    losses: dict[str, Any] = {"rate": rng.choice([0.0, 0.05, 0.2, 0.5])}
    if rng.random() < 0.3:
        losses["windows"] = [_span(rng) for _ in range(rng.randint(1, 2))]
    if rng.random() < 0.4:
        losses["jobs"] = rng.sample(range(12), rng.randint(1, 4))
    return losses


def _span(rng: random.Random) -> dict[str, str]:
    start = rng.choice([0, rng.randint(0, 30), rng.randint(0, 100), rng.randint(0, 300)]) * MS
    start += rng.choice([0, 0, rng.randrange(MS)])
    return {"start": f"{start}ns", "end": f"{start + rng.choice([1, 5, 20, rng.randint(1, 100)]) * MS}ns"}


def _moment(rng: random.Random) -> str:
    return f"{rng.randint(0, 200) * MS + rng.choice([0, 0, rng.randrange(MS)])}ns"


# -- traces
@dataclass
class _Planned:
    """A turn whose chain is not known before the tree is complete."""

    leaf: Leaf
    chain_tokens: int
    prompt: int
    out: int
    think_ns: int

    def turn(self, tree: PrefixTree, agents: tuple[SubAgent, ...] = ()) -> Turn:
        known = min(self.chain_tokens, self.prompt)
        chain = tree.chain(self.leaf, self.chain_tokens)
        return Turn(self.prompt, self.out, chain, known, 0, self.think_ns, subagents=agents)


class Forest:
    """Sessions that begin anywhere in each other's contents.

    A twin has the very content of an earlier turn, cut elsewhere into prompt and output: one reads, as its prompt, what
    the other generates.
    """

    def __init__(self, rng: random.Random, shape: str, scale: int) -> None:
        self._rng, self._shape, self._scale = rng, shape, scale
        self._tree = PrefixTree()
        self._known: list[_Planned] = []
        self._returns = rng.random() < 0.7
        self._common = self._tree.grow(ROOT, 0, rng.choice([1, 16, 40, 128, 300]))
        self._most_out = rng.choice([4, 40, 150])
        self._most_new = rng.choice([40, 200, 500])
        self._twins = {"twins": 0.8, "forks": 0.3, "echoes": 0.5}.get(shape, 0.15)
        self._alike = rng.choice([2, 20, 40, 100]), rng.choice([2, 20, 60])  # prompt and output where all are alike

    def trace(self) -> Trace:
        """A random trace."""
        rng, shape = self._rng, self._shape
        count = rng.randint(2, 7) * self._scale
        if shape == "returns":  # with contexts that go round through all memories
            self._most_new, self._most_out = rng.choice([100, 250]), rng.choice([4, 20])
        if shape == "decodes":
            self._most_out, count = rng.choice([100, 300]), rng.randint(3, 9) * self._scale
        at_once = rng.random() < 0.4
        planned = [self._stream(shape) for _ in range(count)]
        forks = [self._forks(turns) for turns in planned]  # they branch off what is there by then
        sessions = []
        for number, (turns, agents) in enumerate(zip(planned, forks, strict=True)):
            start = 0 if at_once else rng.choice([None, 0, rng.randint(0, 60) * MS, rng.randint(0, 60 * MS)])
            sessions.append(self._session(f"s{number}", start, turns, agents))
        return Trace(self._shape, "sessions", 1, tuple(sessions), self._returns, (), self._tree)

    def _session(
        self, name: str, start: int | None, turns: list[_Planned], agents: dict[int, list[tuple[list[_Planned], bool]]]
    ) -> Session:
        tree = self._tree
        subs = {
            at: tuple(
                SubAgent(f"a{at}.{number}", blocking, tuple(turn.turn(tree) for turn in stream))
                for number, (stream, blocking) in enumerate(streams)
            )
            for at, streams in agents.items()
        }
        main = tuple(turn.turn(tree, subs.get(at, ())) for at, turn in enumerate(turns))
        return Session(name, start, main, subs.get(len(turns), ()))

    def _stream(self, shape: str, parent: _Planned | None = None) -> list[_Planned]:
        rng, turns, last = self._rng, list[_Planned](), parent
        for _ in range(rng.randint(*TURNS[shape])):
            last = self._turn(last)
            turns.append(last)
        return turns

    def _forks(self, turns: list[_Planned]) -> dict[int, list[tuple[list[_Planned], bool]]]:
        """Sub-agents by the turn before which they start, all at once; behind the last turn: trailing ones."""
        rng = self._rng
        if rng.random() > (0.9 if self._shape == "forks" else 0.15):
            return {}
        at = rng.randint(1, len(turns))
        return {at: [(self._stream(self._shape, turns[at - 1]), rng.random() < 0.6) for _ in range(rng.randint(2, 4))]}

    def _turn(self, last: _Planned | None) -> _Planned:
        rng = self._rng
        think = rng.choice([0, 0, MS, rng.randint(0, 30) * MS, rng.randint(0, 30 * MS)])
        if self._shape == "returns":  # by then it has been written to storage
            think = rng.choice([0, 20 * MS, rng.randint(0, 100) * MS])
        if self._known and rng.random() < self._twins:
            planned = self._twin(rng.choice(self._known[-4:]), think)
        else:
            planned = self._fresh(last, think)
        self._known.append(planned)
        return planned

    def _twin(self, other: _Planned, think: int) -> _Planned:
        rng, total = self._rng, other.prompt + other.out
        prompt = rng.choice(
            [other.prompt, rng.randint(max(other.prompt // 2, 1), total - 1), rng.randint(1, total - 1)]
        )
        out = min(total - prompt, 300) if rng.random() < 0.7 else rng.randint(1, 60)
        if self._shape == "echoes":
            prompt, out = other.prompt, other.out
        chain = min(other.chain_tokens, prompt + out if self._returns else prompt)
        return replace(other, chain_tokens=chain, prompt=prompt, out=out, think_ns=think)

    def _fresh(self, last: _Planned | None, think: int) -> _Planned:
        rng = self._rng
        if last is not None:
            leaf, length = last.leaf, last.chain_tokens
            kept = length if rng.random() < 0.9 else rng.randint(0, length)
        else:
            leaf = rng.choice(self._known).leaf if self._known and rng.random() < 0.4 else self._common
            kept = leaf.num_tokens if rng.random() < 0.5 else rng.randint(0, leaf.num_tokens)
        new = rng.choice([1, 15, 16, 17, 32, rng.randint(1, self._most_new), rng.randint(1, self._most_new)])
        out = rng.choice([1, 2, 16, rng.randint(1, self._most_out), rng.randint(1, self._most_out)])
        if self._shape == "echoes":  # many end at the same time
            new, out = self._alike
        prompt = kept + new
        chain = prompt + (out if self._returns else 0)
        leaf = self._tree.grow(leaf, kept, chain - kept)
        if rng.random() < 0.1:  # the end of the prompt has no ids
            chain = rng.randint(kept, chain)
        return _Planned(leaf, chain, prompt, out, think)


# -- configs
def _random_config(rng: random.Random, shape: str, scale: int) -> RunConfig:
    size = rng.choice([4, 8, 16, 16, 16])
    room = rng.choice([500, 700, 1100, 2500]) * rng.choice([1, scale])  # tokens on the GPU
    seqs = rng.choice([1, 2, 8, 16, 64])
    if shape == "decodes":  # no room for what they will have in the end
        room, seqs = rng.choice([400, 600, 900]) * scale, rng.choice([8, 16, 64])
    chunked = rng.random() < 0.85
    batched = max(rng.choice([32, 32, 64, 256, 2048]), seqs) if chunked else 2048
    # Long prompts leave a few tokens to those who come behind them, until these are too many.
    threshold = rng.choice([0, 0, 40, batched - rng.randint(1, 6)])
    engine: dict[str, Any] = {
        "block_size": size,
        "num_gpu_blocks_override": room // size,
        "max_model_len": rng.choice([2048, 2048, 300]),
        "max_num_seqs": seqs,
        "max_num_batched_tokens": batched,
        "vllm_version": rng.choice(["0.33.0", "0.33.0", "0.23.0"]),
        "scheduling_policy": rng.choice(["fcfs", "fcfs", "priority"]),
        "long_prefill_token_threshold": threshold,
        "enable_prefix_caching": True,
        "scheduler_reserve_full_isl": rng.random() < 0.7,
        "enable_chunked_prefill": chunked,
    }
    connector: dict[str, Any] = {"kind": "none"}
    if rng.random() < 0.85:
        connector = _offloading(rng, shape, size, room)
    else:
        engine["enable_prefix_caching"] = rng.random() < 0.7
    share = 0.2 if connector["kind"] == "offloading" else 0.5  # without a connector, windows are the longest
    faults = _faults(rng, restarts=not connector.get("tiers")) if rng.random() < share else {}
    arrivals: dict[str, Any] = {"session_interval": rng.choice(["0", "3ms", "10ms"]), "max_think_time": None}
    if rng.random() < 0.1:
        arrivals["max_concurrent_sessions"] = rng.randint(1, 3)
    if rng.random() < 0.15:
        arrivals["tenants"] = ["a", "b"]
    data = {
        "trace": {"path": "unused", **arrivals},
        "model": {"name": "llama-3.1-8b"},
        "engine": engine,
        "connector": connector,
        "hardware": _hardware(rng),
        "output": {"series_points": rng.choice([2, 3, 5, 50, 2000])},
        "transfer": _transfer(rng),
        "step_time": _step_time(rng),
        "faults": faults,
        "seed": rng.randrange(1000),
        "python_path": [HERE],
    }
    return RunConfig.model_validate(data)


def _hardware(rng: random.Random) -> dict[str, Any]:
    link = rng.choice([None, None, "pcie4-rtx-4090", "c2c-gh200"])
    dram = rng.choice([None, None, None, "2GB/s", "200MB/s", "200MB/s"])  # a slow link
    return {"tensor_parallel_size": rng.choice([1, 1, 2]), "link": link, "host_dram_bandwidth": dram}


def _transfer(rng: random.Random) -> dict[str, Any]:
    kind = rng.choice(["profile", "profile", "profile", "instant"])
    if kind == "profile" and rng.random() < 0.3:
        return {"kind": kind, "path": rng.choice(["kernel", "dma_loop"])}
    return {"kind": kind}


def _step_time(rng: random.Random) -> dict[str, Any]:
    kind = rng.random()
    if kind < 0.3:
        return {"kind": "roofline"}
    if kind < 0.36:
        return {"kind": "fast_step:MindsTheOrder"}
    return {"kind": "fixed", "per_step": rng.choice(["10us", "1ms", "1ms"]), "per_token": rng.choice(["0", "1us"])}


def _offloading(rng: random.Random, shape: str, block_size: int, room: int) -> dict[str, Any]:
    factor = rng.choice([1, 1, 1, 2, 4])
    chunk = block_size * factor * TOKEN_BYTES
    tokens = rng.choice([100, 400, 1200, 3000, 30_000, 2 * room, 4 * room])
    has_tiers = rng.random() < (0.75 if shape == "returns" else 0.35)
    if has_tiers and rng.random() < 0.7:  # one prompt has room, several have not
        tokens = rng.choice([300, 600, 1000, room])
    connector: dict[str, Any] = {
        "kind": "offloading",
        "cpu_bytes_to_use": f"{-(-max(tokens * TOKEN_BYTES, 2 * chunk) // MIB)}MiB",
        "eviction_policy": rng.choice(["lru", "arc"]),
        "block_size_factor": factor,
        "offload_prompt_only": rng.random() < 0.6,
        "kv_layout": rng.choice(["auto", "auto", "cross_layer", "per_layer_kv", "per_layer"]),
    }
    if has_tiers:
        connector["tiers"] = [_tier(rng, chunk) for _ in range(rng.choice([1, 1, 2]))]
    return connector


def _tier(rng: random.Random, chunk_bytes: int) -> dict[str, Any]:
    kind = rng.choice(["fs", "fs", "obj", "example"])
    if kind == "example":
        return {"kind": kind}
    chunks = rng.choice([3, 20, 60, None])
    speed: dict[str, Any] = {
        "read_bandwidth": rng.choice(["100MB/s", "1GB/s", "10GB/s", None]),
        "write_bandwidth": rng.choice(["30MB/s", "1GB/s", "10GB/s", "10GB/s", None]),
        "latency": rng.choice([None, None, "0", "1ms"]),
    }
    if kind == "fs":
        own = {"storage": "nvme-gen4", "n_read_threads": rng.choice([1, 2, 16]), "n_write_threads": rng.choice([1, 16])}
    else:
        own = {"storage": "s3-lan", "io_threads": rng.choice([1, 4, 64])}
    space: dict[str, Any] = {}
    if chunks is not None:  # of two ranks, perhaps
        space = {"capacity": f"{chunks * chunk_bytes * 2 // MIB + 1}MiB", "eviction": rng.choice(["none", "lru"])}
    return {"kind": kind, **{key: value for key, value in speed.items() if value is not None}, **own, **space}


def _faults(rng: random.Random, *, restarts: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"restart_time": rng.choice(["0", "5ms", "50ms"])}
    if restarts and rng.random() < 0.5:
        found["restarts"] = [f"{rng.randint(0, 200)}ms" for _ in range(rng.randint(1, 2))]
    if rng.random() < 0.7:
        script = [{"request": n, "after": f"{rng.randint(0, 50)}ms"} for n in rng.sample(range(8), rng.randint(0, 4))]
        found["aborts"] = {"rate": rng.choice([0.0, 0.2, 0.5]), "within": "80ms", "script": script}
    if rng.random() < 0.3:
        found["client_timeout"] = rng.choice(["20ms", "200ms"])
    return found


READ_LINK, READ_STORAGE = cache(load_link), cache(load_storage)


@contextmanager
def presets_read_once() -> Iterator[None]:
    """Reading the same YAML again for each world would take longer than the worlds."""
    with patch("kvsim.resolve.load_link", READ_LINK), patch("kvsim.tier_plan.load_storage", READ_STORAGE):
        yield
