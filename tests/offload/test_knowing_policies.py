"""Policies that look at more than keys: the clock, costs, sessions, the queue and the future."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import log

import pytest
from engine_builder import Tier, make_context, word

from kvsim.offload.context import RequestContext
from kvsim.offload.next_use import NextUses
from kvsim.offload.policies.base import EvictionPolicy
from kvsim.offload.policies.continuum import ContinuumPolicy
from kvsim.offload.policies.cost_idle import CostIdlePolicy
from kvsim.offload.policies.gdsf import GdsfPolicy
from kvsim.offload.policies.opt import OptPolicy
from kvsim.offload.policies.opt_bypass import OptBypassPolicy
from kvsim.offload.policies.queue_lru import QueueLruPolicy
from kvsim.offload.policies.session_oracle import SessionOraclePolicy
from kvsim.offload.policies.ttl_fixed import TtlFixedPolicy
from kvsim.offload.policies.view import NEVER, TurnFacts, View
from kvsim.offload.policies.workload_aware import WorkloadAwarePolicy


class Scripted(View):
    """Answers what the test says. A request's id is its stream and the pause after it: ``a+30``; ``a`` = the last."""

    def __init__(self) -> None:
        self.time = 0
        self.queue: list[set[int]] = []
        self.costs: dict[int, int] = {}  # by position; 1 each if not said
        self.future: dict[str, int] = {}  # by request: next use of all its chunks

    def now_ns(self) -> int:
        return self.time

    def prefill_ns(self, first: int, last: int) -> int:
        return sum(self.costs.get(at, 1) for at in range(first, last))

    def turn(self, request_id: str) -> TurnFacts | None:
        stream, plus, pause = request_id.partition("+")
        if not stream.isalpha():
            return None
        tenant, agent = int(stream.startswith("t")), stream.startswith("s")
        return TurnFacts(stream, tenant, agent, 0, bool(plus), int(pause) if plus else NEVER)

    def waiting(self, limit: int) -> Sequence[Collection[int]]:
        return self.queue[:limit]

    def next_use(self, request_id: str, position: int) -> int:
        return self.future.get(request_id, NEVER)


