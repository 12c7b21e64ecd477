"""Random scenarios: small worlds in which as much as possible happens. The same seed gives the same world."""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import lcm
from typing import Any

from kvsim.conform.schema import LARGEST

Scenario = dict[str, Any]

MAX_STEPS = 2500

_DELAYS = (0, 0, 1, 1, 2, 3, 4, 6, 9, 12, 20)
_KINDS = ("gpu", "lru", "lru", "arc", "arc", "simple", "simple", "tier", "tier")
_GROUP_KINDS = (
    ("sliding",), ("full", "sliding"), ("full", "sliding"), ("sliding", "full"), ("full", "sliding", "sliding"),
    ("full", "sliding", "other"), ("sliding", "other"), ("chunked_local",), ("full", "chunked_local"), ("mamba",),
    ("full", "mamba"), ("full", "mamba", "mamba"), ("mamba", "full", "mamba", "mamba"), ("full", "mamba", "sliding"),
)  # fmt: skip
_FULL_CHUNK_FACTORS = (1, 1, 1, 2, 3, 4)


@dataclass(frozen=True, slots=True)
class Extensions:
    """What worlds may hold beyond the basics."""

    aborts: bool = False  # clients that go away
    tiers: bool = False  # several secondary tiers
    file_tier: bool = False  # vLLM's file system tier
    async_scheduling: bool = False  # two steps in flight
    speculative: bool = False  # drafts, some of which hold
    groups: bool = False  # several KV cache groups; then every world has some
    failures: bool = False  # copies, promotions and cascades that fail; a connector that loads synchronously


@dataclass(frozen=True, slots=True)
class _Style:
    """How tight a world is: ranges that its numbers are drawn from."""

    gpu_blocks: tuple[int, int]
    cpu_blocks: tuple[int, ...]
    max_seqs: tuple[int, int]
    sessions: tuple[int, int]
    turns: tuple[int, int]
    decode_too: float  # share of worlds that offload generated tokens


_STYLES = {
    "broad": _Style((40, 260), (30, 60, 100, 200, 500), (2, 12), (3, 12), (1, 5), 0.5),
    "tight": _Style((45, 110), (60, 120, 300, 800), (2, 6), (6, 14), (2, 5), 0.3),
    "small-cpu": _Style((40, 130), (12, 16, 24, 32, 48), (2, 6), (6, 14), (2, 5), 0.15),
    "burst": _Style((50, 160), (40, 100, 300), (4, 16), (6, 16), (1, 3), 0.3),
    "repeats": _Style((45, 140), (40, 100, 300), (2, 8), (4, 12), (1, 4), 0.3),
}


def world(seed: int, extensions: Extensions | None = None) -> Scenario:
    """The scenario of a seed; `kvsim.conform.files.check_scenario` lets it pass."""
    return _World(seed, extensions or Extensions()).scenario()


