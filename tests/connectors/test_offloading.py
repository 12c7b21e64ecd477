"""OffloadingConnector, scheduler side: lookups, loads, stores, flushes, and what is remembered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from engine_builder import BLOCK, make_request, word

from kvsim.connectors.base import SchedulerOutput, WorkerOutput
from kvsim.connectors.offloading import Job, OffloadingConnector, OffloadingMeta
from kvsim.connectors.offloading_023 import OffloadingConnector023
from kvsim.releases import RELEASES
from kvsim.request import Request, RequestStatus

RELEASE_OF = {OffloadingConnector: "0.33.0", OffloadingConnector023: "0.23.0"}
BOTH = pytest.mark.parametrize("release", [OffloadingConnector, OffloadingConnector023])

JobView = tuple[int, str, str, list[int], list[int]]


class Desk:
    """A connector over an LRU manager, driven by hand; `log` holds what it asked of the manager."""

    def __init__(
        self,
        release: type[OffloadingConnector] = OffloadingConnector,
        *,
        num_slots: int = 20,
        factor: int = 1,
        prompt_only: bool = True,
        enable_caching: bool = True,
    ) -> None:
        parts = RELEASES[RELEASE_OF[release]]
        self.manager = parts.manager(num_slots, parts.policies["lru"])
        self.connector = release(
            self.manager,
            block_size=BLOCK,
            block_size_factor=factor,
            offload_prompt_only=prompt_only,
            enable_caching=enable_caching,
        )
        self.log: list[str] = []
        self._listen()

    def _listen(self) -> None:
        """Write down every call, with the letters of the chunks it is about."""

        def listen(name: str, describe: Callable[..., str]) -> None:
            original = getattr(self.manager, name)

            def logged(*args: Any) -> Any:
                self.log.append(describe(*args))
                return original(*args)

            setattr(self.manager, name, logged)

        listen("touch", lambda context: f"touch {word(context.keys)}")
        listen("lookup_prefix", lambda context, first, last: f"lookup {word(context.keys[first:last])}")
        listen("prepare_store", lambda context, first, last: f"offer {word(context.keys[first:last])}")
        listen("on_request_finished", lambda context: f"end of {context.request_id}")
        listen("on_schedule_end", lambda: "end of step")

    def said(self) -> list[str]:
        """What the manager was asked since the last time."""
        log = list(self.log)
        self.log.clear()
        return log

    def arrive(self, name: str, content: str, *, prompt: int | None = None, out: int = 8) -> Request:
        request = make_request(name, content, prompt=prompt, out=out)
        self.connector.on_new_request(request)
        return request

    def lookup(self, request: Request, local: int = 0) -> int | None:
        tokens, is_async = self.connector.get_num_new_matched_tokens(request, local)
        assert is_async is bool(tokens)
        return tokens

    def plan(
        self,
        *scheduled: tuple[Request, int, list[int]],
        gained: dict[Request, list[int]] | None = None,
        preempted: Sequence[Request] = (),
        finished: Sequence[Request] = (),
    ) -> OffloadingMeta:
        """Plan a step. ``scheduled``: request, tokens, table if it is new (empty = it was running)."""
        output = SchedulerOutput(preempted=list(preempted), finished=list(finished), new_blocks=gained or {})
        for request, tokens, table in scheduled:
            output.num_scheduled_tokens[request] = tokens
            if table:
                output.tables[request] = table
        meta = self.connector.build_connector_meta(output)
        for request, tokens, _ in scheduled:
            request.num_computed_tokens += tokens
        assert isinstance(meta, OffloadingMeta)
        return meta

    def finish(self, request: Request, table: list[int] | None = None) -> None:
        request.status = RequestStatus.FINISHED
        self.connector.request_finished(request, table or [])

    def done(self, *jobs: int) -> None:
        self.connector.update_connector_output(WorkerOutput(jobs=list(jobs)))

    def fill(self, content: str) -> None:
        """Put a prompt into the CPU and forget who stored it."""
        request = self.arrive(f"filler {content}", content)
        self.lookup(request)
        blocks = list(range(900, 900 + len(content)))
        meta = self.plan((request, request.num_tokens, blocks))
        self.done(*meta.stores)
        self.finish(request)
        self.plan(finished=[request])
        self.said()

    def resident(self) -> str:
        return word(self.manager.slots)

    def refs(self) -> dict[str, int]:
        return {chr(key): slot.ref_count for key, slot in self.manager.slots.items()}


def _jobs(jobs: dict[int, Job]) -> list[JobView]:
    return [(n, job.request.request_id, word(job.keys), job.source, job.destination) for n, job in jobs.items()]


# -- lookups
@BOTH
def test_tokens_after_the_local_hit(release: type[OffloadingConnector]) -> None:
    """The answer counts tokens after what the GPU has, up to the first chunk that the CPU has not."""
    desk = Desk(release)
    desk.fill("abc")
    r = desk.arrive("r", "abcd")
    assert [desk.lookup(r, local) for local in (0, 4, 8, 12)] == [12, 8, 4, 0]
    assert desk.lookup(desk.arrive("s", "xyz")) == 0


@BOTH
def test_a_chunk_is_named_after_its_last_block(release: type[OffloadingConnector]) -> None:
    """With two blocks per chunk, the key of a chunk is the hash of its second block; a rest has none."""
    desk = Desk(release, factor=2)
    desk.fill("abcde")
    assert desk.resident() == "bd"
    r = desk.arrive("r", "abcde")
    desk.lookup(r)
    assert "lookup bd" in desk.said()


@BOTH
def test_less_than_a_chunk_left_is_not_looked_up(release: type[OffloadingConnector]) -> None:
    """If the full chunks of the request end less than a chunk after the local hit, the CPU is not asked."""
    desk = Desk(release, factor=2)
    desk.fill("abcdef")
    r = desk.arrive("r", "abcdef")
    desk.said()
    assert desk.lookup(r, 20) == 0
    assert not any(entry.startswith("lookup") for entry in desk.said())
    assert desk.lookup(r, 16) == 8
    assert "lookup f" in desk.said()


@BOTH
def test_a_chunk_that_is_partly_local_is_looked_up_whole(release: type[OffloadingConnector]) -> None:
    """The scan starts with the chunk in which the local hit ends."""
    desk = Desk(release, factor=2)
    desk.fill("abcdef")
    r = desk.arrive("r", "abcdefgh")
    assert desk.lookup(r, 4) == 20
    assert "lookup bdfh" in desk.said()
    assert desk.lookup(r, 12) == 12
    assert "lookup dfh" in desk.said()


@BOTH
def test_less_than_a_chunk_found_is_nothing(release: type[OffloadingConnector]) -> None:
    """The rest of a partly local chunk alone is not worth a load."""
    desk = Desk(release, factor=2)
    desk.fill("ab")
    assert desk.lookup(desk.arrive("r", "abcdef"), 4) == 0


@BOTH
def test_the_whole_prompt_may_be_found(release: type[OffloadingConnector]) -> None:
    """Unlike the local lookup, this one is not capped before the last token."""
    desk = Desk(release)
    desk.fill("abcd")
    assert desk.lookup(desk.arrive("r", "abcd")) == 16


@BOTH
def test_a_hit_that_is_being_written_defers(release: type[OffloadingConnector]) -> None:
    """None while any chunk of the hit is still on its way to the CPU; then the tokens."""
    desk = Desk(release)
    desk.fill("a")
    s = desk.arrive("s", "abx")
    desk.lookup(s)
    meta = desk.plan((s, 8, [1, 2]))
    r = desk.arrive("r", "abc")
    assert desk.lookup(r) is None
    assert desk.lookup(desk.arrive("q", "ac")) == 4
    desk.done(*meta.stores)
    assert desk.lookup(r) == 8


@BOTH
def test_blocks_that_somebody_loads_defer(release: type[OffloadingConnector]) -> None:
    """With prefix caching, a hit that another request is loading now is waited for: it will be on the GPU."""
    desk = Desk(release)
    desk.fill("abcd")
    s, r, t = desk.arrive("s", "abxy"), desk.arrive("r", "abcd"), desk.arrive("t", "abcd")
    desk.connector.update_state_after_alloc(s, [1, 2], desk.lookup(s) or 0)
    assert desk.lookup(r) is None
    assert desk.lookup(t, 8) == 8
    desk.done(1)
    assert desk.lookup(r) == 16


@BOTH
def test_without_prefix_caching_loads_defer_nobody(release: type[OffloadingConnector]) -> None:
    """With nothing to hit on the GPU later, everybody loads for himself."""
    desk = Desk(release, enable_caching=False)
    desk.fill("ab")
    s, r = desk.arrive("s", "abxy"), desk.arrive("r", "abcd")
    desk.connector.update_state_after_alloc(s, [1, 2], desk.lookup(s) or 0)
    assert desk.lookup(r) == 8


def test_own_transfers_in_flight_defer() -> None:
    """0.33.0: a preempted request waits until its earlier transfers are over."""
    desk = Desk(enable_caching=False)
    desk.fill("ab")
    r = desk.arrive("r", "abcd")
    desk.connector.update_state_after_alloc(r, [1, 2], desk.lookup(r) or 0)
    assert desk.lookup(r) is None
    desk.done(1)
    assert desk.lookup(r) == 8


def test_lookups_touch_nothing() -> None:
    """0.33.0: neither lookups nor stores are uses."""
    desk = Desk()
    desk.fill("ab")
    r = desk.arrive("r", "abcd")
    desk.lookup(r)
    desk.plan((r, 16, [1, 2, 3, 4]))
    assert desk.said() == ["lookup abcd", "offer abcd", "end of step"]


def test_023_every_lookup_touches_all_keys() -> None:
    """0.23.0: whatever the answer, all keys of the request are touched, also those behind the hit."""
    desk = Desk(OffloadingConnector023)
    desk.fill("ab")
    s = desk.arrive("s", "mn")
    desk.lookup(s)
    desk.plan((s, 8, [1, 2]))
    desk.said()
    answers = [desk.lookup(desk.arrive(name, name)) for name in ("abcd", "xy", "mnop")]
    assert answers == [8, 0, None]
    assert [entry for entry in desk.said() if entry.startswith("touch")] == [
        "touch abcd",
        "touch xy",
        "touch mnop",
    ]


@BOTH
def test_keys_grow_with_the_output(release: type[OffloadingConnector]) -> None:
    """Every scheduled step adds the keys of blocks that generated tokens have filled, prompt-only or not."""
    desk = Desk(release)
    r = desk.arrive("r", "abc", prompt=7)
    desk.lookup(r)
    desk.plan((r, 7, [1, 2]))
    r.append_output_token()
    desk.plan((r, 1, []))
    context = desk.connector._states[r].context
    assert word(context.keys) == "ab"
    for _ in range(4):
        r.append_output_token()
    desk.plan((r, 1, []))
    assert word(context.keys) == "abc"
    assert len(context.marks) == 3


# -- loads
@BOTH
def test_load_job(release: type[OffloadingConnector]) -> None:
    """Slots of the chunks after the local hit, to the blocks after the local hit; the chunks are pinned."""
    desk = Desk(release)
    desk.fill("abcd")
    r = desk.arrive("r", "abcde")
    assert desk.lookup(r, 4) == 12
    desk.connector.update_state_after_alloc(r, [7, 8, 9, 10], 12)
    meta = desk.plan()
    assert _jobs(meta.loads) == [(1, "r", "bcd", [1, 2, 3], [8, 9, 10])]
    assert (meta.stores, meta.flush) == ({}, set())
    assert desk.refs() == {"a": 0, "b": 1, "c": 1, "d": 1}
    desk.done(1)
    assert desk.refs() == {"a": 0, "b": 0, "c": 0, "d": 0}


@BOTH
def test_load_job_with_a_start_inside_a_chunk(release: type[OffloadingConnector]) -> None:
    """The partly local chunk is pinned whole, but only blocks after the local hit are written."""
    desk = Desk(release, factor=2)
    desk.fill("abcdef")
    r = desk.arrive("r", "abcdef")
    assert desk.lookup(r, 4) == 20
    desk.connector.update_state_after_alloc(r, [7, 8, 9, 10, 11, 12], 20)
    job = desk.plan().loads[1]
    assert (word(job.keys), job.source, job.destination) == ("bdf", [0, 1, 2], [8, 9, 10, 11, 12])
    assert job.gpu_blocks == [8, 9, 10, 11, 12]


@BOTH
def test_no_external_tokens_no_load(release: type[OffloadingConnector]) -> None:
    """Admission without anything to load makes no job."""
    desk = Desk(release)
    r = desk.arrive("r", "ab")
    desk.lookup(r)
    desk.connector.update_state_after_alloc(r, [1, 2], 0)
    assert desk.plan().loads == {}


@BOTH
def test_what_was_loaded_is_not_stored(release: type[OffloadingConnector]) -> None:
    """Stores begin behind the loaded prefix."""
    desk = Desk(release)
    desk.fill("ab")
    r = desk.arrive("r", "abcd")
    desk.connector.update_state_after_alloc(r, [1, 2], desk.lookup(r) or 0)
    desk.plan()
    desk.done(1)
    desk.said()
    r.num_computed_tokens = 8
    meta = desk.plan((r, 8, [1, 2, 3, 4]))
    assert "offer cd" in desk.said()
    assert _jobs(meta.stores) == [(2, "r", "cd", [3, 4], [2, 3])]


@BOTH
def test_one_counter_numbers_all_jobs(release: type[OffloadingConnector]) -> None:
    """Loads get their number at their allocation, stores when the step is planned, from one counter."""
    desk = Desk(release)
    desk.fill("ab")  # job 0
    r, s, t = desk.arrive("r", "xy"), desk.arrive("s", "abc"), desk.arrive("t", "z")
    desk.lookup(r)
    desk.lookup(t)
    desk.connector.update_state_after_alloc(s, [3, 4], desk.lookup(s) or 0)
    meta = desk.plan((r, 8, [1, 2]), (t, 4, [5]))
    assert [(j, name) for j, name, *_ in _jobs(meta.loads)] == [(1, "s")]
    assert [(j, name) for j, name, *_ in _jobs(meta.stores)] == [(2, "r"), (3, "t")]
    assert (desk.connector.num_load_jobs, desk.connector.num_store_jobs) == (1, 3)


# -- stores
@BOTH
def test_store_job(release: type[OffloadingConnector]) -> None:
    """All blocks of every absent chunk, in order; chunks already there are skipped."""
    desk = Desk(release, factor=2)
    desk.fill("abxy")
    r = desk.arrive("r", "abcdefg")
    desk.lookup(r)
    meta = desk.plan((r, 28, [1, 2, 3, 4, 5, 6, 7]))
    assert _jobs(meta.stores) == [(1, "r", "df", [3, 4, 5, 6], [2, 3])]
    assert meta.stores[1].gpu_blocks == [3, 4, 5, 6]
    assert desk.refs() == {"b": 0, "y": 0, "d": -1, "f": -1}
    desk.done(1)
    assert desk.refs() == {"b": 0, "y": 0, "d": 0, "f": 0}


@BOTH
def test_full_chunks_are_stored_as_they_are_computed(release: type[OffloadingConnector]) -> None:
    """Each step offers the chunks that are full after it, once."""
    desk = Desk(release)
    r = desk.arrive("r", "abcd")
    desk.lookup(r)
    stores = [
        _jobs(desk.plan((r, 6, [1, 2])).stores),
        _jobs(desk.plan((r, 1, [])).stores),
        _jobs(desk.plan((r, 9, []), gained={r: [3, 4]}).stores),
    ]
    assert stores[:2] == [[(0, "r", "a", [1], [0])], []]
    assert [(j, keys) for j, _, keys, *_ in stores[2]] == [(1, "bcd")]


@BOTH
def test_only_the_prompt_is_stored(release: type[OffloadingConnector]) -> None:
    """Prompt-only: chunks that the output completes are never offered, not even partly."""
    desk = Desk(release)
    r = desk.arrive("r", "abc", prompt=7)
    desk.lookup(r)
    desk.plan((r, 7, [1, 2, 3]))
    for _ in range(5):
        r.append_output_token()
        desk.plan((r, 1, []))
    assert desk.resident() == "a"


@BOTH
def test_outputs_are_stored_when_asked_for(release: type[OffloadingConnector]) -> None:
    """Otherwise chunks with generated tokens are stored as soon as they are computed."""
    desk = Desk(release, prompt_only=False)
    r = desk.arrive("r", "abc", prompt=7)
    desk.lookup(r)
    resident = []
    desk.plan((r, 7, [1, 2, 3]))
    for _ in range(5):
        r.append_output_token()
        desk.plan((r, 1, []))
        resident.append(desk.resident())
    assert resident == ["ab", "ab", "ab", "ab", "abc"]


@BOTH
def test_a_refused_store_is_offered_again(release: type[OffloadingConnector]) -> None:
    """Without room nothing is planned and the same chunks come again with the next step's."""
    desk = Desk(release, num_slots=3)
    s = desk.arrive("s", "xy")
    desk.lookup(s)
    first = desk.plan((s, 8, [1, 2]))
    r = desk.arrive("r", "abc")
    desk.lookup(r)
    assert desk.plan((r, 8, [3, 4])).stores == {}
    desk.done(*first.stores)
    desk.said()
    assert desk.plan((r, 4, [3, 4, 5])).stores.keys() == {1}
    assert "offer abc" in desk.said()
    assert desk.resident() == "abc"


