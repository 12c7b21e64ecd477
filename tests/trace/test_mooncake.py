"""Reading Mooncake rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvsim.trace.read import read_trace

MS = 10**6
Write = Callable[..., Path]


def _row(timestamp: float | None, tokens: int, ids: list[int], **more: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"input_length": tokens, "output_length": 4, "hash_ids": ids, **more}
    return row if timestamp is None else {"timestamp": timestamp, **row}


def test_rows_arrive_at_their_time_stamp(write_rows: Write) -> None:
    """Every row is a session of one turn at its time, counted from the first row."""
    trace = read_trace([write_rows("m.jsonl", [_row(3000, 600, [0, 1]), _row(3500.5, 512, [0])])])
    assert [(s.name, s.start_ns, len(s.turns)) for s in trace.sessions] == [
        ("row1", 0, 1),
        ("row2", 500_500_000, 1),
    ]
    assert trace.notes[-1] == "time 0 is the first time stamp, 3.000 s"


def test_last_id_is_a_partial_block(write_rows: Write) -> None:
    """The last id covers only the rest of the prompt: 600 tokens are 512 and 88."""
    trace = read_trace([write_rows("m.jsonl", [_row(0, 600, [0, 1]), _row(0, 1100, [0, 2, 3])])])
    one, two = (session.turns[0] for session in trace.sessions)
    assert (one.chain.num_tokens, one.known_prompt_tokens, one.num_ids) == (600, 600, 2)
    assert one.chain.shared_tokens(two.chain) == 512


def test_equal_times_are_spread_on_request(write_rows: Write) -> None:
    """A step is spread evenly up to the next one; the last one is as long as the one before."""
    rows = [_row(t, 512, [0]) for t in (0, 0, 0, 3000, 3000)]
    path = write_rows("m.jsonl", rows)
    together = read_trace([path])
    plain = [session.start_ns for session in together.sessions]
    assert together.notes[1] == (
        "3 requests have the time stamp of the one before and arrive with it; spread_arrivals is off"
    )
    spread = read_trace([path], spread_arrivals=True)
    assert plain == [0, 0, 0, 3000 * MS, 3000 * MS]
    assert [session.start_ns for session in spread.sessions] == [
        0,
        1000 * MS,
        2000 * MS,
        3000 * MS,
        4500 * MS,
    ]
    assert "requests with equal time stamps are spread evenly up to the next time stamp" in spread.notes


def test_delay_makes_a_closed_loop(write_rows: Write) -> None:
    """A later row of a session with a delay follows the previous response; its time stamp does not count."""
    rows = [
        _row(0, 512, [1], session_id="a", request_id="r1"),
        _row(5, 512, [9]),
        _row(1, 1024, [1, 2], session_id="a", delay=250.5),  # would be unsorted if its time stamp counted
        _row(None, 1536, [1, 2, 3], session_id="a", delay=0),
        _row(7, 512, [4], session_id="b", delay=99),  # first of its session: the time stamp counts
    ]
    trace = read_trace([write_rows("m.jsonl", rows)])
    assert [(s.name, s.start_ns, [t.think_ns for t in s.turns]) for s in trace.sessions] == [
        ("a", 0, [0, 250_500_000, 0]),
        ("row2", 5 * MS, [0]),
        ("b", 7 * MS, [0]),
    ]
    assert "2 turns are sent their delay after the previous response" in trace.notes


def test_later_row_without_delay_is_sent_at_its_time(write_rows: Write) -> None:
    """Rows of one session without delays are not serialised, and that is said."""
    rows = [_row(0, 512, [1], session_id="a"), _row(10, 1024, [1, 2], session_id="a")]
    trace = read_trace([write_rows("m.jsonl", rows)])
    assert [(s.name, s.start_ns) for s in trace.sessions] == [("a", 0), ("a#2", 10 * MS)]
    assert trace.notes[1].startswith("1 later rows of a session have no delay")


def test_answers_come_back_inside_a_session_on_request(write_rows: Write) -> None:
    """With outputs_return a turn's chain follows the next prompt, past its own partial id."""
    rows = [
        _row(0, 600, [1, 2], session_id="a"),
        _row(None, 1200, [1, 3, 4], session_id="a", delay=1),
    ]
    path = write_rows("m.jsonl", rows)
    first, second = read_trace([path], outputs_return="yes").sessions[0].turns
    assert (first.chain.num_tokens, first.chain.shared_tokens(second.chain)) == (604, 604)
    first, second = read_trace([path]).sessions[0].turns
    assert (first.chain.num_tokens, first.chain.shared_tokens(second.chain)) == (600, 512)


def test_block_tokens_can_be_told(write_rows: Write) -> None:
    """Other block sizes are an option, since the rows do not say."""
    trace = read_trace([write_rows("m.jsonl", [_row(0, 40, [1, 2, 3])])], block_tokens=16)
    assert (trace.block_tokens, trace.sessions[0].turns[0].num_ids) == (16, 3)


def test_two_files_are_two_tenants(write_rows: Write) -> None:
    """Ids are global to a file only; sessions come in order of time over all files."""
    one = write_rows("one.jsonl", [_row(0, 512, [1]), _row(20, 512, [1])])
    two = write_rows("two.jsonl", [_row(10, 512, [1])])
    trace = read_trace([one, two])
    assert [s.name for s in trace.sessions] == ["row1", "two:row1", "row2"]
    chains = [s.turns[0].chain for s in trace.sessions]
    assert [chains[0].shared_tokens(chain) for chain in chains] == [512, 0, 512]


def test_suspiciously_dense_times_are_noted_not_refused(write_rows: Write) -> None:
    """Time stamps that look like seconds are a note: only the user can know."""
    rows = [_row(t / 10, 512, [1]) for t in range(30)]
    trace = read_trace([write_rows("m.jsonl", rows)])
    assert trace.notes[-1] == "10,345 requests/s if the time stamps are milliseconds: are they seconds?"


def test_failed_response_runs_as_one_token(write_rows: Write) -> None:
    """output_length 0 is replayed as one token and counted."""
    trace = read_trace([write_rows("m.jsonl", [_row(0, 512, [1], output_length=0)])])
    assert trace.sessions[0].turns[0].output_tokens == 1
    assert trace.notes[-1] == "1 responses have 0 output tokens; each is replayed as 1 token"
