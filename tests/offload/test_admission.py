"""Admission: what is stored at all."""

from __future__ import annotations

from engine_builder import hashes, make_context, word

from kvsim.offload.admission import Admission, AdmittingLedger, MinLength, SecondTouch
from kvsim.offload.context import RequestContext
from kvsim.offload.manager import OffloadingManager
from kvsim.offload.policies.lru import LruPolicy


class Door:
    """A CPU tier behind an admission rule."""

    def __init__(self, admission: Admission, slots: int = 20) -> None:
        self.manager = OffloadingManager(slots, LruPolicy)
        self.ledger = AdmittingLedger(self.manager, admission)

    def store(self, content: str, first: int = 0, context: RequestContext | None = None) -> str:
        """A request offers its chunks from one on; the letters that are copied."""
        context = context or make_context(content, content)
        plan = self.ledger.prepare_store(context, first, len(context.keys))
        assert plan is not None
        keys = [context.keys[position] for position in plan.positions]
        self.ledger.complete_store(keys, context)
        return word(keys)


def test_what_two_requests_offer_is_stored() -> None:
    """The first request stores nothing, the second what both have, the third the rest of what it shares."""
    door = Door(SecondTouch(uses=2, tracked_keys=100))
    assert [door.store(content) for content in ("abc", "abd", "abd")] == ["", "ab", "d"]


def test_a_request_counts_once() -> None:
    """Offering the same again, after a preemption or because there was no room, is no second use."""
    door, context = Door(SecondTouch(uses=2, tracked_keys=100)), make_context("1", "abc")
    assert [door.store("abc", context=context) for _ in range(3)] == ["", "", ""]
    assert door.store("abc") == "abc"


def test_what_is_remembered_is_bounded_and_the_head_stays_longest() -> None:
    """With room for three keys, the end of the older word is forgotten first."""
    door = Door(SecondTouch(uses=2, tracked_keys=3))
    door.store("ab")
    door.store("xy")
    assert door.store("ab") == "a"


def test_nothing_is_stored_behind_a_gap() -> None:
    """A chunk that would be admitted is not stored while the one before it is neither there nor coming."""
    door = Door(SecondTouch(uses=2, tracked_keys=100))
    for content in ("xbc", "abc"):  # equal letters stand for equal chunks, whatever is before them
        door.store(content)
    assert word(door.manager.slots) == ""


def test_short_requests_are_not_stored() -> None:
    """Three chunks are enough, two are not; what a short one shares with a long one comes with the long one."""
    door = Door(MinLength(3))
    assert [door.store(content) for content in ("ab", "abc", "xy", "xyz")] == ["", "abc", "", "xyz"]


def test_the_tier_hears_of_uses_of_what_it_has() -> None:
    """Chunks that are there stay as recent as their last use, although nothing new of the request is stored."""
    door = Door(MinLength(2), slots=4)
    door.store("ab")
    door.store("cd")
    user = make_context("user", "a")
    door.store("a", context=user)
    door.ledger.on_request_finished(user)
    assert door.store("ef") == "ef"
    assert word(sorted(door.manager.slots)) == "acef"


def test_everything_else_goes_through() -> None:
    """Lookups, loads, counts and checks are the tier's own."""
    door = Door(MinLength(1))
    door.ledger.enable_kv_events()
    door.store("ab")
    assert len(door.ledger.take_events()) == 2  # a block each
    context = make_context("2", "abc")
    assert door.ledger.lookup_prefix(context, 0, 3) == (2, False)
    assert (door.ledger.num_chunks, door.ledger.capacity_chunks, door.ledger.num_evicted) == (2, 20, 0)
    assert door.ledger.prepare_load(context, 0, 2) == door.ledger.prepare_load_of(context, [0, 1]) == [0, 1]
    for _ in range(2):
        door.ledger.complete_load(hashes("ab"))
    door.ledger.check(at_end=True)
    assert door.ledger.epoch == door.manager.epoch
