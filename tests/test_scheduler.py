"""The scheduler of both releases: budget, preemption, admission, parked loads, ends."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from engine_builder import (
    Answer,
    ScriptedConnector,
    hashes,
    ids,
    make_request,
    make_scheduler,
    scheduled,
    step,
)

from kvsim.request import Request, RequestStatus
from kvsim.scheduler import Scheduler
from kvsim.scheduler_023 import Scheduler023

BOTH = pytest.mark.parametrize("release", [Scheduler, Scheduler023])


def _add(scheduler: Scheduler, *requests: Request) -> None:
    for request in requests:
        scheduler.add_request(request)


def _steps(scheduler: Scheduler, count: int) -> list[list[tuple[str, int]]]:
    """(request, tokens) of so many steps."""
    return [scheduled(step(scheduler)[0]) for _ in range(count)]


# -- budget
@BOTH
def test_running_requests_come_first_in_order_then_waiting_ones(release: type[Scheduler]) -> None:
    """The budget goes to running requests in the order of their admission, then to the waiting queue."""
    scheduler = make_scheduler(release, max_num_batched_tokens=10)
    _add(scheduler, make_request("a", prompt=8, out=9), make_request("b", prompt=12, out=9))
    _add(scheduler, make_request("c", prompt=8, out=9))
    assert _steps(scheduler, 4) == [
        [("a", 8), ("b", 2)],
        [("a", 1), ("b", 9)],
        [("a", 1), ("b", 1), ("c", 8)],
        [("a", 1), ("b", 1), ("c", 1)],
    ]


@BOTH
def test_an_exhausted_budget_ends_the_step(release: type[Scheduler]) -> None:
    """Who comes after the last token of the budget waits, running or not."""
    scheduler = make_scheduler(release, max_num_batched_tokens=3)
    _add(scheduler, *(make_request(name, prompt=2, out=9) for name in "abcd"))
    assert _steps(scheduler, 4) == [
        [("a", 2), ("b", 1)],
        [("a", 1), ("b", 1), ("c", 1)],
        [("a", 1), ("b", 1), ("c", 1)],
        [("a", 1), ("b", 1), ("c", 1)],
    ]
    assert ids(scheduler.waiting) == ["d"]


@BOTH
def test_max_num_seqs(release: type[Scheduler]) -> None:
    """No more requests run at once; the next one enters in the step after an end."""
    scheduler = make_scheduler(release, max_num_seqs=2)
    _add(scheduler, make_request("a", prompt=4, out=2), *(make_request(name, prompt=4, out=9) for name in "bc"))
    assert _steps(scheduler, 3) == [[("a", 4), ("b", 4)], [("a", 1), ("b", 1)], [("b", 1), ("c", 4)]]


@BOTH
def test_long_prefills_are_capped_in_company(release: type[Scheduler]) -> None:
    """long_prefill_token_threshold bounds every prefill, admitted or running, while others are there."""
    scheduler = make_scheduler(release, long_prefill_token_threshold=5)
    _add(scheduler, make_request("a", prompt=12, out=9), make_request("b", prompt=6, out=9))
    assert _steps(scheduler, 3) == [[("a", 5), ("b", 5)], [("a", 5), ("b", 1)], [("a", 2), ("b", 1)]]


@pytest.mark.parametrize(("release", "tokens"), [(Scheduler, [20, 1]), (Scheduler023, [5, 5])])
def test_a_lone_prefill(release: type[Scheduler], tokens: list[int]) -> None:
    """0.33.0 does not cap a request that is alone when the step begins; 0.23.0 does."""
    scheduler = make_scheduler(release, long_prefill_token_threshold=5)
    _add(scheduler, make_request("a", prompt=20, out=9))
    assert _steps(scheduler, 2) == [[("a", n)] for n in tokens]


def test_a_lone_prefill_counts_waiting_and_parked_requests() -> None:
    """0.33.0: alone means that nobody else runs, waits or loads; a finished one is gone."""
    connector = ScriptedConnector({"parked": [(8, True)]})
    scheduler = make_scheduler(connector=connector, long_prefill_token_threshold=5)
    parked, a, b = (
        make_request("parked", prompt=8),
        make_request("a", prompt=30, out=9),
        make_request("b", prompt=7),
    )
    _add(scheduler, parked, a)
    assert scheduled(step(scheduler)[0]) == [("a", 5)]
    assert scheduled(step(scheduler, received=[parked])[0]) == [("a", 5)]
    assert scheduled(step(scheduler)[0]) == [("a", 5), ("parked", 1)]
    assert scheduled(step(scheduler)[0]) == [("a", 15)]
    _add(scheduler, b)
    assert scheduled(step(scheduler)[0]) == [("a", 1), ("b", 5)]


@BOTH
def test_without_chunked_prefill_a_prompt_waits_for_a_step_that_takes_all_of_it(
    release: type[Scheduler],
) -> None:
    """The first one that does not fit into the budget ends the scan, also for those behind it that would."""
    scheduler = make_scheduler(release, max_num_batched_tokens=10, enable_chunked_prefill=False)
    _add(scheduler, make_request("a", prompt=6, out=9), make_request("b", prompt=8, out=9))
    _add(scheduler, make_request("c", prompt=2, out=9))
    assert _steps(scheduler, 3) == [[("a", 6)], [("a", 1), ("b", 8)], [("a", 1), ("b", 1), ("c", 2)]]


@BOTH
def test_without_chunked_prefill_the_threshold_still_cuts(release: type[Scheduler]) -> None:
    """A prompt over the threshold is admitted with a part of that size, if the budget takes it."""
    scheduler = make_scheduler(
        release, max_num_batched_tokens=10, enable_chunked_prefill=False, long_prefill_token_threshold=6
    )
    _add(scheduler, make_request("a", prompt=20, out=9), make_request("b", prompt=20, out=9))
    assert _steps(scheduler, 2) == [[("a", 6)], [("a", 6)]]


@BOTH
def test_a_local_hit_is_not_computed_again(release: type[Scheduler]) -> None:
    """Blocks scheduled earlier in the very same step are hit by the next request, all but its last token."""
    scheduler = make_scheduler(release)
    _add(scheduler, make_request("a", "wxyz"), make_request("b", "wxyz"))
    output, _ = step(scheduler)
    assert scheduled(output) == [("a", 16), ("b", 4)]
    assert [output.hits[r] for r in output.new] == [(0, 0), (12, 0)]


# -- preemption
@BOTH
def test_fcfs_preempts_the_last(release: type[Scheduler]) -> None:
    """A running request without room takes the blocks of the last one, which goes to the queue's head."""
    scheduler = make_scheduler(release, num_blocks=7)
    a, b, c = (
        make_request("a", prompt=12, out=9),
        make_request("b", prompt=10, out=9),
        make_request("c", prompt=4),
    )
    _add(scheduler, a, b, c)
    assert scheduled(step(scheduler)[0]) == [("a", 12), ("b", 10)]  # six blocks: c has no room
    output, _ = step(scheduler)
    assert scheduled(output) == [("a", 1)]
    assert ids(output.preempted) == ["b"]
    assert ids(scheduler.waiting) == ["b", "c"]
    assert (b.status, b.num_computed_tokens, b.num_preemptions) == (RequestStatus.PREEMPTED, 0, 1)
    assert scheduler.num_preemptions == 1
    assert output.new_blocks == {a: [6]}


