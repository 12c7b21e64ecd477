"""The fast engine and the reference are equal where instances share a store, and what it does differently is right."""

from __future__ import annotations

import random

import pytest
from store_worlds import compare_store

from kvsim.clock import Clock
from kvsim.extents.path import Run
from kvsim.store.leases import Leases
from kvsim.store.run_leases import RunLeases

NUM_WORLDS, PER_TEST = 120, 20


@pytest.mark.parametrize("first", range(0, NUM_WORLDS, PER_TEST))
def test_random_stores(first: int) -> None:
    """Requests, totals, samples, bytes per node, and at the end what lies where, in clusters of one to five."""
    for seed in range(first, first + PER_TEST):
        verdict = compare_store(seed)
        assert not verdict.difference, f"store world {seed}: {verdict.difference}"


@pytest.mark.parametrize("seed", [1023, 1067, 1088])
def test_news_while_decisions_are_held_up(seed: int) -> None:
    """Whoever aborts or arrives while the scheduler waits for the store is heard of at the next decision."""
    verdict = compare_store(seed)
    assert not verdict.difference


@pytest.mark.parametrize("seed", [200_020, 40_052_264])
def test_an_engine_dies_while_its_scheduler_is_held_up(seed: int) -> None:
    """What it had planned to save counts, although nobody has begun to; the clock does not run on to its step's end."""
    assert not compare_store(seed).difference


def test_leases_that_follow_from_a_decision_come_behind_its_questions() -> None:
    """What a scheduler has asked for expires before what is read at the same instant because of its answer."""
    assert not compare_store(8_800_693).difference


def test_a_node_is_lost_when_all_is_written_and_nobody_has_said_so() -> None:
    """There is nothing left for its disk, in both engines."""
    assert not compare_store(30_000_010).difference


def _spelled(runs: list[Run]) -> list[tuple[int, int]]:
    return [(run.segment, position) for run in runs for position in range(run.first, run.last)]


@pytest.mark.parametrize("seed", range(60))
def test_leases_by_the_run_are_leases(seed: int) -> None:
    """The same objects expire in the same order, also if some grants are told of late, at their own place in time."""
    rng, clock = random.Random(seed), Clock()
    ttl = rng.choice([0, 3, 10])
    literal, by_run = Leases(ttl), RunLeases(ttl)
    known: set[tuple[int, int]] = set()
    late: list[tuple[list[Run], int]] = []
    now = clock.now
    for _ in range(200):
        now += rng.choice([0, 0, 1, 4]) if not late else 0
        first = rng.randint(0, 12)
        run = Run(rng.randint(0, 2), first, first + rng.randint(1, 6))
        keys = _spelled([run])
        chance = rng.random()
        if chance < 0.3 and known.isdisjoint(keys):
            literal.write(keys, now)  # type: ignore[arg-type]
            by_run.write([run], now)
            known.update(keys)
        elif chance < 0.75 and known.issuperset(keys):
            now += 1
            literal.read(keys, now)  # type: ignore[arg-type]
            if rng.random() < 0.5 and not late:
                late.append(([run], now))
                now += 1
                others = [key for key in known if key[0] != run.segment][:1]
                for key in others:
                    literal.read([key], now)  # type: ignore[list-item]
                    by_run.read([Run(key[0], key[1], key[1] + 1)], now)
            else:
                by_run.read([run], now)
            for runs, asked in late:
                by_run.read(runs, asked, turn=1)
            late = []
        elif chance < 0.85:
            for key in keys:
                literal.forget(key)  # type: ignore[arg-type]
            by_run.forget([run])
            known.difference_update(keys)
        count = rng.randint(1, 20)
        assert _spelled(by_run.expired(now + 2, count)) == literal.expired(now + 2, count)
        assert by_run.first_end() == literal.first_end()
