"""Random little worlds: the scheduler's short cut for hopeless requests changes no decision."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from engine_builder import ids
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cache.kv_cache_manager import KVCacheManager
from kvsim.connectors.base import CopyJob
from kvsim.limits import SchedulerLimits
from kvsim.releases import RELEASES
from kvsim.request import Request
from kvsim.scheduler import Scheduler

BLOCK = 2  # tokens
MAX_STEPS = 60


@dataclass(frozen=True)
class Prompt:
    """One request: its blocks by letter (also those that its output fills), and when it comes."""

    arrival: int
    word: str
    prompt: int
    out: int
    priority: int


@dataclass(frozen=True)
class World:
    """Everything that decides what happens."""

    prompts: list[Prompt]
    num_blocks: int
    num_slots: int
    factor: int
    policy: str
    limits: dict[str, Any]
    delays: dict[str, int]
    prompt_only: bool
    threshold: int
    connector: bool


@dataclass
class Chained:
    """Content by letters; blocks are equal where the words are equal from their beginning."""

    word: str
    known: dict[str, int] = field(repr=False)

    def block_hashes(self, first: int, last: int) -> list[int]:
        """See `kvsim.request.Content`."""
        return [self.known.setdefault(self.word[: i + 1], len(self.known)) for i in range(first, last)]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Small pools, few letters: collisions, preemptions, evictions and refusals are common."""
    prompts = []
    for _ in range(draw(st.integers(2, 7))):
        prompt, out = draw(st.integers(1, 13)), draw(st.integers(1, 5))
        blocks = (prompt + out) // BLOCK
        word = draw(st.text("ab", min_size=blocks, max_size=blocks))
        prompts.append(Prompt(draw(st.integers(0, 12)), word, prompt, out, draw(st.integers(0, 1))))
    limits = {
        "max_num_batched_tokens": draw(st.sampled_from([4, 9, 30])),
        "max_num_seqs": draw(st.integers(1, 4)),
        "max_model_len": 100,
        "scheduling_policy": draw(st.sampled_from(["fcfs", "priority"])),
        "long_prefill_token_threshold": draw(st.sampled_from([0, 3])),
        "scheduler_reserve_full_isl": draw(st.sampled_from([True, True, False])),
    }
    return World(
        prompts,
        num_blocks=draw(st.integers(8, 15)),
        num_slots=draw(st.integers(1, 12)),
        factor=draw(st.sampled_from([1, 1, 2])),
        policy=draw(st.sampled_from(["lru", "arc"])),
        limits=limits,
        delays={"load": draw(st.integers(0, 4)), "store": draw(st.integers(0, 4))},
        prompt_only=draw(st.booleans()),
        threshold=draw(st.sampled_from([0, 2])),
        connector=draw(st.sampled_from([True, True, True, False])),
    )


class StepCopier:
    """A copy takes a number of steps that depends on its direction; a flushed one is done at once."""

    def __init__(self, delays: dict[str, int]) -> None:
        self.step = 0
        self._delays = delays
        self._ready: dict[int, int] = {}

    def submit(self, job: CopyJob) -> None:
        """See `kvsim.connectors.base.Copier`."""
        self._ready[job.job_id] = self.step + self._delays[job.direction]

    def flush(self, job: CopyJob) -> None:
        """Done in this step."""
        self._ready[job.job_id] = self.step

    def is_done(self, job: CopyJob) -> bool:
        """Whether its step has come."""
        return self._ready[job.job_id] <= self.step

    def forget(self, job: CopyJob) -> None:
        """The job was reported."""
        del self._ready[job.job_id]


class CountingPool:
    """How often a scheduler looked up a prefix on the GPU."""

    def __init__(self, kv: KVCacheManager) -> None:
        self.lookups = 0
        original = kv.get_computed_blocks

        def counted(request: Request) -> list[int]:
            self.lookups += 1
            return original(request)

        kv.get_computed_blocks = counted  # type: ignore[method-assign]


