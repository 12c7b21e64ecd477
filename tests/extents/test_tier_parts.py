"""What the secondary tiers are made of, by the run and key by key: sets, files, questions."""

from __future__ import annotations

from random import Random

from prefix_tree import PrefixTree, spelled
from tier_worlds import compare_files

from kvsim.extents.files import RunFiles
from kvsim.extents.lookup import RunLookup
from kvsim.extents.path import Key, Run, Runs
from kvsim.extents.pieces import joined
from kvsim.extents.run_set import RunSet
from kvsim.extents.store_use import RunStoreUse
from kvsim.offload.async_lookup import AsyncLookup
from kvsim.offload.store_use import StoreUse
from kvsim.offload.tiering import Answer
from kvsim.tiers.files import Files


def keys(first: int, last: int) -> Runs:
    """Chunks of segment 0."""
    return Runs([Run(0, first, last)])


def test_a_set_joins_what_touches() -> None:
    """[0, 3) and [3, 5) are one run; what lies between two runs makes them one; adding and removing is counted."""
    some = RunSet()
    assert [some.add([Run(0, 0, 3)]), some.add([Run(0, 3, 5)]), some.add([Run(0, 7, 9)])] == [3, 2, 2]
    assert some.add([Run(0, 4, 8)]) == 2
    assert (len(some), len(list(some._pieces))) == (9, 1)
    assert some.discard([Run(0, 2, 4), Run(1, 0, 5)]) == 2
    assert (Key(0, 1) in some, Key(0, 2) in some, Key(0, 4) in some, len(some)) == (True, False, True, 7)
    assert some.isdisjoint([Run(0, 2, 4), Run(0, 9, 10)])
    assert not some.isdisjoint([Run(0, 2, 5)])


def test_runs_are_joined_where_they_touch() -> None:
    """Only in order, and only in their own segment."""
    runs = [Run(0, 0, 1), Run(0, 1, 3), Run(1, 3, 4), Run(1, 5, 6), Run(1, 4, 5)]
    assert joined(runs) == [Run(0, 0, 3), Run(1, 3, 4), Run(1, 5, 6), Run(1, 4, 5)]


def test_sets_and_store_use_equal_those_of_keys() -> None:
    """The same keys go in and out at random: equal counts, equal members."""
    for seed in range(100):
        rng = Random(seed)
        tree = PrefixTree(rng, rng.randint(1, 6), 12)
        some, other, use, expected = RunSet(), set[int](), RunStoreUse(), StoreUse()
        for _ in range(60):
            runs = Runs(tree.stretch())
            names = spelled(runs)
            assert some.isdisjoint(runs.runs) == other.isdisjoint(names)
            if rng.random() < 0.5:
                assert some.add(runs.runs) == len(set(names) - other)
                other.update(names)
                use.stored(runs)
                expected.stored(names)
            else:
                assert some.discard(runs.runs) == len(set(names) & other)
                other.difference_update(names)
                use.loaded(runs)
                expected.loaded(names)
            assert len(some) == len(other)
            assert [key in some for key in runs] == [name in other for name in names]
            assert sorted(spelled(Runs(some))) == sorted(other)
            run = tree.stretch()[0]
            is_in, count = some.leading(run)
            members = [name in other for name in spelled(Runs([run]))]
            assert members[:count] == [is_in] * count
            assert members[count : count + 1] != [is_in]
            assert (use.num_stored, use.num_unused) == (expected.num_stored, expected.num_unused)


def test_files_go_tail_first_and_those_being_read_stay() -> None:
    """Of [0, 6) on a disk of 6, with 4 being read, the last two others go for two new ones."""
    files = RunFiles(6, evict=True)
    assert files.reserve(6) == 6
    files.publish(keys(0, 6))
    files.open(keys(4, 5))
    assert files.reserve(2) == 2
    assert files.missing(keys(0, 8)) == Runs([Run(0, 3, 4), Run(0, 5, 8)])
    assert files.find(keys(2, 5)) == [(Run(0, 2, 3), True), (Run(0, 3, 4), False), (Run(0, 4, 5), True)]
    files.close(keys(4, 5))
    assert files.lru_order() == [Run(0, 0, 3), Run(0, 4, 5)]
    assert (files.num_evicted, files.num_reserved, len(files), files.epoch) == (2, 2, 4, 2)