@BOTH
def test_nobody_is_admitted_in_a_step_that_preempts(release: type[Scheduler]) -> None:
    """The waiting pass is left out although the preemption made room; the step after has it again."""
    scheduler = make_scheduler(release, num_blocks=7)
    _add(scheduler, make_request("a", prompt=12, out=9), make_request("b", prompt=10, out=9))
    step(scheduler)
    _add(scheduler, make_request("c", prompt=4))
    output, _ = step(scheduler)
    assert (scheduled(output), scheduler.kv.pool.num_free) == ([("a", 1)], 2)
    assert scheduled(step(scheduler)[0]) == [("a", 1)]  # b is the head now, and needs three blocks


@BOTH
def test_fcfs_self_preemption_ends_the_pass(release: type[Scheduler]) -> None:
    """The last request without room preempts itself."""
    scheduler = make_scheduler(release, num_blocks=6)
    _add(scheduler, make_request("a", prompt=10, out=9), make_request("b", prompt=8, out=9))
    step(scheduler)
    output, _ = step(scheduler)
    assert scheduled(output) == [("a", 1)]
    assert ids(output.preempted) == ["b"]


@BOTH
def test_several_victims_in_one_step(release: type[Scheduler]) -> None:
    """Victims are taken until the request fits; the last one taken is the first to come back."""
    scheduler = make_scheduler(release, num_blocks=9, long_prefill_token_threshold=16, scheduler_reserve_full_isl=False)
    _add(
        scheduler,
        make_request("a", prompt=40, out=9),
        *(make_request(name, prompt=4, out=9) for name in "bc"),
    )
    assert scheduled(step(scheduler)[0]) == [("a", 16), ("b", 4), ("c", 4)]
    output, _ = step(scheduler)
    assert scheduled(output) == [("a", 16)]
    assert ids(output.preempted) == ["c", "b"]
    assert ids(scheduler.waiting) == ["b", "c"]


