"""OffloadingManager: slots, pins, the threshold, refusals, and what a request's marks become."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest
from engine_builder import hashes, make_context, word

from kvsim.offload import manager as manager_module
from kvsim.offload.context import INSERTED, MISSED, REUSED, SEEN, RequestContext
from kvsim.offload.ledger import PrefixHit, StorePlan
from kvsim.offload.manager import OffloadingManager, OffloadingManager023
from kvsim.offload.policies.base import EvictionPolicy
from kvsim.offload.slot import Slots


class Fifo(EvictionPolicy):
    """Evicts in the order of insertion and writes down what it is asked and told."""

    def __init__(self, capacity: int, slots: Slots) -> None:
        super().__init__(capacity, slots)
        self.calls: list[tuple[Any, ...]] = []

    def insert(self, context: RequestContext, position: int) -> None:
        self.calls.append(("insert", chr(context.keys[position])))

    def evict(self, count: int, protected: Collection[int]) -> list[int] | None:
        self.calls.append(("evict", count, word(sorted(protected))))
        candidates = [key for key in self.slots if self.is_evictable(key, protected)]
        return candidates[:count] if len(candidates) >= count else None

    def remove(self, key: int) -> None:
        self.calls.append(("remove", chr(key)))

    def touch(self, keys: list[int]) -> None:
        self.calls.append(("touch", word(keys)))

    def on_access(self, context: RequestContext, positions: Sequence[int]) -> None:
        self.calls.append(("access", context.request_id, word(context.keys[i] for i in positions)))

    def on_store_miss(self, keys: list[int]) -> None:
        self.calls.append(("miss", word(keys)))

    def on_request_finished(self, context: RequestContext) -> None:
        self.calls.append(("finished", context.request_id))

    def said(self) -> list[tuple[Any, ...]]:
        """The calls since the last time."""
        calls, self.calls = self.calls, []
        return calls


class Books:
    """A manager over a `Fifo`, by letters."""

    def __init__(
        self, num_slots: int, release: type[OffloadingManager] = OffloadingManager, threshold: int = 0
    ) -> None:
        self.log: list[tuple[int, str | None]] = []
        self.manager = release(
            num_slots,
            Fifo,
            threshold,
            lambda n, keys: self.log.append((n, None if keys is None else word(keys))),
        )
        assert isinstance(self.manager.policy, Fifo)
        self.policy = self.manager.policy

    def offer(self, context: RequestContext, letters: str | None = None) -> StorePlan | None:
        """Offer these chunks, or all of the request's."""
        first, last = _range(context, letters)
        return self.manager.prepare_store(context, first, last)

    def store(self, context: RequestContext, letters: str | None = None) -> None:
        """Offer, copy, complete."""
        plan = self.offer(context, letters)
        assert plan is not None
        self.manager.complete_store([context.keys[i] for i in plan.positions])

    def load(self, context: RequestContext, letters: str) -> list[int]:
        """Pin these chunks."""
        return self.manager.prepare_load(context, *_range(context, letters))

    def resident(self) -> str:
        return word(self.manager.slots)

    def refs(self) -> dict[str, int]:
        return {chr(key): slot.ref_count for key, slot in self.manager.slots.items()}


def _range(context: RequestContext, letters: str | None) -> tuple[int, int]:
    content = word(context.keys)
    first = 0 if letters is None else content.index(letters)
    return first, first + len(content if letters is None else letters)


def _marks(context: RequestContext, mark: int) -> str:
    return word(key for key, held in zip(context.keys, context.marks, strict=True) if held & mark)


BOTH = pytest.mark.parametrize("release", [OffloadingManager, OffloadingManager023])


# -- slots
@BOTH
def test_slots_are_fresh_and_ascending_then_last_freed_first(release: type[OffloadingManager]) -> None:
    """Never-used slots come first; then the slot evicted last goes to the first new chunk."""
    books = Books(4, release)
    assert books.offer(make_context("1", "ab")) == StorePlan([0, 1], [0, 1])
    assert books.offer(make_context("2", "cd")) == StorePlan([0, 1], [2, 3])
    books.manager.complete_store(hashes("abcd"))
    assert books.offer(make_context("3", "xyz")) == StorePlan([0, 1, 2], [2, 1, 0])
    assert books.log == [(3, "abc")]
    books.manager.check(at_end=False)


