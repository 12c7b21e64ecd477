"""RunMaster: the master of a shared store (`kvsim.store.master`), by the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from kvsim.clock import Clock
from kvsim.extents.path import Key, Run, Runs
from kvsim.extents.pieces import join_on
from kvsim.extents.run_set import RunSet
from kvsim.store.master import DISCARD_NS, Entry, Located, Master, MasterRules, Part, PutStart, source_of
from kvsim.store.run_leases import RunLeases
from kvsim.store.segments import Segment, Segments

NOTHING = 0
Home = tuple[tuple[Segment, ...], Segment | None]  # where an object has its copies: in memory, on disk
Listener = Callable[[], None]


class _Shelf:
    """Complete objects of one segment of a tree: the number of the home of each, by its position."""

    __slots__ = ("first", "homes")

    def __init__(self, first: int) -> None:
        self.first = first
        self.homes: list[int] = []

    def put(self, position: int, home: int) -> None:
        """One object's home."""
        at = position - self.first
        if at < 0:
            self.homes[:0] = [NOTHING] * -at
            self.first, at = position, 0
        missing = at + 1 - len(self.homes)
        if missing > 0:
            self.homes += [NOTHING] * missing
        self.homes[at] = home

    def of(self, first: int, last: int) -> list[int]:
        """Homes of objects that are here."""
        return self.homes[first - self.first : last - self.first]


class _Places(Collection[int]):
    """Places of those among so many objects that have one of these homes."""

    def __init__(self, homes: Sequence[int], wanted: set[int], count: int) -> None:
        self._homes, self._wanted, self._count = homes, wanted, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        return (place for place, home in enumerate(self._homes) if home in self._wanted)

    def __contains__(self, place: object) -> bool:
        return place in list(self)


