"""The CPU tier's ledger by the run against the reference, in random worlds and by hand."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from kvsim.extents.arc import B1, B2, T1, T2, RunArcPolicy, RunArcPolicy023
from kvsim.extents.context import RunContext
from kvsim.extents.ledger import RunOffloadingManager, RunOffloadingManager023
from kvsim.extents.lru import RunLruPolicy
from kvsim.extents.lru_023 import RunLruPolicy023
from kvsim.extents.path import Key, Path, Runs
from kvsim.extents.piece_queue import PieceQueue
from kvsim.offload.context import RequestContext
from kvsim.offload.manager import OffloadingManager, OffloadingManager023
from kvsim.offload.policies.arc import ArcPolicy, ArcPolicy023
from kvsim.offload.policies.lru import LruPolicy, LruPolicy023

SEGMENT = 10**6  # the reference's key of a chunk: segment * SEGMENT + position


def spelled(runs: Any) -> list[int]:
    """Runs as the reference's keys."""
    return [segment * SEGMENT + position for segment, position in runs]


def lru_order(policy: RunLruPolicy) -> list[tuple[int, int]]:
    """Evictable keys with their ranks, the next victim first."""
    return [
        (piece.segment * SEGMENT + position, rank)
        for rank in policy._ranks
        for piece in reversed(policy._groups[rank])
        for position in range(piece.last - 1, piece.first - 1, -1)
    ]


def lru_order_of_reference(manager: OffloadingManager) -> list[tuple[int, int]]:
    """The same of the reference, by its rule: rank, then the tail of the prefix first."""
    ready = [(slot.rank, -(key % SEGMENT), key) for key, slot in manager.slots.items() if slot.ref_count == 0]
    return [(key, rank) for rank, _, key in sorted(ready)]


def compare_lru(manager: RunOffloadingManager, reference: OffloadingManager) -> None:
    """Equal order and ranks."""
    assert isinstance(manager.policy, RunLruPolicy)
    assert lru_order(manager.policy) == lru_order_of_reference(reference)
    ranks = {key: piece.rank for piece in manager.pieces for key in spelled([*_keys_of(piece)])}
    assert ranks == {key: slot.rank for key, slot in reference.slots.items()}


def _keys_of(piece: Any) -> list[Key]:
    return [Key(piece.segment, position) for position in range(piece.first, piece.last)]


def queue_order(queue: PieceQueue) -> list[int]:
    """The keys of a queue, the oldest first."""
    return [
        piece.segment * SEGMENT + position
        for piece in queue
        for position in (range(piece.first, piece.last) if piece.rising else range(piece.last - 1, piece.first - 1, -1))
    ]


def compare_lru_023(manager: RunOffloadingManager, reference: OffloadingManager) -> None:
    """Equal order of all keys."""
    assert isinstance(manager.policy, RunLruPolicy023)
    assert isinstance(reference.policy, LruPolicy023)
    assert queue_order(manager.policy.queue) == list(reference.policy._order)


def compare_arc(manager: RunOffloadingManager, reference: OffloadingManager) -> None:
    """Four equal lists, and the same target to the last bit."""
    policy, expected = manager.policy, reference.policy
    assert isinstance(policy, RunArcPolicy)
    assert isinstance(expected, ArcPolicy)
    assert queue_order(policy.queues[T1]) == list(expected.t1)
    assert queue_order(policy.queues[T2]) == list(expected.t2)
    assert queue_order(policy.queues[B1]) == list(expected.b1)
    assert queue_order(policy.queues[B2]) == list(expected.b2)
    assert policy.target == expected.target


@dataclass
class Kind:
    """A policy of a release, in both forms."""

    manager: Callable[[int], RunOffloadingManager]
    reference: Callable[[int], OffloadingManager]
    compare: Callable[[RunOffloadingManager, OffloadingManager], None]
    touches: bool = False


