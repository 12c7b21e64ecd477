"""Storage tiers that are told runs against those that are told keys."""

from __future__ import annotations

from random import Random

from prefix_tree import PrefixTree, spelled
from tier_worlds import Heard, TierSettings, compare_tiers, wait

from kvsim.clock import Clock
from kvsim.extents.path import Key, Run, Runs
from kvsim.offload.tiering import Answer
from kvsim.results.records import TierTotals
from kvsim.tiers.example import ExampleTier
from kvsim.tiers.run_tiers import RunExampleTier


class World:
    """The same random things happen to both."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.tree = PrefixTree(rng, rng.randint(1, 6), 14)
        settings = TierSettings(rng)
        self.clock, self.other_clock = Clock(), Clock()
        self.heard, self.other_heard = Heard(self.clock), Heard(self.other_clock)
        self.tier = settings.build(self.clock, self.heard, by_run=True)
        self.other = settings.build(self.other_clock, self.other_heard, by_run=False)
        self.answers: list[Answer] = []
        self.epochs = self.tier.epoch, self.other.epoch

    def ask(self) -> None:
        """A request looks for part of a prompt, and may stop anywhere."""
        request = self.rng.choice("abcd")
        todo = self.tree.stretch()
        while todo:
            run = todo.pop(0)
            answer, count = self.tier.peek(run)
            asked = run._replace(last=run.first + self.rng.choice([count, self.rng.randint(1, count)]))
            self.tier.ask(asked, request)
            found = [self.other.lookup(name, request) for name in spelled(Runs([asked]))]
            assert found == [answer] * len(found)
            self.answers.append(answer)
            if asked.last < run.last:
                todo.insert(0, run._replace(first=asked.last))

    def act(self) -> None:
        """Anything."""
        dice, rng = self.rng.random(), self.rng
        if dice < 0.3:
            self.ask()
        elif dice < 0.5:
            runs = Runs(self.tree.stretch())
            self.tier.submit("store", runs)
            self.other.submit("store", spelled(runs))
        elif dice < 0.6:  # of what is here, and sometimes of what is gone
            runs = Runs(self.tree.stretch())
            self.tier.bring_up_to_date()
            self.other.bring_up_to_date()
            if here := Runs(run for run, is_here in self.tier.files.find(runs) if is_here or rng.random() < 0.1):
                self.tier.submit("load", here)
                self.other.submit("load", spelled(here))
        elif dice < 0.7:
            self.tier.on_schedule_end()
            self.other.on_schedule_end()
        elif dice < 0.75:
            request = rng.choice("abcd")
            self.tier.on_request_finished(request)
            self.other.on_request_finished(request)
        elif dice < 0.8:
            before, self.epochs = self.epochs, (self.tier.epoch, self.other.epoch)
            assert [now > then for now, then in zip(self.epochs, before, strict=True)] in ([True] * 2, [False] * 2)
        elif dice < 0.9:
            done = [(what, spelled(keys)) for what, keys in self.tier.poll()]
            assert done == [(what, list(keys)) for what, keys in self.other.poll()]
        else:
            duration = rng.choice([0, 100, 3_000, 30_000])
            wait(self.clock, duration)
            wait(self.other_clock, duration)

    def compare(self) -> None:
        """Everything that can be seen."""
        compare_tiers(self.tier, self.other, up_to_date=self.rng.random() < 0.2)
        assert self.heard.changes == self.other_heard.changes
        assert self.heard.blocked_ns == self.other_heard.blocked_ns


def test_storage_tiers_equal_those_of_keys() -> None:
    """Random jobs, lookups and requests: equal answers, times, totals, contents and order after every step."""
    answers: list[Answer] = []
    for seed in range(120):
        world = World(seed)
        for _ in range(100):
            world.act()
            world.compare()
        world.clock.run()
        world.other_clock.run()
        world.compare()
        answers += world.answers
    assert min(answers.count(answer) for answer in Answer) > 500


def test_looking_for_a_run_holds_the_scheduler_up_once_per_chunk() -> None:
    """Three chunks at 790 ns each (0.23.0); it costs as much every time, and says so."""
    clock = Clock()
    heard = Heard(clock)
    tier = TierSettings(Random(1), in_background=False).build(clock, heard, by_run=True)
    run = Run(0, 0, 3)
    assert tier.peek(run) == (Answer.MISS, 3)
    assert (heard.blocked_ns, tier.num_changes) == (0, 0)
    tier.ask(run, "r")
    tier.ask(run, "r")
    assert (heard.blocked_ns, tier.totals.lookup_keys, tier.num_changes) == (6 * 790, 6, 2)


def test_repeating_a_question_changes_nothing() -> None:
    """The first time is noted, also of a second request; the second time is not."""
    clock = Clock()
    tier = TierSettings(Random(1), in_background=True).build(clock, Heard(clock), by_run=True)
    seen = []
    for request in "rrss":
        tier.ask(Run(0, 0, 3), request)
        seen.append(tier.num_changes)
    tier.ask(Run(0, 0, 5), "s")
    assert [*seen, tier.num_changes] == [1, 1, 2, 2, 3]
    assert tier.lookup(Key(0, 4), "s") is Answer.RETRY


def test_example_tiers_equal_those_of_keys() -> None:
    """A dictionary, by the run."""
    rng = Random(7)
    tree = PrefixTree(rng, 5, 12)
    tier, other = (
        RunExampleTier(TierTotals("t", "example", "d", 10), 10),
        ExampleTier(TierTotals("t", "example", "d", 10), 10),
    )
    for _ in range(60):
        runs = Runs(tree.stretch())
        direction = rng.choice(["store", "load"])
        tier.submit(direction, runs)
        other.submit(direction, spelled(runs))
        answer, count = tier.peek(runs.runs[0])
        names = spelled(Runs([runs.runs[0]]))
        assert [other.lookup(name, "r") for name in names[:count]] == [answer] * count
        if rng.random() < 0.3:
            assert [(what, spelled(keys)) for what, keys in tier.poll()] == list(other.poll())
        tier.bring_up_to_date()
        other.bring_up_to_date()
        assert (tier.totals, tier.epoch, tier.is_idle()) == (other.totals, other.epoch, other.is_idle())
