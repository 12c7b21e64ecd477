"""LRU of both releases: who is evicted first."""

from __future__ import annotations

from typing import Any

import pytest
from engine_builder import Tier, hashes, make_context, word
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.offload.context import SEEN, RequestContext
from kvsim.offload.policies.base import EvictionPolicy
from kvsim.offload.policies.lru import LruPolicy, LruPolicy023


def test_the_tail_of_a_request_goes_first_across_batches() -> None:
    """Within a living request the last chunk is evicted first, in whatever batches the chunks came."""
    tier, r = Tier(LruPolicy), make_context("r", "abcdef")
    for batch in ("ab", "cd", "ef"):
        tier.insert(r, batch)
    assert tier.evict_all() == "fedcba"


def test_a_living_request_is_as_recent_as_its_first_access() -> None:
    """All chunks of a long-running request go before those of a request that began later."""
    tier, old, young = Tier(LruPolicy), make_context("old", "abc"), make_context("young", "xy")
    tier.insert(old, "a")
    tier.insert(young, "xy")
    tier.insert(old, "bc")
    assert tier.evict_all() == "cbayx"


def test_the_end_of_a_request_counts_as_use_of_all_its_chunks() -> None:
    """When a request ends its chunks become the most recent, the head of the prefix above all."""
    tier, old, young = Tier(LruPolicy), make_context("old", "abc"), make_context("young", "xy")
    tier.insert(old, "abc")
    tier.insert(young, "xy")
    tier.policy.on_request_finished(old)
    assert tier.evict_all() == "yxcba"


def test_requests_are_ordered_by_their_ends() -> None:
    """Of requests that ended, the first to end goes first."""
    tier = Tier(LruPolicy)
    first, second, third = make_context("1", "ab"), make_context("2", "cd"), make_context("3", "ef")
    for context in (first, second, third):
        tier.insert(context, word(context.keys))
    for context in (third, first, second):
        tier.policy.on_request_finished(context)
    assert tier.evict_all() == "febadc"


def test_use_by_a_later_request_raises() -> None:
    """A chunk that another request uses moves to that request's place, in order of position."""
    tier, old, young = Tier(LruPolicy), make_context("old", "abc"), make_context("young", "abx")
    tier.insert(old, "abc")
    tier.insert(young, "x")
    tier.use(young, "ab")
    assert tier.evict_all() == "cxba"


def test_use_by_an_earlier_request_never_lowers() -> None:
    """A chunk of a younger request stays where it is when an older request uses it."""
    tier, old, young = Tier(LruPolicy), make_context("old", "ax"), make_context("young", "ab")
    tier.insert(old, "x")
    tier.insert(young, "ab")
    tier.use(old, "a")
    assert tier.evict_all() == "xba"


def test_rank_is_taken_at_the_first_access_not_at_arrival() -> None:
    """The order of requests is that of their first uses or stores."""
    tier, first, second = Tier(LruPolicy), make_context("1", "ab"), make_context("2", "xy")
    tier.insert(second, "xy")
    tier.insert(first, "ab")
    assert tier.evict_all() == "yxba"


def test_a_use_of_absent_chunks_is_a_first_access_too() -> None:
    """A request's rank dates from its first noted key, resident or not."""
    tier, first, second = Tier(LruPolicy), make_context("1", "ab"), make_context("2", "xy")
    tier.use(first, "b")
    tier.insert(second, "xy")
    tier.insert(first, "a")
    assert tier.evict_all() == "ayx"


def test_an_emptied_group_comes_back_in_its_old_place() -> None:
    """A request whose chunks were all evicted still has its old rank when it stores again."""
    tier, old, young = Tier(LruPolicy), make_context("old", "abc"), make_context("young", "xy")
    tier.insert(old, "ab")
    tier.insert(young, "xy")
    assert tier.evict(2) == "ba"
    tier.insert(old, "c")
    assert tier.evict_all() == "cyx"


