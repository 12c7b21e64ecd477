"""How differing values are shown."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from kvsim.conform.check import Outcome, profile_for
from kvsim.conform.compare import Difference
from kvsim.conform.show import difference_report, equal_line, shorten


@pytest.mark.parametrize(
    ("theirs", "ours", "shown"),
    [
        (3, 4, ("3", "4")),
        (None, ["a"], ("null", '["a"]')),
        ("s0t0", "s1t0", ("s0t0", "s1t0")),
        # lists: from two entries before the first that differs
        (["a", "b", "c", "d"], ["a", "b", "c", "e"], ("[...1 more, b, c, d]", "[...1 more, b, c, e]")),
        (["a"], ["a", "b"], ("[a] (only 1)", "[a, b]")),
        # the difference may lie deep inside
        (
            {"a": [1, 2, 3, [4, 5]]},
            {"a": [1, 2, 3, [4, 6]]},
            ("{a: [...1 more, 2, 3, [4, 5]]}", "{a: [...1 more, 2, 3, [4, 6]]}"),
        ),
        (
            [["store", 0, list(range(99)), [5, 6]]],
            [["store", 0, list(range(99)), [5, 7]]],
            ("[[...1 more, 0, [0, 1, 2, 3, 4, 5..., [5, 6]]]", "[[...1 more, 0, [0, 1, 2, 3, 4, 5..., [5, 7]]]"),
        ),
        # mappings: only the keys that differ
        ({"a": 1, "b": 2}, {"a": 1, "c": 3}, ("{b: 2, no c}", "{no b, c: 3}")),
    ],
)
def test_values_are_shortened_around_the_difference(theirs: Any, ours: Any, shown: tuple[str, str]) -> None:
    """Two values become two texts in which the first difference can be seen."""
    assert shorten(theirs, ours) == shown


def test_long_lists_stay_short() -> None:
    """A difference deep inside a long list is shown in a few lines."""
    theirs, ours = list(range(5000)), [*range(4000), -1, *range(4001, 5000)]
    left, right = shorten(theirs, ours)
    assert left.startswith("[...3998 more, 3998, 3999, 4000, 4001")
    assert right.startswith("[...3998 more, 3998, 3999, -1, 4001")
    assert max(len(left), len(right)) <= 160


def test_reports_stay_within_100_columns() -> None:
    """Long names, long values and many requests do not make the report wider."""
    names = [f"a-rather-long-session-name-{number}t0" for number in range(40)]
    step = {
        "step": 8, "sched": dict.fromkeys(names, 1), "running": names, "waiting": names, "skipped": [], "free": 3,
    }  # fmt: skip
    found = Difference(9, 5, {"running": (names, names[::-1]), "a_field_with_a_very_long_name_indeed": (1, 2)})
    outcome = Outcome("world", "0.34.0", "0.33.0", 5, found, [step, step], failure="AssertionError: " + "x " * 300)
    console = Console(width=100)
    with console.capture() as capture:
        console.print(difference_report(outcome))
    text = capture.get()
    assert max(map(len, text.splitlines())) <= 100
    assert "world: step 9 differs (vLLM 0.34.0 against profile 0.33.0), 5 steps before it are equal" in text
    assert "kvsim broke off: AssertionError: x x x" in text


def test_a_common_deadlock_is_told() -> None:
    """That both sides got stuck is part of the line."""
    assert equal_line(Outcome("x", "0.33.0", "0.33.0", 7, deadlock=True)) == (
        "x: 7 steps equal (vLLM 0.33.0, a deadlock in both)"
    )


def test_profiles_are_found_by_version() -> None:
    """A release is compared under its own profile, any other under the nearest, a source build under the newest."""
    assert profile_for("0.23.0") == "0.23.0"
    nearest = {
        version: profile_for(version)
        for version in ("0.33.1", "0.29.0", "0.27.9", "0.20.2", "1.0.0", "dev", "0.1.dev1+g123abc")
    }
    assert nearest == {
        "0.33.1": "0.33.0", "0.29.0": "0.33.0", "0.27.9": "0.23.0", "0.20.2": "0.23.0",
        "1.0.0": "0.33.0", "dev": "0.33.0", "0.1.dev1+g123abc": "0.33.0",
    }  # fmt: skip
