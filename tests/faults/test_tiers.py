"""FaultyTier: a tier that goes away, fails, stalls, and outlives its engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from kvsim.clock import Clock
from kvsim.faults.hazard import Chance, Hazard
from kvsim.faults.tiers import FaultyTier
from kvsim.offload.tiering import Answer, TierJob
from kvsim.results.records import FaultTotals

Way = Literal["load", "store"]


class Shelf:
    """A tier that finishes all its jobs when it is told to."""

    def __init__(self) -> None:
        self.holds: set[int] = set()
        self.jobs: list[TierJob] = []
        self._done: list[TierJob] = []

    def lookup(self, key: int, request_id: str) -> Answer:
        return Answer.HIT if key in self.holds else Answer.MISS

    def on_schedule_end(self) -> None: ...

    def on_request_finished(self, request_id: str) -> None: ...

    def submit(self, direction: Way, keys: Sequence[int]) -> None:
        self.jobs.append((direction, keys))

    def finish(self) -> None:
        for direction, keys in self.jobs:
            if direction == "store":
                self.holds.update(keys)
        self._done, self.jobs = self.jobs, []

    def poll(self) -> list[TierJob]:
        done, self._done = self._done, []
        return done

    def is_idle(self) -> bool:
        return not self.jobs and not self._done


def faulty(
    *, losses: dict[Way, Chance] | None = None, stalls: dict[Way, Chance] | None = None, **options: Any
) -> tuple[FaultyTier, Shelf, Clock]:
    """A shelf behind a tier whose jobs are at stake."""
    clock, shelf = Clock(), Shelf()

    def hazards(chances: dict[Way, Chance] | None) -> dict[Way, Hazard]:
        ways: tuple[Way, Way] = ("load", "store")
        return {way: Hazard(clock, (chances or {}).get(way, Chance()), 0, way) for way in ways}

    defaults: dict[str, Any] = {"deadline_ns": 0, "remembers_failures": False, "totals": FaultTotals()}
    tier = FaultyTier(
        clock, shelf, losses=hazards(losses), stalls=hazards(stalls), wake=lambda: None, **(defaults | options)
    )
    return tier, shelf, clock


def answers(tier: FaultyTier, keys: Sequence[int], request: str = "r") -> str:
    """H or M for each key."""
    return "".join(tier.lookup(key, request).name[0] for key in keys)


def written(tier: FaultyTier, shelf: Shelf, keys: list[int]) -> None:
    """Store these keys."""
    tier.submit("store", keys)
    shelf.finish()
    assert tier.poll() == [("store", keys)]


def test_a_tier_that_is_away_misses_and_fails_and_comes_back() -> None:
    """Lookups miss, both kinds of jobs fail at once; afterwards it holds what it held, and not what it was sent."""
    tier, shelf, _ = faulty()
    written(tier, shelf, [1, 2])
    tier.go_away(lose_contents=False)
    assert answers(tier, [1, 2]) == "MM"
    tier.submit("store", [3])
    tier.submit("load", [1])
    assert not tier.is_idle()
    assert tier.poll() == [("failed store", [3]), ("failed load", [1])]
    assert shelf.jobs == []
    tier.come_back()
    assert answers(tier, [1, 2, 3]) == "HHM"
    assert tier.is_idle()


def test_jobs_in_flight_fail_when_it_goes_and_are_not_reported_again() -> None:
    """What was being written then is a miss, although the tier itself has finished writing it."""
    tier, shelf, _ = faulty()
    written(tier, shelf, [1])
    tier.submit("store", [2])
    tier.submit("load", [1])
    tier.go_away(lose_contents=False)
    assert tier.poll() == [("failed store", [2]), ("failed load", [1])]
    tier.come_back()
    shelf.finish()
    assert tier.poll() == []
    assert (answers(tier, [1, 2]), shelf.holds) == ("HM", {1, 2})
    written(tier, shelf, [2])
    assert answers(tier, [1, 2]) == "HH"


def test_it_may_come_back_empty() -> None:
    """What is written again is there again."""
    tier, shelf, _ = faulty()
    written(tier, shelf, [1, 2])
    tier.go_away(lose_contents=True)
    tier.come_back()
    assert answers(tier, [1, 2]) == "MM"
    written(tier, shelf, [2])
    assert answers(tier, [1, 2]) == "MH"


def test_a_load_that_fails_is_tried_again_unless_the_tier_remembers() -> None:
    """A tier that remembers answers "miss" until the last request that has asked since is over."""
    for remembers, found in ((False, "H"), (True, "M")):
        tier, shelf, _ = faulty(losses={"load": Chance(numbers=frozenset({0}))}, remembers_failures=remembers)
        written(tier, shelf, [1])
        tier.submit("load", [1])
        shelf.finish()
        assert tier.poll() == [("failed load", [1])]
        assert answers(tier, [1], "a") + answers(tier, [1], "b") == found * 2
        tier.on_request_finished("a")
        assert answers(tier, [1], "b") == found
        tier.on_request_finished("b")
        assert answers(tier, [1], "c") == "H"


def test_keys_are_lost_one_by_one() -> None:
    """At 50 %, a job of 8 keys is reported in two parts, which the seed decides; lost writes are misses."""
    tier, shelf, _ = faulty(losses={"store": Chance(0.5)})
    tier.submit("store", list(range(8)))
    shelf.finish()
    (kind, kept), (failed, lost) = tier.poll()
    assert (kind, failed, sorted([*kept, *lost])) == ("store", "failed store", list(range(8)))
    assert answers(tier, kept) == "H" * len(kept)
    assert answers(tier, lost) == "M" * len(lost)


def test_a_stalled_job_fails_at_its_deadline_or_never() -> None:
    """vllm#49829: without a deadline a stalled write is in flight for ever."""
    for deadline_ns, outcome in ((40, [("failed store", [1])]), (0, [])):
        tier, shelf, clock = faulty(stalls={"store": Chance(numbers=frozenset({0}))}, deadline_ns=deadline_ns)
        tier.submit("store", [1])
        assert shelf.jobs == []
        clock.run(until=40)
        assert tier.poll() == []
        clock.run(until=41)
        assert tier.poll() == outcome
        assert tier.is_idle() == bool(outcome)
        assert tier.num_stalled == (0 if outcome else 1)


def test_a_new_engine_hears_nothing_of_the_old_one_s_jobs() -> None:
    """What the tier holds stays, and what it was writing arrives all the same."""
    tier, shelf, _ = faulty()
    written(tier, shelf, [1])
    tier.submit("store", [2])
    tier.lose_engine()
    assert tier.is_idle()
    shelf.finish()
    assert tier.poll() == []
    assert answers(tier, [1, 2]) == "HH"