KINDS = {
    "lru-0.33": Kind(
        lambda slots: RunOffloadingManager(slots, RunLruPolicy),
        lambda slots: OffloadingManager(slots, LruPolicy),
        compare_lru,
    ),
    "lru-0.23": Kind(
        lambda slots: RunOffloadingManager023(slots, RunLruPolicy023),
        lambda slots: OffloadingManager023(slots, LruPolicy023),
        compare_lru_023,
        touches=True,
    ),
    "arc-0.33": Kind(
        lambda slots: RunOffloadingManager(slots, RunArcPolicy),
        lambda slots: OffloadingManager(slots, ArcPolicy),
        compare_arc,
    ),
    "arc-0.23": Kind(
        lambda slots: RunOffloadingManager023(slots, RunArcPolicy023),
        lambda slots: OffloadingManager023(slots, ArcPolicy023),
        compare_arc,
        touches=True,
    ),
}


@dataclass(eq=False)
class Living:
    """A request, as both ledgers know it."""

    context: RunContext
    reference: RequestContext
    next_stored: int = 0
    computed: int = 0
    jobs: int = 0


@dataclass
class Counts:
    """What a world has seen, to know that it tests something."""

    stores: int = 0
    refusals: int = 0
    evictions: int = 0
    promoted: int = 0
    partly_promoted: int = 0
    failures: int = 0
    loads: int = 0
    losses: int = 0
    changes: int = 0
    states: int = 0


