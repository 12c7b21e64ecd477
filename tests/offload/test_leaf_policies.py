"""Policies that evict leaves only: who goes first, and what nobody may do."""

from __future__ import annotations

import copy

import pytest
from engine_builder import Tier, make_context, word
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.offload.context import RequestContext
from kvsim.offload.group_context import GroupContext
from kvsim.offload.policies.arc_textbook import ArcTextbookPolicy
from kvsim.offload.policies.base import EvictionPolicy
from kvsim.offload.policies.fifo import FifoPolicy
from kvsim.offload.policies.leaves import LeafPolicy
from kvsim.offload.policies.lfu import LfuPolicy
from kvsim.offload.policies.s3fifo import S3FifoPolicy
from kvsim.offload.policies.sieve import SievePolicy
from kvsim.offload.policies.slru import SlruPolicy
from kvsim.offload.slot import Slot
from kvsim.registry import POLICIES

LEAF_POLICIES = [name for name in POLICIES.names() if issubclass(POLICIES.find(name), LeafPolicy)]


def filled(policy: type[EvictionPolicy], *contents: str, capacity: int = 100) -> tuple[Tier, list[RequestContext]]:
    """A tier into which requests have put these words, each by itself."""
    tier, contexts = Tier(policy, capacity), [make_context(content, content) for content in contents]
    for context in contexts:
        tier.insert(context, word(context.keys))
        tier.policy.on_request_finished(context)
    return tier, contexts


def use(tier: Tier, content: str) -> None:
    """A new request uses a whole word."""
    context = make_context(f"uses {content}", content)
    tier.use(context, content)
    tier.policy.on_request_finished(context)


def test_fifo_takes_the_oldest_tail_first() -> None:
    """Each word goes from its end to its beginning, in the order of insertion, used or not."""
    tier, _ = filled(FifoPolicy, "abc", "xyz")
    use(tier, "abc")
    assert tier.evict_all() == "cbazyx"


def test_lfu_takes_the_least_used_then_the_least_recent() -> None:
    """Two uses go after one; of equals the one that was used longer ago goes first."""
    tier, _ = filled(LfuPolicy, "ab", "cd", "ef")
    use(tier, "ab")
    use(tier, "cd")
    use(tier, "ab")
    assert tier.evict_all() == "fedcba"


def test_slru_takes_what_was_never_reused_first() -> None:
    """A word that was put in last but never reused goes before older ones that were, which go by recency."""
    tier, _ = filled(SlruPolicy, "ab", "cd", "ef")
    for content in ("ab", "cd", "ab"):
        use(tier, content)
    assert tier.evict_all() == "fedcba"


def test_a_shared_head_outlives_its_branches() -> None:
    """The head goes last, because something behind it is always there until then, whatever it scores."""
    tier = Tier(FifoPolicy)
    tier.insert(make_context("1", "abc"), "abc")
    tier.insert(make_context("2", "abx"), "x")
    tier.insert(make_context("3", "q"), "q")
    assert tier.evict_all() == "cxbaq"


def test_sieve_spares_the_marked_once() -> None:
    """The hand passes the reused word, clearing its marks, and takes it in the next round."""
    tier, _ = filled(SievePolicy, "a", "b", "c")
    use(tier, "a")
    assert [tier.evict(1), tier.evict(1), tier.evict(1)] == ["b", "c", "a"]


def test_sieves_hand_stays_where_it_was() -> None:
    """What comes after an eviction is newer than the hand, which goes on from there."""
    tier, _ = filled(SievePolicy, "a", "b", "c")
    use(tier, "a")
    assert tier.evict(1) == "b"
    use(tier, "a")
    tier.insert(make_context("d", "d"), "d")
    assert [tier.evict(1), tier.evict(1), tier.evict(1)] == ["c", "d", "a"]


def test_s3fifo_moves_what_was_reused_twice() -> None:
    """One reuse is not enough to leave probation, two are; a ghost comes back into the main queue."""
    tier, _ = filled(S3FifoPolicy, *"abcdefghij", capacity=10)  # after a, the rest fills the main queue
    assert tier.evict(1) == "a"  # the small queue, at its share of one, gives its oldest
    tier.insert(make_context("x", "x"), "x")
    for _ in range(2):
        use(tier, "x")
    tier.insert(make_context("y", "y"), "y")
    assert tier.evict(1) == "y"  # x has moved to the main queue
    tier.policy.on_store_miss(make_context("again", "a").keys)
    tier.insert(make_context("again", "a"), "a")  # remembered: main
    tier.insert(make_context("z", "z"), "z")
    assert tier.evict(1) == "b"  # the main queue is over its share of nine
    assert tier.evict(1) == "c"
    assert tier.evict(1) == "z"


def test_arc_keeps_what_was_reused_from_a_scan() -> None:
    """With a target of zero the list of what was used once gives everything, then the other one goes by recency."""
    tier, _ = filled(ArcTextbookPolicy, "a", "b", "c", "d", capacity=4)
    use(tier, "b")
    use(tier, "a")
    assert tier.evict_all() == "cdba"


def test_arcs_target_follows_its_ghosts() -> None:
    """A miss of what was used once raises the target by one, after which the other list gives a chunk."""
    tier, _ = filled(ArcTextbookPolicy, "a", "b", "c", "d", capacity=4)
    use(tier, "a")
    assert tier.evict(1) == "b"
    tier.policy.on_store_miss(make_context("b", "b").keys)
    tier.insert(make_context("b", "b"), "b")
    assert isinstance(tier.policy, ArcTextbookPolicy)
    assert (tier.policy.target, tier.policy.sizes) == (1, [2, 2])
    assert tier.evict(3) == "cab"  # two of T1 are more than the target, one is not


