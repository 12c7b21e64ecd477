"""The experiments about the shared store: their configs load and mean what their pages say."""

from __future__ import annotations

from pathlib import Path

from kvsim.cluster_plan import ClusterPlan, resolve_run
from kvsim.config import load_config
from kvsim.resolve import read_trace_of

FOLDER = Path(__file__).parents[2] / "experiments" / "mooncake_store"


def test_the_scaling_case() -> None:
    """75 sessions of 30 turns on three times four GPUs; 0.0124 generated tokens per token of input, 96.8 % repeated."""
    config = load_config(FOLDER / "scaling.yaml")
    plan = resolve_run(config, read_trace_of(config))
    assert isinstance(plan, ClusterPlan)
    turns = [turn for session in plan.trace.sessions for turn in session.turns]
    assert (len(plan.trace.sessions), len(turns), sum(member.gpus for member in plan.members)) == (75, 2_250, 12)
    read, written = sum(turn.input_tokens for turn in turns), sum(turn.output_tokens for turn in turns)
    assert (turns[0].input_tokens, turns[29].input_tokens) == (30_000, 115_492)
    assert round(written / read, 4) == 0.0124
    new = 20_000 + 75 * (10_000 + 29 * 2_048)
    assert round(1 - new / read, 3) == 0.968


def test_the_1p1d_case() -> None:
    """Four GPUs for prefill and eight for decode; the hand-over is asked before the store."""
    config = load_config(FOLDER / "pd.yaml")
    plan = resolve_run(config, read_trace_of(config))
    assert isinstance(plan, ClusterPlan)
    assert [(member.role, member.gpus) for member in plan.members] == [("prefill", 4), ("decode", 8)]
    parts = [part.config.connector.kind for part in plan.members[0].plan.parts]
    assert parts == ["nixl", "mooncake_store"]