@dataclass
class World:
    """Both ledgers under the same operations of random requests over a random prefix tree."""

    kind: Kind
    seed: int
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        rng = self.rng = random.Random(self.seed)
        self.segments: list[int] = []
        self.children: dict[int, list[int]] = {-1: []}
        self.left_at: list[int] = []  # per segment: how many chunks of its parent come before it
        for segment in range(rng.randint(1, 12)):
            parent = rng.choice([-1, *range(segment)])
            self.segments.append(rng.randint(1, rng.choice((3, 12, 30))))
            whole = self.segments[parent] if parent >= 0 else 0
            self.left_at.append(rng.randint(1, whole) if whole and rng.random() < 0.3 else whole)
            self.children[parent].append(segment)
            self.children[segment] = []
        tree = sum(self.segments)
        slots = rng.randint(2, max(tree // rng.choice((1, 2, 4)), 3))
        self.manager, self.reference = self.kind.manager(slots), self.kind.reference(slots)
        self.living: list[Living] = []
        self.stores: list[tuple[Runs, list[int]]] = []
        self.loads: list[tuple[Runs, list[int]]] = []
        self.num_requests = 0
        self.promotions = rng.choice((0, 2, 8))  # how often
        self.with_losses = rng.random() < 0.3
        self.max_living = rng.randint(2, 10)
        self.visits = rng.choice((0, 3, 10))

    def run(self) -> None:
        rng = self.rng
        operations: list[tuple[Callable[[], None], float]] = [
            (self.begin, 2),
            (self.visit, self.visits),
            (self.look, 3),
            (self.compute, 3),
            (self.offer, 5),
            (self.load, 3),
            (self.complete_store, 7 + self.promotions),
            (self.complete_load, 6),
            (self.finish, 2),
            (self.preempt, 0.5),
            (self.promote, self.promotions),
            (self.lose, 0.2 if self.with_losses else 0),
        ]
        names, weights = zip(*operations, strict=True)
        for _ in range(rng.randint(20, rng.choice((100, 100, 500)))):
            operation = rng.choices(names, weights)[0]
            if not self.living:
                operation = self.begin
            elif len(self.living) > self.max_living:
                operation = self.finish
            operation()
            self.compare()
        while self.stores:
            self.complete_store()
        while self.loads:
            self.complete_load()
        self.compare()
        self.manager.check(at_end=True)

    def compare(self) -> None:
        """The whole visible state, and the order."""
        manager, reference = self.manager, self.reference
        for name in ("epoch", "num_chunks", "num_evicted", "num_refusals", "capacity_chunks", "lookups_are_pure"):
            assert getattr(manager, name) == getattr(reference, name), name
        here = {key: piece.ref_count for piece in manager.pieces for key in spelled(_keys_of(piece))}
        assert here == {key: slot.ref_count for key, slot in reference.slots.items()}
        doomed = {key for piece in manager.pieces if piece.doomed for key in spelled(_keys_of(piece))}
        assert doomed == reference._doomed
        self.kind.compare(manager, reference)
        manager.check(at_end=False)
        self.counts.states += 1

    def someone(self) -> Living:
        return self.rng.choice(self.living)

    def begin(self) -> None:
        rng, segment = self.rng, -1
        segments: list[int] = []
        ends: list[int] = []
        while self.children[segment]:
            segment = rng.choice(self.children[segment])
            if segments:
                ends[-1] += self.left_at[segment] - self.segments[segments[-1]]
            segments.append(segment)
            ends.append((ends[-1] if ends else 0) + self.segments[segment])
            if rng.random() < 0.2:
                break
        if not segments or rng.random() < 0.5:  # generates something of its own
            segments.append(1000 + self.num_requests)
            ends.append((ends[-1] if ends else 0) + rng.randint(1, 10))
        elif rng.random() < 0.3:
            ends[-1] -= rng.randrange(self.segments[segments[-1]])
        name = f"r{self.num_requests}"
        self.num_requests += 1
        request = Living(RunContext(name, Path(segments, ends)), RequestContext(name))
        self.living.append(request)
        self.extend(request, rng.randint(1, len(request.context.path)))

    def extend(self, request: Living, num_keys: int) -> None:
        known = request.context.num_keys
        request.reference.extend(spelled(request.context.path.keys(known, num_keys)))
        request.context.extend_to(num_keys)
        assert len(request.context.keys) == len(request.reference.keys)

    def compute(self) -> None:
        request = self.someone()
        request.computed = min(request.computed + self.rng.randint(1, 20), len(request.context.path))
        if request.computed > request.context.num_keys:
            self.extend(request, request.computed)

    def visit(self) -> None:
        """A whole life without delays: most of the prefix is loaded, the rest is stored."""
        self.begin()
        request = self.living.pop()
        self.extend(request, len(request.context.path))
        chunks, pending = self.look_from(request, 0, request.context.num_keys)
        self.touch(request)
        if chunks and not pending:
            keys = self.manager.prepare_load(request.context, 0, chunks)
            self.reference.prepare_load(request.reference, 0, chunks)
            self.manager.complete_load(keys)
            self.reference.complete_load(request.reference.keys[:chunks])
        plan = self.manager.prepare_store(request.context, chunks, request.context.num_keys)
        expected = self.reference.prepare_store(request.reference, chunks, request.context.num_keys)
        assert (plan is None) == (expected is None)
        if plan is not None and expected is not None:
            self.touch(request)
            self.manager.complete_store(plan.positions)
            self.reference.complete_store([request.reference.keys[position] for position in expected.positions])
        self.manager.on_request_finished(request.context)
        self.reference.on_request_finished(request.reference)

    def look(self) -> None:
        request = self.someone()
        first = self.rng.randint(0, request.context.num_keys)
        changes = self.manager.num_changes
        self.look_from(request, first, request.context.num_keys)
        self.touch(request)
        if self.manager.num_changes == changes:  # then to do it again does nothing
            before = copy.deepcopy(self.reference.policy.__dict__)
            self.touch(request)
            after = self.reference.policy.__dict__
            for name in after.keys() - {"slots"}:
                assert before[name] == after[name], name
        else:
            self.counts.changes += 1

    def touch(self, request: Living) -> None:
        self.manager.touch(request.context)
        self.reference.touch(request.reference)

    def look_from(self, request: Living, first: int, last: int) -> tuple[int, bool]:
        hit = self.manager.lookup_prefix(request.context, first, last)
        assert hit == self.reference.lookup_prefix(request.reference, first, last)
        return hit

    def offer(self) -> None:
        request = self.someone()
        first, last = request.next_stored, request.computed
        plan = self.manager.prepare_store(request.context, first, last)
        expected = self.reference.prepare_store(request.reference, first, last)
        assert (plan is None) == (expected is None)
        if plan is None or expected is None:
            self.counts.refusals += 1
            return
        request.next_stored = max(request.next_stored, last)
        keys = [request.reference.keys[position] for position in expected.positions]
        assert spelled(plan.positions) == keys
        assert len(plan.positions) == len(plan.slot_ids) == len(expected.positions)
        if keys:
            self.stores.append((plan.positions, keys))
            self.counts.stores += 1
            if self.kind.touches:
                self.touch(request)

    def complete_store(self) -> None:
        if not self.stores:
            return
        keys, expected = self.stores.pop(self.rng.randrange(len(self.stores)))
        if len(keys) > 1 and self.rng.random() < 0.2:  # a job that is reported in parts
            at = self.rng.randrange(1, len(keys))
            self.stores.append((keys[at:], expected[at:]))
            keys, expected = keys[:at], expected[:at]
        success = self.rng.random() < 0.85
        self.counts.failures += not success
        self.manager.complete_store(keys, success=success)
        self.reference.complete_store(expected, success=success)
        held = self.manager.held(keys)
        still = [key for key in expected if key in self.reference.slots]
        assert spelled(held) == still
        if success and self.rng.random() < 0.4:  # cascaded to a tier behind
            self.manager.pin(held)
            self.reference.pin(still)
            self.loads.append((held, still))

    def load(self) -> None:
        request = self.someone()
        first, last = sorted(self.rng.randint(0, request.context.num_keys) for _ in range(2))
        chunks, pending = self.look_from(request, first, last)
        if chunks and not pending:
            keys = self.manager.prepare_load(request.context, first, first + chunks)
            self.reference.prepare_load(request.reference, first, first + chunks)
            expected = request.reference.keys[first : first + chunks]
            assert spelled(keys) == expected
            self.loads.append((keys, expected))
            self.counts.loads += 1
            request.next_stored = max(request.next_stored, first + chunks)
            request.computed = max(request.computed, first + chunks)

    def complete_load(self) -> None:
        if self.loads:
            keys, expected = self.loads.pop(self.rng.randrange(len(self.loads)))
            self.manager.complete_load(keys)
            self.reference.complete_load(expected)

    def promote(self) -> None:
        """As a lookup does that finds the chunks in a tier behind: one chunk after another, then a touch."""
        request = self.someone()
        first = self.rng.randint(0, request.context.num_keys)
        while first < request.context.num_keys:
            chunks, _ = self.look_from(request, first, request.context.num_keys)
            first += chunks
            last = first
            while last < request.context.num_keys and request.reference.keys[last] not in self.reference.slots:
                last += 1
            if last > first and self.rng.random() < 0.3:
                last = self.rng.randint(first + 1, last)
            reserved = 0
            for position in range(first, last):
                if self.reference.prepare_store(request.reference, position, position + 1) is None:
                    break
                reserved += 1
            assert self.manager.promote(request.context, first, last) == reserved
            self.counts.promoted += reserved
            if reserved:
                keys = request.context.path.keys(first, first + reserved)
                self.stores.append((keys, request.reference.keys[first : first + reserved]))
            if first + reserved < last:
                self.counts.partly_promoted += 1
                break
            first = last
            if self.rng.random() < 0.3:
                break
        self.touch(request)

    def preempt(self) -> None:
        request = self.someone()
        request.next_stored = request.computed = 0

    def finish(self) -> None:
        request = self.someone()
        self.living.remove(request)
        self.manager.on_request_finished(request.context)
        self.reference.on_request_finished(request.reference)

    def lose(self) -> None:
        self.manager.lose_contents()
        self.reference.lose_contents()
        self.counts.losses += 1


def compare_worlds(kind: str, seeds: range) -> Counts:
    """Run worlds until one differs; returns what all of them have seen."""
    counts = Counts()
    for seed in seeds:
        world = World(KINDS[kind], seed, counts)
        try:
            world.run()
        except Exception as error:
            error.add_note(f"{kind}, world {seed}")
            raise
        counts.evictions += world.reference.num_evicted
    return counts


@pytest.mark.parametrize("kind", KINDS)
def test_decides_as_the_reference_in_random_worlds(kind: str) -> None:
    """Results, counters, reference counts and the whole eviction order are those of the reference, at every step."""
    counts = compare_worlds(kind, range(200))
    happened = {name: count for name, count in vars(counts).items() if name != "changes" or kind == "arc-0.23"}
    assert min(happened.values()) > 20, counts