def test_a_group_emptied_by_a_use_comes_back_in_its_old_place() -> None:
    """The same when another request took the chunks over."""
    tier = Tier(LruPolicy)
    old, middle, young = make_context("old", "abc"), make_context("mid", "xy"), make_context("young", "abd")
    tier.insert(old, "ab")
    tier.insert(middle, "xy")
    tier.use(young, "ab")
    tier.insert(old, "c")
    assert tier.evict_all() == "cyxba"


def test_positions_may_join_a_group_out_of_order() -> None:
    """The tail goes first even if the head was stored last, before and after evictions."""
    tier, r = Tier(LruPolicy), make_context("r", "abcdef")
    tier.insert(r, "df")
    tier.insert(r, "be")
    assert tier.evict(1) == "f"
    tier.insert(r, "ac")
    assert tier.evict_all() == "edcba"


def test_uses_out_of_order_join_a_group_in_order() -> None:
    """Chunks that are taken over from others are sorted into the request's own."""
    tier, old, young = Tier(LruPolicy), make_context("old", "abcd"), make_context("young", "abcde")
    tier.insert(old, "abcd")
    tier.insert(young, "e")
    tier.use(young, "bd")
    tier.use(young, "ac")
    assert tier.evict_all() == "edcba"


def test_chunks_in_use_or_protected_are_passed_over() -> None:
    """Chunks being written or read or offered stay, and keep their place for later."""
    tier, r = Tier(LruPolicy), make_context("r", "abcde")
    tier.insert(r, "abcde")
    tier.slots[ord("e")].ref_count = -1
    tier.slots[ord("c")].ref_count = 2
    assert tier.evict(1, protected="d") == "b"
    for key in map(ord, "ec"):
        tier.slots[key].ref_count = 0
        tier.policy.on_evictable(key)
    assert tier.evict_all() == "edca"


@pytest.mark.parametrize("policy", [LruPolicy, LruPolicy023])
def test_too_few_candidates_change_nothing(policy: type[EvictionPolicy]) -> None:
    """If there are fewer candidates than wanted none is evicted and the order stays."""
    tier, r = Tier(policy), make_context("r", "abc")
    tier.insert(r, "abc")
    assert tier.evict(3, protected="b") is None
    assert tier.evict_all() == ("cba" if policy is LruPolicy else "abc")


def test_chunks_that_are_gone_are_ignored_at_the_end() -> None:
    """Only resident chunks get a new rank when the request ends; chunks never seen keep theirs."""
    tier, r, other = Tier(LruPolicy), make_context("r", "abcd"), make_context("o", "abcd")
    tier.insert(other, "d")
    tier.insert(r, "abc")
    assert tier.evict(1, protected="d") == "c"
    tier.policy.on_request_finished(r)
    assert tier.evict_all() == "dba"


def test_023_is_one_list() -> None:
    """0.23.0: chunks are evicted in the order of insertion."""
    tier, a, b = Tier(LruPolicy023), make_context("1", "ab"), make_context("2", "xy")
    tier.insert(a, "a")
    tier.insert(b, "xy")
    tier.insert(a, "b")
    assert tier.evict_all() == "axyb"


def test_023_touch_is_in_reverse() -> None:
    """0.23.0: a touch makes the head of the prefix the most recent; absent keys are ignored."""
    tier, a, b = Tier(LruPolicy023), make_context("1", "abc"), make_context("2", "xy")
    tier.insert(a, "abc")
    tier.insert(b, "xy")
    tier.policy.touch(hashes("abqc"))
    assert tier.evict_all() == "xycba"


def test_023_the_end_of_a_request_and_uses_count_nothing() -> None:
    """0.23.0: only insertions and touches order the list."""
    tier, a, b = Tier(LruPolicy023), make_context("1", "ab"), make_context("2", "xy")
    tier.insert(a, "ab")
    tier.insert(b, "xy")
    tier.policy.on_access(a, [0, 1])
    tier.policy.on_request_finished(a)
    assert tier.evict_all() == "abxy"


def test_023_chunks_in_use_or_protected_are_passed_over() -> None:
    """0.23.0: they stay where they are in the list."""
    tier, r = Tier(LruPolicy023), make_context("r", "abcde")
    tier.insert(r, "abcde")
    tier.slots[ord("a")].ref_count = -1
    tier.slots[ord("b")].ref_count = 1
    assert tier.evict(1, protected="c") == "d"
    tier.slots[ord("a")].ref_count = tier.slots[ord("b")].ref_count = 0
    assert tier.evict_all() == "abce"