@BOTH
def test_fresh_slots_before_freed_ones(release: type[OffloadingManager]) -> None:
    """An offer that needs both evicts only what is missing and uses the fresh slots first."""
    books = Books(4, release)
    books.store(make_context("1", "abc"))
    assert books.offer(make_context("2", "xyz")) == StorePlan([0, 1, 2], [3, 1, 0])
    assert books.log == [(2, "ab")]
    assert books.resident() == "cxyz"


@BOTH
def test_the_slots_of_a_failed_store_are_free_again(release: type[OffloadingManager]) -> None:
    """The keys are absent, the policy forgets them in order, and the slot freed last is handed out first."""
    books = Books(3, release)
    context = make_context("1", "abc")
    books.offer(context)
    books.policy.said()
    books.manager.complete_store(context.keys[:2], context, success=False)
    assert (books.resident(), books.policy.said()) == ("c", [("remove", "a"), ("remove", "b")])
    assert books.offer(context) == StorePlan([0, 1], [1, 0])
    books.manager.check(at_end=False)


@BOTH
def test_only_absent_chunks_are_stored(release: type[OffloadingManager]) -> None:
    """Chunks that are there, ready or being written, are not stored again."""
    books = Books(9, release)
    books.store(make_context("1", "ab"))
    books.offer(make_context("2", "abc"))
    assert books.offer(make_context("3", "abcd")) == StorePlan([3], [3])
    assert books.offer(make_context("4", "abcd")) == StorePlan([], [])
    assert books.refs() == {"a": 0, "b": 0, "c": -1, "d": -1}


@BOTH
def test_a_part_of_a_request_can_be_offered(release: type[OffloadingManager]) -> None:
    """Positions of the plan are positions in the request."""
    books = Books(9, release)
    assert books.offer(make_context("1", "abcde"), "cd") == StorePlan([2, 3], [0, 1])
    assert books.resident() == "cd"


# -- lookups and pins
@BOTH
def test_lookup_counts_chunks_from_a_start_to_the_first_gap(release: type[OffloadingManager]) -> None:
    """A hit is a run of leading chunks from the one that is asked for first."""
    books = Books(9, release)
    books.store(make_context("1", "abcde"), "b")
    books.store(make_context("2", "abcde"), "cd")
    lookup, r = books.manager.lookup_prefix, make_context("3", "abcde")
    assert lookup(r, 0, 5) == PrefixHit(0, pending=False)
    assert lookup(r, 1, 5) == PrefixHit(3, pending=False)
    assert lookup(r, 1, 3) == PrefixHit(2, pending=False)
    assert lookup(r, 3, 3) == PrefixHit(0, pending=False)


@BOTH
def test_chunks_being_written_are_pending_hits(release: type[OffloadingManager]) -> None:
    """A chunk in the middle that is still being written counts, and makes the hit pending."""
    books, r = Books(9, release), make_context("3", "abcd")
    books.store(r, "a")
    books.offer(r, "b")
    books.store(r, "c")
    assert books.manager.lookup_prefix(r, 0, 4) == PrefixHit(3, pending=True)
    assert books.manager.lookup_prefix(r, 0, 1) == PrefixHit(1, pending=False)
    books.manager.complete_store(hashes("b"))
    assert books.manager.lookup_prefix(r, 0, 4) == PrefixHit(3, pending=False)


@BOTH
def test_a_load_pins_until_it_is_complete(release: type[OffloadingManager]) -> None:
    """Loads answer the slots, count readers, and make chunks unevictable until the last reader is done."""
    books, r, s = Books(3, release), make_context("1", "abc"), make_context("2", "abc")
    books.store(r)
    assert books.load(r, "bc") == [1, 2]
    assert books.load(s, "b") == [1]
    assert books.refs() == {"a": 0, "b": 2, "c": 1}
    assert books.offer(make_context("3", "xy")) is None
    books.manager.complete_load(hashes("b"))
    assert books.refs() == {"a": 0, "b": 1, "c": 1}
    books.manager.complete_load(hashes("bc"))
    assert books.offer(make_context("4", "pq")) == StorePlan([0, 1], [1, 0])
    books.manager.check(at_end=False)


