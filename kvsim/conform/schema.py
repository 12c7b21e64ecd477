"""What a scenario file may say. The meaning of each option, and what holds where one is left out, is in `scenario`."""

from __future__ import annotations

from math import lcm
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from kvsim.checked import Component, Misfit

LARGEST = 10**7
"""More blocks, tokens and steps than any scenario needs; a slip of the pen shall not fill the memory."""

Count = Annotated[int, Field(ge=1, le=LARGEST)]
Steps = Annotated[int, Field(ge=0, le=LARGEST)]
_Pair = Annotated[list[Steps], Field(min_length=2, max_length=2)]


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _as_flag(value: object) -> object:
    return bool(value) if value in (0, 1) else value


Flag = Annotated[bool, BeforeValidator(_as_flag)]
"""true and false, or 1 and 0."""
Image = Annotated[tuple[Steps, Steps, Count, str], BeforeValidator(_as_tuple)]
"""[turn, first of its own tokens, tokens, name]."""


class _Options(Component):
    @model_validator(mode="before")
    @classmethod
    def _null_means_left_out(cls, data: Any) -> Any:
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data


class GroupOptions(_Options):
    """One KV cache group."""

    kind: Literal["full", "sliding_window", "chunked_local", "mamba"]
    block_size: Count | None = None
    window: Count | None = None
    chunk: Count | None = None
    checkpoints: Flag = False

    @model_validator(mode="after")
    def _fits_its_kind(self) -> GroupOptions:
        for key, kind in (("window", "sliding_window"), ("chunk", "chunked_local")):
            if (getattr(self, key) is not None) != (self.kind == kind):
                raise Misfit(key, f"{key} with kind {self.kind}, expected it with {kind}, and only there")
        if self.checkpoints and self.kind != "mamba":
            raise Misfit("checkpoints", f"checkpoints with kind {self.kind}, expected them with mamba only")
        return self


class EngineOptions(_Options):
    """Pools and limits of the engine."""

    num_gpu_blocks: Annotated[int, Field(ge=2, le=LARGEST)] = 700
    block_size: Count = 16
    max_num_batched_tokens: Count = 1024
    max_num_seqs: Count = 8
    max_model_len: Count = 8192
    policy: Literal["fcfs", "priority"] = "fcfs"
    long_prefill_token_threshold: Steps = 0
    reserve_full_isl: Flag = True
    no_prefix_caching: Flag = False
    async_scheduling: Flag = False
    spec_method: Literal["ngram", "eagle", "draft_model"] | None = None
    num_speculative_tokens: Annotated[int, Field(ge=1, le=100)] = 3
    accepted: Annotated[list[Annotated[int, Field(ge=0, le=100)]], Field(min_length=1)] = Field(default=[3, 0, 1])
    lookahead_block_hashes: Flag = True
    groups: Annotated[list[GroupOptions], Field(min_length=1)] | None = None
    retention_interval: Literal["dense"] | Steps = 0
    drain: Steps = 5
    max_loras: Count | None = None
    encoder_budget: Count | None = None
    encoder_cache: Count | None = None
    disable_chunked_mm_input: Flag = False

    @model_validator(mode="after")
    def _one_block_size_where_it_must_be(self) -> EngineOptions:
        groups = self.groups or []
        if groups and (self.async_scheduling or self.spec_method):
            raise Misfit("groups", "groups with async_scheduling or spec_method, expected one of them")
        sizes = {group.block_size or self.block_size for group in groups}
        if len(sizes) > 1 and any(group.kind in ("mamba", "chunked_local") for group in groups):
            raise Misfit("groups", f"block sizes {sorted(sizes)} beside mamba or chunked_local, expected a single one")
        retained, alignment = self.retention_interval, lcm(*sizes)
        if retained != "dense" and retained % alignment:
            raise Misfit("retention_interval", f"{retained}, expected dense or a multiple of {alignment} tokens")
        return self


class TierOptions(Component):
    """Delays of one secondary tier."""

    load_delay: Steps
    store_delay: Steps