class _World:
    def __init__(self, seed: int, extensions: Extensions) -> None:
        self._seed, self._extensions = seed, extensions
        self._random = r = random.Random(seed)
        self._style_name = r.choice(list(_STYLES))
        self._style = _STYLES[self._style_name]
        self._kind = r.choice(_KINDS)
        self._block_size: int = r.choice((16, 16, 16, 32))
        self._engine = self._draw_engine()
        if self._extensions.groups:
            self._draw_groups()
        self._connector = self._draw_connector()
        if (
            extensions.failures
            and not (extensions.async_scheduling or extensions.speculative or extensions.groups)
            and self._kind == "gpu"
        ):
            self._kind, self._connector = "stub", {"connector": "stub"}
        if extensions.failures:
            self._connector |= self._draw_failures()
        # Retention counts in chunks of the CPU tier, too.
        if retained := self._engine.get("retention_interval", 0):
            factor = self._connector.get("chunk_factor", 1)
            self._engine["retention_interval"] = retained if retained == "dense" else retained * factor
        # A request that fits into the pool at its longest; the null block is not to be had.
        groups = len(self._engine.get("groups", "1"))
        self._cap = (self._engine["num_gpu_blocks"] - 1) // groups * self._block_size - 2
        self._system: int = r.choice((0, 20, 32, 64, 100)) if self._style_name != "burst" else r.randint(100, 400)

    def scenario(self) -> Scenario:
        r = self._random
        return {
            "name": f"w{self._seed}-{self._style_name}-{self._kind}",
            "engine": self._engine,
            "connector": self._connector,
            "system_tokens": self._system,
            "think_steps": r.choice((0, 0, 1, 5, 20)),
            "sessions": self._sessions(),
            "max_steps": MAX_STEPS,
        }

    def _draw_engine(self) -> dict[str, Any]:
        r, style = self._random, self._style
        max_model_len: int = r.choice((512, 1024, 2048, 4096))
        extended: dict[str, Any] = {"async_scheduling": True} if self._extensions.async_scheduling else {}
        if self._extensions.speculative:
            extended |= self._draw_drafts()
        return extended | {
            "num_gpu_blocks": r.randint(*style.gpu_blocks),
            "block_size": self._block_size,
            "max_num_batched_tokens": r.choice((32, 64, 96, 128, 256, 512, 1024)),
            "max_num_seqs": r.randint(*style.max_seqs),
            "max_model_len": max_model_len,
            "policy": r.choice(("fcfs", "fcfs", "priority")),
            "long_prefill_token_threshold": r.choice((0, 0, 0, 40, 100)),
            "reserve_full_isl": r.choice((True, True, False)),
            "no_prefix_caching": r.random() < 0.06,
        }

    def _draw_drafts(self) -> dict[str, Any]:
        r = self._random
        count = r.choice((1, 2, 3, 5, 8))
        return {
            # EAGLE's own rules of the connectors are not simulated.
            "spec_method": r.choice(("ngram", "draft_model", *("eagle",) * 3 * (self._kind == "gpu"))),
            "num_speculative_tokens": count,
            "accepted": [r.randint(0, count) for _ in range(r.randint(1, 6))],
            "lookahead_block_hashes": r.random() < 0.6,
        }

    def _draw_groups(self) -> None:
        """One to four groups; the pool grows with them. No SimpleCPU connector."""
        r, size = self._random, self._block_size
        if self._kind == "simple":
            self._kind = "gpu"
        kinds = r.choice(_GROUP_KINDS)
        if "mamba" in kinds and self._engine["no_prefix_caching"]:
            self._kind = "gpu"  # vLLM refuses to offload states without prefix caching
        if "mamba" in kinds and r.random() < 0.25:  # blocks longer than what a step computes
            size = self._block_size = self._engine["block_size"] = 64
            self._engine["num_gpu_blocks"] //= 2
        windows = {kind: r.choice((1, 2, size, size + 1, 40, 64, 100, 200)) for kind in ("sliding", "other")}
        uneven = "mamba" not in kinds and "chunked_local" not in kinds and r.random() < 0.35
        checkpoints = r.random() < 0.5
        groups: list[dict[str, Any]] = []
        for kind in kinds:
            if kind in windows:
                group: dict[str, Any] = {"kind": "sliding_window", "window": windows[kind]}
            elif kind == "chunked_local":
                group = {"kind": kind, "chunk": r.choice((size, 2 * size, 48, 64, 96))}
            elif kind == "mamba":
                group = {"kind": kind} | ({"checkpoints": True} if checkpoints else {})
            else:
                group = {"kind": kind}
            groups.append(group)
        if uneven:
            sizes = r.choice(((2, 1), (1, 2), (4, 1), (1, 4), (2, 3)))
            for group in groups:
                group["block_size"] = size * sizes[group["kind"] != "full"]
        self._engine["groups"] = groups
        alignment = lcm(*(group.get("block_size", size) for group in groups))
        sparse = {"sliding_window", "mamba"} & {group["kind"] for group in groups}
        if "mamba" in kinds and self._engine["no_prefix_caching"]:
            sparse = set()
        times = r.choice((0, 0, 0, None, 1, 2, 4))
        self._engine["retention_interval"] = "dense" if times is None else alignment * times if sparse else 0
        self._engine["num_gpu_blocks"] = self._engine["num_gpu_blocks"] * len(groups) * r.choice((2, 3)) // 3

    def _draw_connector(self) -> dict[str, Any]:
        r, style, kind = self._random, self._style, self._kind
        if kind == "gpu":
            return {}
        options = {
            "connector": "simple" if kind == "simple" else "offloading",
            "cpu_blocks": r.choice(style.cpu_blocks) * len(self._engine.get("groups", "1")),
            "load_delay": r.choice(_DELAYS),
            "store_delay": r.choice(_DELAYS),
        }
        if kind == "simple":
            return options | {"lazy": r.random() < 0.45}
        options |= {
            "cpu_policy": r.choice(("lru", "arc")) if kind == "tier" else kind,
            "chunk_factor": r.choice(_FULL_CHUNK_FACTORS),
            "offload_prompt_only": r.random() >= style.decode_too,
        }
        if kind == "tier":
            return options | self._draw_tiers()
        return options | {"store_threshold": r.choice((0, 0, 0, 2, 3))}

    def _draw_tiers(self) -> dict[str, Any]:
        r = self._random
        if self._extensions.tiers and r.random() < 0.5:
            delays = [(r.choice(_DELAYS), r.choice(_DELAYS)) for _ in range(r.randint(2, 3))]
            return {"tiers": [{"load_delay": load, "store_delay": store} for load, store in delays]}
        kind = "fs" if self._extensions.file_tier and r.random() < 0.5 else "virt"
        return {"tier": kind, "tier_load_delay": r.choice(_DELAYS), "tier_store_delay": r.choice(_DELAYS)}

    def _draw_failures(self) -> dict[str, Any]:
        r, connector = self._random, self._connector
        if not connector:
            return {}
        # A failed request with OffloadingConnector ends 0.33.0 by an assertion (see kvsim/connectors/offloading.py).
        policy = "recompute" if connector["connector"] == "offloading" else r.choice(("fail", "recompute"))
        loads = [[r.randint(0, 12), r.choice((0, 1, 2, r.randint(0, 40)))] for _ in range(r.randint(1, 10))]
        failures: dict[str, Any] = {"kv_load_failure_policy": policy, "load_failures": loads}
        if "tiers" in connector or connector.get("tier") == "virt":
            numbers = r.sample(range(20), r.randint(0, 8))
            failures["tier_load_failures"] = [[number, r.choice((1, LARGEST))] for number in numbers]
            failures["tier_store_failures"] = r.sample(range(30), r.randint(0, 8))
        return failures

    def _sessions(self) -> list[dict[str, Any]]:
        r = self._random
        sessions: list[dict[str, Any]] = []
        originals: list[str] = []
        repeated = {"repeats": 0.5, "burst": 0.3}.get(self._style_name, 0.2)
        for number in range(r.randint(*self._style.sessions)):
            session: dict[str, Any] = {
                "name": f"s{number}",
                "start_step": self._start(),
                "turns": self._turns(),
            }
            if self._engine["policy"] == "priority":
                session["priority"] = r.randint(0, 3)
            if originals and r.random() < repeated:
                session["same_as"] = r.choice(originals)
                if r.random() < 0.5:  # the very same prompts, and not only the same tokens
                    original = next(other for other in sessions if other["name"] == session["same_as"])
                    session["turns"] = [list(turn) for turn in original["turns"]]
            else:
                originals.append(session["name"])
            if self._extensions.aborts and r.random() < 0.4:
                turn = r.randrange(len(session["turns"]))
                session["abort"] = [[turn, r.choice((0, 1, 2, 4, 8, 15, 30))]]
            sessions.append(session)
        return sessions

    def _start(self) -> int:
        r = self._random
        if self._style_name == "burst":
            return r.choice((0, 0, 0, 1, 30))
        return r.choice((0, 0, r.randint(0, 60), r.randint(0, 200)))

    def _turns(self) -> list[list[int]]:
        r, limit = self._random, self._engine["max_model_len"]
        turns: list[list[int]] = []
        context = self._system
        for _ in range(r.randint(*self._style.turns)):
            user, out = self._user(context), self._out()
            end = context + user + out
            # Now and then the last answer is cut off by max_model_len.
            cut = context + user < limit <= end and limit <= self._cap and r.random() < 0.5
            if not cut and end > min(self._cap, limit - 2):
                break
            turns.append([user, out])
            context = end
            if cut:
                break
        return turns or [[10, 4]]

    def _user(self, context: int) -> int:
        r = self._random
        if r.random() < 0.3:  # the prompt ends at a block's edge, or one token off
            blocks, off = r.randint(1, 12), r.choice((-1, 0, 0, 1))
            return max(1, (context // self._block_size + blocks) * self._block_size + off - context)
        return r.choice((r.randint(1, 40), r.randint(40, 260), r.randint(40, 400)))

    def _out(self) -> int:
        r = self._random
        return r.choice((1, 1, 2, 16, 17, r.randint(3, 40), r.randint(3, 60), r.randint(40, 120)))