@BOTH
def test_nothing_new_nothing_offered(release: type[OffloadingConnector]) -> None:
    """A step that fills no chunk does not bother the manager."""
    desk = Desk(release)
    r = desk.arrive("r", "ab")
    desk.lookup(r)
    desk.plan((r, 5, [1, 2]))
    desk.said()
    desk.plan((r, 1, []))
    assert desk.said() == ["end of step"]


def _preempted_after_storing(release: type[OffloadingConnector]) -> tuple[Desk, Request]:
    """A request that stored four chunks, lost its blocks and was looked up again in an emptied CPU."""
    desk = Desk(release, num_slots=4)
    r = desk.arrive("r", "abcd")
    desk.lookup(r)
    meta = desk.plan((r, 16, [1, 2, 3, 4]))
    desk.done(*meta.stores)
    desk.fill("wxyz")
    r.num_computed_tokens = 0
    assert desk.lookup(r) == 0
    desk.said()
    return desk, r


def test_after_a_preemption_everything_is_offered_again() -> None:
    """0.33.0: offers restart with the first chunk."""
    desk, r = _preempted_after_storing(OffloadingConnector)
    desk.plan((r, 8, [5, 6]))
    desk.plan((r, 8, []), gained={r: [7, 8]})
    assert [entry for entry in desk.said() if entry.startswith("offer")] == ["offer ab", "offer cd"]


