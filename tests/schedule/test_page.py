"""traces/SCHEDULE.md is held to its word."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from schedule_world import dropped

from kvsim.errors import UserError
from kvsim.results.schedule import check, ordered, read_schedule

PAGE = (Path(__file__).parents[2] / "traces" / "SCHEDULE.md").read_text()
(EXAMPLE,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)


def test_the_example_is_a_schedule(tmp_path: Path) -> None:
    """The page's three steps are sound, need all that they say, and `check` objects to less as the page says."""
    path = tmp_path / "example.jsonl"
    path.write_text(EXAMPLE)
    schedule = read_schedule(path)
    assert [step.step for step in schedule.steps] == [3, 4, 7]
    check(schedule)
    less = dropped(schedule, 3, 2)
    assert ordered(less.steps) == list(schedule.steps)
    (complaint,) = re.findall(r"^    (step 7: .*)$", PAGE, re.MULTILINE)
    with pytest.raises(UserError, match=f"^{complaint}$"):
        check(less)


def test_every_field_is_explained() -> None:
    """Each field that a file has stands in the tables of the page."""
    tables = "\n".join(line for line in PAGE.splitlines() if line.startswith(("|", "`layout`", "`layers`")))
    for field in set(re.findall(r'"(\w+)":', EXAMPLE)) - {"gpu", "host", "files", "start_ns"}:
        assert f"`{field}`" in tables, field