@BOTH
def test_a_preempted_request_comes_back_as_resumed(release: type[Scheduler]) -> None:
    """It is looked up anew (its own blocks may still be there) and computes generated tokens again."""
    scheduler = make_scheduler(release, num_blocks=7)
    a, b = make_request("a", prompt=12, out=2), make_request("b", "xyz", prompt=10, out=9)
    _add(scheduler, a, b)
    step(scheduler)
    step(scheduler)  # b has one generated token and is preempted; a ends
    output, _ = step(scheduler)
    assert (output.new, ids(output.resumed)) == ([], ["b"])
    assert output.hits[b] == (8, 0)
    assert scheduled(output) == [("b", 3)]
    assert b.num_output_tokens == 2


def _priority_world(release: type[Scheduler], num_blocks: int, priorities: Sequence[int]) -> Scheduler:
    """Requests a, b, c decode and d is in its prefill of 60 tokens; budget 16. Five steps have been done."""
    scheduler = make_scheduler(
        release,
        num_blocks=num_blocks,
        max_num_batched_tokens=16,
        scheduling_policy="priority",
        scheduler_reserve_full_isl=False,
    )
    prompts = {"a": 4, "b": 42, "c": 8, "d": 60}
    for (name, prompt), priority in zip(prompts.items(), priorities, strict=True):
        _add(scheduler, make_request(name, prompt=prompt, out=50, priority=priority, arrival=ord(name)))
        if name == "b":
            assert _steps(scheduler, 3) == [
                [("a", 4), ("b", 12)],
                [("a", 1), ("b", 15)],
                [("a", 1), ("b", 15)],
            ]
    assert _steps(scheduler, 1) == [[("a", 1), ("b", 1), ("c", 8), ("d", 6)]]
    return scheduler


@BOTH
def test_a_priority_victim_gives_its_tokens_back(release: type[Scheduler]) -> None:
    """A victim that was scheduled leaves the step: its token goes to those behind, none of whom is skipped."""
    scheduler = _priority_world(release, 18, [0, 9, 1, 1])  # a 2, b 11, c 2, d 2 blocks: none is left for c
    output, _ = step(scheduler)
    assert scheduled(output) == [("a", 1), ("c", 1), ("d", 14)]
    assert ids(output.preempted) == ["b"]
    assert ids(output.new_blocks) == ["c", "d"]
    assert ids(scheduler.running) == ["a", "c", "d"]


@BOTH
def test_a_priority_victim_behind_is_just_taken_out(release: type[Scheduler]) -> None:
    """A victim that was not reached yet gives back blocks only."""
    scheduler = _priority_world(release, 18, [0, 1, 1, 9])
    output, _ = step(scheduler)
    assert scheduled(output) == [("a", 1), ("b", 1), ("c", 1)]
    assert ids(output.preempted) == ["d"]


@BOTH
def test_a_victims_new_block_is_not_reported(release: type[Scheduler]) -> None:
    """If the victim had gained a block in this step, the step does not mention it."""
    scheduler = make_scheduler(release, num_blocks=6, scheduling_policy="priority")
    _add(scheduler, make_request("a", prompt=7, out=9, priority=5))
    step(scheduler)
    _add(scheduler, make_request("b", prompt=8, out=9))
    assert scheduled(step(scheduler)[0]) == [("a", 1), ("b", 8)]
    output, _ = step(scheduler)  # a takes the last block, then b needs one
    assert (scheduled(output), ids(output.preempted)) == ([("b", 1)], ["a"])
    assert ids(output.new_blocks) == ["b"]


@BOTH
@pytest.mark.parametrize("running", ["ab", "ba"])
def test_equal_priorities_fall_on_the_latest_arrival(release: type[Scheduler], running: str) -> None:
    """Of equal priorities the request that arrived last is the victim, wherever it runs."""
    scheduler = make_scheduler(release, num_blocks=7, scheduling_policy="priority")
    a, b = make_request("a", prompt=12, out=9, arrival=1), make_request("b", prompt=10, out=9, arrival=2)
    _add(scheduler, a, b)
    step(scheduler)
    scheduler.running.sort(key=lambda request: running.index(request.request_id))
    output, _ = step(scheduler)
    assert ids(output.preempted) == ["b"]
    assert scheduled(output) == [("a", 1)]


@BOTH
def test_of_full_ties_the_first_in_running_order_is_the_victim(release: type[Scheduler]) -> None:
    """Equal priority and arrival: the first one, not the last."""
    scheduler = make_scheduler(release, num_blocks=8, scheduling_policy="priority")
    _add(scheduler, make_request("a", prompt=4, out=9, priority=0))
    _add(scheduler, *(make_request(name, prompt=10, out=9, priority=1) for name in "bc"))
    assert scheduled(step(scheduler)[0]) == [("a", 4), ("b", 10), ("c", 10)]
    output, _ = step(scheduler)  # a needs a second block
    assert ids(output.preempted) == ["b"]
    assert scheduled(output) == [("a", 1), ("c", 1)]