def test_023_the_cursor_goes_back_with_the_computed_tokens() -> None:
    """0.23.0: a preempted request sets its cursor to where it is and offers only what follows."""
    desk, r = _preempted_after_storing(OffloadingConnector023)
    desk.plan((r, 8, [5, 6]))
    desk.plan((r, 8, []), gained={r: [7, 8]})
    assert [entry for entry in desk.said() if entry.startswith("offer")] == ["offer cd"]


@pytest.mark.parametrize(("release", "cursor"), [(OffloadingConnector, 3), (OffloadingConnector023, 2)])
def test_cursor_after_loading_more_than_the_prompt(release: type[OffloadingConnector], cursor: int) -> None:
    """0.33.0's cursor never goes back; 0.23.0's does, from the loaded output to the end of the prompt."""
    desk = Desk(release)
    desk.fill("abc")
    r = desk.arrive("r", "abc", prompt=10)
    for _ in range(3):
        r.append_output_token()
    desk.connector.update_state_after_alloc(r, [1, 2, 3], desk.lookup(r) or 0)
    r.num_computed_tokens = 12
    desk.plan((r, 1, [1, 2, 3, 4]))
    assert desk.connector._states[r].next_stored == cursor


def test_023_a_store_touches_all_keys() -> None:
    """0.23.0: after a planned store all keys of the request are touched, also those behind it."""
    desk = Desk(OffloadingConnector023)
    r = desk.arrive("r", "abcd")
    desk.lookup(r)
    desk.said()
    desk.plan((r, 8, [1, 2]))
    desk.plan((r, 1, []))
    assert desk.said() == ["end of step", "offer ab", "touch abcd", "end of step"]