class RunMaster(Master):
    """Answers as `Master` does, at a cost per stretch of objects. Keys are `Runs` of chains, or `Key`s one by one.

    Only what is being written is kept by the object; what is complete lies on shelves, and who has looked at a stretch
    may ask to be told before anything changes there.

    Attributes:
        before_dropping: told before the order of leases is looked at.
    """

    def __init__(self, clock: Clock, segments: Segments, rules: MasterRules | None = None) -> None:
        super().__init__(clock, segments, rules)
        self._leased = RunLeases(self.rules.lease_ns)
        self._found, self._memory = RunSet(), RunSet()  # what can be read; what has a copy in memory
        self._shelves: dict[int, _Shelf] = {}
        self._homes: list[Home] = [((), None)]
        self._home_numbers: dict[Home, int] = {}
        self._listeners: dict[int, dict[Listener, None]] = {}  # by segment of the tree
        self.before_dropping: dict[Listener, None] = {}

    def __len__(self) -> int:
        return len(self._entries) + len(self._found)  # the former: what is being written

    # -- reading
    def prefix(self, keys: Runs) -> int:  # type: ignore[override]
        self._leased.read(self._memory.present(keys.runs), self._clock.now)
        return self.num_leading(keys)

    def num_leading(self, keys: Runs) -> int:
        """How many of these can be read, up to the first that cannot; without leases."""
        found = 0
        for run in keys.runs:
            gaps = self._found.missing((run,))
            if gaps:
                return found + gaps[0].first - run.first
            found += run.last - run.first
        return found

    def lease(self, keys: Runs, asked_ns: int, turn: int) -> None:
        """Somebody's scheduler has asked for these; ``asked_ns`` may be past, if nothing of them has changed since."""
        self._leased.read(self._memory.present(keys.runs), asked_ns, turn + 1)

    def missing(self, keys: Runs) -> Runs:  # type: ignore[override]
        self._leased.read(self._memory.present(keys.runs), self._clock.now)
        return Runs(self._found.missing(keys.runs))

    def locate(self, keys: Runs) -> Located:  # type: ignore[override]
        homes = self._homes_of(keys)
        sources: dict[tuple[Segment, bool], tuple[set[int], int]] = {}
        gone: set[int] = set()
        for number, count in Counter(homes).items():
            source = source_of(*self._homes[number])
            if source is None:
                gone.add(number)
            else:
                numbers, total = sources.get(source, (set(), 0))
                sources[source] = numbers | {number}, total + count
        parts = [Part(*source, _Places(homes, *found)) for source, found in sources.items()]
        missing = [place for place, home in enumerate(homes) if home in gone] if gone else []
        self._leased.read(self._memory.present(keys.runs), self._clock.now)
        return Located(parts, missing, self._clock.now + self.rules.lease_ns)

    def _homes_of(self, keys: Runs) -> list[int]:
        homes: list[int] = []
        for run in keys.runs:
            position = run.first
            for _, first, last in self._found.present((run,)):
                homes += [NOTHING] * (first - position)
                homes += self._shelves[run.segment].of(first, last)
                position = last
            homes += [NOTHING] * (run.last - position)
        return homes

    # -- who has looked
    def watch(self, segments: Iterable[int], listener: Listener) -> None:
        """Tell somebody, once, before anything changes in one of these segments."""
        for segment in segments:
            self._listeners.setdefault(segment, {})[listener] = None

    def unwatch(self, segments: Iterable[int], listener: Listener) -> None:
        """No longer."""
        for segment in segments:
            listeners = self._listeners.get(segment)
            if listeners is not None:
                listeners.pop(listener, None)
                if not listeners:
                    del self._listeners[segment]

    def _changes(self, runs: Iterable[Run]) -> None:
        if self._listeners:
            for run in runs:
                for listener in self._listeners.pop(run.segment, ()):
                    listener()

    # -- writing
    def put_start(self, keys: Iterable[Key], writer: str) -> PutStart:
        now, answer = self._clock.now, PutStart([], [], [])
        for key in keys:
            entry = self._entries.get(key)
            if key in self._found or (entry is not None and now - entry.started_ns < DISCARD_NS):
                answer.existing.append(key)
                continue
            if entry is not None:
                self._drop_open(key, entry)
            memory = self._allocate(writer)
            if memory:
                self._entries[key] = Entry(now, memory)
                answer.placed.append((key, memory))
            else:
                answer.refused.append(key)
        if answer.refused:
            self.num_refused += len(answer.refused)
            self._wanted = True
        self._look_soon()
        return answer

    def _drop_open(self, key: Key, entry: Entry) -> None:
        for segment in entry.memory:
            self.segments.release(segment)
        del self._entries[key]

    def put_end(self, keys: Iterable[Key]) -> None:
        done: list[Run] = []
        homes: list[tuple[Key, int]] = []
        for key in keys:
            entry = self._entries.pop(key, None)
            if entry is not None:
                homes.append((key, self._number((tuple(entry.memory), None))))
                join_on(done, Run(key.segment, key.position, key.position + 1))
        self._changes(done)
        for (segment, position), home in homes:
            shelf = self._shelves.get(segment)
            if shelf is None:
                shelf = self._shelves[segment] = _Shelf(position)
            shelf.put(position, home)
        self._found.add(done)
        self._memory.add(done)
        self._leased.write(done, self._clock.now)
        self._look_soon()

    def put_revoke(self, keys: Iterable[Key]) -> None:
        for key in keys:
            entry = self._entries.get(key)
            if entry is not None:
                self._drop_open(key, entry)

    def _number(self, home: Home) -> int:
        """Of a home with any copy at all."""
        if not home[0] and home[1] is None:
            return NOTHING
        number = self._home_numbers.get(home)
        if number is None:
            number = self._home_numbers[home] = len(self._homes)
            self._homes.append(home)
        return number

    def add_disk(self, key: Key, segment: Segment) -> bool:
        if key not in self._found:
            return False
        memory, disk = self._homes[self._shelves[key.segment].of(key.position, key.position + 1)[0]]
        if disk is not None or (segment not in memory and not (segment.is_shared and memory)):
            return False
        self._move(Run(key.segment, key.position, key.position + 1), lambda home: (home[0], segment))
        return True

    def lose_disk(self, key: Key) -> None:
        if key in self._found:
            self._move(Run(key.segment, key.position, key.position + 1), lambda home: (home[0], None))

    def _move(self, run: Run, change: Callable[[Home], Home]) -> None:
        """The copies of objects that can be read are elsewhere now, or nowhere."""
        self._changes((run,))
        shelf = self._shelves[run.segment]
        before = shelf.of(run.first, run.last)
        after = {number: self._number(change(self._homes[number])) for number in set(before)}
        kept: list[Run] = []
        in_memory: list[Run] = []
        for position, number in enumerate(before, run.first):
            new = after[number]
            shelf.homes[position - shelf.first] = new
            (old_memory, _), (memory, _) = self._homes[number], self._homes[new]
            for segment in old_memory:
                if segment not in memory:
                    self.segments.release(segment)
            if new != NOTHING:
                join_on(kept, Run(run.segment, position, position + 1))
            if memory:
                join_on(in_memory, Run(run.segment, position, position + 1))
        for known, left in ((self._found, kept), (self._memory, in_memory)):
            known.discard(_without(run, left))
        self._leased.forget(_without(run, in_memory))

    # -- nodes
    def _give_up(self, segment: Segment) -> None:
        for key, entry in list(self._entries.items()):
            if segment in entry.memory:
                entry.memory.remove(segment)
                self.segments.release(segment)
                if not entry.memory:
                    self.num_lost += 1
                    del self._entries[key]
        before = len(self._found)
        concerned = {
            number for number, (memory, disk) in enumerate(self._homes) if segment in memory or disk is segment
        }
        for number, shelf in self._shelves.items():
            runs: list[Run] = []
            for position, home in enumerate(shelf.homes, shelf.first):
                if home in concerned:
                    join_on(runs, Run(number, position, position + 1))
            for run in runs:
                self._move(run, lambda home: _without_node(home, segment))
        self.num_lost += before - len(self._found)
        self.segments.unmount(segment)
        self._look_soon()

    # -- dropping
    def _first_end(self) -> int | None:
        self._ask_who_looked()
        return self._leased.first_end()

    def _ask_who_looked(self) -> None:
        for listener in list(self.before_dropping):
            listener()

    def _evict_oldest(self, count: int) -> int:
        self._ask_who_looked()
        evicted = 0
        for run in self._leased.expired(self._clock.now, count):
            for number in self._shelves[run.segment].of(run.first, run.last):
                for segment in self._homes[number][0]:
                    segment.evicted += 1
            evicted += run.last - run.first
            self._move(run, lambda home: ((), home[1]))
        return evicted

    # -- checking
    def check(self) -> None:
        used: Counter[Segment] = Counter()
        for entry in self._entries.values():
            assert entry.memory, "an object is written nowhere"
            used.update(entry.memory)
        count = 0
        for shelf in self._shelves.values():
            for number in shelf.homes:
                used.update(self._homes[number][0])
                count += number != NOTHING
        assert count == len(self._found), "shelves and what can be found differ"
        for segment in self.segments.all:
            assert segment.used == used[segment], f"segment {segment.number} is not as full as it says"
            assert segment.used <= segment.capacity, f"segment {segment.number} is overfull"
        mounted = sum(segment.used for segment in self.segments.all if segment.mounted)
        assert mounted == self.segments.used, "the sum of all segments is wrong"


def _without_node(home: Home, segment: Segment) -> Home:
    memory, disk = home
    return tuple(each for each in memory if each is not segment), None if disk is segment else disk


def _without(run: Run, kept: Sequence[Run]) -> list[Run]:
    """What of a run is not among these parts of it, which ascend."""
    left: list[Run] = []
    position = run.first
    for _, first, last in kept:
        if first > position:
            left.append(Run(run.segment, position, first))
        position = last
    if position < run.last:
        left.append(Run(run.segment, position, run.last))
    return left
