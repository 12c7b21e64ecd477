"""Our own session format: what is written is what is read, to the token."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.chain import BlockIds
from kvsim.errors import UserError
from kvsim.trace.read import read_trace
from kvsim.trace.sessions import SessionLengths, TurnLengths, write_sessions


def _write(path: Path, sessions: list[SessionLengths], *, returns: bool = True, shared: int = 100) -> Path:
    lines = write_sessions(sessions, shared_prefix_tokens=shared, outputs_return=returns)
    path.write_text("".join(lines))
    return path


TWO = [
    SessionLengths(
        "a",
        (
            TurnLengths(100, 50, 20, 0),
            TurnLengths(170, 30, 10, 5200),  # appends
            TurnLengths(60, 40, 5, 100),  # lost all but 60 tokens, inside the shared prefix
        ),
    ),
    SessionLengths("b", (TurnLengths(80, 1, 1, 0), TurnLengths(82, 0, 3, 1)), start_ms=1500),
]


def test_lengths_become_prompts_that_share_what_was_kept(tmp_path: Path) -> None:
    """Prompts share exactly the tokens kept, over turns and over sessions."""
    trace = read_trace([_write(tmp_path / "s.jsonl", TWO)])
    a, b = trace.sessions
    assert (trace.kind, trace.block_tokens, trace.outputs_return) == ("sessions", 1, True)
    assert [turn.input_tokens for turn in a.turns] == [150, 200, 100]
    assert [turn.think_ns for turn in a.turns] == [0, 5_200_000_000, 100_000_000]
    # Up to the end of the answer where all of it comes back, and to the end of the prompt where none does.
    assert [turn.chain.num_tokens for turn in a.turns] == [170, 200, 100]
    assert a.turns[0].chain.shared_tokens(a.turns[1].chain) == 170
    assert a.turns[1].chain.shared_tokens(a.turns[2].chain) == 60
    assert a.turns[0].chain.shared_tokens(b.turns[0].chain) == 80
    assert (a.start_ns, b.start_ns) == (None, 1_500_000_000)


def test_answers_that_do_not_come_back_are_other_content(tmp_path: Path) -> None:
    """Without outputs_return the next prompt has as many tokens, but new ones where the answer was."""
    for trace in (
        read_trace([_write(tmp_path / "n.jsonl", TWO, returns=False)]),
        read_trace([_write(tmp_path / "y.jsonl", TWO)], outputs_return="no"),
    ):
        a = trace.sessions[0]
        assert [turn.input_tokens for turn in a.turns] == [150, 200, 100]
        assert [turn.chain.num_tokens for turn in a.turns] == [150, 200, 100]
        assert a.turns[0].chain.shared_tokens(a.turns[1].chain) == 150


def test_part_of_an_answer_may_be_kept(tmp_path: Path) -> None:
    """A turn that keeps half of the answer finds that half."""
    session = SessionLengths("a", (TurnLengths(0, 50, 20, 0), TurnLengths(60, 40, 5, 0)))
    (a,) = read_trace([_write(tmp_path / "s.jsonl", [session])]).sessions
    assert a.turns[0].chain.num_tokens == 60
    assert a.turns[0].chain.shared_tokens(a.turns[1].chain) == 60


@pytest.mark.parametrize("block_size", [1, 7, 16])
def test_any_engine_block_size_is_exact(tmp_path: Path, block_size: int) -> None:
    """Two prompts share exactly the full blocks of the tokens they share."""
    a = read_trace([_write(tmp_path / "s.jsonl", TWO)]).sessions[0]
    ids = BlockIds(block_size)
    one = ids.of(a.turns[1].chain, 0, 200 // block_size)
    two = ids.of(a.turns[2].chain, 0, 100 // block_size)
    same = [x == y for x, y in zip(one, two, strict=False)]
    assert same == [True] * (60 // block_size) + [False] * (100 // block_size - 60 // block_size)


def test_files_have_their_own_prefix(tmp_path: Path) -> None:
    """The shared prefix is shared inside a file; names are made unique over files."""
    one, two = _write(tmp_path / "1.jsonl", TWO), _write(tmp_path / "2.jsonl", TWO)
    trace = read_trace([one, two])
    assert [session.name for session in trace.sessions] == ["a", "a#2", "b", "b#2"]
    chains = [session.turns[0].chain for session in trace.sessions]
    assert chains[0].shared_tokens(chains[1]) == 0
    assert chains[0].shared_tokens(chains[2]) == 80


def test_files_must_agree_on_returning_outputs(tmp_path: Path) -> None:
    """One trace has one answer to whether outputs return."""
    one = _write(tmp_path / "1.jsonl", TWO)
    two = _write(tmp_path / "2.jsonl", TWO, returns=False)
    with pytest.raises(UserError, match="outputs_return is false, expected true as in the files before"):
        read_trace([one, two])
