"""Reading kv-cache-tester sessions, pitfall by pitfall."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvsim.errors import UserError
from kvsim.trace.read import read_trace

SECOND = 10**9
Make = Callable[..., dict[str, Any]]
Write = Callable[..., Path]


def test_turns_carry_what_the_file_says(request_row: Make, write_session: Write) -> None:
    """Lengths, ids, response time and think time before the turn arrive as written."""
    path = write_session(
        "one",
        [
            request_row(0, [1, 2], tail=5, api_time=2.21),
            request_row(12, [1, 2, 3], out=7, api_time=1.0, think_time=10.0, model="other"),
        ],
        packed=True,
    )
    trace = read_trace([path])
    (session,) = trace.sessions
    first, second = session.turns
    assert (trace.kind, trace.block_tokens, trace.num_requests, session.start_ns) == (
        "kv-cache-tester",
        64,
        2,
        None,
    )
    assert (first.input_tokens, first.known_prompt_tokens, first.num_ids) == (133, 128, 2)
    assert (first.think_ns, first.recorded_ns, first.output_tokens) == (0, 2_210_000_000, 10)
    assert (second.think_ns, second.model, second.recorded_output_tokens) == (10 * SECOND, "other", 7)
    assert first.chain.shared_tokens(second.chain) == 128


def test_ids_are_local_to_their_file(request_row: Make, write_session: Write) -> None:
    """Equal ids of two files are different content; of one file with global scope they are the same."""
    one = write_session("a", [request_row(0, [1, 2])])
    two = write_session("b", [request_row(0, [1, 2])])
    local = [session.turns[0].chain for session in read_trace([one, two]).sessions]
    assert local[0].shared_tokens(local[1]) == 0
    assert read_trace([one, two]).notes[1].startswith("block ids are local to a file: the 2 sessions share")
    one = write_session("a", [request_row(0, [1, 2])], hash_id_scope="global")
    two = write_session("b", [request_row(0, [1, 2])], hash_id_scope="global")
    scoped = [session.turns[0].chain for session in read_trace([one, two]).sessions]
    assert scoped[0].shared_tokens(scoped[1]) == 128


def test_subagents_belong_to_the_request_that_follows_them(
    request_row: Make, agent_row: Make, write_session: Write
) -> None:
    """Sub-agents between two requests belong to the second; completed ones block it, launched ones don't."""
    pair = [request_row(0, [60], api_time=6), request_row(9, [60, 61], think_time=3.0)]
    path = write_session(
        "s",
        [
            agent_row("early", [request_row(0, [50])]),
            request_row(0, [1], api_time=1),
            agent_row("a", pair, t=30),
            agent_row("b", [request_row(100, [60, 62])], status="async_launched", t=2),
            request_row(40, [1, 2], think_time=39.0),
            agent_row("late", [request_row(0, [70])], t=99),
        ],
    )
    (session,) = read_trace([path]).sessions
    assert [agent.name for agent in session.turns[0].subagents] == ["early"]
    blocking = [(agent.name, agent.blocking) for agent in session.turns[1].subagents]
    assert blocking == [("a", True), ("b", False)]
    assert [agent.name for agent in session.trailing] == ["late"]
    assert [name for name, _ in session.streams] == ["", "early", "a", "b", "late"]
    # The parent's think time contains the sub-agents' run and stays as it is.
    assert session.turns[1].think_ns == 39 * SECOND
    first, second = session.turns[1].subagents[0].turns
    assert (first.think_ns, second.think_ns) == (0, 3 * SECOND)
    sibling = session.turns[1].subagents[1].turns[0]
    assert first.chain.shared_tokens(sibling.chain) == 64


def test_missing_think_time_is_the_gap_that_is_left(request_row: Make, write_session: Write) -> None:
    """Without think_time the gap is t minus the previous t and api_time, and never negative."""
    path = write_session(
        "s",
        [
            request_row(0, [1], api_time=4.5),
            request_row(10, [1, 2], api_time=7),
            request_row(12, [1, 2, 3], api_time=1),
        ],
    )
    trace = read_trace([path])
    turns = trace.sessions[0].turns
    assert [turn.think_ns for turn in turns] == [0, 5_500_000_000, 0]
    assert [turn.recorded_think_ns for turn in turns] == [None, None, None]
    assert trace.notes[1] == ("2 requests have no think_time; taken as t minus previous t and api_time, at least 0")