@pytest.mark.parametrize(("release", "rest"), [(Scheduler, [("b", 1)]), (Scheduler023, [])])
def test_priority_self_preemption(release: type[Scheduler], rest: list[tuple[str, int]]) -> None:
    """A request preempts itself: 0.33.0 goes on with the next, 0.23.0 ends the pass; nobody is admitted."""
    scheduler = make_scheduler(release, num_blocks=6, scheduling_policy="priority")
    b, a = make_request("b", prompt=10, out=9, priority=1), make_request("a", prompt=8, out=9, priority=9)
    _add(scheduler, b, a)
    step(scheduler)
    scheduler.running.reverse()
    _add(scheduler, make_request("c", prompt=1))
    output, _ = step(scheduler)
    assert scheduled(output) == rest
    assert ids(output.preempted) == ["a"]
    assert ids(scheduler.waiting) == ["c", "a"]


# -- admission
@BOTH
def test_a_request_that_does_not_fit_ends_the_scan(release: type[Scheduler]) -> None:
    """Smaller requests behind it don't overtake."""
    scheduler = make_scheduler(release, num_blocks=5)
    _add(scheduler, *(make_request(name, prompt=prompt) for name, prompt in (("a", 8), ("b", 12), ("c", 4))))
    assert scheduled(step(scheduler)[0]) == [("a", 8)]
    assert ids(scheduler.waiting) == ["b", "c"]


@BOTH
@pytest.mark.parametrize(("reserve", "tokens"), [(True, []), (False, [("a", 8)])])
def test_full_sequence_check(release: type[Scheduler], reserve: bool, tokens: list[tuple[str, int]]) -> None:
    """A chunked prompt is admitted only if all of it would fit now, unless that check is off."""
    scheduler = make_scheduler(release, num_blocks=5, max_num_batched_tokens=8, scheduler_reserve_full_isl=reserve)
    _add(scheduler, make_request("a", prompt=17))
    assert scheduled(scheduler.schedule()) == tokens


@BOTH
def test_full_sequence_check_ignores_what_could_be_loaded(release: type[Scheduler]) -> None:
    """External tokens need blocks like all others."""
    connector = ScriptedConnector({"a": [(16, True)]})
    scheduler = make_scheduler(release, num_blocks=5, connector=connector)
    _add(scheduler, make_request("a", prompt=17))
    step(scheduler)
    assert connector.lookups() == [("a", 0)]
    assert scheduler.kv.pool.num_free == 4


@BOTH
def test_lookups_are_repeated_until_a_request_is_admitted(release: type[Scheduler]) -> None:
    """The head of the queue is looked up in every step while it does not fit, and never while it runs."""
    connector = ScriptedConnector()
    scheduler = make_scheduler(release, num_blocks=5, connector=connector)
    _add(scheduler, make_request("a", prompt=10, out=3), make_request("b", prompt=8))
    seen = []
    for _ in range(4):
        step(scheduler)
        seen.append(connector.lookups())
    assert seen == [[("a", 0), ("b", 0)], [("b", 0)], [("b", 0)], [("b", 0)]]


@BOTH
def test_a_deferred_lookup_lets_others_pass(release: type[Scheduler]) -> None:
    """None = not now: the scan goes on, and the request is looked at first in the next step."""
    connector = ScriptedConnector({"a": [(None, False), (None, False), (0, False)]})
    scheduler = make_scheduler(release, connector=connector)
    _add(scheduler, make_request("a", prompt=4, out=9), make_request("b", prompt=4, out=9))
    first = scheduled(step(scheduler)[0])
    _add(scheduler, make_request("c", prompt=4, out=9))
    assert [first, *_steps(scheduler, 2)] == [
        [("b", 4)],
        [("b", 1), ("c", 4)],
        [("b", 1), ("c", 1), ("a", 4)],
    ]


@BOTH
def test_a_synchronous_load_runs_at_once(release: type[Scheduler]) -> None:
    """External tokens that are there without waiting count as computed; the rest is scheduled."""
    connector = ScriptedConnector({"a": [(8, False)]})
    scheduler = make_scheduler(release, connector=connector)
    a = make_request("a", "wxyz", prompt=15)
    _add(scheduler, a)
    output, _ = step(scheduler)
    assert scheduled(output) == [("a", 7)]
    assert output.hits == {a: (0, 8)}
    assert connector.calls[1] == ("alloc", "a", [1, 2, 3, 4], 8)
    assert scheduler.kv.pool.hashes[1:5] == [*hashes("wxy"), -1]


# -- loads
def _parking(
    release: type[Scheduler], script: dict[str, Sequence[Answer]], **options: int
) -> tuple[Scheduler, ScriptedConnector]:
    connector = ScriptedConnector(script)
    return make_scheduler(release, connector=connector, **options), connector


