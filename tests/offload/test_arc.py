"""ARC of both releases: lists, ghosts, the target's moves, and whom it evicts."""

from __future__ import annotations

from collections import OrderedDict

import pytest
from engine_builder import hashes, make_context, word

from kvsim.offload.context import INSERTED, REUSED, SEEN
from kvsim.offload.policies.arc import ArcPolicy, ArcPolicy023
from kvsim.offload.slot import Slot, Slots


def _arc(
    t1: str = "",
    t2: str = "",
    b1: str = "",
    b2: str = "",
    *,
    target: float = 0.0,
    capacity: int = 10,
    release: type[ArcPolicy] = ArcPolicy,
) -> ArcPolicy:
    """A policy in the middle of its life; lists are written oldest first and all chunks are ready."""
    slots: Slots = {}
    policy = release(capacity, slots)
    for key in hashes(t1 + t2):
        slots[key] = Slot(0)
        slots[key].ref_count = 0
    policy.t1, policy.t2, policy.b1, policy.b2 = (OrderedDict.fromkeys(hashes(w)) for w in (t1, t2, b1, b2))
    policy.target = target
    return policy


def _lists(policy: ArcPolicy) -> tuple[str, str, str, str]:
    return word(policy.t1), word(policy.t2), word(policy.b1), word(policy.b2)


def _evict(policy: ArcPolicy, count: int, protected: str = "") -> str | None:
    victims = policy.evict(count, set(hashes(protected)))
    for key in victims or ():
        del policy.slots[key]
    return None if victims is None else word(victims)


def _ends(policy: ArcPolicy, content: str, **marks: int) -> None:
    """A request with these chunks ends; marks are given by letter, all others are INSERTED."""
    context = make_context("r", content)
    for position, letter in enumerate(content):
        context.marks[position] = marks.get(letter, SEEN | INSERTED)
    policy.on_request_finished(context)


@pytest.mark.parametrize("release", [ArcPolicy, ArcPolicy023])
def test_insert_goes_to_t1_and_out_of_the_ghosts(release: type[ArcPolicy]) -> None:
    """A stored chunk is seen once, whatever the ghosts remember; inserting moves no target."""
    policy = _arc("a", "", "xb", "cy", release=release)
    context = make_context("r", "abc")
    for position in (1, 2):
        policy.slots[context.keys[position]] = Slot(0)
        policy.insert(context, position)
    assert _lists(policy) == ("abc", "", "x", "y")
    assert policy.target == 0.0


@pytest.mark.parametrize("release", [ArcPolicy, ArcPolicy023])
def test_t1_is_evicted_while_it_is_not_below_the_target(release: type[ArcPolicy]) -> None:
    """Oldest of T1 first; the size of T1 is counted down while victims are chosen."""
    policy = _arc("abc", "xyz", target=2.0, release=release)
    assert _evict(policy, 4) == "abxy"
    assert _lists(policy) == ("c", "z", "ab", "xy")


def test_target_is_rounded_down() -> None:
    """T1 of one chunk is evicted at target 1.9 and kept at target 2."""
    assert _evict(_arc("a", "x", target=1.9), 1) == "a"
    assert _evict(_arc("a", "x", target=2.0), 1) == "x"


@pytest.mark.parametrize("release", [ArcPolicy, ArcPolicy023])
def test_t2_steps_in_for_a_t1_without_candidates(release: type[ArcPolicy]) -> None:
    """If T1 is due but all of it is in use, T2 gives the victim."""
    policy = _arc("ab", "xy", release=release)
    policy.slots[ord("a")].ref_count = 1
    policy.slots[ord("b")].ref_count = -1
    assert _evict(policy, 1) == "x"
    assert _lists(policy) == ("ab", "y", "", "x")


def test_t1_is_the_last_resort() -> None:
    """0.33.0: below its target T1 is spared until T2 has no candidate left."""
    policy = _arc("abc", "xy", target=10.0)
    assert _evict(policy, 3, protected="ay") == "xbc"
    assert _lists(policy) == ("a", "y", "bc", "x")


def test_023_an_exhausted_t2_refuses() -> None:
    """0.23.0: below its target T1 is not touched, even if T2 has nothing to give."""
    policy = _arc("abc", "xy", target=10.0, release=ArcPolicy023)
    assert _evict(policy, 3) is None
    assert _lists(policy) == ("abc", "xy", "", "")
    assert _evict(policy, 2) == "xy"


@pytest.mark.parametrize("release", [ArcPolicy, ArcPolicy023])
def test_protected_and_used_chunks_are_passed_over(release: type[ArcPolicy]) -> None:
    """Victims are ready, not being read, not protected; who is passed over keeps its place."""
    policy = _arc("abcde", release=release)
    policy.slots[ord("a")].ref_count = -1
    policy.slots[ord("c")].ref_count = 2
    assert _evict(policy, 2, protected="b") == "de"
    assert _lists(policy) == ("abc", "", "de", "")


@pytest.mark.parametrize("release", [ArcPolicy, ArcPolicy023])
def test_a_refusal_changes_nothing(release: type[ArcPolicy]) -> None:
    """All or nothing: with too few candidates no list changes, and the ghosts are not trimmed."""
    policy = _arc("ab", "x", "pqr", "s", capacity=2, release=release)
    assert _evict(policy, 3, protected="b") is None
    assert _lists(policy) == ("ab", "x", "pqr", "s")


