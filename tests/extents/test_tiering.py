"""RunTieringManager against TieringManager, with one or two tiers behind the primary."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any

import pytest
from prefix_tree import PrefixTree, spelled
from tier_worlds import Heard, TierSettings, compare_tiers, wait

from kvsim.clock import Clock
from kvsim.extents.arc import RunArcPolicy, RunArcPolicy023
from kvsim.extents.context import RunContext
from kvsim.extents.ledger import RunOffloadingManager, RunOffloadingManager023
from kvsim.extents.lru import RunLruPolicy
from kvsim.extents.lru_023 import RunLruPolicy023
from kvsim.extents.path import Path, Run, Runs
from kvsim.extents.tiering import RunTieringManager, RunTieringManager023
from kvsim.offload.context import RequestContext
from kvsim.offload.ledger import PrefixHit
from kvsim.offload.manager import OffloadingManager, OffloadingManager023
from kvsim.offload.policies.arc import ArcPolicy, ArcPolicy023
from kvsim.offload.policies.lru import LruPolicy, LruPolicy023
from kvsim.offload.tiering import TieringManager, TieringManager023
from kvsim.results.records import TierTotals
from kvsim.tiers.example import ExampleTier
from kvsim.tiers.run_tiers import RunExampleTier


@dataclass(frozen=True)
class Kind:
    """A release and a policy, by the run and by the key."""

    by_run: tuple[Any, Any, Any]  # manager, policy, tiering manager
    by_key: tuple[Any, Any, Any]
    touches: bool  # 0.23.0: at every lookup, and the step ends before the stores are planned


KINDS = {
    "lru-0.33": Kind(
        (RunOffloadingManager, RunLruPolicy, RunTieringManager),
        (OffloadingManager, LruPolicy, TieringManager),
        touches=False,
    ),
    "lru-0.23": Kind(
        (RunOffloadingManager023, RunLruPolicy023, RunTieringManager023),
        (OffloadingManager023, LruPolicy023, TieringManager023),
        touches=True,
    ),
    "arc-0.33": Kind(
        (RunOffloadingManager, RunArcPolicy, RunTieringManager),
        (OffloadingManager, ArcPolicy, TieringManager),
        touches=False,
    ),
    "arc-0.23": Kind(
        (RunOffloadingManager023, RunArcPolicy023, RunTieringManager023),
        (OffloadingManager023, ArcPolicy023, TieringManager023),
        touches=True,
    ),
}


@dataclass(eq=False)
class Living:
    """A request, as both know it."""

    context: RunContext
    other: RequestContext
    next_stored: int = 0

    def extend_to(self, num_keys: int) -> None:
        """It has so many chunks by now."""
        more = spelled(self.context.path.keys(len(self.other.keys), num_keys))
        self.context.extend_to(num_keys)
        self.other.extend(more)


@dataclass(eq=False)
class Job:
    """A copy between the GPU and the primary."""

    direction: str
    keys: Runs
    living: Living


@dataclass
class Side:
    """One of the two worlds."""

    clock: Clock = field(default_factory=Clock)
    heard: Heard = field(init=False)
    tiers: list[Any] = field(default_factory=list)
    manager: Any = None

    def __post_init__(self) -> None:
        self.heard = Heard(self.clock)


class World:
    """The same requests come, look, load, store and go in both worlds."""

    def __init__(self, kind: Kind, seed: int) -> None:
        self.kind, self.rng = kind, Random(seed)
        rng = self.rng
        self.tree = PrefixTree(rng, rng.randint(1, 7), rng.choice([4, 14, 30]))
        self.runs, self.keys = Side(), Side()
        slots = rng.choice([5, 12, 25, 60])
        for number in range(rng.choice([1, 1, 2])):
            settings = TierSettings(rng, in_background=not kind.touches)
            is_example = number and rng.random() < 0.2
            for side in (self.runs, self.keys):
                totals = TierTotals("t", "example", "d", 1_000)
                tier = settings.build(side.clock, side.heard, by_run=side is self.runs)
                if is_example:
                    tier = (RunExampleTier if side is self.runs else ExampleTier)(totals, 1_000)
                side.tiers.append(side.heard.listen(tier))
        for side, (manager, policy, tiering) in ((self.runs, kind.by_run), (self.keys, kind.by_key)):
            side.manager = tiering(manager(slots, policy), side.tiers)
        self.living: list[Living] = []
        self.jobs: list[Job] = []
        self.num_requests = 0
        self.seen: Counter[str] = Counter()

    def step(self) -> None:
        """One step of an engine: decisions, the end of the step, copies that end."""
        rng = self.rng
        if len(self.living) < 5 and rng.random() < 0.6:
            self.arrive()
        for living in rng.sample(self.living, rng.randint(0, len(self.living))):
            self.look(living)
        if self.kind.touches:
            self.end_step()
        for living in rng.sample(self.living, rng.randint(0, len(self.living))):
            self.store(living)
        if self.living and rng.random() < 0.4:
            self.finish(self.living.pop(rng.randrange(len(self.living))))
        if not self.kind.touches:
            self.end_step()
        duration = rng.choice([0, 500, 5_000, 50_000])
        wait(self.runs.clock, duration)
        wait(self.keys.clock, duration)
        for job in rng.sample(self.jobs, rng.randint(0, len(self.jobs))):
            self.complete(job)
        if rng.random() < 0.02:
            for side in (self.runs, self.keys):
                side.manager.primary.lose_contents()

    def arrive(self) -> None:
        """A new request."""
        path = self.tree.path()
        name = f"r{self.num_requests}"
        self.num_requests += 1
        living = Living(RunContext(name, Path(path.segments, path.ends)), RequestContext(name))
        living.extend_to(self.rng.randint(1, len(path)))
        self.living.append(living)

    def look(self, living: Living) -> None:
        """Look, perhaps look again, and load what is there."""
        if any(job.living is living for job in self.jobs):
            return
        known = len(living.other.keys)
        first, last = self.rng.choice([0, self.rng.randint(0, known)]), known
        hit = self.look_up(living, first, last)
        if self.rng.random() < 0.3:
            changes, before = self.runs.manager.num_changes, self.state()
            hit = self.look_up(living, first, last)
            assert changes != self.runs.manager.num_changes or before == self.state()
        if hit.pending or not hit.chunks or self.rng.random() < 0.3:
            return
        last = first + hit.chunks
        loaded = self.runs.manager.prepare_load(living.context, first, last)
        self.keys.manager.prepare_load(living.other, first, last)
        assert spelled(loaded) == living.other.keys[first:last]
        sources = self.keys.manager.sources(living.other, first, last)
        assert self.runs.manager.sources(living.context, first, last) == sources
        counted = self.runs.manager.chunks_by_source(living.context, first, last)
        assert list(counted.items()) == list(Counter(sources).items())
        self.jobs.append(Job("load", loaded, living))
        self.seen["load"] += 1
        self.seen["loaded from a tier"] += len(sources)
        living.next_stored = last

    def look_up(self, living: Living, first: int, last: int) -> PrefixHit:
        """Both find the same."""
        hit = self.runs.manager.lookup_prefix(living.context, first, last)
        assert hit == self.keys.manager.lookup_prefix(living.other, first, last)
        if self.kind.touches:
            self.runs.manager.touch(living.context)
            self.keys.manager.touch(living.other)
        self.compare()
        self.seen["pending"] += hit.pending
        self.seen["hit"] += hit.chunks > 0
        return hit

    def store(self, living: Living) -> None:
        """Offer what is new; sometimes everything again."""
        if self.rng.random() < 0.3:
            living.extend_to(self.rng.randint(len(living.other.keys), len(living.context.path)))
        if self.rng.random() < 0.1:
            living.next_stored = 0
        first, last = living.next_stored, len(living.other.keys)
        if last <= first:
            return
        plan = self.runs.manager.prepare_store(living.context, first, last)
        other = self.keys.manager.prepare_store(living.other, first, last)
        assert (plan is None) == (other is None)
        if plan is None or other is None:
            self.seen["refused"] += 1
            return
        assert spelled(plan.positions) == [living.other.keys[position] for position in other.positions]
        living.next_stored = last
        if plan.positions:
            self.jobs.append(Job("store", plan.positions, living))

    def finish(self, living: Living) -> None:
        """It is over."""
        self.runs.manager.on_request_finished(living.context)
        self.keys.manager.on_request_finished(living.other)

    def end_step(self) -> None:
        """Promotions and questions go out."""
        self.runs.manager.on_schedule_end()
        self.keys.manager.on_schedule_end()
        self.compare()

    def complete(self, job: Job) -> None:
        """A copy ends, or fails."""
        self.jobs.remove(job)
        names = spelled(job.keys)
        if job.direction == "load":
            self.runs.manager.complete_load(job.keys)
            self.keys.manager.complete_load(names)
        else:
            success = self.rng.random() < 0.95
            self.runs.manager.complete_store(job.keys, job.living.context, success=success)
            self.keys.manager.complete_store(names, job.living.other, success=success)
        self.compare()

    def state(self) -> object:
        """Whatever a lookup could change."""
        manager = self.runs.manager
        questions = [
            [
                (piece.segment, piece.first, piece.last, piece.answer, set(piece.askers))
                for piece in tier._lookup._pieces
            ]
            for tier in self.runs.tiers
            if getattr(tier, "_lookup", None) is not None
        ]
        for tier in (*self.runs.tiers, *self.keys.tiers):
            tier.bring_up_to_date()
        counts = [asdict(tier.totals) for tier in self.runs.tiers]
        target = getattr(manager.primary.policy, "target", None)  # ARC's
        primary = (self.resident(), manager.num_evicted, manager.primary.epoch, target)  # refusals repeat themselves
        return primary, counts, questions, {of: list(runs) for of, runs in manager._promotions.items()}

    def resident(self) -> dict[int, int]:
        """What the primary has, with reference counts."""
        return {
            name: piece.ref_count
            for piece in self.runs.manager.primary.pieces
            for name in spelled(Runs([Run(piece.segment, piece.first, piece.last)]))
        }

    def compare(self) -> None:
        """Everything that can be seen."""
        manager, other = self.runs.manager, self.keys.manager
        assert self.resident() == {name: slot.ref_count for name, slot in other.primary.slots.items()}
        counts = [(m.num_chunks, m.num_evicted, m.num_refusals, m.has_pending_work()) for m in (manager, other)]
        assert counts[0] == counts[1]
        assert manager.primary.epoch == other.primary.epoch
        assert self.runs.heard.jobs == self.keys.heard.jobs
        assert self.runs.heard.blocked_ns == self.keys.heard.blocked_ns
        assert self.runs.heard.changes == self.keys.heard.changes
        for tier, expected in zip(self.runs.tiers, self.keys.tiers, strict=True):
            compare_tiers(tier, expected, up_to_date=self.rng.random() < 0.2)


@pytest.mark.parametrize("kind", KINDS)
def test_managers_by_the_run_decide_as_those_by_the_key(kind: str) -> None:
    """Hits, plans, jobs of the tiers, contents and counters are equal after every operation."""
    seen: Counter[str] = Counter()
    for seed in range(40):
        world = World(KINDS[kind], seed)
        for _ in range(60):
            world.step()
        world.runs.manager.check(at_end=False)
        seen += world.seen
        seen["promoted"] += sum(direction == "load" for _, direction, _ in world.runs.heard.jobs)
    assert min(seen[what] for what in ("pending", "hit", "load", "loaded from a tier", "refused", "promoted")) > 100


def small_world(
    slots: int, *holds: Run
) -> tuple[RunTieringManager, list[RunExampleTier], list[tuple[int, str, list[int]]]]:
    """A primary with example tiers behind it that hold these runs, and the jobs that they are given."""
    heard = Heard(Clock())
    tiers = []
    for run in holds:
        tier = RunExampleTier(TierTotals("t", "example", "d", 10), 10)
        tier.submit("store", Runs([run]))
        tier.poll()
        tiers.append(heard.listen(tier))
    return RunTieringManager(RunOffloadingManager(slots, RunLruPolicy), tiers), tiers, heard.jobs


def test_the_first_tier_that_has_a_stretch_promotes_it() -> None:
    """[0, 2) comes from the far tier and [2, 5) from the near one, though the far one has it too; [5, 6) is a miss."""
    manager, _tiers, jobs = small_world(10, Run(0, 2, 5), Run(0, 0, 5))
    context = RunContext("r", Path([0], [8]), 6)
    assert manager.lookup_prefix(context, 0, 6) == PrefixHit(5, pending=True)
    assert manager.sources(context, 0, 6) == [1, 1, 0, 0, 0]
    assert list(manager.chunks_by_source(context, 1, 4).items()) == [(1, 1), (0, 2)]
    manager.on_schedule_end()
    assert jobs == [(0, "load", [0, 1]), (0, "load", [2, 3, 4])]
    assert manager.lookup_prefix(context, 0, 6) == PrefixHit(5, pending=False)


def test_promotions_end_where_the_primary_is_full() -> None:
    """Three slots for five chunks: the fourth is refused, counted, and refused again when it is asked for again."""
    manager, _tiers, jobs = small_world(3, Run(0, 0, 5))
    context = RunContext("r", Path([0], [8]), 6)
    assert manager.lookup_prefix(context, 0, 6) == PrefixHit(3, pending=True)
    changes = manager.num_changes
    assert manager.lookup_prefix(context, 0, 6) == PrefixHit(3, pending=True)
    assert (manager.num_refusals, manager.num_changes > changes) == (2, False)
    manager.repeat_refusals(3)
    assert manager.num_refusals == 5
    manager.on_schedule_end()
    assert jobs == [(0, "load", [0, 1, 2])]


def test_a_lookup_that_finds_nothing_new_is_no_change() -> None:
    """Promoting is one; taking in what has arrived, before looking, and finding it are none."""
    manager, _tiers, _jobs = small_world(10, Run(0, 0, 5))
    context = RunContext("r", Path([0], [8]), 6)
    changed = []
    for _ in range(2):
        for _ in range(2):
            before = manager.num_changes
            manager.lookup_prefix(context, 0, 6)
            changed.append(manager.num_changes > before)
        manager.on_schedule_end()
    assert changed == [True, False, False, False]