class ConnectorOptions(_Options):
    """The connector with its pools and delays."""

    connector: Literal["offloading", "simple", "example", "stub"] | None = None
    cpu_blocks: Count = 1500
    cpu_policy: Literal["lru", "arc"] = "lru"
    chunk_factor: Count = 1
    offload_prompt_only: Flag = True
    store_threshold: Steps = 0
    tier: Literal["virt", "fs"] | None = None
    tier_load_delay: Steps = 3
    tier_store_delay: Steps = 2
    tiers: Annotated[list[TierOptions], Field(min_length=1)] | None = None
    lazy: Flag = False
    load_delay: Steps = 2
    store_delay: Steps = 2
    kv_load_failure_policy: Literal["fail", "recompute"] = "fail"
    load_failures: list[_Pair] | None = None
    tier_load_failures: list[_Pair] | None = None
    tier_store_failures: list[Steps] | None = None

    @model_validator(mode="after")
    def _one_kind_of_tiers(self) -> ConnectorOptions:
        if self.tiers is not None and self.tier is not None:
            raise Misfit("tiers", "tiers and tier are both given, expected one of them")
        virtual = self.tiers is not None or self.tier == "virt"
        for key in ("tier_load_failures", "tier_store_failures"):
            if getattr(self, key) is not None and not virtual:
                raise Misfit(key, "jobs of a tier fail that is not there, expected tiers, or tier: virt")
        return self


class SessionSpec(Component):
    """One session: its turns follow each other."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    start_step: Steps
    turns: Annotated[list[Annotated[list[Count], Field(min_length=2, max_length=2)]], Field(min_length=1)]
    priority: int = 0
    same_as: str | None = None
    abort: list[Annotated[list[Steps], Field(min_length=2, max_length=2)]] = Field(default_factory=list)
    lora: Steps = 0
    streaming: Flag = False
    grammars: list[Annotated[list[Steps], Field(min_length=2, max_length=2)]] = Field(default_factory=list)
    images: list[Image] = Field(default_factory=list)

    @model_validator(mode="after")
    def _aborts_name_turns(self) -> SessionSpec:
        turns = [turn for turn, _ in self.abort]
        if any(turn >= len(self.turns) for turn in turns):
            raise Misfit("abort", f"turn {max(turns)} is aborted, expected a turn below {len(self.turns)}")
        if len(set(turns)) < len(turns):
            raise Misfit("abort", "a turn is aborted twice, expected once")
        return self


class Scenario(Component):
    """Sessions of turns, and the engine that serves them."""

    name: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^/\x00-\x1f]+$")]
    engine: EngineOptions
    connector: ConnectorOptions = Field(default_factory=ConnectorOptions)
    system_tokens: Steps
    think_steps: Steps
    sessions: Annotated[list[SessionSpec], Field(min_length=1)]
    max_steps: Annotated[int, Field(ge=1, le=10**6)] = 30_000

    @model_validator(mode="after")
    def _streaming_fits(self) -> Scenario:
        overlaps = self.engine.async_scheduling or self.engine.spec_method is not None
        if overlaps and any(session.streaming for session in self.sessions):
            raise Misfit("sessions", "one is streaming, expected none with async_scheduling or spec_method")
        return self

    @model_validator(mode="after")
    def _connector_takes_groups(self) -> Scenario:
        groups, kind = self.engine.groups, self.connector.connector
        if groups and any(session.streaming for session in self.sessions):
            raise Misfit("sessions", "one is streaming, expected none with groups")
        if groups and kind == "simple":
            raise Misfit("connector", "connector simple with groups, expected offloading or none")
        if groups and kind and self.engine.no_prefix_caching and any(group.kind == "mamba" for group in groups):
            raise Misfit("connector", "mamba is offloaded without prefix caching, expected no_prefix_caching false")
        return self

    @model_validator(mode="after")
    def _sessions_fit(self) -> Scenario:
        originals = {session.name for session in self.sessions if session.same_as is None}
        names: set[str] = set()
        for session in self.sessions:
            name = session.name
            if name in names:
                raise Misfit("sessions", f"two sessions have the name {name!r}, expected different names")
            names.add(name)
            if session.same_as is not None and session.same_as not in originals:
                expected = "a session of this file that repeats no other"
                raise Misfit("sessions", f"{name} is same_as {session.same_as!r}, expected {expected}")
            tokens = self.system_tokens
            for number, (user, out) in enumerate(session.turns):
                tokens += user
                limit = self.engine.max_model_len
                if tokens >= limit:
                    found = f"turn {number} of {name} has a prompt of {tokens} tokens"
                    raise Misfit("sessions", f"{found}, expected fewer than max_model_len ({limit})")
                tokens += out
        return self
