"""TieringManager: cascades, promotions, and what the tiers are told and when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from engine_builder import make_context, word

from kvsim.offload.ledger import PrefixHit, StorePlan
from kvsim.offload.manager import OffloadingManager
from kvsim.offload.policies.lru import LruPolicy
from kvsim.offload.tiering import Answer, TieringManager, TieringManager023, TierJob


class Shelf:
    """A tier that holds what it is told to, finishes jobs when it is told to, and writes down what it hears."""

    def __init__(self, holds: str = "", unknown: str = "") -> None:
        self.holds, self.unknown = set(map(ord, holds)), set(map(ord, unknown))
        self.done: list[TierJob] = []
        self.jobs = 0
        self.said: list[str] = []

    def lookup(self, key: int, request_id: str) -> Answer:
        self.said.append(f"{chr(key)}? ({request_id})")
        return Answer.RETRY if key in self.unknown else Answer.HIT if key in self.holds else Answer.MISS

    def on_schedule_end(self) -> None:
        self.said.append("end of step")

    def on_request_finished(self, request_id: str) -> None:
        self.said.append(f"{request_id} is over")

    def submit(self, direction: Literal["load", "store"], keys: Sequence[int]) -> None:
        self.said.append(f"{direction} {word(keys)}")
        self.jobs += 1

    def poll(self) -> list[TierJob]:
        done, self.done = self.done, []
        self.jobs -= len(done)
        return done

    def is_idle(self) -> bool:
        return not self.jobs

    def finish(self, outcome: Literal["load", "store", "failed load", "failed store"], letters: str) -> None:
        self.done.append((outcome, list(map(ord, letters))))

    def heard(self) -> list[str]:
        said, self.said = self.said, []
        return said


def manager(num_slots: int, *tiers: Shelf, release: type[TieringManager] = TieringManager) -> TieringManager:
    """A manager over an LRU primary."""
    return release(OffloadingManager(num_slots, LruPolicy), tiers)


def test_a_confirmed_store_cascades_to_all_tiers_and_is_pinned_until_they_have_it() -> None:
    """The primary copy may not go while any tier still reads it."""
    first, second = Shelf(), Shelf()
    ledger, context = manager(4, first, second), make_context("r", "ab")
    assert ledger.prepare_store(context, 0, 2) == StorePlan([0, 1], [0, 1])
    assert first.heard() == []
    ledger.complete_store(context.keys, context)
    assert first.heard() == second.heard() == ["store ab"]
    assert ledger.has_pending_work()
    other = make_context("s", "wxyz")
    assert ledger.prepare_store(other, 0, 4) is None, "a and b are still being read by the tiers"
    first.finish("store", "ab")
    assert ledger.prepare_store(other, 0, 4) is None, "the second tier still reads them"
    second.finish("store", "ab")
    assert ledger.prepare_store(other, 0, 4) == StorePlan([0, 1, 2, 3], [2, 3, 0, 1])
    assert not ledger.has_pending_work()


def test_a_tier_hit_reserves_a_slot_at_once_and_is_loaded_at_the_end_of_the_step() -> None:
    """Later look-ups of the same step find the chunk being written and do not ask again."""
    tier = Shelf("abc")
    ledger, context = manager(4, tier), make_context("r", "abcd")
    assert ledger.lookup_prefix(context, 0, 4) == PrefixHit(3, pending=True)
    assert (ledger.num_chunks, tier.heard()) == (3, ["a? (r)", "b? (r)", "c? (r)", "d? (r)"])
    assert ledger.lookup_prefix(context, 0, 4) == PrefixHit(3, pending=True)
    assert tier.heard() == ["d? (r)"], "a, b and c are being written to the primary: nobody asks the tier again"
    ledger.on_schedule_end()
    assert tier.heard() == ["load abc", "end of step"]
    tier.finish("load", "abc")
    assert ledger.lookup_prefix(context, 0, 4) == PrefixHit(3, pending=False)
    assert ledger.prepare_load(context, 0, 3) == [0, 1, 2]


def test_the_first_tier_that_has_a_chunk_promotes_it() -> None:
    """The second tier is not even asked."""
    near, far = Shelf("b"), Shelf("ab")
    ledger = manager(4, near, far)
    assert ledger.lookup_prefix(make_context("r", "ab"), 0, 2) == PrefixHit(2, pending=True)
    assert (near.heard(), far.heard()) == (["a? (r)", "b? (r)"], ["a? (r)"])
    ledger.on_schedule_end()
    assert (near.heard(), far.heard()) == (["load b", "end of step"], ["load a", "end of step"])


def test_a_tier_hit_without_room_is_a_miss() -> None:
    """Nothing in the primary can be evicted: the chunk cannot be had."""
    tier = Shelf("ab")
    ledger, owner = manager(1, tier), make_context("o", "x")
    ledger.prepare_store(owner, 0, 1)  # being written: cannot go
    assert ledger.lookup_prefix(make_context("r", "ab"), 0, 2) == PrefixHit(0, pending=False)
    ledger.on_schedule_end()
    assert tier.heard() == ["a? (r)", "end of step"]


def test_a_tier_that_has_to_find_out_is_asked_about_the_rest_too() -> None:
    """Unknown chunks don't count, but the look-up goes on behind them: it is the tier's chance to find out."""
    tier = Shelf("ac", unknown="b")
    ledger = manager(4, tier)
    assert ledger.lookup_prefix(make_context("r", "abcd"), 0, 4) == PrefixHit(2, pending=True)
    assert tier.heard() == ["a? (r)", "b? (r)", "c? (r)", "d? (r)"]


def test_unknown_in_one_tier_and_absent_in_the_next_is_unknown() -> None:
    """The request is asked again later."""
    ledger = manager(4, Shelf(unknown="a"), Shelf())
    assert ledger.lookup_prefix(make_context("r", "a"), 0, 1) == PrefixHit(0, pending=True)


def test_tiers_hear_of_a_request_s_end_when_its_last_store_is_on_its_way() -> None:
    """Both stores have to be handed on first."""
    tier = Shelf()
    ledger, context = manager(4, tier), make_context("r", "abc")
    ledger.prepare_store(context, 0, 1)
    ledger.prepare_store(context, 1, 3)
    ledger.on_request_finished(context)
    assert tier.heard() == []
    ledger.complete_store(context.keys[:1], context)
    assert tier.heard() == ["store a"]
    ledger.complete_store(context.keys[1:], context)
    assert tier.heard() == ["store bc", "r is over"]


def test_a_request_without_stores_is_over_at_once() -> None:
    """There is nothing to wait for."""
    tier = Shelf()
    ledger, context = manager(4, tier), make_context("r", "a")
    ledger.on_request_finished(context)
    assert tier.heard() == ["r is over"]


def test_0_33_polls_at_every_store_offer() -> None:
    """Look-ups poll once a step, offers always."""
    tier = Shelf("a")
    ledger, context = manager(4, tier), make_context("r", "a")
    ledger.lookup_prefix(context, 0, 1)
    ledger.on_schedule_end()
    assert ledger.lookup_prefix(context, 0, 1).pending  # polls: nothing yet
    tier.finish("load", "a")
    assert ledger.lookup_prefix(context, 0, 1).pending, "once a step is enough for look-ups"
    ledger.prepare_store(make_context("s", "x"), 0, 1)
    assert not ledger.lookup_prefix(context, 0, 1).pending


def test_0_23_polls_once_until_the_end_of_the_decisions() -> None:
    """An offer after the end leaves the gate set: the next step does not poll."""
    tier = Shelf("a")
    ledger, context = manager(4, tier, release=TieringManager023), make_context("r", "a")
    ledger.lookup_prefix(context, 0, 1)
    ledger.on_schedule_end()
    ledger.prepare_store(make_context("s", "x"), 0, 1)  # after the end: polls, and leaves the gate set
    tier.finish("load", "a")
    assert ledger.lookup_prefix(context, 0, 1).pending, "the next step's look-ups don't poll"
    ledger.on_schedule_end()
    assert not ledger.lookup_prefix(context, 0, 1).pending


def test_a_promotion_that_fails_frees_its_slots() -> None:
    """Of "abc" only "a" has arrived: it can be loaded, the others are misses until the tier is asked again."""
    tier = Shelf("abc")
    ledger, context = manager(3, tier), make_context("r", "abc")
    ledger.lookup_prefix(context, 0, 3)
    ledger.on_schedule_end()
    tier.holds = {ord("a")}
    tier.finish("load", "a")
    tier.finish("failed load", "bc")
    tier.jobs += 1  # one job, reported in two parts
    assert ledger.lookup_prefix(context, 0, 3) == PrefixHit(1, pending=False)
    assert ledger.num_chunks == 1
    ledger.on_schedule_end()
    ledger.check(at_end=True)


def test_a_cascade_that_fails_only_unpins_the_primary() -> None:
    """What the tier has lost stays in the primary, evictable, and nobody writes it again."""
    tier = Shelf()
    ledger, context = manager(2, tier), make_context("r", "ab")
    ledger.prepare_store(context, 0, 2)
    ledger.complete_store(context.keys, context)
    ledger.on_schedule_end()
    tier.finish("failed store", "ab")
    assert ledger.lookup_prefix(context, 0, 2) == PrefixHit(2, pending=False)
    ledger.check(at_end=True)
    assert tier.heard() == ["store ab", "end of step"]


def test_a_store_that_fails_is_not_cascaded() -> None:
    """The tiers hear nothing of it but the request's end."""
    tier = Shelf()
    ledger, context = manager(2, tier), make_context("r", "ab")
    ledger.prepare_store(context, 0, 2)
    ledger.on_request_finished(context)
    ledger.complete_store(context.keys, context, success=False)
    assert (tier.heard(), ledger.num_chunks) == (["r is over"], 0)
    ledger.check(at_end=True)
