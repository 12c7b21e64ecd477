"""Seventeen command lines that people posted, and fragments, for both releases."""

from __future__ import annotations

from contextlib import suppress
from functools import reduce
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm_line.lines import BOTH, LINES

from kvsim.errors import UserError
from kvsim.vllm_line import config_of_line, parse_command_line, to_command_line

CASES = [(name, version) for name in LINES for version in BOTH]


@pytest.mark.parametrize(("name", "version"), CASES)
def test_what_is_in_a_line(name: str, version: str) -> None:
    """GPUs, what is offloaded and how much of it, and the limits are those that a careful reader finds."""
    posted = LINES[name]
    found = parse_command_line(posted.text, version, posted.gpu)
    assert found.model == posted.model
    assert (found.ranks.tensor, found.ranks.pipeline, found.ranks.data) == posted.ranks
    assert (found.gpus, found.ranks.expert) == (posted.gpus, posted.expert)
    budget = posted.budget if isinstance(posted.budget, int) else posted.budget[version]
    assert (found.max_num_batched_tokens, found.max_num_seqs) == (budget, posted.seqs)
    assert ("auto" if found.fits_model_len else found.max_model_len) == posted.length
    if posted.transfer is None:
        assert found.transfer is None
        assert "connector" not in found.sections
    else:
        assert {key: getattr(found.transfer, key) for key in posted.transfer} == posted.transfer


@pytest.mark.parametrize(("name", "version"), CASES)
def test_what_is_refused_and_noted(name: str, version: str) -> None:
    """VLLM's parser refuses what the real one refuses and nothing else; what people overlook is in a note."""
    posted = LINES[name]
    found = parse_command_line(posted.text, version, posted.gpu)
    assert len(found.refusals) == len(posted.refused), found.refusals
    for part, text in zip(posted.refused, found.refusals, strict=True):
        assert part in text
    for part in posted.notes:
        assert any(part in note for note in found.notes), found.notes
    for part in posted.not_simulated:
        assert any(part in text for text in found.not_simulated), found.not_simulated
    for part in posted.fails.get(version, ()):
        assert any(part in text for text in found.start_failures), found.start_failures
    assert len(found.start_failures) == len(posted.fails.get(version, ())), found.start_failures
    for dotted, value in posted.sections.items():
        assert reduce(_inside, dotted.split("."), found.sections) == value


DAMAGE = ("{", "}", "[", "'", '"', "$", "`", "\\", "\n", " ", "=", "null", "NaN", "1e999", "-1", "[]", ":", "args: [")


@settings(max_examples=80)
@given(st.data())
def test_damaged_lines(data: st.DataObject) -> None:
    """Whatever a paste has lost or got, it is a result or an error of one line, and never a traceback."""
    text = data.draw(st.sampled_from([posted.text for posted in LINES.values()]))
    for _ in range(data.draw(st.integers(1, 5))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 12)))
        text = text[:start] + data.draw(st.sampled_from(("", *DAMAGE))) + text[end:]
    for version in BOTH:
        with suppress(UserError):
            to_command_line(config_of_line(text))
        with suppress(UserError):
            found = parse_command_line(text, version, "h100-sxm")
            assert found.problems or found.sections


def _inside(section: Any, key: str) -> Any:
    return section.get(key)
