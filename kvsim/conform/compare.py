"""Two lists of records: equal, or the first step and fields that are not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Record = dict[str, Any]

# Not compared: one is always empty, the other is the recorder's own.
_ARTEFACTS = frozenset({"deferred"})


@dataclass(frozen=True, slots=True)
class Difference:
    """The first step that differs, and its fields: name -> (theirs, ours)."""

    step: int
    index: int  # of the record
    fields: dict[str, tuple[Any, Any]]


def canonical(record: Record) -> Record:
    """A record with what depends on the iteration order of a set put in order, and artefacts dropped."""
    record = {key: value for key, value in record.items() if key not in _ARTEFACTS}
    record["sched"] = list(record["sched"].items())  # here order matters
    if "dma" in record:
        waits = iter(sorted(entry for entry in record["dma"] if entry[0] == "wait"))
        record["dma"] = [next(waits) if entry[0] == "wait" else entry for entry in record["dma"]]
    return record


def first_difference(theirs: list[Record], ours: list[Record]) -> Difference | None:
    """The first record that differs in any field, or that only one side has; None = all equal."""
    for index, (a, b) in enumerate(zip(map(canonical, theirs), map(canonical, ours), strict=False)):
        if a != b:
            fields = {key: (a.get(key), b.get(key)) for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)}
            return Difference(a["step"], index, fields)
    if len(theirs) != len(ours):
        index = min(len(theirs), len(ours))
        step = (theirs if len(theirs) > index else ours)[index]["step"]
        return Difference(step, index, {"number of records": (len(theirs), len(ours))})
    return None
