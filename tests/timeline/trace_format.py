"""What the Trace Event Format demands of events, as far as a timeline uses it."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

# Fields that the format demands, and those that Perfetto's importer needs besides, by phase.
FIELDS = {
    "X": {"name", "pid", "tid", "ts", "dur", "args"},
    "C": {"name", "pid", "tid", "ts", "args"},
    "b": {"name", "cat", "id2", "pid", "tid", "ts"},
    "e": {"name", "cat", "id2", "pid", "tid", "ts"},
    "M": {"name", "pid", "tid", "ts", "args"},
}


def check_events(events: list[dict[str, Any]]) -> None:
    """Fields, order, names of tracks, slices one after the other, asynchronous pairs well nested."""
    for event in events:
        expected = FIELDS[event["ph"]] | {"ph"}
        assert expected <= event.keys() <= expected | {"args"}, event
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event["ts"] >= 0
    timed = [event for event in events if event["ph"] != "M"]
    assert all(a["ts"] <= b["ts"] for a, b in pairwise(timed))
    named = {(event["name"], event["pid"], event["tid"]) for event in events if event["ph"] == "M"}
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    open_: dict[tuple[int, str], list[str]] = defaultdict(list)
    for event in timed:
        assert ("process_name", event["pid"], 0) in named
        if event["ph"] == "X":
            assert ("thread_name", event["pid"], event["tid"]) in named
            assert event["dur"] >= 0
            tracks[event["pid"], event["tid"]].append((event["ts"], event["dur"]))
        elif event["ph"] == "C":
            assert all(isinstance(value, int | float) and value >= 0 for value in event["args"].values())
        elif event["ph"] == "b":
            open_[event["pid"], event["id2"]["local"]].append(event["name"])
        else:
            assert open_[event["pid"], event["id2"]["local"]].pop() == event["name"]
    assert not any(open_.values())
    for slices in tracks.values():
        for (start, duration), (following, _) in pairwise(slices):
            assert round(start + duration, 3) <= following