class World:
    """A tier under a policy with a scripted view; requests come whole and end ``lasts`` later."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self.view = policy.view = Scripted()
        self.tier = Tier(lambda _capacity, _slots: policy)  # type: ignore[arg-type]
        self.tier.slots = policy.slots

    def request(self, request_id: str, content: str, *, at: int, lasts: int = 0) -> RequestContext:
        """Uses what is there and puts in what is not."""
        self.view.time = at
        context = make_context(request_id, content)
        there = "".join(letter for letter in content if ord(letter) in self.tier.slots)
        self.tier.use(context, there)
        self.tier.insert(context, "".join(letter for letter in content if letter not in there))
        self.view.time = at + lasts
        self.tier.policy.on_request_finished(context)
        return context


def test_gdsf_weighs_uses_and_cost() -> None:
    """Priority is clock + uses x cost: three cheap uses beat a dear one, and a dear one beats two."""
    world = World(GdsfPolicy(10, {}))
    world.view.costs = {0: 10}
    world.request("1", "a", at=0)
    for at in range(2):
        world.request(f"b{at}", "b", at=at)
    world.view.costs = {0: 25}
    world.request("3", "c", at=3)
    assert world.tier.evict(2) == "ab"  # 10, 20, and c's 25
    world.view.costs = {0: 1}
    world.request("4", "d", at=4)  # the clock is 20 now
    assert world.tier.evict_all() == "dc"


def test_gdsf_makes_later_chunks_dearer() -> None:
    """Of two words of one use the one whose last chunk is dearer stays longer."""
    world = World(GdsfPolicy(10, {}))
    world.view.costs = {0: 1, 1: 5, 2: 9}
    world.request("1", "abc", at=0)
    world.request("2", "xy", at=0)
    assert world.tier.evict(1) == "y"  # 5 of y against 9 of c
    assert world.tier.evict(2) == "xc"


def test_cost_over_idle_time() -> None:
    """A long missing end is dear: after the first chunk of a word goes, the next is worth more."""
    world = World(CostIdlePolicy(10, {}))
    world.view.costs = dict.fromkeys(range(9), 10)
    world.request("1", "abc", at=0)
    world.request("2", "xyz", at=50)
    world.view.time = 100  # c: 10 / 100; z: 10 / 50, as b: 20 / 100, but deeper
    assert world.tier.evict(4) == "czba"  # a: 30 / 100 against y: 20 / 50


def test_ttl_pins_until_it_is_over() -> None:
    """A word whose stream goes on outlives a younger one for its time to live, and not a moment longer."""
    for wait, gone in ((29, "yx"), (30, "ba")):
        world = World(TtlFixedPolicy(10, {}, ttl=30))
        world.request("a+5", "ab", at=0, lasts=10)
        world.request("b", "xy", at=20)
        world.view.time = 10 + wait
        assert world.tier.evict(2) == gone


def test_ttl_gives_way_when_nothing_else_is_left() -> None:
    """Pinned chunks go after all others, least recently used first, rather than that nothing could be stored."""
    world = World(TtlFixedPolicy(10, {}, ttl=1000))
    world.request("a+5", "ab", at=0)
    world.request("b+5", "xy", at=1)
    world.request("c", "q", at=2)
    assert world.tier.evict_all() == "qbayx"


def test_ttl_of_an_unknown_request_pins_nothing() -> None:
    """Without a session there is nobody to wait for."""
    world = World(TtlFixedPolicy(10, {}, ttl=1000))
    world.request("1+5", "ab", at=0)
    world.request("2", "xy", at=1)
    assert world.tier.evict_all() == "bayx"


def test_continuum_starts_with_an_exponential() -> None:
    """The time is mean x log(benefit / (mean x share)) until ten pauses have been seen."""
    policy = ContinuumPolicy(10, {}, expected_pause=1000)
    world = World(policy)
    world.view.costs = dict.fromkeys(range(2), 500)
    context = make_context("a+5", "ab")
    facts = world.view.turn("a+5")
    assert facts is not None
    assert policy.ttl_ns(context, facts) == round(1000 * log(1000 / (1000 * 0.2)))
    world.view.costs = dict.fromkeys(range(2), 50)  # not worth it: the slope at zero is negative
    assert policy.ttl_ns(context, facts) == 0


def test_continuum_learns_the_pauses() -> None:
    """With nine short pauses and a long one, it waits for the short ones only; a great benefit waits for all."""
    policy = ContinuumPolicy(10, {}, expected_pause=1000)
    world, now = World(policy), 0
    for pause in (100,) * 9 + (50_000,):
        world.request("a+5", "ab", at=now)
        now += pause
    world.request("a+5", "ab", at=now)
    facts, context = world.view.turn("a+5"), make_context("a+5", "ab")
    assert facts is not None
    for cost, ttl in ((500, 101), (100_000, 50_001), (10, 0)):  # each of two chunks; their share is 0.2
        world.view.costs = dict.fromkeys(range(2), cost)
        assert policy.ttl_ns(context, facts) == ttl


def test_continuum_keeps_sub_agents_apart() -> None:
    """Pauses of main streams say nothing about sub-agents."""
    policy = ContinuumPolicy(10, {}, expected_pause=1000)
    world = World(policy)
    for at in range(0, 1200, 100):
        world.request("a+5", "ab", at=at)
    world.view.costs = dict.fromkeys(range(2), 500)
    agent = world.view.turn("s+5")
    assert agent is not None
    assert policy.ttl_ns(make_context("s+5", "ab"), agent) == round(1000 * log(1000 / (1000 * 0.2)))


def test_queue_lru_spares_what_is_waited_for() -> None:
    """What the first waiting requests hit goes last, the last in the queue first; others go by recency."""
    world = World(QueueLruPolicy(10, {}, first_waiting=2))
    for at, content in enumerate(("ab", "cd", "ef", "gh")):
        world.request(str(at), content, at=at)
    world.view.queue = [set(map(ord, "ab")), set(map(ord, "cd")), set(map(ord, "ef"))]
    assert world.tier.evict(3) == "feh"
    assert world.tier.evict(5) == "gdcba"


def test_the_session_oracle_takes_who_comes_back_last() -> None:
    """A stream that is over goes first, then the longest pause; a turn under way counts from now."""
    world = World(SessionOraclePolicy(10, {}))
    world.request("a+500", "ab", at=0)
    world.request("b+30", "cd", at=1)
    world.request("c", "ef", at=2)
    world.tier.insert(make_context("d+300", "gh"), "gh")
    assert world.tier.evict_all() == "febahgdc"


def test_a_shared_chunk_waits_for_the_first_of_its_streams() -> None:
    """The head of two streams counts as the sooner of them, even when nothing is left behind it."""
    world = World(SessionOraclePolicy(10, {}))
    world.request("a+10", "hx", at=0)
    world.request("b", "hy", at=1)
    world.request("c+100", "qr", at=2)
    assert world.tier.evict(2) == "yr"
    assert world.tier.evict_all() == "qxh"


def test_workload_aware_learns_which_tenant_comes_back() -> None:
    """After a tenant's chunks were reused and the other's were not, those of the other go first though younger."""
    world = World(WorkloadAwarePolicy(20, {}))
    for at in (0, 100):
        world.request("ta", "ab", at=at)
    for at, content in ((101, "cd"), (102, "ef"), (103, "gh")):
        world.request("x", content, at=at)
    world.view.time = 110
    assert world.tier.evict(2) in ("dc", "fe", "hg")
    assert world.tier.evict(4) is not None
    assert sorted(map(chr, world.tier.slots)) == ["a", "b"]


def test_workload_aware_begins_as_lru() -> None:
    """Until something was reused, the least recently used goes first."""
    world = World(WorkloadAwarePolicy(20, {}))
    for at, content in enumerate(("ab", "cd", "ef")):
        world.request("x", content, at=at)
    assert world.tier.evict_all() == "badcfe"


def test_opt_takes_the_furthest_next_use() -> None:
    """Never again goes before later, later before sooner, each from its end."""
    world = World(OptPolicy(10, {}))
    world.view.future = {"1": 7, "2": 9}
    for at, content in ((1, "ab"), (2, "cd"), (3, "ef")):
        world.request(str(at), content, at=at)
    assert world.tier.evict_all() == "fedcba"


def test_bypass_stores_only_what_is_used_before_what_must_go() -> None:
    """Of a word of three, two chunks find victims that are used later, the third does not and is not stored."""
    policy = OptBypassPolicy(4, {})
    world = World(policy)
    world.view.future = {"1": 9, "2": 5, "3": 7}
    world.request("1", "ab", at=1)
    world.request("2", "cd", at=2)
    context = make_context("3", "xyz")
    assert policy.admit(context, [0, 1, 2]) == [0, 1]
    assert word(policy.evict(2, policy.protected_by(context, [0, 1, 2])) or []) == "ba"


@pytest.mark.parametrize(
    ("position", "after"), [(0, [1, 2, NEVER]), (1, [1, NEVER, NEVER]), (2, [NEVER, NEVER, NEVER])]
)
def test_next_uses(position: int, after: list[int]) -> None:
    """The next request with the same key, whatever lies between; beyond a request's keys there is none."""
    keys = [[1, 2, 3], [1, 2], [1, 4]]
    uses = NextUses(["a", "b", "c"], lambda number: keys[number])
    assert [uses.after(number, position) for number in range(3)] == after
    assert uses.number_of == {"a": 0, "b": 1, "c": 2}
