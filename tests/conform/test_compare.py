"""The comparison of two recordings."""

from __future__ import annotations

import copy
from typing import Any

from kvsim.conform.compare import Difference, canonical, first_difference


def record(step: int = 0, **changes: Any) -> dict[str, Any]:
    """One step with two requests."""
    return {"step": step, "sched": {"a": 1, "b": 2}, "running": ["a", "b"], "dma": [], "deferred": [], **changes}


def test_equal_records_do_not_differ() -> None:
    """Records with the same content are equal, and comparing changes none of them."""
    theirs = [record(0), record(1, dma=[["wait", 3], ["wait", 2]])]
    before = copy.deepcopy(theirs)
    assert first_difference(theirs, copy.deepcopy(theirs)) is None
    assert theirs == before


def test_the_first_step_and_all_its_fields_are_told() -> None:
    """Of several differing steps the first is reported, with every field that differs."""
    theirs = [record(0), record(4, running=["a"], free=1), record(5, running=[])]
    ours = [record(0), record(4, running=["b"], free=2), record(5)]
    assert first_difference(theirs, ours) == Difference(4, 1, {"free": (1, 2), "running": (["a"], ["b"])})


def test_order_counts_where_it_means_something() -> None:
    """The order of scheduled requests is compared, that of new blocks is not."""
    assert first_difference([record()], [record(sched={"b": 2, "a": 1})]) is not None
    left, right = {"a": [1], "b": [2]}, {"b": [2], "a": [1]}
    assert first_difference([record(new_blocks=left)], [record(new_blocks=right)]) is None


def test_waits_of_one_step_have_no_order() -> None:
    """Waits, of which vLLM makes a set, are sorted among their places; copies stay where they are."""
    entries = [["wait", 9], ["store", 1, [2], [3]], ["wait", 4]]
    assert canonical(record(dma=entries))["dma"] == [["wait", 4], ["store", 1, [2], [3]], ["wait", 9]]


def test_a_missing_field_is_a_difference() -> None:
    """A field that only one side has is reported with None for the other."""
    assert first_difference([record(cpu=[])], [record()]) == Difference(0, 0, {"cpu": ([], None)})


def test_the_recorders_own_field_is_not_compared() -> None:
    """`deferred` belongs to the recorder alone."""
    ours = record()
    del ours["deferred"]
    assert first_difference([record()], [ours]) is None


def test_one_recording_ends_earlier() -> None:
    """Where one side has more steps, the first of them is named with both numbers."""
    theirs = [record(0), record(1), record(7)]
    assert first_difference(theirs, theirs[:2]) == Difference(7, 2, {"number of records": (3, 2)})
    assert first_difference(theirs[:1], theirs) == Difference(1, 1, {"number of records": (1, 3)})