def _request(name: str, prompt: Prompt, known: dict[str, int]) -> Request:
    return Request(
        name,
        Chained(prompt.word, known),
        block_size=BLOCK,
        num_prompt_tokens=prompt.prompt,
        max_tokens=prompt.out,
        arrival=prompt.arrival,
        priority=prompt.priority,
    )


def _play(world: World, version: str, *, skip_hopeless: bool) -> tuple[list[Any], int, list[str]]:
    """Decisions of every step, the number of lookups, and who ended."""
    release = RELEASES[version]
    kv = KVCacheManager(release.block_pool(world.num_blocks), block_size=BLOCK, max_model_len=100)
    counter = CountingPool(kv)
    connector = worker = None
    copier = StepCopier(world.delays)
    if world.connector:
        manager = release.manager(world.num_slots, release.policies[world.policy], world.threshold)
        connector = release.offloading_connector(
            manager, block_size=BLOCK, block_size_factor=world.factor, offload_prompt_only=world.prompt_only
        )
        worker = release.offloading_worker(copier)
    scheduler: Scheduler = release.scheduler(
        SchedulerLimits(**world.limits), kv, connector, skip_hopeless=skip_hopeless
    )
    known: dict[str, int] = {}
    decisions: list[Any] = []
    finished: list[str] = []
    for now in range(MAX_STEPS):
        for number, prompt in enumerate(world.prompts):
            if prompt.arrival == now:
                scheduler.add_request(_request(f"r{number}", prompt, known))
        copier.step = now
        output = scheduler.schedule()
        meta, report = output.connector_meta, None
        jobs: list[Any] = []
        if worker is not None:
            jobs = [
                [(j, job.keys, job.source, job.destination) for j, job in (meta.loads | meta.stores).items()],
                [job.job_id for job in worker.handle_preemptions(meta)],
            ]
            worker.start_load_kv(meta)
            report = worker.get_finished()
        decisions.append(
            (
                [(r.request_id, n) for r, n in output.num_scheduled_tokens.items()],
                ids(output.new), ids(output.resumed), ids(output.preempted), ids(output.finished),
                {r.request_id: list(table) for r, table in output.tables.items()},
                {r.request_id: blocks for r, blocks in output.new_blocks.items()},
                {r.request_id: hit for r, hit in output.hits.items()},
                ids(scheduler.waiting), kv.pool.free_list(), jobs,
            )
        )  # fmt: skip
        finished += ids(scheduler.update_from_output(output, report))
        scheduler.check()
    return decisions, counter.lookups, finished


@pytest.mark.parametrize("version", list(RELEASES))
@settings(max_examples=150, deadline=None, derandomize=True)
@given(worlds())
def test_skipping_hopeless_requests_changes_no_decision(version: str, world: World) -> None:
    """Every step is the same whether or not requests that can't fit are asked for again."""
    decisions, lookups, _ = _play(world, version, skip_hopeless=True)
    all_decisions, all_lookups, _ = _play(world, version, skip_hopeless=False)
    assert decisions == all_decisions
    assert lookups <= all_lookups


def test_the_short_cut_is_taken() -> None:
    """In a crowded world lookups of the waiting head are left out (0.33.0), and all requests end."""
    limits = {"max_num_batched_tokens": 30, "max_num_seqs": 4, "max_model_len": 100}
    prompts = [
        Prompt(0, "abababab", 12, 5, 0),
        Prompt(0, "aabbaabb", 12, 5, 0),
        Prompt(1, "aaaaaaaa", 12, 4, 0),
    ]
    world = World(prompts, 9, 12, 1, "lru", limits, {"load": 2, "store": 2}, True, 0, connector=True)
    skipping, asking = (_play(world, "0.33.0", skip_hopeless=skip) for skip in (True, False))
    assert (skipping[1], asking[1]) == (8, 13)
    assert skipping[2] == asking[2] == ["r0", "r1", "r2"]
