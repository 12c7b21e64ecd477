"""Policies and admission in whole simulations."""

from __future__ import annotations

import random
from typing import Any

import pytest
from worlds import MS, TraceBuilder, config, random_config, random_faults, random_trace, run

from kvsim.build_policy import PlanView, break_even_chunks
from kvsim.clock import Clock
from kvsim.config import RunConfig
from kvsim.connectors.base import CopyJob
from kvsim.copy_time import copy_time
from kvsim.errors import UserError
from kvsim.offload.policies.view import NEVER, TurnFacts
from kvsim.registry import POLICIES
from kvsim.resolve import Plan

CPU: dict[str, Any] = {"kind": "offloading", "cpu_bytes_to_use": "80MiB"}  # 40 blocks of 16 tokens
ADMISSIONS: list[Any] = [*["always"] * 4, "second_touch", {"kind": "min_length", "tokens": 300}, "min_length"]


def offloading(rng: random.Random, policy: str) -> RunConfig:
    """A random config of the newest release whose CPU tier is small, under this policy."""
    data = random_config(rng).model_dump(mode="json")
    data["engine"]["vllm_version"] = "0.33.0"
    data["trace"]["tenants"] = rng.choice([[], ["x", "y"]])
    data["connector"] = CPU | {
        "cpu_bytes_to_use": f"{rng.choice([16, 40, 80])}MiB",
        "eviction_policy": policy,
        "block_size_factor": rng.choice([1, 2]),
        "offload_prompt_only": rng.random() < 0.7,
        "admission": rng.choice(ADMISSIONS),
    }
    return RunConfig.model_validate(data)


@pytest.mark.parametrize("policy", POLICIES.names())
def test_random_worlds_run_to_their_end(policy: str) -> None:
    """With scarce memory, tenants and faults every request is accounted for, and no invariant breaks at any step."""
    evicted = 0
    for seed in range(8):
        rng = random.Random(f"{policy} {seed}")
        trace, settings = random_trace(rng), offloading(rng, policy)
        if seed % 2:
            settings = random_faults(rng, settings)
        plan, record = run(trace, settings)
        assert isinstance(plan, Plan)
        assert not plan.fast
        assert len(record.requests) == trace.num_requests or any("never sent" in note for note in record.notes)
        evicted += record.totals.cpu_evicted_blocks
    assert evicted


def three_sessions() -> TraceBuilder:
    """A comes back after b and c, whose prompts fill the CPU tier, b never does."""
    builder = TraceBuilder()
    builder.session("a", [(320, 1, 0), (16, 1, 200 * MS)])
    builder.session("b", [(320, 1, 0)], start_ns=30 * MS)
    builder.session("c", [(320, 1, 0)], start_ns=60 * MS)
    return builder


@pytest.mark.parametrize(
    ("policy", "hit"),
    [("lru", 0), ("fifo", 0), ("session_oracle", 320), ("ttl_fixed", 320), ("opt", 320), ("continuum", 0)],
)
def test_who_looks_ahead_keeps_the_session_that_comes_back(policy: str, hit: int) -> None:
    """With room for two prompts of three, recency loses the one that is used again; foresight and pins keep it."""
    connector = CPU | {"eviction_policy": policy}
    _, record = run(three_sessions().build(), config(engine={"num_gpu_blocks_override": 25}, connector=connector))
    assert record.requests[3].external_hit_tokens == hit


def test_admission_in_a_run() -> None:
    """At the second touch nothing of three different prompts is stored; the second turn finds nothing."""
    connector = CPU | {"admission": "second_touch"}
    plan, record = run(three_sessions().build(), config(engine={"num_gpu_blocks_override": 25}, connector=connector))
    assert isinstance(plan, Plan)
    assert plan.notes[0] == "reference engine, because of debug, connector.admission second_touch"
    assert (record.requests[3].external_hit_tokens, record.totals.cpu_evicted_blocks) == (0, 0)


def test_break_even_of_link_and_step_time() -> None:
    """Loading n blocks of 2 MiB takes some time before the first byte; computing takes 1 ms per step and 10 us a token.

    A step of 256 tokens takes 3.56 ms, so a block's part is 222.5 us, longer than its load.
    """
    plan, record = run(
        three_sessions().build(), config(connector=CPU | {"admission": "min_length"}, engine={"max_model_len": 1024})
    )
    assert isinstance(plan, Plan)
    assert PlanView(Clock(), plan, 1).prefill_ns(0, 4) == 4 * 16 * (MS + 256 * 10_000) // 256
    assert break_even_chunks(plan, 1) == 1
    assert "admission min_length: stored are requests of 16 tokens or more (loading is faster then)" in record.notes


