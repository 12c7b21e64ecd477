"""Reading lists of ids as text: the same as reading them number by number."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from kvsim.chain import Chain
from kvsim.errors import UserError
from kvsim.trace.ids import IdText, parse_with_ids
from kvsim.trace.read import read_trace
from kvsim.trace.session import Trace

ROW = '{"t":0,"type":"n","in":%d,"out":1,"hash_ids":%s}'


def _file(tmp_path: Path, lists: list[str], *, plain: bool = False) -> Path:
    """A session whose prompts have these ids. A text that says NaN keeps the reader from lifting lists."""
    rows = [ROW % (max(8 * (1 + text.count(",")), 1), text) for text in lists]
    path = tmp_path / ("plain.json" if plain else "lifted.json")
    why = "NaN" if plain else ""
    path.write_text(f'{{"id":"s","block_size":8,"why":"{why}","requests":[{",".join(rows)}]}}')
    return path


def _edges(trace: Trace) -> list[tuple[int, int]]:
    return [(segment.start_tokens, segment.end_tokens) for segment in trace.tree.segments]


def _chains(trace: Trace) -> list[tuple[list[int], int]]:
    chains: list[Chain] = [turn.chain for turn in trace.sessions[0].turns]
    return [([segment.index for segment in chain.segments], chain.num_tokens) for chain in chains]


def test_lists_are_lifted_and_nothing_else() -> None:
    """Lists named hash_ids become texts, whatever white space is around; a string that looks like one stays."""
    text = '{"a":{"hash_ids" :\n[1, 2]},"hash_ids":[],"note":"\\"hash_ids\\":[3]","other":[4]}'
    assert parse_with_ids(text, "f") == {
        "a": {"hash_ids": "1, 2"},
        "hash_ids": "",
        "note": '"hash_ids":[3]',
        "other": [4],
    }


@pytest.mark.parametrize("text", ['{"hash_ids":["]"]}', '{"hash_ids":[[1],2]}', '{"x":"Infinity","hash_ids":[1]}'])
def test_what_cannot_be_lifted_is_parsed_as_it_is(text: str) -> None:
    """Brackets inside a list, and texts with the word that stands for a list, leave the lists as lists."""
    found: Any = parse_with_ids(text, "f")
    assert found == json.loads(text)
    assert not isinstance(found["hash_ids"], IdText)


@pytest.mark.parametrize(
    ("lists", "edges"),
    [
        (["[1,2,13]", "[1,2,134]"], [(0, 16), (16, 24), (16, 24)]),  # 13 is not the beginning of 134
        (["[1,2,134]", "[1,2,13]"], [(0, 16), (16, 24), (16, 24)]),
        (["[1,2,3]", "[1,2]", "[1,2,3,4]"], [(0, 32)]),
        (["[1,2,3,4]", "[1,9]", "[1,2,3]"], [(0, 8), (8, 16), (8, 32)]),  # goes on in the middle of an edge
        (["[ 1, 2 ]", "[1,2,5]"], [(0, 24)]),
        (["[7]", "[8]"], [(0, 8), (0, 8)]),
    ],
)
def test_common_beginnings_end_with_a_whole_id(tmp_path: Path, lists: list[str], edges: list[tuple[int, int]]) -> None:
    """The tree is that of the numbers, however the texts begin."""
    assert sorted(_edges(read_trace([_file(tmp_path, lists)]))) == edges


@pytest.mark.parametrize("seed", range(60))
def test_lifted_lists_make_the_same_tree(tmp_path: Path, seed: int) -> None:
    """Random prompts that branch, grow, shrink and come back give the same segments and chains both ways."""
    rng = random.Random(seed)
    prompts: list[list[int]] = []
    fresh = rng.choice([1, 95, 2**63 - 5])
    for _ in range(rng.randint(1, 25)):
        base = rng.choice(prompts[-3:]) if prompts and rng.random() < 0.9 else []
        add = rng.randint(1, 9)
        prompts.append(base[: rng.randint(0, len(base))] + list(range(fresh, fresh + add)))
        fresh += add
        if rng.random() < 0.3:
            prompts.append(list(rng.choice(prompts)))
    separator = rng.choice([",", ", ", " ,"])
    lists = [f"[{separator.join(map(str, prompt))}]" for prompt in prompts]
    lifted, plain = (read_trace([_file(tmp_path, lists, plain=plain)]) for plain in (False, True))
    assert _edges(lifted) == _edges(plain)
    assert _chains(lifted) == _chains(plain)


@pytest.mark.parametrize(
    "second",
    [
        *("[1,2,]", "[1,2,,3]", "[1,2 3]", "[,1]", "[01,2]", "[1,2,-]", "[1,2,3", "[1,2,99999999 ,]"),
        *("[1,2,3.0]", "[1,2,true]", "[1,2,null]", '[1,2,"a"]', "[1,2,{}]", "[1,[2]]"),
        *("[2,1]", "[1,3]", "[1,2,4,4]", "[1,2,3,2]", "[1,2,5,3]"),
    ],
)
def test_bad_lists_get_the_same_complaint(tmp_path: Path, second: str) -> None:
    """What is wrong with a list is said in the same words, whether it was lifted or not."""
    complaints = []
    for plain in (False, True):
        path = _file(tmp_path, ["[1,2,3]", second, "[1,2]"], plain=plain)
        with pytest.raises(UserError) as error:
            read_trace([path])
        complaints.append(str(error.value).removeprefix(str(path)))
    lifted, plain_one = complaints
    if "column" in lifted:  # the plain file has a word more
        assert lifted.split("column")[0] == plain_one.split("column")[0]
    else:
        assert lifted == plain_one
