"""A run moment by moment, in the Trace Event Format that ui.perfetto.dev and chrome://tracing open.

The format is Chromium's "Trace Event Format" (docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU):
complete events (``X``) for what a track does, one after the other; nested asynchronous events (``b``, ``e``) for the
life of each request; counters (``C``); metadata (``M``) for names. Times are microseconds since the simulation began.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from kvsim.errors import UserError
from kvsim.results.records import RequestRecord

Event = dict[str, Any]
T = TypeVar("T")

LEAST_KEPT = 1_000
"""Entries that a track may always remember, however many tracks there are."""


class Kept(Generic[T]):
    """An even sample of everything that was added: every ``stride``-th, at most ``most`` of them."""

    def __init__(self, most: int) -> None:
        self._most = max(most, 2)
        self.entries: list[T] = []
        self.num_seen, self.stride = 0, 1

    def take_next(self) -> bool:
        """Whether the next one is to be added; call it once for each."""
        self.num_seen += 1
        return (self.num_seen - 1) % self.stride == 0

    def add(self, entry: T) -> None:
        """Keep it; more than fit are thinned out."""
        self.entries.append(entry)
        if len(self.entries) > self._most:
            self.thin(2)

    def thin(self, factor: int) -> None:
        """Keep every ``factor``-th only, from now on too."""
        self.entries = self.entries[::factor]
        self.stride *= factor


@dataclass(slots=True)
class Slice:
    """What a track does for a while."""

    start_ns: int
    end_ns: int
    name: str
    args: dict[str, Any]


@dataclass(slots=True)
class Lifeline:
    """A request at one server: each state with the moment at which it began."""

    entry: RequestRecord
    states: list[tuple[int, str]]
    end_ns: int = -1


@dataclass(slots=True)
class Count:
    """Values of a counter from a moment on."""

    time_ns: int
    values: dict[str, float]


@dataclass(slots=True)
class Process:
    """One engine: its tracks by name, its counters by name, its requests."""

    name: str
    most: int
    lifelines: Kept[Lifeline]
    tracks: dict[tuple[str, int], Kept[Slice]] = field(default_factory=dict)
    counters: dict[str, Kept[Count]] = field(default_factory=dict)

    def track(self, name: str, lane: int = 0) -> Kept[Slice]:
        """The track of this name, or one lane of it; they are shown in the order in which names come up."""
        if (name, lane) not in self.tracks:
            self.tracks[name, lane] = Kept(self.most)
        return self.tracks[name, lane]

    def in_order(self) -> list[tuple[str, Kept[Slice]]]:
        """The tracks with their full names."""
        names = list(dict.fromkeys(name for name, _ in self.tracks))
        ordered = sorted(self.tracks.items(), key=lambda item: (names.index(item[0][0]), item[0][1]))
        return [(f"{name} {lane}" if lane else name, slices) for (name, lane), slices in ordered]

    def counter(self, name: str) -> Kept[Count]:
        """The counter of this name."""
        if name not in self.counters:
            self.counters[name] = Kept(self.most)
        return self.counters[name]


class Timeline:
    """What happened in the window, in bounded memory.

    Args:
        max_events: at most so many are written, metadata aside.
        start_ns, end_ns: the window; None = no end. What sticks out of it is cut.
        num_processes: engines that will be told of.
    """

    def __init__(self, max_events: int, start_ns: int = 0, end_ns: int | None = None, num_processes: int = 1) -> None:
        self.max_events, self.start_ns, self.end_ns = max_events, start_ns, end_ns
        self._most = max(max_events // max(num_processes, 1), LEAST_KEPT)
        self.processes: list[Process] = []
        self.dropped: list[str] = []  # told once it is bounded

    def process(self, name: str) -> Process:
        """One engine more."""
        self.processes.append(Process(name, self._most, Kept(self._most)))
        return self.processes[-1]

    def shows(self, start_ns: int, end_ns: int) -> bool:
        """Whether any part of this is in the window."""
        return end_ns >= self.start_ns and (self.end_ns is None or start_ns < self.end_ns)

    # -- as trace events
    def events(self) -> list[Event]:
        """All events, bounded: metadata first, then in the order of time."""
        self._bound()
        metadata: list[Event] = []
        events: list[Event] = []
        for pid, process in enumerate(self.processes, start=1):
            metadata.append(_name("process_name", pid, 0, process.name))
            metadata.append(_metadata("process_sort_index", pid, 0, "sort_index", pid))
            for tid, (name, slices) in enumerate(process.in_order(), start=1):
                shown = name if slices.stride == 1 else f"{name} (1 of {slices.stride})"
                metadata.append(_name("thread_name", pid, tid, shown))
                metadata.append(_metadata("thread_sort_index", pid, tid, "sort_index", tid))
                events += [self._complete(each, pid, tid) for each in slices.entries]
            for name, counts in process.counters.items():
                events += [
                    {"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": self._us(each.time_ns), "args": each.values}
                    for each in counts.entries
                ]
            for lifeline in process.lifelines.entries:
                events += self._life(lifeline, pid)
        events.sort(key=_when)  # stable: what begins and ends at one instant stays in order
        if self.dropped:
            metadata += [
                _metadata("process_labels", pid, 0, "labels", "sampled: " + "; ".join(self._dropped_of(process)))
                for pid, process in enumerate(self.processes, start=1)
                if self._dropped_of(process)
            ]
        return metadata + events

    def _bound(self) -> None:
        """Thin out whatever has more than its share of the events; what needs less leaves it to the others."""
        groups: list[Kept[Any]] = []
        for process in self.processes:
            groups += [*process.tracks.values(), *process.counters.values(), process.lifelines]
        left = self.max_events
        for place, group in enumerate(sorted(groups, key=_num_events)):
            share = max(left // (len(groups) - place), 0)
            while (size := _num_events(group)) > share and group.entries:
                if len(group.entries) == 1:
                    group.entries.clear()
                else:
                    group.thin(max(-(-size // max(share, 1)), 2))
            left -= _num_events(group)
        self.dropped = [f"{each.name}: {text}" for each in self.processes for text in self._dropped_of(each)]

    @staticmethod
    def _dropped_of(process: Process) -> list[str]:
        named: list[tuple[str, Kept[Any]]] = [*process.in_order(), *process.counters.items()]
        named.append(("lifelines", process.lifelines))
        return [
            f"{name}: {len(kept.entries):,} of {kept.num_seen:,} shown"
            for name, kept in named
            if len(kept.entries) < kept.num_seen
        ]

    def _us(self, time_ns: int) -> float:
        """Cut to the window."""
        time_ns = max(time_ns, self.start_ns)
        return (time_ns if self.end_ns is None else min(time_ns, self.end_ns)) / 1000

    def _complete(self, each: Slice, pid: int, tid: int) -> Event:
        start, end = self._us(each.start_ns), self._us(each.end_ns)
        # Rounded to the nanosecond again: the difference of two floats is not, and slices would overlap.
        duration = round(end - start, 3)
        return {"ph": "X", "name": each.name, "pid": pid, "tid": tid, "ts": start, "dur": duration, "args": each.args}

    def _life(self, lifeline: Lifeline, pid: int) -> Iterator[Event]:
        """The request, and in it one state after the other; a state that took no time is left out."""
        entry = lifeline.entry
        title = f"{entry.session}/{entry.stream}" if entry.stream else entry.session
        common = {"cat": "request", "id2": {"local": entry.request_id}, "pid": pid, "tid": 0}
        first, last = self._us(lifeline.states[0][0]), self._us(lifeline.end_ns)
        yield {"ph": "b", "name": title, "ts": first, **common, "args": _facts(entry)}
        ends = [start for start, _ in lifeline.states[1:]] + [lifeline.end_ns]
        for (start_ns, state), end_ns in zip(lifeline.states, ends, strict=True):
            start, end = self._us(start_ns), self._us(end_ns)
            if end > start:
                yield {"ph": "b", "name": state, "ts": start, **common}
                yield {"ph": "e", "name": state, "ts": end, **common}
        yield {"ph": "e", "name": title, "ts": last, **common}


def write_timeline(path: Path, timeline: Timeline) -> int:
    """Write all events, one a line.

    Returns:
        Number of events, metadata aside.

    Raises:
        UserError: the file cannot be written.
    """
    events = timeline.events()
    window = [timeline.start_ns / 1e9, None if timeline.end_ns is None else timeline.end_ns / 1e9]
    facts = {
        "made_by": "kvsim",
        "time_zero": "start of the simulation",
        "window_s": window,
        "dropped": timeline.dropped,
    }
    try:
        with path.open("w", encoding="utf-8", newline="\n") as file:
            file.write('{"displayTimeUnit": "ms",\n"otherData": ' + _json(facts) + ',\n"traceEvents": [\n')
            file.writelines(
                f"{_json(event)}{',' if place + 1 < len(events) else ''}\n" for place, event in enumerate(events)
            )
            file.write("]}\n")
    except OSError as error:
        raise UserError(f"{path}: cannot write the timeline: {error.strerror or error}") from error
    return sum(event["ph"] != "M" for event in events)


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _when(event: Event) -> float:
    at: float = event["ts"]
    return at


def _name(kind: str, pid: int, tid: int, name: str) -> Event:
    return _metadata(kind, pid, tid, "name", name)


def _metadata(kind: str, pid: int, tid: int, key: str, value: str | int) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": {key: value}}


def _facts(entry: RequestRecord) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "request": entry.request_id,
        "turn": entry.turn,
        "prompt_tokens": entry.prompt_tokens,
        "output_tokens": entry.output_tokens,
        "gpu_hit_tokens": entry.local_hit_tokens,
        "offload_hit_tokens": entry.external_hit_tokens,
        "status": entry.status,
    }
    if entry.remote_tokens:
        facts["remote_tokens"] = entry.remote_tokens
    if entry.reason:
        facts["reason"] = entry.reason
    return facts


def _num_events(group: Kept[Any]) -> int:
    return sum(2 + 2 * len(each.states) if isinstance(each, Lifeline) else 1 for each in group.entries)