@BOTH
def test_a_request_is_parked_for_its_load(release: type[Scheduler]) -> None:
    """It gets blocks for local and external tokens only, costs no budget, and the scan goes on."""
    scheduler, connector = _parking(release, {"a": [(8, True)]}, max_num_batched_tokens=20)
    _add(scheduler, make_request("z", "x", out=1))
    step(scheduler)
    connector.calls.clear()
    a, b = make_request("a", "xyzuv", prompt=20), make_request("b", prompt=20, out=9)
    _add(scheduler, a, b)
    output, _ = step(scheduler)
    assert scheduled(output) == [("b", 20)]
    assert (a.status, a.num_computed_tokens) == (RequestStatus.WAITING_FOR_REMOTE_KVS, 12)
    assert connector.calls[:2] == [("lookup", "a", 4), ("alloc", "a", [1, 2, 3], 8)]
    assert output.hits[a] == (4, 8)
    assert (ids(output.new), list(output.tables)) == (["b"], [b])
    assert ids(scheduler.waiting.second) == ["a"]


@BOTH
def test_loaded_blocks_get_their_hash_at_the_promotion(release: type[Scheduler]) -> None:
    """Nobody can hit them while the load is on its way or just reported, but from the next scan on."""
    scheduler, connector = _parking(release, {"a": [(8, True)]})
    a = make_request("a", "xyz", prompt=12)
    _add(scheduler, a)
    step(scheduler)
    step(scheduler, received=[a])
    assert scheduler.kv.pool.cached == {}
    connector.calls.clear()
    output = scheduler.schedule()
    assert scheduler.kv.pool.cached == dict(zip(hashes("xyz"), [1, 2, 3], strict=True))
    assert scheduled(output) == [("a", 4)]
    assert ids(output.new) == ["a"]
    assert output.tables == {a: [1, 2, 3]}
    assert output.hits == {}  # told when it was parked
    assert connector.lookups() == []


@BOTH
def test_promotion_hashes_even_if_the_request_does_not_fit(release: type[Scheduler]) -> None:
    """A promoted request without room for its rest holds its loaded blocks, findable, and ends the scan."""
    scheduler, connector = _parking(
        release, {"a": [(8, True)]}, num_blocks=6, max_num_batched_tokens=12, scheduler_reserve_full_isl=False
    )
    a, b, c = make_request("a", "xyzu"), make_request("b", prompt=12, out=2), make_request("c", prompt=1)
    _add(scheduler, a, b)
    assert scheduled(step(scheduler, received=[a])[0]) == [("b", 12)]
    _add(scheduler, c)
    output, _ = step(scheduler)
    assert ids(output.preempted) == ["b"]  # a and b fill the pool, and b's next token has no room
    assert scheduler.kv.pool.cached.keys().isdisjoint(hashes("xy"))
    scheduler.kv.pool.get_new_blocks(2)  # somebody else's: one block is left
    connector.calls.clear()
    output = scheduler.schedule()
    assert scheduled(output) == []
    assert scheduler.kv.pool.cached.keys() >= set(hashes("xy"))
    assert (a.status, a.num_computed_tokens) == (RequestStatus.WAITING, 8)
    assert connector.lookups() == []  # neither b nor c was looked at
    assert ids(scheduler.waiting) == ["a", "b", "c"]


@BOTH
def test_after_a_full_hit_the_last_token_is_computed(release: type[Scheduler]) -> None:
    """If everything was loaded, all blocks get their hash and one token is computed again."""
    scheduler, _ = _parking(release, {"a": [(12, True)]})
    a = make_request("a", "xyz")
    _add(scheduler, a)
    step(scheduler, received=[a])
    output, _ = step(scheduler)
    assert scheduled(output) == [("a", 1)]
    assert sorted(scheduler.kv.pool.cached) == sorted(hashes("xyz"))
    assert a.num_computed_tokens == 12


@BOTH
def test_parked_requests_do_not_count_against_max_num_seqs(release: type[Scheduler]) -> None:
    """While a request loads another one runs in its place; then it waits for its turn."""
    scheduler, _ = _parking(release, {"a": [(4, True)]}, max_num_seqs=1)
    a, b = make_request("a", prompt=8, out=9), make_request("b", prompt=4, out=3)
    _add(scheduler, a, b)
    steps = [scheduled(step(scheduler, received=received)[0]) for received in ([], [a], [], [])]
    assert steps == [[("b", 4)], [("b", 1)], [("b", 1)], [("a", 4)]]


@BOTH
def test_a_request_that_was_preempted_and_loads_comes_back_as_resumed(release: type[Scheduler]) -> None:
    """The first life decides: new only if it was never preempted."""
    scheduler, _ = _parking(release, {"b": [(0, False), (8, True)]}, num_blocks=7, enable_caching=False)
    a, b = make_request("a", prompt=12, out=2), make_request("b", prompt=10, out=9)
    _add(scheduler, a, b)
    step(scheduler)
    step(scheduler)
    assert scheduled(step(scheduler, received=[b])[0]) == []
    output, _ = step(scheduler)
    assert (output.new, ids(output.resumed)) == ([], ["b"])
    assert scheduled(output) == [("b", 3)]