# -- flushes
@BOTH
def test_a_preempted_request_flushes_its_jobs(release: type[OffloadingConnector]) -> None:
    """Its pending transfers must be over before its blocks are used by others."""
    desk = Desk(release)
    r, s = desk.arrive("r", "ab"), desk.arrive("s", "xy")
    desk.lookup(r)
    desk.lookup(s)
    first = desk.plan((r, 8, [1, 2]), (s, 8, [3, 4]))
    assert (list(first.stores), first.flush) == ([0, 1], set())
    assert desk.plan((s, 1, []), preempted=[r]).flush == {0}
    desk.done(0)
    assert desk.plan(preempted=[r]).flush == set()


def test_a_load_of_this_step_is_not_flushed() -> None:
    """0.33.0: what was planned in this very step can't be a transfer of the life that ended."""
    desk = Desk()
    desk.fill("ab")
    r = desk.arrive("r", "abcd")
    desk.connector.update_state_after_alloc(r, [1, 2], desk.lookup(r) or 0)
    assert desk.plan(preempted=[r]).flush == set()


@BOTH
@pytest.mark.parametrize("how", ["new blocks", "prefix hits"])
def test_reuse_of_a_finished_requests_block_flushes_its_store(release: type[OffloadingConnector], how: str) -> None:
    """The store must be over before the step if one of its source blocks is handed out, new or as a hit."""
    desk = Desk(release)
    r, other = desk.arrive("r", "ab"), desk.arrive("s", "xyz")
    desk.lookup(r)
    desk.lookup(other)
    assert list(desk.plan((r, 8, [1, 2]), (other, 4, [3])).stores) == [0, 1]
    desk.finish(r)
    assert desk.plan((other, 1, []), gained={other: [4]}, finished=[r]).flush == set()
    if how == "new blocks":
        meta = desk.plan((other, 1, []), gained={other: [2]})
    else:
        t = desk.arrive("t", "abc")
        desk.lookup(t, 4)
        meta = desk.plan((t, 4, [1, 5]))
    assert meta.flush == {0}
    desk.done(0)
    assert desk.plan((other, 1, []), gained={other: [1]}).flush == set()