def test_files_equal_those_of_keys() -> None:
    """Writers and readers at random, on disks that are full, or evict, or neither."""
    for seed in range(150):
        rng = Random(seed)
        tree = PrefixTree(rng, rng.randint(1, 6), 12)
        most, evict = rng.choice([(None, False), (20, False), (20, True), (45, True), (None, True)])
        files, expected = RunFiles(most, evict=evict), Files(most, evict=evict)
        writing: list[Runs] = []
        reading: list[Runs] = []
        for _ in range(120):
            runs = Runs(tree.stretch())
            dice = rng.random()
            if dice < 0.4:
                if rng.random() < 0.7:  # else it is put again
                    assert spelled(files.missing(runs)) == (missing := expected.missing(spelled(runs)))
                    runs = files.missing(runs)
                    assert spelled(runs) == missing
                room = files.reserve(len(runs))
                assert room == expected.reserve(len(runs))
                if room:
                    writing.append(runs[:room])
            elif dice < 0.6 and writing:
                done = writing.pop(rng.randrange(len(writing)))
                part = rng.randint(1, len(done))
                files.publish(done[:part])
                expected.publish(spelled(done[:part]))
                if part < len(done):
                    writing.append(done[part:])
            elif dice < 0.75:
                files.open(runs)
                expected.open(spelled(runs))
                reading.append(runs)
            elif reading:
                done = reading.pop(rng.randrange(len(reading)))
                files.close(done)
                expected.close(spelled(done))
            compare_files(files, expected)
            runs = Runs(tree.stretch())
            found = [(name, is_here) for run, is_here in files.find(runs) for name in spelled(Runs([run]))]
            assert found == expected.find(spelled(runs))
            assert [key in files for key in runs] == [name in expected for name in spelled(runs)]


def test_questions_are_asked_once_in_their_order() -> None:
    """A batch holds what is new; an answer stays as long as somebody who has asked lives."""
    lookup = RunLookup()
    lookup.ask(Run(0, 0, 4), "r")
    lookup.ask(Run(0, 2, 6), "s")
    assert lookup.num_changes == 3  # two new stretches, and s asks for [2, 4), too
    lookup.ask(Run(0, 1, 3), "r")
    assert lookup.num_changes == 3
    assert lookup.peek(Run(0, 0, 9)) == (Answer.RETRY, 6)
    assert lookup.flush() == keys(0, 6)
    lookup.answer([(Run(0, 0, 5), True), (Run(0, 5, 6), False)])
    assert (lookup.peek(Run(0, 1, 9)), lookup.peek(Run(0, 5, 9))) == ((Answer.HIT, 4), (Answer.MISS, 1))
    lookup.on_request_finished("s")
    assert (lookup.peek(Run(0, 1, 9)), lookup.peek(Run(0, 4, 9))) == ((Answer.HIT, 3), (Answer.RETRY, 5))
    lookup.mark_miss(keys(2, 9))
    assert (lookup.peek(Run(0, 1, 9)), lookup.epoch) == ((Answer.HIT, 1), 3)


def compare_answers(lookup: RunLookup, expected: AsyncLookup) -> None:
    """Equal memories."""
    known = {
        name: piece for piece in lookup._pieces for name in spelled(Runs([Run(piece.segment, piece.first, piece.last)]))
    }
    assert {name: piece.answer for name, piece in known.items()} == expected._answers
    assert {name: piece.askers for name, piece in known.items()} == expected._asked_by
    assert {name for name, piece in known.items() if piece.is_looked_for} == expected._looking
    assert lookup.epoch == expected.epoch


def test_questions_equal_those_of_keys() -> None:
    """Requests ask, go and come back at random while batches are answered: equal batches, answers and askers."""
    for seed in range(150):
        rng = Random(seed)
        tree = PrefixTree(rng, rng.randint(1, 6), 12)
        lookup, expected = RunLookup(), AsyncLookup()
        batches: list[Runs] = []
        for _ in range(100):
            dice = rng.random()
            if dice < 0.5:
                request, changes, expected_changes = rng.choice("abcd"), lookup.num_changes, expected.num_changes
                todo = tree.stretch()
                while todo:
                    run = todo.pop(0)
                    answer, count = lookup.peek(run)
                    asked = run._replace(last=run.first + count)
                    lookup.ask(asked, request)
                    assert [expected.ask(name, request) for name in spelled(Runs([asked]))] == [answer] * count
                    if asked.last < run.last:
                        todo.insert(0, run._replace(first=asked.last))
                assert (lookup.num_changes == changes) == (expected.num_changes == expected_changes)
            elif dice < 0.7:
                batch = lookup.flush()
                assert spelled(batch) == expected.flush()
                if batch:
                    batches.append(batch)
            elif dice < 0.85 and batches:
                found = []
                for segment, first, last in batches.pop(0).runs:
                    middle = rng.randint(first, last)
                    found += [(Run(segment, first, middle), True), (Run(segment, middle, last), False)]
                lookup.answer(found)
                expected.answer((name, is_there) for run, is_there in found for name in spelled(Runs([run])))
            elif dice < 0.9:
                lost = Runs(tree.stretch())
                lookup.mark_miss(lost)
                expected.mark_miss(spelled(lost))
            else:
                request = rng.choice("abcd")
                lookup.on_request_finished(request)
                expected.on_request_finished(request)
            compare_answers(lookup, expected)