@BOTH
@pytest.mark.parametrize(("num_blocks", "status"), [(16, "WAITING"), (17, "WAITING_FOR_REMOTE_KVS")])
def test_a_load_leaves_room_for_the_rest_of_other_loads(release: type[Scheduler], num_blocks: int, status: str) -> None:
    """Parked requests keep a claim on the blocks that they still need: 4 + 6 of them, and 6 for this one."""
    scheduler, _ = _parking(release, {"a": [(16, True)], "b": [(24, True)]}, num_blocks=num_blocks)
    b = make_request("b", prompt=24)
    _add(scheduler, make_request("a", prompt=40), b)
    step(scheduler)
    assert b.status.name == status


@BOTH
@pytest.mark.parametrize(("num_blocks", "status"), [(16, "WAITING"), (17, "WAITING_FOR_REMOTE_KVS")])
def test_a_load_leaves_room_for_chunked_prefills(release: type[Scheduler], num_blocks: int, status: str) -> None:
    """A prompt of which only a part is scheduled has the same claim."""
    scheduler, _ = _parking(release, {"b": [(24, True)]}, num_blocks=num_blocks, long_prefill_token_threshold=16)
    b = make_request("b", prompt=24)
    _add(scheduler, make_request("a", prompt=40), b)
    assert scheduled(step(scheduler)[0]) == [("a", 16)]
    assert b.status.name == status


@BOTH
def test_the_claim_lasts_until_the_prefill_ends(release: type[Scheduler]) -> None:
    """A promoted request keeps its claim while it is in its prefill; then its blocks are its own."""
    scheduler, _ = _parking(
        release, {"a": [(16, True)], "b": [(24, True)]}, num_blocks=17, long_prefill_token_threshold=12
    )
    a, b = make_request("a", prompt=44, out=9), make_request("b", prompt=24)
    _add(scheduler, a, b)
    seen = []
    for received in ([a], [], [], []):
        output, _ = step(scheduler, received=received)
        seen.append((scheduled(output), b.status.name, len(scheduler._inflight_prefills)))
    assert seen == [
        ([], "WAITING", 1),
        ([("a", 12)], "WAITING", 1),
        ([("a", 12)], "WAITING", 1),
        ([("a", 4)], "WAITING", 0),
    ]


@BOTH
def test_a_preempted_prefill_gives_up_its_claim(release: type[Scheduler]) -> None:
    """A request that lost its blocks in its prefill has no claim that its own later load would have to respect."""
    scheduler, _ = _parking(
        release,
        {"b": [(0, False), (16, True)]},
        num_blocks=8,
        max_num_batched_tokens=20,
        enable_caching=False,
    )
    b = make_request("b", prompt=16, out=9)
    _add(scheduler, make_request("a", prompt=12, out=2), b)
    assert _steps(scheduler, 2) == [[("a", 12), ("b", 8)], [("a", 1)]]
    assert (b.status, scheduler.kv.pool.num_free) == (RequestStatus.PREEMPTED, 7)
    step(scheduler)
    assert b.status is RequestStatus.WAITING_FOR_REMOTE_KVS


@BOTH
def test_synchronous_admissions_ignore_the_claims(release: type[Scheduler]) -> None:
    """Only loads respect what other prefills still need."""
    scheduler, _ = _parking(release, {"a": [(16, True)]}, num_blocks=16)
    _add(scheduler, make_request("a", prompt=40), make_request("b", prompt=24))
    assert scheduled(step(scheduler)[0]) == [("b", 24)]


@BOTH
def test_loads_in_scan_order(release: type[Scheduler]) -> None:
    """Parked requests are promoted in the order in which they were parked, each when its load is over."""
    scheduler, _ = _parking(release, {name: [(4, True)] for name in "abc"})
    a, b, c = requests = [make_request(name, prompt=8, out=9) for name in "abc"]
    _add(scheduler, *requests)
    step(scheduler, received=[c])
    assert ids(scheduler.waiting.second) == ["a", "b", "c"]
    assert scheduled(step(scheduler, received=[b, a])[0]) == [("c", 4)]
    assert ids(scheduler.waiting.second) == ["a", "b"]
    assert scheduled(step(scheduler)[0]) == [("c", 1), ("a", 4), ("b", 4)]