def test_think_time_after_a_response_without_time_is_corrected(request_row: Make, write_session: Write) -> None:
    """Where the previous api_time is missing, think_time counts from an earlier response: not believed."""
    path = write_session(
        "s",
        [
            request_row(0, [1], api_time=1),
            request_row(5, [1, 2], think_time=4.0),
            request_row(30, [1, 2, 3], think_time=29.0, api_time=2),
            request_row(40, [1, 2, 3], think_time=8.0, api_time=2),
        ],
    )
    trace = read_trace([path])
    turns = trace.sessions[0].turns
    assert [turn.think_ns // SECOND for turn in turns] == [0, 4, 15, 8]
    assert turns[2].recorded_think_ns == 29 * SECOND
    assert turns[1].recorded_ns is None
    assert [note[:50] for note in trace.notes[1:]] == [
        "1 requests have no api_time; where the recorded pa",
        "1 requests follow a response without api_time, so ",
    ]


def test_failed_response_runs_as_one_token(request_row: Make, write_session: Write) -> None:
    """An answer of 0 tokens is replayed as one token, remembered as 0 and counted."""
    trace = read_trace([write_session("s", [request_row(0, [1], out=0, api_time=1)])])
    (turn,) = trace.sessions[0].turns
    assert (turn.output_tokens, turn.recorded_output_tokens) == (1, 0)
    assert "1 responses were recorded with 0 output tokens; each is replayed as 1 token" in trace.notes


def test_prompt_below_one_block_has_no_ids(request_row: Make, write_session: Write) -> None:
    """A prompt shorter than a block has nothing to share."""
    (turn,) = read_trace([write_session("s", [request_row(0, [], tail=63)])]).sessions[0].turns
    assert (turn.num_ids, turn.known_prompt_tokens, turn.chain.num_tokens) == (0, 0, 0)


def test_answers_come_back_only_where_asked_and_appended(request_row: Make, write_session: Write) -> None:
    """With outputs_return the chain goes on through the answer if the next prompt is a longer one."""
    path = write_session(
        "s",
        [
            request_row(0, [1, 2], out=100),  # next one appends: 128 + 100 = 228 of its 256 known tokens
            request_row(1, [1, 2, 3, 4], tail=10, out=30),  # next one appends fewer than 30 tokens
            request_row(2, [1, 2, 3, 4], tail=20, out=64),  # next one lost a block
            request_row(3, [1, 2, 3, 9, 10, 11], out=64),
        ],
    )
    plain = [turn.chain.num_tokens for turn in read_trace([path]).sessions[0].turns]
    assert plain == [128, 256, 256, 384]
    trace = read_trace([path], outputs_return="yes")
    turns = trace.sessions[0].turns
    assert [turn.chain.num_tokens for turn in turns] == [228, 256, 256, 384]
    assert turns[0].chain.shared_tokens(turns[1].chain) == 228
    assert turns[0].known_prompt_tokens == 128
    assert trace.outputs_return
    assert trace.notes[0] == "generated tokens come back in the next prompt (as asked for)"


def test_several_models_and_background_agents_are_noted(
    request_row: Make, agent_row: Make, write_session: Write
) -> None:
    """What a replay simplifies is said."""
    path = write_session(
        "s",
        [
            request_row(0, [1], api_time=1),
            agent_row("a", [], status="async_launched"),
            request_row(2, [1], model="x", think_time=1, api_time=1),
        ],
    )
    assert read_trace([path]).notes[1:] == (
        "1 sub-agents run in the background; nobody waits for them",
        "1 sub-agents without requests are left out",
        "1 sessions name several models in their main stream; all are served by one model here",
    )


def test_sessions_keep_the_order_of_the_files_and_get_unique_names(
    request_row: Make, write_session: Write, tmp_path: Path
) -> None:
    """A folder is read in order of file name; a name that occurs twice is numbered."""
    write_session("b", [request_row(0, [1])])
    write_session("a", [request_row(0, [1])])
    (tmp_path / "NOTES.md").write_text("not a trace")
    trace = read_trace([tmp_path, tmp_path / "b.json"])
    assert [session.name for session in trace.sessions] == ["a", "b", "b#2"]


def test_files_of_two_block_sizes_do_not_mix(request_row: Make, write_session: Write) -> None:
    """All files of a trace have one block size."""
    one = write_session("a", [request_row(0, [1])])
    two = write_session("b", [{**request_row(0, [1]), "in": 32}], block_size=32)
    with pytest.raises(UserError, match=r"b\.json: block_size is 32, expected 64 as before"):
        read_trace([one, two])


def test_real_sessions_hold_no_id_that_is_not_chained(shared_traces: Path) -> None:
    """The published sessions read without complaint, as few segments, with every request."""
    trace = read_trace([shared_traces / "kv-cache-tester"])
    assert (len(trace.sessions), trace.num_requests) == (60, 7392)
    assert sum(segment.end_tokens - segment.start_tokens for segment in trace.tree.segments) == 507_095 * 64