@pytest.mark.parametrize("name", LEAF_POLICIES)
def test_chunks_in_use_and_all_before_them_stay(name: str) -> None:
    """A chunk that is read keeps its beginning; the branch beside it may go; all of it goes when it is free."""
    tier, _ = filled(POLICIES.find(name), "abc")
    tier.insert(make_context("branch", "abxy"), "xy")
    tier.slots[ord("c")].ref_count = 1
    assert tier.evict(2) == "yx"
    assert tier.evict(1) is None
    tier.slots[ord("c")].ref_count = 0
    tier.policy.on_evictable(ord("c"))
    assert tier.evict(3) == "cba"


@pytest.mark.parametrize("name", LEAF_POLICIES)
def test_an_offer_protects_its_beginning(name: str) -> None:
    """While the end of a prompt is stored, nothing before it goes."""
    tier, (first, _) = filled(POLICIES.find(name), "abc", "xy")
    first.extend([ord("d")])
    protected = tier.policy.protected_by(first, [3])
    assert set(protected) == {ord(letter) for letter in "abcd"}
    assert tier.policy.evict(3, protected) is None
    assert tier.policy.evict(2, protected) == [ord("y"), ord("x")]


@pytest.mark.parametrize("name", LEAF_POLICIES)
def test_a_chunk_that_failed_to_arrive_leaves_orphans_in_order(name: str) -> None:
    """Chunks whose beginning was lost can go, and when it comes back they go before it again."""
    tier, _ = filled(POLICIES.find(name), "abcd")
    del tier.slots[ord("b")]
    tier.policy.remove(ord("b"))
    tier.insert(make_context("again", "abcd"), "b")
    assert tier.evict_all() == "dcba"


def test_groups_have_chains_of_their_own() -> None:
    """In a model with two KV groups a chunk comes after the one before it in its own group."""
    context = GroupContext("r", 2)
    context.extend_group(0, [10, 11], 16)
    context.extend_group(1, [20], 16)
    context.extend_group(0, [12], 16)
    assert context.keys == [20, 22, 41, 24]
    assert [context.parent(number) for number in range(4)] == [None, 20, None, 22]
    assert context.path_to([2]) == [20, 41]
    assert [context.depth(number) for number in range(4)] == [33, 65, 32, 97]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "ask", "hold", "release", "lose", "evict"]),
        st.text("ab", min_size=1, max_size=5),
        st.integers(1, 6),
    ),
    max_size=60,
)


class Played:
    """A tier of eight chunks to which anything may happen."""

    def __init__(self, policy: type[EvictionPolicy]) -> None:
        self.tier, self.requests = Tier(policy, 8), 0

    def victims(self, count: int, protected: set[int]) -> list[int] | None:
        """Evict; everything that must hold of an answer is checked."""
        slots, policy = self.tier.slots, self.tier.policy
        free = [key for key, slot in slots.items() if slot.ref_count == 0 and key not in protected]
        before = copy.deepcopy(policy)
        found = policy.evict(count, protected)
        if found is None:  # nothing has changed: a smaller number gives what it would have given
            again = before.evict(1, protected)
            assert copy.deepcopy(policy).evict(1, protected) == again
            assert count > len([key for key in free if not self.is_blocked(key, set(free))])
            return None
        assert len(set(found)) == count
        assert set(found) <= set(free)
        for at, key in enumerate(found):
            assert not self.children(key) - set(found[:at]), "a chunk goes before what comes after it"
        for key in found:
            del slots[key]
        return found

    def children(self, key: int) -> set[int]:
        """Keys are words as numbers: of a word and the words that go on from it."""
        return {key * 4 + letter for letter in (1, 2)} & set(self.tier.slots)

    def is_blocked(self, key: int, free: set[int]) -> bool:
        """Something behind it cannot go."""
        return any(child not in free or self.is_blocked(child, free) for child in self.children(key))

    def ask(self, text: str) -> None:
        """A request looks up a word and stores what is missing."""
        self.requests += 1
        context, tier = RequestContext(str(self.requests)), self.tier
        keys = [int("".join(str(ord(letter) - 96) for letter in text[: end + 1]), 4) for end in range(len(text))]
        context.extend(keys)
        missing = [at for at, key in enumerate(keys) if key not in tier.slots]
        tier.policy.on_store_miss([keys[at] for at in missing])
        tier.note(context, list(range(len(keys))))
        excess = len(tier.slots) + len(missing) - 8
        protected = set(tier.policy.protected_by(context, range(len(keys))))
        if excess <= 0 or self.victims(excess, protected) is not None:
            for at in missing:
                slot = tier.slots[keys[at]] = Slot(0)
                tier.policy.insert(context, at)
                slot.ref_count = 0
                tier.policy.on_evictable(keys[at])
        tier.policy.on_request_finished(context)


@pytest.mark.parametrize("name", LEAF_POLICIES)
@settings(max_examples=60)
@given(STEPS)
def test_whatever_happens_victims_are_free_leaves(name: str, steps: list[tuple[str, str, int]]) -> None:
    """Victims are neither used nor followed by anything resident; a refusal has to be, and changes nothing."""
    played = Played(POLICIES.find(name))
    slots = played.tier.slots
    for action, text, count in steps:
        some = sorted(slots)[count % len(slots)] if slots else 0
        if action == "ask":
            played.ask(text)
        elif action == "evict":
            played.victims(count, set())
        elif slots and action == "lose" and slots[some].ref_count == 0:
            played.tier.policy.remove(some)
            del slots[some]
        elif slots and action in ("hold", "release"):
            slots[some].ref_count = int(action == "hold")
            if action == "release":
                played.tier.policy.on_evictable(some)
    assert all(slot.ref_count in (0, 1) for slot in slots.values())