@BOTH
def test_blocks_of_a_load_are_handed_out_too(release: type[OffloadingConnector]) -> None:
    """Blocks that an asynchronous load will fill flush the stores that still read them."""
    desk = Desk(release)
    desk.fill("xy")
    r, other, t = desk.arrive("r", "ab"), desk.arrive("s", "pq"), desk.arrive("t", "xyz")
    desk.lookup(r)
    desk.lookup(other)
    desk.plan((r, 8, [1, 2]), (other, 4, [3]))
    desk.finish(r)
    desk.connector.update_state_after_alloc(t, [2, 1], desk.lookup(t) or 0)
    assert desk.plan((other, 1, []), finished=[r]).flush == {1}


@BOTH
def test_blocks_of_a_living_request_are_not_watched(release: type[OffloadingConnector]) -> None:
    """A hit on blocks of a running request flushes nothing: they stay where they are."""
    desk = Desk(release)
    r, s = desk.arrive("r", "ab"), desk.arrive("s", "abc")
    desk.lookup(r)
    desk.plan((r, 8, [1, 2]))
    desk.lookup(s, 8)
    assert desk.plan((s, 4, [1, 2, 3])).flush == set()


@pytest.mark.parametrize(("release", "flush"), [(OffloadingConnector, set()), (OffloadingConnector023, {0, 1})])
def test_flush_when_every_request_is_finished(release: type[OffloadingConnector], flush: set[int]) -> None:
    """0.23.0 flushes all jobs when no tracked request is alive; 0.33.0 lets them take their time."""
    desk = Desk(release)
    r, s = desk.arrive("r", "ab"), desk.arrive("s", "xy")
    desk.lookup(r)
    desk.lookup(s)
    desk.plan((r, 8, [1, 2]), (s, 8, [3, 4]))
    desk.finish(r)
    assert desk.plan((s, 1, []), finished=[r]).flush == set()
    desk.finish(s)
    assert desk.plan(finished=[s]).flush == flush


