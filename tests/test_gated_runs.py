"""Whole simulations with adapters, grammars and images: what the config promises happens, at its time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from worlds import MS, TraceBuilder, config, run

from kvsim.demands import Demands, EncoderInput
from kvsim.errors import ConfigError
from kvsim.trace.session import Trace

STEP = MS + 10_000  # one token


def sessions(*turns: list[tuple[int, int, int]], common: int = 0) -> Trace:
    """Sessions that all start at time 0."""
    builder = TraceBuilder()
    if common:
        builder.common_prefix(common)
    for number, each in enumerate(turns):
        builder.session(f"s{number}", each, start_ns=0)
    return builder.build()


def test_one_adapter_at_a_time() -> None:
    """max_loras 1, two adapters: the second session is scheduled when the first has ended, with as many tokens."""
    settings = config(trace={"loras": 2}, engine={"max_loras": 1})
    plan, record = run(sessions([(100, 5, 0)], [(100, 5, 0)]), settings)
    first, second = record.requests
    assert second.first_scheduled_ns == first.finish_ns == (MS + 100 * 10_000) + 4 * STEP
    assert any("2 LoRA adapters, at most 1 in a batch" in note for note in plan.notes)
    _, together = run(sessions([(100, 5, 0)], [(100, 5, 0)]), config(trace={"loras": 2}, engine={"max_loras": 2}))
    assert [entry.first_scheduled_ns for entry in together.requests] == [0, 0]


def test_a_common_prefix_is_hit_within_an_adapter_only() -> None:
    """Sessions 0 and 2 share an adapter and the prefix of 160 tokens; session 1 computes it again for its own."""
    builder = TraceBuilder()
    builder.common_prefix(160)
    for number in range(3):
        builder.session(f"s{number}", [(40, 1, 0)], start_ns=number * 100 * MS)
    _, record = run(builder.build(), config(trace={"loras": 2}))
    assert [entry.local_hit_tokens for entry in record.requests] == [0, 0, 160]


def test_a_request_waits_for_its_grammar() -> None:
    """A grammar takes 30 ms: the first turn is scheduled then, a later one with the same grammar at once."""
    output = {"share": 1.0, "compile_time": "30ms"}
    trace = sessions([(100, 1, 0), (10, 1, 5 * MS)])
    _, record = run(trace, config(engine={"structured_output": output}))
    first, second = record.requests
    assert (first.first_scheduled_ns, second.first_scheduled_ns) == (30 * MS, second.arrival_ns)
    _, record = run(trace, config(engine={"structured_output": {**output, "cache": False}}))
    second = record.requests[1]
    assert second.first_scheduled_ns == second.arrival_ns + 30 * MS


def test_other_requests_pass_one_without_its_grammar() -> None:
    """A grammar of the trace; the other session is served meanwhile."""
    trace = sessions([(100, 1, 0)], [(100, 1, 0)])
    first, second = trace.sessions
    waiting = replace(first, turns=(replace(first.turns[0], demands=Demands(grammar="json")),))
    _, record = run(
        replace(trace, sessions=(waiting, second)), config(engine={"structured_output": {"compile_time": "30ms"}})
    )
    assert [entry.first_scheduled_ns for entry in record.requests] == [30 * MS, 0]


def test_the_encoder_takes_its_time_before_the_step() -> None:
    """An image of 50 tokens at 1 ms each: the first step is 50 ms longer, and the second prompt reuses its blocks."""
    settings = config(trace={"images": {"share": 1.0, "tokens": 50}}, engine={"encoder_time_per_token": "1ms"})
    _, record = run(sessions([(100, 1, 0), (20, 1, 0)]), settings)
    first, second = record.requests
    assert first.first_token_ns == 50 * MS + MS + 100 * 10_000
    assert (record.totals.encoder_tokens, second.local_hit_tokens) == (50, 96)


def test_a_small_encoder_budget_needs_more_steps() -> None:
    """Two images of 60 in one prompt, budget 64: the second one is computed in a second step."""
    builder = TraceBuilder()
    builder.session("s", [(200, 1, 0)])
    trace = builder.build()
    (session,) = trace.sessions
    images = (EncoderInput("x", 20, 60), EncoderInput("y", 120, 60))
    turn = replace(session.turns[0], demands=Demands(encoder_inputs=images))
    trace = replace(trace, sessions=(replace(session, turns=(turn,)),))
    _, record = run(trace, config(engine={"max_num_encoder_input_tokens": 64}))
    assert (record.totals.steps, record.totals.encoder_tokens) == (2, 120)
    _, record = run(trace, config())
    assert record.totals.steps == 1


def test_an_image_that_may_not_be_cut_must_fit_a_step() -> None:
    """As vLLM does at its start: an image larger than a step's budget is refused, in one line."""
    settings = config(trace={"images": {"share": 1.0, "tokens": 300}}, engine={"disable_chunked_mm_input": True})
    with pytest.raises(ConfigError) as error:
        run(sessions([(400, 1, 0)]), settings)
    assert str(error.value) == (
        "engine.disable_chunked_mm_input: an image of 300 tokens exceeds max_num_batched_tokens (256),"
        " expected false or a larger budget"
    )