@BOTH
def test_what_is_being_written_cannot_be_read(release: type[OffloadingManager]) -> None:
    """Loading a chunk that is not ready is an error of the caller."""
    books, r = Books(3, release), make_context("1", "a")
    books.offer(r)
    with pytest.raises(ValueError, match="still being written"):
        books.load(r, "a")


@BOTH
def test_a_load_that_was_never_prepared_cannot_complete(release: type[OffloadingManager]) -> None:
    """Unpinning what is not pinned is an error of the caller."""
    books = Books(3, release)
    books.store(make_context("1", "a"))
    with pytest.raises(ValueError, match="never prepared"):
        books.manager.complete_load(hashes("a"))


@BOTH
def test_check_counts_evictable_chunks(release: type[OffloadingManager]) -> None:
    """The count of evictable chunks follows every transition of a slot."""
    books, r = Books(3, release), make_context("1", "abc")
    books.offer(r)
    books.manager.check(at_end=False)
    books.manager.complete_store(hashes("abc"))
    books.manager.check(at_end=False)
    books.load(r, "ab")
    books.manager.check(at_end=False)
    with pytest.raises(AssertionError, match="2 CPU chunks are still pinned"):
        books.manager.check(at_end=True)
    next(iter(books.manager.slots.values())).ref_count = 0
    with pytest.raises(AssertionError, match="2 evictable chunks, 1 counted"):
        books.manager.check(at_end=False)


@BOTH
def test_epoch_moves_with_whatever_a_lookup_could_notice(release: type[OffloadingManager]) -> None:
    """Inserts, completions, pins and evictions are new epochs; lookups, refusals and empty offers are not."""
    books, r = Books(2, release), make_context("1", "ab")
    epochs = [books.manager.epoch]

    def moved() -> bool:
        epochs.append(books.manager.epoch)
        return epochs[-1] > epochs[-2]

    books.offer(r)
    assert moved()
    assert books.offer(make_context("2", "x")) is None
    assert not moved()
    books.manager.complete_store(hashes("ab"))
    assert moved()
    books.manager.lookup_prefix(r, 0, 2)
    assert not moved()
    books.offer(r)
    assert not moved()
    books.load(r, "a")
    assert moved()
    books.manager.complete_load(hashes("a"))
    assert moved()
    books.offer(make_context("3", "y"))
    assert moved()


# -- room
def test_refused_without_asking_the_policy() -> None:
    """0.33.0: if more is missing than chunks are evictable, the policy is not asked; the offer is refused."""
    books = Books(3)
    books.store(make_context("1", "ab"))
    assert books.offer(make_context("2", "wxyz")) is None
    assert books.log == []
    assert books.manager.num_refusals == 1
    assert books.resident() == "ab"


def test_023_always_asks_the_policy() -> None:
    """0.23.0: the policy is asked and refuses."""
    books = Books(3, OffloadingManager023)
    books.store(make_context("1", "ab"))
    assert books.offer(make_context("2", "wxyz")) is None
    assert books.log == [(3, None)]
    assert books.manager.num_refusals == 1


@BOTH
def test_what_is_offered_is_protected(release: type[OffloadingManager]) -> None:
    """Present chunks of the same offer are not evicted for the absent ones; there is no partial store."""
    books, r = Books(3, release), make_context("1", "abcd")
    books.store(r, "abc")
    assert books.offer(r, "cd") == StorePlan([3], [0])
    assert books.log == [(1, "a")]
    books.manager.complete_store(hashes("d"))
    assert books.offer(make_context("2", "bcdxy")) is None
    assert books.log[1:] == [(2, None)]
    assert books.resident() == "bcd"
    assert (books.manager.num_refusals, books.manager.num_evicted) == (1, 1)


def test_protected_includes_chunks_below_the_threshold() -> None:
    """0.33.0: everything offered is protected, also what the threshold keeps from being stored."""
    books = Books(2, threshold=2)
    for name in "12":
        books.offer(make_context(name, "ab"))
    books.manager.complete_store(hashes("ab"))
    books.offer(make_context("3", "c"))
    books.policy.said()
    books.offer(make_context("4", "cd"))
    assert ("evict", 1, "cd") in books.policy.said()