# -- after the end
def _refused_until_the_end(*, prompt: int = 8, tokens: int = 8) -> tuple[Desk, Request]:
    """0.33.0: a request whose only offer was refused has finished; its end is told in the next step."""
    desk = Desk(num_slots=3, prompt_only=False)
    s = desk.arrive("s", "wx")
    desk.lookup(s)
    desk.plan((s, 8, [8, 9]))
    r = desk.arrive("r", "abc", prompt=prompt)
    desk.lookup(r)
    assert desk.plan((r, tokens, [1, 2, 3])).stores == {}
    desk.done(0)
    desk.finish(s)
    desk.finish(r)
    return desk, r


def test_a_finished_request_makes_its_last_offer() -> None:
    """0.33.0: what was refused is offered once more in the step after the end, before the end is told."""
    desk, r = _refused_until_the_end()
    desk.said()
    meta = desk.plan(finished=[r])
    assert _jobs(meta.stores) == [(1, "r", "ab", [1, 2], [2, 1])]
    assert desk.said() == ["offer ab", "end of r", "end of step"]
    assert desk.connector.has_pending_work()
    desk.done(1)
    assert not desk.connector.has_pending_work()


def test_the_last_sampled_token_has_no_kv() -> None:
    """0.33.0: after the end, the last offer covers one token less than the request has."""
    desk, r = _refused_until_the_end()
    for _ in range(4):  # 12 tokens, three full blocks, the last of them without the KV of its last token
        r.append_output_token()
    desk.said()
    desk.plan(finished=[r])
    assert desk.said()[0] == "offer ab"


