"""Streaming sessions: parts of a request's input, and the blocks that it keeps between them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from engine_builder import ids, make_request, make_scheduler, scheduled, step
from worlds import MS, TraceBuilder, config, run

from kvsim.demands import Demands
from kvsim.errors import ConfigError
from kvsim.gates.streaming import StreamingGate
from kvsim.request import Request, RequestStatus
from kvsim.results.records import RunRecord
from kvsim.trace.session import SubAgent, Trace

STREAM = Demands(resumable=True)


def session(name: str, prompt: int, out: int) -> Request:
    """The first part of a streaming session."""
    content = make_request(name, prompt=prompt).content
    return Request(name, content, block_size=4, num_prompt_tokens=prompt, max_tokens=out, arrival=0, demands=STREAM)


def go_on(request: Request, prompt: int, out: int) -> int:
    """The next part; ``prompt`` counts everything. Returns the tokens kept."""
    return request.continue_with(request.content, num_prompt_tokens=prompt, max_tokens=out, arrival=0, demands=STREAM)


def test_a_session_keeps_its_blocks_between_its_parts() -> None:
    """After its output it waits with its 3 blocks, nothing is due, and its next part computes what is new."""
    scheduler = make_scheduler(gates=StreamingGate())
    request = session("s", 8, 2)
    scheduler.add_request(request)
    assert [scheduled(step(scheduler)[0]) for _ in range(2)] == [[("s", 8)], [("s", 1)]]
    assert request.status is RequestStatus.WAITING_FOR_STREAMING_REQ
    assert (len(scheduler.kv.tables[request]), ids(scheduler.waiting.second)) == (3, ["s"])
    assert not scheduler.has_requests()
    assert go_on(request, 15, 1) == 9  # of 10 tokens: the last sampled one is dropped
    del scheduler.parked[request]
    output, ended = step(scheduler)
    assert (scheduled(output), ids(output.new), output.hits, ended) == ([("s", 6)], ["s"], {}, ["s"])
    scheduler.abort_request(request)
    step(scheduler)
    scheduler.check(at_end=True)


def test_a_session_between_its_parts_takes_a_place() -> None:
    """With max_num_seqs 1 nobody else is admitted while a session waits for input (0.33.0)."""
    scheduler = make_scheduler(gates=StreamingGate(), max_num_seqs=1)
    request = session("s", 8, 1)
    scheduler.add_request(request)
    step(scheduler)
    scheduler.add_request(make_request("other", prompt=8))
    assert scheduled(step(scheduler)[0]) == []
    scheduler.abort_request(request)
    assert scheduled(step(scheduler)[0]) == [("other", 8)]


def test_the_block_of_the_dropped_token_gets_another_hash() -> None:
    """A hash that covered the dropped token is replaced by that of what stands there now."""
    request = session("s", 7, 1)
    request.append_output_token()
    before = list(request.block_hashes)
    assert len(before) == 2
    go_on(request, 12, 1)
    assert (request.block_hashes[:1], len(request.block_hashes)) == (before[:1], 3)


def stream(trace: Trace, **parts: Any) -> RunRecord:
    """The record of a run with streaming sessions."""
    settings = config(**{**parts, "trace": {"streaming_sessions": True}})
    return run(trace, settings)[1]


def one_session(*turns: tuple[int, int, int], outputs_return: bool = True) -> Trace:
    """A trace of one session."""
    builder = TraceBuilder(outputs_return=outputs_return)
    builder.session("s", list(turns))
    return builder.build()


def test_a_turn_computes_only_what_is_new() -> None:
    """119 of the first turn's 120 tokens are kept, not only its full blocks: 51 tokens are computed, not 58."""
    record = stream(one_session((100, 20, 0), (50, 1, 7 * MS)))
    first, second = record.requests
    assert [entry.status for entry in record.requests] == ["finished", "finished"]
    assert second.arrival_ns == first.finish_ns + 7 * MS
    assert (second.prompt_tokens, second.local_hit_tokens) == (170, 119)
    assert second.finish_ns - second.arrival_ns == MS + 51 * 10_000
    assert (record.totals.prompt_tokens, record.totals.local_hit_tokens) == (270, 119)


def test_blocks_between_turns_are_nobody_elses() -> None:
    """A pool of 20 blocks: a rival that would evict the session's blocks in its pause has to wait for its end."""
    builder = TraceBuilder()
    builder.session("s", [(160, 1, 0), (16, 1, 100 * MS)], start_ns=0)
    builder.session("rival", [(250, 1, 0)], start_ns=10 * MS)
    settings = {"engine": {"num_gpu_blocks_override": 21}}
    waits, _, second = sorted(stream(builder.build(), **settings).requests, key=lambda entry: entry.request_id[7:])
    assert second.local_hit_tokens == 160
    assert waits.first_scheduled_ns >= second.finish_ns


def test_a_rewritten_history_begins_a_new_request() -> None:
    """Answers that don't come back can't be streamed: each turn is a request, which finds its blocks in the cache."""
    record = stream(one_session((100, 20, 0), (50, 1, 0), outputs_return=False))
    assert [(entry.prompt_tokens, entry.local_hit_tokens) for entry in record.requests] == [(100, 0), (150, 96)]


def test_a_turn_that_is_too_long_ends_the_session() -> None:
    """The prompt is rejected, and the blocks are freed for others."""
    record = stream(one_session((100, 20, 0), (3000, 1, 0)))
    assert [entry.status for entry in record.requests] == ["finished", "rejected"]
    assert record.series.samples[-1].gpu_used_blocks == 0


@pytest.mark.parametrize(
    ("parts", "what"),
    [
        ({"engine": {"vllm_version": "0.23.0"}}, "engine.vllm_version 0.23.0, which ignores max_tokens of later parts"),
        ({"engine": {"scheduling_policy": "priority"}}, "engine.scheduling_policy priority"),
        ({"engine": {"data_parallel_size": 2}}, "engine.data_parallel_size"),
        ({"engine": {"async_scheduling": True}}, "engine.async_scheduling"),
        ({"connector": {"kind": "example"}}, "connector.kind example"),
    ],
)
def test_what_is_not_simulated_is_refused(parts: dict[str, Any], what: str) -> None:
    """One line that names what streaming sessions don't go with."""
    with pytest.raises(ConfigError) as error:
        stream(one_session((100, 20, 0)), **parts)
    assert str(error.value) == f"trace.streaming_sessions: true: expected false with {what}: not simulated"


def test_sessions_of_sub_agents_stream_too() -> None:
    """Every stream of a session has a request of its own."""
    builder = TraceBuilder()
    builder.session("s", [(100, 5, 0), (50, 1, 0)])
    builder.session("other", [(30, 4, 0), (20, 1, 0)])
    parent, other = builder.build().sessions
    second = replace(parent.turns[1], subagents=(SubAgent("helper", True, other.turns),))
    trace = replace(builder.build(), sessions=(replace(parent, turns=(parent.turns[0], second)),))
    kept = {(entry.stream, entry.turn): entry.local_hit_tokens for entry in stream(trace).requests}
    assert kept == {("", 0): 0, ("helper", 0): 0, ("helper", 1): 33, ("", 1): 104}