def test_newcomers_do_not_overtake_a_promoted_request() -> None:
    """0.33.0: who holds blocks and does not fit blocks everybody else, even more urgent ones."""
    connector = ScriptedConnector({"a": [(8, True)]})
    scheduler = make_scheduler(connector=connector, num_blocks=6, scheduling_policy="priority")
    a = make_request("a", prompt=16, priority=5)
    _add(scheduler, a)
    step(scheduler, received=[a])
    scheduler.kv.pool.get_new_blocks(2)  # somebody else's
    _add(scheduler, make_request("b", prompt=1, priority=0))
    assert scheduled(scheduler.schedule()) == []
    assert ids(scheduler.waiting) == ["a", "b"]


# -- ends
@BOTH
def test_a_request_ends_with_its_last_token(release: type[Scheduler]) -> None:
    """Tokens are sampled when all tokens are computed; the blocks are free after the step."""
    scheduler = make_scheduler(release, max_num_batched_tokens=6)
    a = make_request("a", prompt=8, out=2)
    _add(scheduler, a)
    ends = []
    for _ in range(3):
        _, ended = step(scheduler)
        ends.append((ended, a.num_output_tokens))
    assert ends == [([], 0), ([], 1), (["a"], 2)]
    assert a.status is RequestStatus.FINISHED
    assert (scheduler.running, scheduler.kv.pool.num_free) == ([], 100)
    scheduler.check(at_end=True)


@BOTH
def test_a_request_ends_at_max_model_len(release: type[Scheduler]) -> None:
    """Prompt and output together are never longer."""
    scheduler = make_scheduler(release, max_model_len=10)
    a = make_request("a", prompt=8, out=50)
    _add(scheduler, a)
    assert [step(scheduler)[1] for _ in range(2)] == [[], ["a"]]
    assert a.num_tokens == 10


@BOTH
def test_ends_are_told_in_the_next_step_in_scheduling_order(release: type[Scheduler]) -> None:
    """Requests that end in one step are listed in the order of that step."""
    scheduler = make_scheduler(release)
    _add(scheduler, *(make_request(name, prompt=4, out=out) for name, out in (("c", 2), ("a", 2), ("b", 1))))
    outputs = [step(scheduler) for _ in range(3)]
    assert [ended for _, ended in outputs] == [["b"], ["c", "a"], []]
    assert [ids(output.finished) for output, _ in outputs] == [[], ["b"], ["c", "a"]]


def test_the_order_of_ends_can_be_changed() -> None:
    """A test may ask for the order of vLLM's set of ids."""
    scheduler = make_scheduler()
    scheduler.order_finished = lambda requests: sorted(requests, key=lambda request: request.request_id)
    _add(scheduler, *(make_request(name, prompt=4) for name in "cab"))
    step(scheduler)
    assert ids(step(scheduler)[0].finished) == ["a", "b", "c"]


@BOTH
def test_a_step_follows_the_last_end(release: type[Scheduler]) -> None:
    """The scheduler has requests until their ends have been told."""
    scheduler = make_scheduler(release)
    seen = [scheduler.has_requests()]
    _add(scheduler, make_request("a", prompt=4))
    for _ in range(2):
        seen.append(scheduler.has_requests())
        step(scheduler)
    seen.append(scheduler.has_requests())
    assert seen == [False, True, True, False]


@BOTH
def test_pending_work_of_the_connector_asks_for_steps(release: type[Scheduler]) -> None:
    """A connector with copies in flight keeps the engine going."""
    connector = ScriptedConnector()
    scheduler = make_scheduler(release, connector=connector)
    assert not scheduler.has_requests()
    connector.pending = True
    assert scheduler.has_requests()


@BOTH
def test_order_of_calls_to_the_connector(release: type[Scheduler]) -> None:
    """Lookup, allocation, metadata; after the step ends (blocks still held), then the worker's reports."""
    connector = ScriptedConnector({"b": [(4, True)]})
    scheduler = make_scheduler(release, connector=connector)
    b = make_request("b", prompt=8)
    _add(scheduler, make_request("a", prompt=4), b)
    output, _ = step(scheduler, received=[b], jobs=[7])
    assert output.connector_meta == "meta"
    assert connector.calls == [
        ("lookup", "a", 0),
        ("alloc", "a", [1], 0),
        ("lookup", "b", 0),
        ("alloc", "b", [2], 4),
        ("meta",),
        ("finished", "a", [1]),
        ("output", [7], ["b"]),
    ]
    assert scheduler.received == {b}


@BOTH
def test_blocks_are_freed_in_the_order_of_ends(release: type[Scheduler]) -> None:
    """Each ended request gives its blocks back, tail first."""
    scheduler = make_scheduler(release, num_blocks=5)
    _add(scheduler, make_request("a", "xy"), make_request("b", "uv"))
    step(scheduler)
    assert scheduler.kv.pool.free_list() == [2, 1, 4, 3]