def test_the_last_offer_covers_the_whole_prompt() -> None:
    """0.33.0: it goes at least to the end of the prompt."""
    desk, r = _refused_until_the_end(prompt=12, tokens=12)
    desk.said()
    desk.plan(finished=[r])
    assert desk.said()[0] == "offer abc"


def test_a_store_after_the_end_is_flushed_if_its_blocks_are_taken_in_the_same_step() -> None:
    """0.33.0: its source blocks are free already; what this very step hands out is copied before the step."""
    desk, r = _refused_until_the_end()
    t = desk.arrive("t", "q")
    desk.lookup(t)
    meta = desk.plan((t, 2, [2]), finished=[r])
    assert meta.flush == {1}
    assert list(meta.stores) == [1]


def test_a_store_after_the_end_is_watched() -> None:
    """0.33.0: its source blocks are watched from the start, until it is over."""
    desk, r = _refused_until_the_end()
    t = desk.arrive("t", "q")
    desk.lookup(t)
    assert desk.plan((t, 2, [5]), finished=[r]).flush == set()
    assert desk.plan((t, 1, []), gained={t: [1]}).flush == {1}
    desk.done(1)
    assert desk.plan((t, 1, []), gained={t: [2]}).flush == set()


def test_023_there_is_no_offer_after_the_end() -> None:
    """0.23.0: a finished request stores nothing more."""
    desk = Desk(OffloadingConnector023, num_slots=1)
    r = desk.arrive("r", "ab")
    desk.lookup(r)
    desk.plan((r, 8, [1, 2]))
    desk.finish(r)
    desk.said()
    assert desk.plan(finished=[r]).stores == {}
    assert desk.said() == ["end of step"]


def test_order_within_a_step() -> None:
    """0.33.0: stores of scheduled requests, of finished ones, then their ends, then the end of the step."""
    desk, r = _refused_until_the_end()
    t, q = desk.arrive("t", "p"), desk.arrive("q", "q")
    desk.lookup(t)
    desk.lookup(q)
    desk.said()
    desk.plan((t, 4, [5]), (q, 4, [6]), finished=[r])
    assert desk.said() == ["offer p", "offer q", "offer ab", "end of r", "end of step"]


def test_023_the_step_ends_before_stores_are_planned() -> None:
    """0.23.0: the manager hears of the end of the step first, and nothing of the ends of requests."""
    desk = Desk(OffloadingConnector023)
    r, s = desk.arrive("r", "ab"), desk.arrive("s", "x")
    desk.lookup(r)
    desk.lookup(s)
    desk.plan((r, 8, [1, 2]))
    desk.finish(r)
    desk.said()
    desk.plan((s, 4, [3]), finished=[r])
    assert desk.said() == ["end of step", "offer x", "touch x"]


