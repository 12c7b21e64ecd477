"""Routers by hand: who gets which turn, given what each has seen."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from router_views import answer, chains, first_token, site, turn

from kvsim.cluster.routers.base import Router
from kvsim.cluster.routers.cost_based import CostBased
from kvsim.cluster.routers.least_requests import LeastRequests
from kvsim.cluster.routers.least_tokens import LeastTokens
from kvsim.cluster.routers.prefix_aware import PrefixAware
from kvsim.cluster.routers.random_choice import RandomChoice
from kvsim.cluster.routers.round_robin import RoundRobin
from kvsim.cluster.routers.session_affinity import SessionAffinity
from kvsim.cluster.views import KVEvents, Left, TurnView
from kvsim.kv_events import GPU, BlockRemoved, BlockStored

SECOND = 10**9


def send(router: Router, view: TurnView, among: Sequence[int]) -> int:
    """Route one turn."""
    chosen = router.choose(view, among)
    router.sent(view, chosen)
    return chosen


def test_round_robin_goes_round_those_that_take_turns() -> None:
    """Who is missing is left out, and who comes back is in its old place."""
    router = RoundRobin(site(3))
    everybody = [send(router, turn(n), [0, 1, 2]) for n in range(4)]
    assert everybody == [0, 1, 2, 0]
    assert [send(router, turn(n), [0, 2]) for n in range(4, 7)] == [2, 0, 2]
    assert [send(router, turn(n), [0, 1, 2]) for n in range(7, 10)] == [0, 1, 2]


def test_random_follows_the_seed() -> None:
    """The same seed gives the same choices, another seed others; everybody gets some."""
    first, again, other = (RandomChoice(site(4, seed=seed)) for seed in (7, 7, 8))
    draws = [[send(router, turn(n), [0, 1, 3]) for n in range(60)] for router in (first, again, other)]
    assert draws[0] == draws[1] != draws[2]
    assert set(draws[0]) == {0, 1, 3}


def test_least_requests_counts_what_is_in_flight() -> None:
    """An ended request counts no longer; of equals the one that has got the fewest so far."""
    router = LeastRequests(site(3))
    views = [turn(n) for n in range(7)]
    assert [send(router, view, [0, 1, 2]) for view in views[:3]] == [0, 1, 2]
    router.ended(views[1], 1, answer(views[1]))
    assert send(router, views[3], [0, 1, 2]) == 1
    assert send(router, views[4], [0, 1, 2]) == 0  # one each; 1 has got two so far
    router.ended(views[2], 2, answer(views[2]))
    router.ended(views[3], 1, answer(views[3]))
    assert send(router, views[5], [0, 1, 2]) == 2  # none on 1 and 2


def test_least_tokens_weighs_prompts() -> None:
    """One long prompt is as much as many short ones."""
    router = LeastTokens(site(2))
    assert [send(router, turn(0, 1000), [0, 1]), send(router, turn(1, 300), [0, 1])] == [0, 1]
    assert [send(router, turn(n, 300), [0, 1]) for n in (2, 3, 4, 5)] == [1, 1, 1, 0]


def test_a_session_stays() -> None:
    """By hash: where the names say, whatever happened before; only the sessions of an instance that leaves move."""
    router = SessionAffinity(site(4))
    sessions = [f"s{number}" for number in range(40)]
    homes = {name: send(router, turn(n, session=name), [0, 1, 2, 3]) for n, name in enumerate(sessions)}
    assert set(homes.values()) == {0, 1, 2, 3}
    assert [homes[f"s{number}"] for number in range(8)] == [3, 0, 0, 3, 1, 3, 0, 0]
    without = {name: send(router, turn(n, session=name), [0, 1, 3]) for n, name in enumerate(sessions)}
    assert all(without[name] == home for name, home in homes.items() if home != 2)
    assert {without[name] for name, home in homes.items() if home == 2} == {0, 3}


def test_sessions_may_be_placed_by_load() -> None:
    """At its start a session goes where the fewest requests are, and stays although others are idle later."""
    router = SessionAffinity(site(2), placement="least_requests")
    views = [turn(0, session="a"), turn(1, session="b"), turn(2, session="a"), turn(3, session="c")]
    assert [send(router, view, [0, 1]) for view in views] == [0, 1, 0, 1]
    assert send(router, turn(4, session="a"), [1]) == 1
    assert send(router, turn(5, session="a"), [0, 1]) == 1  # its cache is there now


def test_prefix_aware_goes_where_the_prefix_is() -> None:
    """By history: the longest match wins, the shortest load among equals, and too short a match counts for nothing."""
    (common, one, two, short, far) = chains("ab", "abcdefgh", "abxyz", "abc", "abqrstuvw")
    router = PrefixAware(site(3))
    assert send(router, turn(0, chain=one), [0, 1, 2]) == 0
    assert send(router, turn(1, chain=two), [0, 1, 2]) == 0  # 2 of 5 blocks match: 40 %
    assert send(router, turn(2, chain=far), [0, 1, 2]) == 1  # 2 of 9: 22 %, less than 30 %
    assert send(router, turn(3, chain=short), [0, 1, 2]) == 0  # 3 of 3 on instance 0, 2 on instance 1
    assert send(router, turn(4, chain=common), [0, 1, 2]) == 1  # both have both, 0 has three requests


def test_prefix_aware_gives_way_to_load() -> None:
    """With more requests on the busiest than the idlest by the limit and by the ratio, the fewest requests decide.

    Then both have the prefix, and the fewest requests go on to decide.
    """
    (word,) = chains("abcd")
    router = PrefixAware(site(2), max_imbalance=2, max_ratio=1.5)
    assert [send(router, turn(n, chain=word), [0, 1]) for n in range(6)] == [0, 0, 0, 1, 1, 1]


def test_answers_are_prefixes_too() -> None:
    """What an instance has answered is there, if answers come back in prompts."""
    prompt, grown = chains("ab", "abcdef")
    router = PrefixAware(site(2), min_match=0.9)
    view = turn(0, chain=prompt)
    assert send(router, view, [0, 1]) == 0
    assert router.choose(turn(1, chain=grown), [0, 1]) == 1
    router.ended(view, 0, answer(view, grown))
    assert router.choose(turn(2, chain=grown), [0, 1]) == 0


def test_history_ends_at_the_capacity() -> None:
    """What was used longest ago is forgotten, tail first; a failed instance has nothing."""
    one, two = chains("abcdefgh", "stuvwxyz")
    router = PrefixAware(site(2), capacity_tokens=12 * 16, min_match=0.0)
    index = router._index
    router.sent(turn(0, chain=one), 0)
    router.sent(turn(1, chain=two), 0)
    assert [index.matched(view.prompt)[0] for view in (turn(2, chain=one), turn(3, chain=two))] == [64, 128]
    router.heard(Left(0, lost=False))
    assert index.matched(turn(4, chain=two).prompt) == [128, 0]
    router.heard(Left(0, lost=True))
    assert index.matched(turn(5, chain=two).prompt) == [0, 0]


def stored(instance: int, blocks: list[int], medium: str = GPU) -> KVEvents:
    """An event."""
    return KVEvents(instance, 0, [BlockStored(blocks, None, None, 16, None, medium, None)])


def removed(instance: int, blocks: list[int], medium: str = GPU) -> KVEvents:
    """An event."""
    return KVEvents(instance, 0, [BlockRemoved(blocks, medium)])


def test_kv_events_tell_what_is_there() -> None:
    """What was sent counts for nothing, only what instances say; copies are counted, and any memory will do."""
    (word,) = chains("abcd")  # its blocks are 0, 1, 2, 3
    router = PrefixAware(site(2), index="kv_events", min_match=0.0)
    assert router.hears_kv_events
    assert [send(router, turn(n, chain=word), [0, 1]) for n in range(2)] == [0, 1]
    router.heard(stored(1, [0, 1, 2]))
    router.heard(stored(1, [0]))
    assert router._index.matched(turn(2, chain=word).prompt) == [0, 48]
    router.heard(removed(1, [0]))
    assert router._index.matched(turn(2, chain=word).prompt) == [0, 48]  # there is another copy
    router.heard(stored(1, [0], "CPU"))
    router.heard(removed(1, [0]))
    assert router._index.matched(turn(2, chain=word).prompt) == [0, 48]
    router.heard(removed(1, [0], "CPU"))
    assert router._index.matched(turn(2, chain=word).prompt) == [0, 0]


def test_cost_is_queue_and_prefill() -> None:
    """A turn goes where its prefix is unless others queue there for more tokens than it would compute elsewhere."""
    prompt, grown, fresh = chains("abcdefgh", "abcdefghij", "qrstuvwxyz")
    router = CostBased(site(2), load_weight=0.0)
    first = turn(0, chain=prompt)
    assert send(router, first, [0, 1]) == 0
    assert router.choose(turn(1, chain=grown), [0, 1]) == 1  # 128 queued and 32 new there, 160 new here: fewer requests
    router.heard(first_token(first, 0, SECOND))
    assert send(router, turn(2, chain=grown), [0, 1]) == 0  # nobody queues any more
    assert send(router, turn(3, chain=fresh), [0, 1]) == 1  # 32 tokens queue
    assert send(router, turn(4, chain=grown), [0, 1]) == 0


def test_cost_learns_how_fast_instances_are() -> None:
    """An instance whose answers begin four times as late gets a prompt when the other has four times its queue."""
    router = CostBased(site(2))
    slow, quick = turn(0, 10_000), turn(1, 10_000)
    assert [send(router, slow, [0, 1]), send(router, quick, [0, 1])] == [0, 1]
    router.heard(first_token(slow, 0, 4 * SECOND))
    router.heard(first_token(quick, 1, 1 * SECOND))
    assert router._ns_per_mtoken == [400 * SECOND, 100 * SECOND]
    assert [send(router, turn(n, 1_000), [0, 1]) for n in range(2, 8)] == [1, 1, 1, 0, 1, 1]


@pytest.mark.parametrize("kind", [PrefixAware, CostBased])
def test_scopes_share_nothing(kind: type[PrefixAware | CostBased]) -> None:
    """Equal tokens of two tenants are not the same prefix."""
    (word,) = chains("abcd")
    router = kind(site(2))
    first = turn(0, chain=word)
    router.choose(first, [0])
    router.sent(first, 0)
    prompt = type(first.prompt)(word, 1)
    assert router._index.matched(first.prompt) == [64, 0]
    assert router._index.matched(prompt) == [0, 0]