@pytest.mark.parametrize(("per_token", "first"), [("3us", None), ("3500ns", 3), ("4us", 1)])
def test_the_break_even_is_the_first_length_that_pays(per_token: str, first: int | None) -> None:
    """A block of 2 MiB loads in about 50 us and something before: trying all lengths finds the same one."""
    settings = config(connector=CPU, step_time={"kind": "fixed", "per_step": "1ns", "per_token": per_token})
    plan, _ = run(three_sessions().build(), settings)
    assert isinstance(plan, Plan)
    cost, view = copy_time(plan), PlanView(Clock(), plan, 1)
    pays = [
        cost(CopyJob(0, "load", [0] * chunks, [0] * chunks), "h2d").solo_ns < view.prefill_ns(0, chunks)
        for chunks in range(1, 129)
    ]
    assert break_even_chunks(plan, 1) == (pays.index(True) + 1 if any(pays) else None) == first


def test_a_load_that_never_pays_is_told() -> None:
    """Where computing costs next to nothing, nothing is stored, and a note says so."""
    settings = config(
        connector=CPU | {"admission": "min_length"}, step_time={"kind": "fixed", "per_step": "1ns", "per_token": "1ns"}
    )
    plan, record = run(three_sessions().build(), settings)
    assert isinstance(plan, Plan)
    assert break_even_chunks(plan, 1) is None
    assert "admission min_length: loading is never faster than computing here, so nothing is stored" in record.notes
    assert record.totals.d2h_bytes == 0


def test_what_a_policy_may_know_of_a_turn() -> None:
    """Stream, tenant, turn and pause come from the trace; a request that is not of it is unknown."""
    builder = three_sessions()
    settings = config(connector=CPU, trace={"tenants": ["x", "y"]})
    plan, _ = run(builder.build(), settings)
    assert isinstance(plan, Plan)
    view = PlanView(Clock(), plan, 1)
    assert view.turn("000000:a#0") == TurnFacts("a/", 0, False, 0, True, 200 * MS)
    assert view.turn("000003:a#1") == TurnFacts("a/", 0, False, 1, False, NEVER)
    assert view.turn("000001:b#0") == TurnFacts("b/", 1, False, 0, False, NEVER)
    assert view.turn("other") is None


def test_the_next_use_skips_what_has_begun() -> None:
    """The prompt of a is used next by its second turn; once that has begun, by nobody."""
    plan, _ = run(three_sessions().build(), config(connector=CPU))
    assert isinstance(plan, Plan)
    view = PlanView(Clock(), plan, 1)
    assert [view.next_use("000000:a#0", position) for position in (0, 19, 20)] == [3, 3, NEVER]
    assert view.next_use("000003:a#1", 0) == NEVER
    assert view.next_use("000000:a#0", 0) == NEVER
    assert view.next_use("not of the trace", 0) == NEVER


@pytest.mark.parametrize(
    ("connector", "message"),
    [
        (
            {"eviction_policy": "s3fifo"},
            "connector.eviction_policy: s3fifo: expected lru or arc with engine.vllm_version",
        ),
        ({"admission": "second_touch"}, "connector.admission: second_touch: expected always with engine.vllm_version"),
    ],
)
def test_the_older_release_has_its_own_only(connector: dict[str, Any], message: str) -> None:
    """0.23.0 counts every lookup of a waiting request as a use, which our policies are not made for."""
    with pytest.raises(UserError, match=message):
        run(three_sessions().build(), config(engine={"vllm_version": "0.23.0"}, connector=CPU | connector))


def test_wrong_options_are_told_without_a_file_too() -> None:
    """A config that was made in Python is checked when it is resolved."""
    connector = CPU | {"eviction_policy": "s3fifo", "eviction_policy_options": {"treshold": 3}}
    with pytest.raises(UserError, match="eviction_policy_options: unknown key treshold, did you mean threshold"):
        run(three_sessions().build(), config(connector=connector))