# -- what is remembered
def test_a_request_is_remembered_until_its_end_is_told_and_its_jobs_are_over() -> None:
    """0.33.0: both must have happened, in either order."""
    desk = Desk()
    r, s = desk.arrive("r", "ab"), desk.arrive("s", "xy")
    desk.lookup(r)
    desk.lookup(s)
    desk.plan((r, 8, [1, 2]), (s, 8, [3, 4]))
    desk.finish(r)
    desk.finish(s)
    known = [len(desk.connector._states)]
    desk.done(0)
    known.append(len(desk.connector._states))
    desk.plan(finished=[r, s])
    known.append(len(desk.connector._states))
    desk.done(1)
    known.append(len(desk.connector._states))
    assert known == [2, 2, 1, 0]


def test_023_a_request_is_remembered_while_it_has_jobs() -> None:
    """0.23.0: a finished request is forgotten at once, or with its last job."""
    desk = Desk(OffloadingConnector023)
    r, s = desk.arrive("r", "ab"), desk.arrive("s", "xy", prompt=3)
    desk.lookup(r)
    desk.lookup(s)
    desk.plan((r, 8, [1, 2]), (s, 3, [3]))
    desk.finish(s)
    desk.finish(r)
    assert list(desk.connector._states) == [r]
    desk.done(0)
    assert not desk.connector._states


def test_the_keys_of_the_last_output_block_are_known_at_the_end() -> None:
    """0.33.0: a block that the very last token filled has its key when the end is told."""
    desk = Desk()
    r = desk.arrive("r", "ab", prompt=7)
    desk.lookup(r)
    desk.plan((r, 7, [1, 2]))
    context = desk.connector._states[r].context
    r.append_output_token()
    desk.finish(r)
    assert word(context.keys) == "ab"


@BOTH
def test_pending_work(release: type[OffloadingConnector]) -> None:
    """0.33.0 asks for more steps while any job is in flight; 0.23.0 never does."""
    desk = Desk(release)
    r = desk.arrive("r", "ab")
    desk.lookup(r)
    seen = [desk.connector.has_pending_work()]
    desk.plan((r, 8, [1, 2]))
    seen.append(desk.connector.has_pending_work())
    desk.done(0)
    seen.append(desk.connector.has_pending_work())
    assert seen == [False, release is OffloadingConnector, False]


@BOTH
def test_nothing_in_flight_nothing_to_defer(release: type[OffloadingConnector]) -> None:
    """A lookup can answer None only while some job is in flight."""
    desk = Desk(release)
    r = desk.arrive("r", "ab")
    desk.lookup(r)
    assert not desk.connector.may_defer()
    desk.plan((r, 8, [1, 2]))
    assert desk.connector.may_defer()
    desk.done(0)
    assert not desk.connector.may_defer()


@BOTH
def test_check_at_the_end(release: type[OffloadingConnector]) -> None:
    """The last check complains about jobs in flight and about chunks that are still pinned."""
    desk = Desk(release)
    desk.fill("ab")
    desk.connector.check(at_end=True)
    r = desk.arrive("r", "abc")
    desk.connector.update_state_after_alloc(r, [1, 2], desk.lookup(r) or 0)
    desk.connector.check(at_end=False)
    with pytest.raises(AssertionError, match="still"):
        desk.connector.check(at_end=True)
    desk.done(1)
    desk.connector.check(at_end=True)
    desk.manager.prepare_load(desk.connector._states[r].context, 0, 1)
    with pytest.raises(AssertionError, match="1 CPU chunks are still pinned"):
        desk.connector.check(at_end=True)


@BOTH
def test_epoch_and_purity_are_the_managers(release: type[OffloadingConnector]) -> None:
    """The scheduler may skip lookups only where they change nothing (0.33.0)."""
    desk = Desk(release)
    before = desk.connector.epoch
    desk.fill("a")
    assert desk.connector.epoch > before
    assert desk.connector.lookups_are_pure is (release is OffloadingConnector)