def test_023_protected_is_what_passed_the_threshold() -> None:
    """0.23.0: chunks below the threshold are filtered first, present ones too, and are not protected."""
    books = Books(2, OffloadingManager023, threshold=2)
    for content in "aabbxx":
        books.manager.lookup_prefix(make_context("1", content), 0, 1)
    books.store(make_context("2", "ab"))
    del books.manager._counts[ord("a")]  # as if the bounded table had forgotten it
    books.policy.said()
    assert books.offer(make_context("3", "abx")) == StorePlan([2], [0])
    assert books.policy.said() == [("evict", 1, "bx"), ("insert", "x")]
    assert books.resident() == "bx"


# -- threshold
def test_the_threshold_counts_offers() -> None:
    """0.33.0: a chunk is stored with its second offer, whoever makes it; lookups count nothing."""
    books, r, s = Books(9, threshold=2), make_context("1", "abc"), make_context("2", "ab")
    assert books.offer(r, "a") == StorePlan([], [])
    for _ in range(3):
        books.manager.lookup_prefix(s, 0, 2)
    assert books.offer(s) == StorePlan([0], [0])
    assert books.offer(r) == StorePlan([1], [1])


def test_the_threshold_filters_absent_chunks_only() -> None:
    """0.33.0: a present chunk below the threshold is used all the same."""
    books, r = Books(9, threshold=2), make_context("1", "a")
    books.offer(r)
    books.store(r)
    books.manager._counts.clear()
    s = make_context("2", "ab")
    assert books.offer(s) == StorePlan([], [])
    assert _marks(s, SEEN) == "a"


def test_a_threshold_of_one_is_none() -> None:
    """Below two nothing is counted."""
    books = Books(9, threshold=1)
    assert books.offer(make_context("1", "a")) == StorePlan([0], [0])
    assert not books.manager._counts


def test_the_table_of_counts_forgets_the_least_recently_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.33.0: the table is bounded; an offer counts as use of its keys."""
    monkeypatch.setattr(manager_module, "MAX_TRACKED_KEYS", 3)
    books = Books(9, threshold=9)
    for content in ("a", "b", "c", "a", "d"):
        books.offer(make_context("1", content))
    assert {chr(key): n for key, n in books.manager._counts.items()} == {"c": 1, "a": 2, "d": 1}


def test_an_offer_does_not_push_its_own_keys_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.33.0: keys of one offer only displace older ones; what has no room is not counted."""
    monkeypatch.setattr(manager_module, "MAX_TRACKED_KEYS", 3)
    books = Books(9, threshold=9)
    books.offer(make_context("1", "abc"))
    books.offer(make_context("2", "cdefg"))
    assert {chr(key): n for key, n in books.manager._counts.items()} == {"c": 2, "d": 1, "e": 1}


def test_023_the_threshold_counts_lookups() -> None:
    """0.23.0: every lookup counts, hits and the first miss, but nothing behind it; offers count nothing."""
    books, r = Books(9, OffloadingManager023, threshold=2), make_context("1", "abc")
    for _ in range(3):
        assert books.offer(r) == StorePlan([], [])
    books.manager.lookup_prefix(r, 0, 3)
    assert {chr(key): n for key, n in books.manager._counts.items()} == {"a": 1}
    books.manager.lookup_prefix(r, 0, 3)
    books.store(r)
    assert books.resident() == "a"
    books.manager.lookup_prefix(r, 0, 3)
    assert {chr(key): n for key, n in books.manager._counts.items()} == {"a": 3, "b": 1}
    books.manager.lookup_prefix(r, 0, 1)
    assert {chr(key): n for key, n in books.manager._counts.items()} == {"b": 1, "a": 4}


def test_023_the_table_of_counts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.23.0: the key looked up longest ago is forgotten."""
    monkeypatch.setattr(manager_module, "MAX_TRACKED_KEYS", 2)
    books = Books(9, OffloadingManager023, threshold=2)
    for content in "abac":
        books.manager.lookup_prefix(make_context("1", content), 0, 1)
    assert {chr(key): n for key, n in books.manager._counts.items()} == {"a": 2, "c": 1}


# -- what the policy is told, and marks (0.33.0)
def test_order_of_calls_in_a_store() -> None:
    """Misses first, then first uses in offer order, then eviction, then inserts."""
    books = Books(3)
    books.store(make_context("1", "pqb"), "pqb")
    books.policy.said()
    books.offer(make_context("2", "abc"))
    assert books.policy.said() == [
        ("miss", "ac"),
        ("access", "2", "abc"),
        ("evict", 2, "abc"),
        ("insert", "a"),
        ("insert", "c"),
    ]


def test_a_miss_is_reported_once_per_request_and_key() -> None:
    """A refused offer that comes again does not report its misses again; another request's does."""
    books, r = Books(1), make_context("1", "abc")
    books.offer(r, "ab")
    books.offer(r, "abc")
    books.offer(make_context("2", "a"))
    assert [call for call in books.policy.said() if call[0] == "miss"] == [
        ("miss", "ab"),
        ("miss", "c"),
        ("miss", "a"),
    ]


