"""The order of prompts, and whose they are."""

from __future__ import annotations

import pytest

from kvsim.chain import PrefixTree
from kvsim.config.trace import TraceConfig
from kvsim.demands import Demands
from kvsim.errors import UserError
from kvsim.plan.prompts import pace_of, prompts_of
from kvsim.trace.schedule import Pace
from kvsim.trace.session import Session, Trace, Turn

S_NS = 10**9


def _trace(*sessions: tuple[int | None, list[list[int]]], name: str = "t", block_tokens: int = 10) -> Trace:
    """Sessions as (start in s, prompts as ids); 5 s between turns, responses of 20 s."""
    tree = PrefixTree()
    leaves = [[tree.add("f", ids, block_tokens) for ids in prompts] for _, prompts in sessions]
    made = []
    for number, ((start, prompts), own) in enumerate(zip(sessions, leaves, strict=True)):
        turns = tuple(
            Turn(leaf.num_tokens, 1, tree.chain(leaf, leaf.num_tokens), leaf.num_tokens, len(ids), 5 * S_NS, 20 * S_NS)
            for leaf, ids in zip(own, prompts, strict=True)
        )
        made.append(Session(f"s{number}", None if start is None else start * S_NS, turns))
    return Trace(name, "mooncake", block_tokens, tuple(made), outputs_return=False, notes=(), tree=tree)


def test_closed_loop_mixes_sessions_and_sequential_does_not() -> None:
    """Sessions 30 s apart, turns every 25 s: the second begins between the first one's second and third turn."""
    trace = _trace((None, [[1], [1, 2], [1, 2, 3]]), (None, [[8, 9]]))
    mixed = prompts_of(trace, pace=Pace(session_interval_s=30))
    assert (mixed.order, mixed.times_s) == ("interleaved, closed loop", (0.0, 25.0, 30.0, 50.0))
    assert mixed.runs == ([(0, 1)], [(0, 2)], [(1, 2)], [(0, 3)])
    alone = prompts_of(trace, "sequential", Pace(session_interval_s=30))
    assert (alone.order, alone.times_s) == ("sessions one after another", ())
    assert alone.runs == ([(0, 1)], [(0, 2)], [(0, 3)], [(1, 2)])


def test_only_so_many_sessions_at_a_time() -> None:
    """With one place, the second session begins when the first has ended, and the third when the second has."""
    trace = _trace((None, [[1], [2]]), (None, [[3]]), (None, [[4]]))
    found = prompts_of(trace, pace=Pace(session_interval_s=1, max_concurrent_sessions=1))
    assert found.times_s == (0.0, 25.0, 45.0, 65.0)
    assert prompts_of(trace, pace=Pace(1, max_concurrent_sessions=2)).times_s == (0.0, 1.0, 21.0, 25.0)


def test_pauses_are_scaled_and_then_cut() -> None:
    """Arrival times and pauses are multiplied by the scale; pauses end at the limit, responses are as recorded."""
    trace = _trace((2, [[1], [2]]), (4, [[3]]))
    assert prompts_of(trace, pace=Pace(time_scale=3.0)).times_s == (6.0, 12.0, 41.0)
    assert prompts_of(trace, pace=Pace(time_scale=3.0, max_think_s=10)).times_s == (6.0, 12.0, 36.0)


def test_pace_of_a_run() -> None:
    """A run's config gives the pace at which it plays its trace."""
    config = TraceConfig.model_validate(
        {"path": ["x"], "session_interval": "10s", "max_think_time": None, "max_concurrent_sessions": 3}
    )
    assert pace_of(config) == Pace(10.0, None, max_concurrent_sessions=3)


def test_tenants_take_turns_and_share_nothing() -> None:
    """Sessions belong to the tenants in turn; equal prompts of two tenants have no segment in common."""
    found = prompts_of(_trace((0, [[1, 2]]), (1, [[1, 2]]), (2, [[1, 2]])), tenants=("a", "b"))
    assert (found.tenants, found.tenant_of) == (("a", "b"), (0, 1, 0))
    first, second, third = found.runs
    assert first == third
    assert first != second
    assert found.of_tenant(1).runs == (second,)
    assert (found.of_tenant(1).order, found.of_tenant(1).times_s) == ("by time stamp, only b", (1.0,))


def test_one_trace_for_each_tenant() -> None:
    """Closed loops of several tenants begin side by side, also where one after the other is meant."""
    traces = [_trace((None, [[1], [2]])), _trace((None, [[1]]), (None, [[7]]))]
    found = prompts_of(traces, tenants=("a", "b"))
    assert (found.times_s, found.tenant_of) == ((0.0, 0.0, 25.0, 60.0), (0, 1, 0, 1))
    assert found.runs[0] != found.runs[1]
    assert prompts_of(traces, "sequential", tenants=("a", "b")).tenant_of == (0, 0, 1, 1)


def test_adapters_share_nothing() -> None:
    """Equal prompts for two adapters are different KV."""
    trace = _trace((0, [[1, 2]]))
    (session,) = trace.sessions
    turn = session.turns[0]
    other = Turn(turn.input_tokens, 1, turn.chain, turn.known_prompt_tokens, turn.num_ids, demands=Demands(adapter=1))
    both = Trace(
        "t", "mooncake", 10, (Session("s", 0, (turn, other)),), outputs_return=False, notes=(), tree=trace.tree
    )
    first, second = prompts_of(both).runs
    assert first != second


def test_prompts_without_a_block_do_not_count() -> None:
    """A prompt shorter than a block of the trace has no block use."""
    assert prompts_of(_trace((0, [[], [1]]))).runs == ([(0, 1)],)


@pytest.mark.parametrize(
    ("order", "starts", "message"),
    [
        ("recorded", (None, 1), "t: 1 of 2 sessions have no arrival time, expected an order closed-loop or sequential"),
        ("closed-loop", (0, 1), "t: all sessions have arrival times, expected an order recorded or sequential"),
    ],
)
def test_order_suits_the_trace(order: str, starts: tuple[int | None, ...], message: str) -> None:
    """An order that the trace cannot have is refused with what can be had."""
    with pytest.raises(UserError) as error:
        prompts_of(_trace(*((start, [[1]]) for start in starts)), order)  # type: ignore[arg-type]
    assert str(error.value) == message


def test_traces_and_tenants_suit_each_other() -> None:
    """Several traces need a name each, different ones, and blocks of one size."""
    one, two = _trace((0, [[1]])), _trace((0, [[1]]), name="u", block_tokens=16)
    for traces, names, message in (
        ((one, one), ("a",), "1 tenants for 2 traces, expected one for each trace"),
        ((one, one), ("a", "a"), "tenants: expected different names, found a, a"),
        ((one, two), ("a", "b"), "u: 16 tokens per block id, expected 10 like t"),
    ):
        with pytest.raises(UserError) as error:
            prompts_of(traces, tenants=names)
        assert str(error.value) == message