class NaiveLru:
    """0.33.0's rule as it is said: a rank per key, all ranks are sorted, the smallest evictable ones go."""

    def __init__(self) -> None:
        self.clock = 0
        self.request_rank: dict[str, int] = {}
        self.rank: dict[int, tuple[int, int]] = {}

    def now(self) -> int:
        self.clock += 1
        return self.clock

    def rank_of(self, name: str, position: int) -> tuple[int, int]:
        if name not in self.request_rank:
            self.request_rank[name] = self.now()
        return self.request_rank[name], -position

    def note(self, name: str, keys: list[int], positions: list[int]) -> None:
        for position in positions:
            rank = self.rank_of(name, position)
            if keys[position] in self.rank:
                self.rank[keys[position]] = max(self.rank[keys[position]], rank)

    def insert(self, name: str, keys: list[int], position: int) -> None:
        self.rank[keys[position]] = self.rank_of(name, position)

    def finish(self, keys: list[int], seen: list[int]) -> None:
        for position in sorted(seen, reverse=True):
            if keys[position] in self.rank:
                self.rank[keys[position]] = (self.now(), 0)

    def evict(self, count: int, evictable: set[int]) -> list[int] | None:
        order = sorted((rank, key) for key, rank in self.rank.items() if key in evictable)
        if len(order) < count:
            return None
        victims = [key for _, key in order[:count]]
        for key in victims:
            del self.rank[key]
        return victims


@settings(max_examples=120, deadline=None, derandomize=True)
@given(st.data())
def test_lru_equals_sorted_ranks(data: Any) -> None:
    """Any sequence of stores, uses, pins, ends and evictions has the victims of an obvious implementation."""
    tier, naive = Tier(LruPolicy), NaiveLru()
    slots, policy = tier.slots, tier.policy
    # Branches of a common prefix, so that a key has the same position everywhere.
    words = ["abcdef", "abcdxy", "abpqrs", "ab", "mno"]
    alive: list[RequestContext] = []
    for number in range(data.draw(st.integers(5, 40))):
        action = data.draw(st.sampled_from(["arrive", "store", "store", "use", "evict", "pin", "finish"]))
        if action == "arrive" or not alive:
            alive.append(make_context(f"r{number}", data.draw(st.sampled_from(words))))
            continue
        context = data.draw(st.sampled_from(alive))
        name, keys, marks = context.request_id, context.keys, context.marks
        positions = sorted(data.draw(st.sets(st.integers(0, len(keys) - 1), min_size=1)))
        match action:
            case "store" | "use":
                if action == "use":
                    positions = [p for p in positions if keys[p] in slots]
                naive.note(name, keys, [p for p in positions if not marks[p] & SEEN])
                tier.note(context, positions)
                for position in (p for p in positions if keys[p] not in slots):
                    naive.insert(name, keys, position)
                    tier.insert(context, chr(keys[position]))
            case "pin" if slots:
                key = data.draw(st.sampled_from(sorted(slots)))
                slots[key].ref_count = data.draw(st.sampled_from([-1, 0, 0, 2]))
                if slots[key].ref_count == 0:
                    policy.on_evictable(key)
            case "finish":
                alive.remove(context)
                policy.on_request_finished(context)
                naive.finish(keys, [p for p in range(len(keys)) if marks[p] & SEEN])
            case "evict":
                count = data.draw(st.integers(1, 4))
                protected = {keys[position] for position in positions}
                evictable = {key for key, slot in slots.items() if slot.ref_count == 0 and key not in protected}
                victims = policy.evict(count, protected)
                assert victims == naive.evict(count, evictable)
                for key in victims or []:
                    del slots[key]
    for key, slot in slots.items():
        slot.ref_count = 0
        policy.on_evictable(key)
    if slots:
        assert policy.evict(len(slots), set()) == naive.evict(len(slots), set(slots))