def test_a_refusal_leaves_its_notes() -> None:
    """What a refused offer has seen and missed stays noted; nothing is inserted."""
    books, r = Books(2), make_context("1", "abc")
    books.store(make_context("0", "ax"), "a")
    assert books.offer(r) is None
    assert [_marks(r, mark) for mark in (SEEN, MISSED, REUSED, INSERTED)] == ["abc", "bc", "a", ""]
    assert books.policy.said()[-2:] == [("access", "1", "abc"), ("evict", 1, "abc")]


def test_chunks_being_written_are_not_seen() -> None:
    """A chunk that another request is still writing is neither seen nor reused by an offer."""
    books, r = Books(9), make_context("2", "abc")
    books.store(make_context("0", "a"))
    books.offer(make_context("1", "ab"), "b")
    books.offer(r)
    assert [_marks(r, mark) for mark in (SEEN, REUSED, INSERTED)] == ["ac", "a", "c"]


def test_chunks_below_the_threshold_are_not_seen() -> None:
    """What the threshold keeps out is neither missed nor seen."""
    books, r = Books(9, threshold=2), make_context("1", "ab")
    books.offer(r)
    assert list(r.marks) == [0, 0]
    assert books.policy.said() == []


def test_own_chunks_are_not_reused() -> None:
    """A request that finds what it inserted itself has not reused it."""
    books, r = Books(9), make_context("1", "ab")
    books.store(r, "a")
    books.store(r)
    books.load(r, "ab")
    assert [_marks(r, mark) for mark in (SEEN, REUSED, INSERTED)] == ["ab", "", "ab"]


def test_a_load_is_a_use() -> None:
    """Loaded chunks are seen (once) and reused."""
    books, r = Books(9), make_context("2", "abc")
    books.store(make_context("1", "abc"))
    books.policy.said()
    books.load(r, "bc")
    books.load(r, "abc")
    assert books.policy.said() == [("access", "2", "bc"), ("access", "2", "a")]
    assert [_marks(r, mark) for mark in (SEEN, REUSED, INSERTED)] == ["abc", "abc", ""]


def test_a_pin_is_no_use() -> None:
    """Reads of the ledger's own (cascades) pin without counting as a use."""
    books, r = Books(9), make_context("2", "ab")
    books.store(make_context("1", "ab"))
    books.policy.said()
    assert books.manager.pin(r.keys) == [0, 1]
    assert (books.policy.said(), list(r.marks)) == ([], [0, 0])
    assert books.refs() == {"a": 1, "b": 1}


def test_lookups_and_touches_are_no_uses() -> None:
    """0.33.0: neither reaches the policy."""
    books, r = Books(9), make_context("2", "ab")
    books.store(make_context("1", "ab"))
    books.policy.said()
    books.manager.lookup_prefix(r, 0, 2)
    books.manager.touch(r)
    assert (books.policy.said(), list(r.marks)) == ([], [0, 0])
    assert books.manager.lookups_are_pure


def test_the_end_of_a_request_reaches_the_policy() -> None:
    """0.33.0: recency is committed when the request ends."""
    books = Books(9)
    books.manager.on_request_finished(make_context("1", "ab"))
    assert books.policy.said() == [("finished", "1")]


def test_023_policy_hears_of_touches_and_inserts_only() -> None:
    """0.23.0: no notes, no misses, no ends; a touch passes all keys of the request, resident or not."""
    books, r = Books(9, OffloadingManager023), make_context("1", "abc")
    books.store(r, "ab")
    books.load(r, "ab")
    books.manager.touch(r)
    books.manager.on_request_finished(r)
    assert books.policy.said() == [("insert", "a"), ("insert", "b"), ("touch", "abc")]
    assert not books.manager.lookups_are_pure
    assert _marks(r, SEEN) == _marks(r, MISSED) == ""
