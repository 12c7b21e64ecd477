"""FaultyRunTier against FaultyTier: the same goes wrong before a tier of runs and before one of keys."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from itertools import pairwise
from random import Random
from typing import Any

from prefix_tree import PrefixTree, spelled
from tier_worlds import Heard, TierSettings, compare_tiers, wait

from kvsim.clock import Clock
from kvsim.extents.changes import Finding
from kvsim.extents.files import RunFiles
from kvsim.extents.path import Key, Run, Runs
from kvsim.faults.hazard import Chance, Hazard
from kvsim.faults.run_tiers import FaultyRunTier
from kvsim.faults.tiers import FaultyTier, Way
from kvsim.offload.tiering import Answer
from kvsim.results.records import FaultTotals, TierTotals
from kvsim.tiers.example import ExampleTier
from kvsim.tiers.run_tiers import RunExampleTier

WAYS: tuple[Way, Way] = ("load", "store")


class World:
    """The same random things happen to both."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.tree = PrefixTree(rng, rng.randint(1, 6), 14)
        self.clock, self.other_clock = Clock(), Clock()
        heard, other_heard = Heard(self.clock), Heard(self.other_clock)
        self.inner: Any
        self.other_inner: Any
        if rng.random() < 0.3:
            totals = [TierTotals("t", "example", "d", 10) for _ in range(2)]
            self.inner, self.other_inner = RunExampleTier(totals[0], 10), ExampleTier(totals[1], 10)
        else:
            settings = TierSettings(rng)
            self.inner = settings.build(self.clock, heard, by_run=True)
            self.other_inner = settings.build(self.other_clock, other_heard, by_run=False)
        self.heard = heard, other_heard
        remembers, deadline_ns = rng.random() < 0.7, rng.choice([0, 100, 5_000])
        chances = {
            f"{what} {way}": Chance(
                rng.choice([0.0, 0.1, 0.5]), rng.choice([(), ((500, 9_000),)]), frozenset(rng.sample(range(9), 2))
            )
            for what in ("lost", "stalled")
            for way in WAYS
        }

        def faulty(kind: type[FaultyTier], clock: Clock, tier: Any, wake: Any) -> Any:
            def hazards(what: str) -> dict[Way, Hazard]:
                return {way: Hazard(clock, chances[f"{what} {way}"], seed, f"{what} {way}") for way in WAYS}

            return kind(
                clock, tier, losses=hazards("lost"), stalls=hazards("stalled"), deadline_ns=deadline_ns,
                remembers_failures=remembers, totals=FaultTotals(), wake=wake,
            )  # fmt: skip

        self.tier = faulty(FaultyRunTier, self.clock, self.inner, heard.on_change)
        self.other = faulty(FaultyTier, self.other_clock, self.other_inner, other_heard.on_change)
        self.answers: Counter[Answer] = Counter()
        self.known: list[tuple[Run, tuple[Answer, int], int, Finding]] = []  # looked up for nothing, with the version
        self.num_held = 0

    def ask(self) -> None:
        """A request looks for part of a prompt, and may stop anywhere; repeating it is free."""
        request = self.rng.choice("abcd")
        todo = self.tree.stretch()
        while todo:
            run = todo.pop(0)
            answer, count = self.tier.peek(run)
            asked = run._replace(last=run.first + self.rng.choice([count, self.rng.randint(1, count)]))
            self.tier.ask(asked, request)
            found = [self.other.lookup(name, request) for name in spelled(Runs([asked]))]
            assert found == [answer] * len(found)
            self.answers[answer] += 1
            if asked.last < run.last:
                todo.insert(0, run._replace(first=asked.last))

    def remember(self) -> None:
        """What somebody who lives is told now he is told again until something says that it may be otherwise."""
        run, finding = self.rng.choice(self.tree.stretch()), Finding()
        run = run._replace(last=run.first + self.tier.peek(run)[1])
        self.tier.ask(run, "e")
        for name in spelled(Runs([run])):
            self.other.lookup(name, "e")
        for changes in self.tier.lookup_changes:
            changes.watch([run.segment], finding)
        self.known.append((run, self.tier.peek(run), self.tier.lookup_version, finding))

    def look_again(self) -> None:
        """At all that nobody has said anything about."""
        for run, found, version, finding in self.known:
            if finding.holds and version == self.tier.lookup_version:
                self.num_held += 1
                assert self.tier.peek(run) == found

    def submit(self) -> None:
        """Store anything, or load what may be here; equal keys are cut anywhere."""
        rng, runs = self.rng, Runs(self.tree.stretch())
        direction = rng.choice(WAYS)
        if direction == "load" and isinstance(self.inner.files, RunFiles):
            self.inner.bring_up_to_date()
            self.other_inner.bring_up_to_date()
            runs = Runs([run for run, is_here in self.inner.files.find(runs) if is_here])
        if runs:
            self.tier.submit(direction, runs)
            self.other.submit(direction, spelled(runs))

    def happen(self) -> None:
        """To both of them."""
        dice, rng = self.rng.random(), self.rng
        for tier in (self.tier, self.other):
            if dice < 0.35:
                tier.come_back()
            elif dice < 0.55:
                tier.go_away(lose_contents=dice < 0.45)
            elif dice < 0.65:
                tier.lose_engine()
            else:
                tier.on_request_finished("abcd"[int(dice * 1_000) % 4])
        if dice < 0.55 and rng.random() < 0.5:
            for tier in (self.tier, self.other):
                tier.come_back()

    def act(self) -> None:
        """Anything."""
        dice, rng = self.rng.random(), self.rng
        if dice < 0.25:
            self.ask()
        elif dice < 0.3:
            self.remember()
        elif dice < 0.55:
            self.submit()
        elif dice < 0.65:
            self.tier.on_schedule_end()
            self.other.on_schedule_end()
        elif dice < 0.7:
            self.happen()
        elif dice < 0.8:
            done = [(what, spelled(keys)) for what, keys in self.tier.poll()]
            assert done == [(what, list(keys)) for what, keys in self.other.poll()]
        else:
            duration = rng.choice([0, 100, 3_000, 30_000])
            wait(self.clock, duration)
            wait(self.other_clock, duration)

    def compare(self) -> None:
        """Everything that can be seen."""
        if not isinstance(self.inner, RunExampleTier):
            compare_tiers(self.inner, self.other_inner, up_to_date=True)  # who looks takes note of more
        assert asdict(self.tier._totals) == asdict(self.other._totals)
        assert (self.tier.is_idle(), self.tier.num_stalled) == (self.other.is_idle(), self.other.num_stalled)
        for name in ("_stored", "_lost"):
            runs = Runs(getattr(self.tier, name).everything().runs)
            assert sorted(spelled(runs)) == sorted(getattr(self.other, name).everything())
        one, other = self.heard
        assert one.changes == other.changes
        assert one.blocked_ns == other.blocked_ns