@pytest.mark.parametrize("release", [ArcPolicy, ArcPolicy023])
def test_ghosts_are_trimmed_by_a_successful_eviction(release: type[ArcPolicy]) -> None:
    """Both ghost lists keep their most recent entries, as many as the tier has chunks."""
    policy = _arc("ab", "x", "pqr", "stuv", capacity=3, release=release)
    assert _evict(policy, 1) == "a"
    assert _lists(policy) == ("b", "x", "qra", "tuv")


def test_a_miss_remembered_by_b1_raises_the_target() -> None:
    """By one, or by the quotient of the ghost lists if it is larger; the ghost becomes the most recent."""
    policy = _arc(b1="ab", b2="xyz", target=1.0)
    policy.on_store_miss(hashes("a"))
    assert policy.target == 2.5
    assert _lists(policy) == ("", "", "ba", "xyz")
    policy = _arc(b1="abc", b2="x", target=1.0)
    policy.on_store_miss(hashes("a"))
    assert policy.target == 2.0


def test_a_miss_remembered_by_b2_lowers_the_target() -> None:
    """The mirror image."""
    policy = _arc(b1="abc", b2="xy", target=4.0)
    policy.on_store_miss(hashes("x"))
    assert policy.target == 2.5
    assert _lists(policy) == ("", "", "abc", "yx")
    policy = _arc(b1="a", b2="xyz", target=4.0)
    policy.on_store_miss(hashes("x"))
    assert policy.target == 3.0


def test_the_target_stays_between_zero_and_capacity() -> None:
    """It is clamped at both ends."""
    policy = _arc(b1="ab", b2="xyz", target=3.0, capacity=4)
    policy.on_store_miss(hashes("a"))
    assert policy.target == 4
    policy = _arc(b1="abc", b2="xy", target=1.0)
    policy.on_store_miss(hashes("x"))
    assert policy.target == 0


def test_misses_are_taken_in_reverse() -> None:
    """The head of the prefix becomes the most recent ghost; unknown keys move nothing."""
    policy = _arc(b1="abcd", target=0.0)
    policy.on_store_miss(hashes("aqbc"))
    assert _lists(policy) == ("", "", "dcba", "")
    assert policy.target == 3.0


def test_living_requests_move_nothing() -> None:
    """0.33.0: lookups, touches and uses don't change any list."""
    policy = _arc("ab", "xy", "p", "q")
    policy.touch(hashes("aypq"))
    policy.on_access(make_context("r", "ab"), [0, 1])
    assert _lists(policy) == ("ab", "xy", "p", "q")
    assert policy.target == 0.0


def test_what_only_its_owner_used_is_not_promoted() -> None:
    """At the end, inserted chunks become the most recent of their list, the head of the prefix last."""
    policy = _arc("abcz", "dx")
    _ends(policy, "abcd")
    assert _lists(policy) == ("zcba", "xd", "", "")


def test_reused_chunks_are_promoted_at_the_end() -> None:
    """Chunks found in the tier move from T1 to T2, or to T2's recent end; INSERTED does not matter then."""
    policy = _arc("abz", "cx")
    reused = SEEN | REUSED
    _ends(policy, "abc", a=reused, b=reused | INSERTED, c=reused)
    assert _lists(policy) == ("z", "xcba", "", "")


def test_marks_decide_what_moves_at_the_end() -> None:
    """Keys that were seen only, or not seen at all, or that are gone, stay where they are."""
    policy = _arc("abcde", "", "g")
    _ends(policy, "abcg", a=SEEN, b=0, c=SEEN | REUSED, g=SEEN | REUSED)
    assert _lists(policy) == ("abde", "c", "g", "")


def test_023_a_touch_promotes_at_once() -> None:
    """0.23.0: touched chunks move from T1 to T2, or to the recent end of T2, in reverse order."""
    policy = _arc("abz", "cx", release=ArcPolicy023)
    policy.touch(hashes("abc"))
    assert _lists(policy) == ("z", "xcba", "", "")


def test_023_a_touch_does_not_promote_what_is_being_written() -> None:
    """0.23.0: a chunk that is not ready becomes the most recent of T1 instead."""
    policy = _arc("abc", release=ArcPolicy023)
    policy.slots[ord("a")].ref_count = -1
    policy.touch(hashes("ab"))
    assert _lists(policy) == ("ca", "b", "", "")


def test_023_a_touched_ghost_adapts() -> None:
    """0.23.0: every touch of a ghost moves the target, again and again."""
    policy = _arc(b1="ab", b2="xyz", release=ArcPolicy023)
    policy.touch(hashes("a"))
    policy.touch(hashes("a"))
    assert policy.target == 3.0
    policy.touch(hashes("ax"))  # x first: 3 - 1, then a
    assert policy.target == 3.5
    assert _lists(policy) == ("", "", "ba", "yzx")


def test_023_only_touches_count() -> None:
    """0.23.0: misses when storing and ends of requests change nothing."""
    policy = _arc("ab", "", "p", release=ArcPolicy023)
    policy.on_store_miss(hashes("p"))
    _ends(policy, "ab", a=SEEN | REUSED)
    assert _lists(policy) == ("ab", "", "p", "")
    assert policy.target == 0.0
