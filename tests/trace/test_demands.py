"""Who asks for what: adapters, grammars and images, from a trace or from a run's wishes."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.demands import Demands, EncoderInput
from kvsim.errors import UserError
from kvsim.trace.demands import Demanded, Wishes, settle
from kvsim.trace.read import read_trace
from kvsim.trace.session import Trace

HEADER = '{"schema":"kvsim.sessions","version":1,"shared_prefix_tokens":100}\n'


def read(folder: Path, *lines: str) -> Trace:
    """A trace of our own format with these sessions."""
    path = folder / "trace.jsonl"
    path.write_text(HEADER + "\n".join(lines) + "\n")
    return read_trace([path])


def demands(trace: Trace) -> list[list[Demands]]:
    """Demands of every turn of every session."""
    return [[turn.demands for turn in session.turns] for session in trace.sessions]


def test_a_trace_names_adapters_and_grammars(tmp_path: Path) -> None:
    """Adapters belong to sessions and are numbered by their first appearance, grammars belong to turns."""
    trace, asked = settle(
        read(
            tmp_path,
            '{"session":"a","lora":"sql","turns":[[100,50,5,0,{"grammar":"json"}],[155,10,5,0]]}',
            '{"session":"b","turns":[[0,50,5,0]]}',
            '{"session":"c","lora":"chat","turns":[[0,50,5,0]]}',
            '{"session":"d","lora":"sql","turns":[[0,50,5,0]]}',
        ),
        Wishes(),
    )
    assert demands(trace) == [[Demands(1, "json"), Demands(1)], [Demands()], [Demands(2)], [Demands(1)]]
    assert asked == Demanded(adapters=2, grammars=1)


def test_an_image_stays_while_prompts_keep_all_of_it(tmp_path: Path) -> None:
    """Image positions count from the turn's new tokens; a turn that keeps a part of an image only has it no more."""
    trace, asked = settle(
        read(
            tmp_path,
            '{"session":"a","turns":[[100,50,5,0,{"images":[[10,20],[30,20]]}],[155,10,5,0,{"images":[[0,10]]}],'
            "[140,10,5,0],[0,9,1,0]]}",
        ),
        Wishes(),
    )
    first, second = EncoderInput("a#0.0", 110, 20), EncoderInput("a#0.1", 130, 20)
    third = EncoderInput("a#1.0", 155, 10)
    assert [each.encoder_inputs for each in demands(trace)[0]] == [
        (first, second),
        (first, second, third),
        (first,),
        (),
    ]
    assert asked == Demanded(encoder_inputs=3, largest_input_tokens=20)


def test_a_trace_that_asks_for_nothing_is_handed_through(tmp_path: Path) -> None:
    """Without demands and wishes the trace is the same object."""
    trace = read(tmp_path, '{"session":"a","turns":[[100,50,5,0]]}')
    assert settle(trace, Wishes(seed=7)) == (trace, Demanded())
    assert settle(trace, Wishes(seed=7))[0] is trace


def test_sessions_take_turns_with_adapters(tmp_path: Path) -> None:
    """Three sessions, two adapters: 1, 2, 1; an adapter of the trace stays."""
    sessions = [f'{{"session":"{name}","turns":[[0,50,5,0]]}}' for name in "abc"]
    trace, asked = settle(read(tmp_path, *sessions), Wishes(adapters=2))
    assert demands(trace) == [[Demands(1)], [Demands(2)], [Demands(1)]]
    assert asked == Demanded(adapters=2)


def test_draws_depend_on_the_seed_and_on_nothing_else(tmp_path: Path) -> None:
    """The same seed gives the same demands, also for a part of the trace; another seed gives others."""
    lines = [f'{{"session":"s{number}","turns":[[0,90,5,0],[95,90,5,0]]}}' for number in range(40)]
    wishes = Wishes(grammar_share=0.5, num_grammars=3, image_share=0.3, image_tokens=40)
    whole, asked = settle(read(tmp_path, *lines), wishes)
    part, _ = settle(read(tmp_path, *lines[20:]), wishes)
    other, _ = settle(read(tmp_path, *lines), Wishes(0, 0.5, 3, 0.3, 40, seed=1))
    assert demands(whole)[20:] == demands(part)
    assert demands(whole) != demands(other)
    assert (asked.grammars, asked.encoder_inputs) == (34, 26)
    assert {each.grammar for turns in demands(whole) for each in turns} == {"", "grammar-0", "grammar-1", "grammar-2"}


def test_drawn_images_end_the_new_part(tmp_path: Path) -> None:
    """An image stands at the end of its prompt, and is not drawn where the turn's own part has no room for it."""
    line = '{"session":"a","turns":[[100,50,5,0],[155,30,5,0],[190,60,5,0]]}'
    trace, _ = settle(read(tmp_path, line), Wishes(image_share=1.0, image_tokens=40))
    first, second = EncoderInput("a#0", 110, 40), EncoderInput("a#2", 210, 40)
    assert [each.encoder_inputs for each in demands(trace)[0]] == [(first,), (first,), (first, second)]


@pytest.mark.parametrize(
    ("extra", "complaint"),
    [
        ("[]", "turns[0][4]: found [], expected a JSON object"),
        ('{"grammar":5}', "turns[0][4]: grammar is 5, expected a text that is not empty"),
        ('{"images":[[10]]}', "turns[0][4]: images[0] is [10], expected a list [first, tokens]"),
        ('{"images":[[10,41]]}', "turns[0][4]: images[0]: tokens is 41, expected an integer from 1 to 40"),
        ('{"images":[[0,10],[9,5]]}', "turns[0][4]: images[1]: first is 9, expected an integer from 10 to 49"),
    ],
)
def test_wrong_demands_are_named(tmp_path: Path, extra: str, complaint: str) -> None:
    """One line with file, line, turn, field, value and what was expected."""
    with pytest.raises(UserError) as error:
        read(tmp_path, f'{{"session":"a","turns":[[100,50,5,0,{extra}]]}}')
    assert str(error.value) == f"{tmp_path / 'trace.jsonl'}: line 2: {complaint}"