def test_faulty_tiers_of_runs_equal_those_of_keys() -> None:
    """Random jobs, lookups, outages and deaths: equal answers, outcomes, totals and contents after every step."""
    answers: Counter[Answer] = Counter()
    totals: Counter[str] = Counter()
    held = 0
    for seed in range(150):
        world = World(seed)
        for _ in range(100):
            world.act()
            world.compare()
            world.look_again()
        answers.update(world.answers)
        totals.update(world.tier._totals.happened)
        held += world.num_held
    assert min(answers[answer] for answer in Answer) > 500
    assert min(totals[what] for what in ("failed_promotion_chunks", "failed_cascade_chunks", "expired_jobs")) > 100
    assert held > 1_000


class Shelf:
    """A tier of runs that has what it was given, and says of two jobs that they are one key cut differently."""

    num_changes, lookup_version, lookup_changes = 0, 0, ()

    def __init__(self) -> None:
        self.asked: list[tuple[Run, str]] = []
        self.done: list[Any] = []

    def peek(self, run: Run) -> tuple[Answer, int]:
        return Answer.HIT, run.last - run.first

    def ask(self, run: Run, request_id: str) -> None:
        self.asked.append((run, request_id))

    def on_request_finished(self, _request_id: str) -> None: ...

    def submit(self, direction: Way, keys: Runs) -> None:
        self.done.append((direction, Runs([Run(0, position, position + 1) for _segment, position in keys])))

    def poll(self) -> list[Any]:
        done, self.done = self.done, []
        return done


def _faulty_shelf(**losses: Chance) -> tuple[FaultyRunTier, Shelf]:
    clock, shelf = Clock(), Shelf()
    hazards: dict[Way, Hazard] = {way: Hazard(clock, losses.get(way, Chance()), 0, way) for way in WAYS}
    none: dict[Way, Hazard] = {way: Hazard(clock, Chance(), 0, way) for way in WAYS}
    tier = FaultyRunTier(
        clock, shelf, losses=hazards, stalls=none, deadline_ns=0, remembers_failures=True, totals=FaultTotals(),
        wake=lambda: None,
    )  # fmt: skip
    return tier, shelf


def test_a_miss_is_asked_for_and_ends_with_who_has_asked() -> None:
    """Chunks 2 to 4 could not be loaded: the tier hears of lookups all the same; the last one who asked frees them."""
    tier, shelf = _faulty_shelf(load=Chance(numbers=frozenset({0})))
    tier.submit("load", Runs([Run(0, 2, 5)]))
    assert tier.poll() == [("failed load", Runs([Run(0, 2, 5)]))]
    assert [tier.peek(Run(0, first, 9)) for first in (0, 2, 3, 5)] == [
        (Answer.HIT, 2),
        (Answer.MISS, 3),
        (Answer.MISS, 2),
        (Answer.HIT, 4),
    ]
    versions = [tier.lookup_version]
    for run, request in ((Run(0, 0, 3), "a"), (Run(0, 2, 4), "b"), (Run(0, 2, 4), "b")):
        tier.ask(run, request)
    assert (shelf.asked, tier.num_changes) == ([(Run(0, 0, 3), "a"), (Run(0, 2, 4), "b"), (Run(0, 2, 4), "b")], 2)
    for request in "cab":
        tier.on_request_finished(request)
        versions.append(tier.lookup_version)
    assert [after - before for before, after in pairwise(versions)] == [0, 0, 2]
    assert tier.peek(Run(0, 0, 9)) == (Answer.HIT, 4)
    assert tier.lookup(Key(0, 4), "d") is Answer.MISS


def test_equal_keys_that_are_cut_differently_are_one_job() -> None:
    """The tier reports chunk after chunk in runs of their own what was submitted as one run, half of it lost."""
    tier, _shelf = _faulty_shelf(store=Chance(0.5))
    tier.submit("store", Runs([Run(0, 0, 8)]))
    (kind, kept), (failed, lost) = tier.poll()
    assert (kind, failed, sorted(spelled([*kept, *lost]))) == ("store", "failed store", list(range(8)))
    assert tier.is_idle()
    assert [tier.peek(run)[0] for run in lost.runs] == [Answer.MISS] * len(lost.runs)
    assert [tier.peek(run) for run in kept.runs] == [(Answer.HIT, run.last - run.first) for run in kept.runs]