def test_check_finds_lost_requests_and_leftovers() -> None:
    """A request must be in exactly one queue; at the end nothing may be left."""
    scheduler = make_scheduler()
    a = make_request("a", prompt=8, out=9)
    _add(scheduler, a)
    step(scheduler)
    with pytest.raises(AssertionError, match="are left"):
        scheduler.check(at_end=True)
    scheduler.running.clear()
    with pytest.raises(AssertionError, match="in no queue"):
        scheduler.check()


# -- not asking in vain
class PureConnector(ScriptedConnector):
    """Lookups that change nothing, and nothing in flight."""

    lookups_are_pure = True

    def may_defer(self) -> bool:
        return False


def test_a_hopeless_request_is_not_looked_up_again() -> None:
    """As long as nothing was freed, touched or cached, a refused request is refused without a lookup."""
    connector = PureConnector()
    scheduler = make_scheduler(num_blocks=6, connector=connector)
    _add(scheduler, make_request("a", "vwxyz", prompt=13, out=9), make_request("b", "vwpq", prompt=16, out=1))
    seen = []
    for _ in range(3):
        step(scheduler)
        seen.append(connector.lookups())
    assert seen == [[("a", 0), ("b", 8)], [], []]


def test_a_free_ends_hopelessness() -> None:
    """Blocks that become free are a reason to ask again."""
    connector = PureConnector()
    scheduler = make_scheduler(num_blocks=6, connector=connector)
    _add(scheduler, make_request("a", prompt=13, out=2), make_request("b", prompt=16, out=1))
    seen = []
    for _ in range(3):
        output, _ = step(scheduler)
        seen.append((connector.lookups(), scheduled(output)))
    assert seen == [([("a", 0), ("b", 0)], [("a", 13)]), ([], [("a", 1)]), ([("b", 0)], [("b", 16)])]


def test_an_observed_scheduler_asks_every_time() -> None:
    """Recordings count every lookup, so with a log of lookups none is left out."""
    log: list[tuple[str, int, int | None, bool | None]] = []
    scheduler = make_scheduler(num_blocks=6)
    observed = Scheduler(
        scheduler.limits,
        scheduler.kv,
        PureConnector(),
        on_lookup=lambda request, *answer: log.append((request.request_id, *answer)),
    )
    _add(observed, make_request("a", "vwxy", prompt=13, out=9), make_request("b", "vwpq", prompt=16, out=1))
    step(observed)
    step(observed)
    assert log == [("a", 0, 0, False), ("b", 8, 0, False), ("b", 8, 0, False)]


def test_blocks_of_an_ended_request_are_kept_until_they_are_sent() -> None:
    """`request_finished` answered True: its blocks are free only after the worker's ``sent``."""
    connector = ScriptedConnector()
    connector.sends = True
    scheduler = make_scheduler(num_blocks=5, connector=connector)
    a, b = make_request("a", "AB"), make_request("b", "CDE")
    scheduler.add_request(a)
    assert step(scheduler)[1] == ["a"]
    scheduler.add_request(b)
    output, _ = step(scheduler)
    assert (scheduled(output), output.finished) == ([], [a])  # two blocks are free, b needs three
    assert (scheduler.kv.pool.num_free, scheduler.has_requests()) == (2, True)
    step(scheduler, sent=[a])
    assert scheduler.kv.pool.num_free == 4
    assert scheduled(step(scheduler)[0]) == [("b", 12)]
    step(scheduler, sent=[b])
    assert not scheduler.has_requests()
    scheduler.check(at_end=True)


def test_an_ended_request_keeps_the_engine_stepping_until_it_is_sent() -> None:
    """Nobody is left to serve, but blocks are to be freed."""
    connector = ScriptedConnector()
    connector.sends = True
    scheduler = make_scheduler(connector=connector)
    a = make_request("a", "A")
    scheduler.add_request(a)
    step(scheduler)
    step(scheduler)  # the end is told
    assert scheduler.has_requests()
    with pytest.raises(AssertionError, match="blocks of ended requests are still held"):
        scheduler.check(at_end=True)
    step(scheduler, sent=[a])
    assert not scheduler.has_requests()


@pytest.mark.parametrize("together", [True, False])
def test_aborted_while_loading_and_kept_for_sending(together: bool) -> None:
    """Blocks that a load writes to and a store may read are free after both reports, in one step or in two."""
    connector = ScriptedConnector({"a": [(8, True)]})
    connector.sends = True
    scheduler = make_scheduler(num_blocks=5, connector=connector)
    a = make_request("a", "AB")
    scheduler.add_request(a)
    step(scheduler)
    scheduler.abort_request(a)
    step(scheduler)
    assert scheduler.kv.pool.num_free == 2
    if together:
        step(scheduler, received=[a], sent=[a])
    else:
        step(scheduler, sent=[a])
        assert scheduler.kv.pool.num_free == 2
        step(scheduler, received=[a])
    assert scheduler.kv.pool.num_free == 4
    scheduler.check(at_end=True)
