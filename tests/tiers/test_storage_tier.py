"""StorageTier: jobs, threads, visibility, lookups."""

from __future__ import annotations

from typing import Any

from kvsim.clock import Clock
from kvsim.offload.tiering import Answer
from kvsim.results.records import TierTotals
from kvsim.tiers.device import IoCost, StorageDevice
from kvsim.tiers.files import Files
from kvsim.tiers.storage_tier import StorageTier
from kvsim.tiers.thread_pool import FifoPool, ThreadPool

# A chunk has 1,000 bytes and takes a thousand ns of the device.
COST = IoCost(bytes_per_s=10**9, stream_bytes_per_s=10**9, latency_ns=0)


class _World:
    """A tier on a clock, with everything that it says."""

    def __init__(self, pool: ThreadPool, files: Files | None = None, **options: Any) -> None:
        self.env = Clock()
        self.changes: list[int] = []
        self.blocked: list[int] = []
        device = StorageDevice(self.env, {"read": COST, "write": COST}, self._note)
        settings: dict[str, Any] = {
            "tasks_per_job": 1,
            "exists_ns": 0,
            "lookup_ns": lambda chunks: 10 * chunks,
            "in_background": True,
        }
        self.tier = StorageTier(
            self.env, device, pool, Files() if files is None else files, TierTotals("t", "fs", "device", 1_000),
            chunk_bytes=1_000, on_change=self._note, on_blocked=self.blocked.append, **(settings | options),
        )  # fmt: skip

    def _note(self) -> None:
        self.changes.append(self.env.now)

    def until(self, time_ns: int) -> None:
        """Everything up to and at this moment."""
        self.env.run(until=self.env.at(time_ns - self.env.now, 9))

    def store(self, *keys: int) -> None:
        """Write chunks and wait for them."""
        self.tier.submit("store", keys)
        self.env.run()
        self.tier.poll()

    def ask(self, key: int, request: str = "r") -> Answer:
        """A lookup."""
        return self.tier.lookup(key, request)


def test_a_chunk_is_visible_before_its_job_is_over() -> None:
    """Files are published one after another; the job is reported when the last one is complete."""
    world = _World(ThreadPool(1, 0), in_background=False)
    world.tier.submit("store", [1, 2, 3])
    world.until(1_999)
    assert [world.ask(key) for key in (1, 2, 3)] == [Answer.HIT, Answer.MISS, Answer.MISS]
    assert list(world.tier.poll()) == []
    assert not world.tier.is_idle()
    world.until(3_000)
    assert world.ask(3) is Answer.HIT
    assert list(world.tier.poll()) == [("store", [1, 2, 3])]
    assert world.tier.is_idle()


def test_the_first_answer_is_later() -> None:
    """What is asked in a step is looked for after it; the answer is known when the batch is through."""
    world = _World(ThreadPool(1, 1))
    world.store(1)
    start = world.env.now
    assert [world.ask(1), world.ask(2)] == [Answer.RETRY, Answer.RETRY]
    world.tier.on_schedule_end()
    world.until(start + 19)
    assert world.ask(1) is Answer.RETRY
    world.until(start + 20)
    assert [world.ask(1), world.ask(2)] == [Answer.HIT, Answer.MISS]
    assert world.changes[-1] == start + 20


def test_an_answer_stays_until_nobody_asks_any_more() -> None:
    """A chunk that arrives after the answer is still a miss for whoever asked, and a hit for the next request."""
    world = _World(ThreadPool(1, 1))
    world.ask(1, "early")
    world.tier.on_schedule_end()
    world.env.run()
    world.store(1)
    assert world.ask(1, "early") is Answer.MISS
    world.tier.on_request_finished("early")
    assert world.ask(1, "late") is Answer.RETRY
    world.tier.on_schedule_end()
    world.env.run()
    assert world.ask(1, "late") is Answer.HIT


def test_batches_are_looked_up_one_after_another() -> None:
    """One background thread: the second step's batch waits for the first one's."""
    world = _World(ThreadPool(1, 1), lookup_ns=lambda chunks: 100 * chunks)
    world.ask(1)
    world.tier.on_schedule_end()
    world.until(50)
    world.ask(2)
    world.tier.on_schedule_end()
    world.until(199)
    assert [world.ask(1), world.ask(2)] == [Answer.MISS, Answer.RETRY]
    world.until(200)
    assert world.ask(2) is Answer.MISS


def test_lookups_in_the_scheduler_hold_it_up() -> None:
    """Without a background thread every lookup is answered at once and costs the scheduler its time (0.23.0)."""
    world = _World(ThreadPool(1, 1), in_background=False)
    assert [world.ask(1), world.ask(1)] == [Answer.MISS, Answer.MISS]
    assert world.blocked == [10, 10]


def test_what_is_there_is_not_written_again() -> None:
    """A thread looks before it writes: 2 of 3 chunks are new, and looking takes its time."""
    world = _World(ThreadPool(0, 1), exists_ns=5)
    world.store(1)
    start = world.env.now
    world.tier.submit("store", [1, 2, 3])
    world.env.run()
    assert world.env.now - start == 3 * 5 + 2 * 1_000
    assert (world.tier.totals.write_bytes, world.tier.totals.deduplicated_chunks) == (3_000, 1)


def test_objects_are_put_again() -> None:
    """An object store is not asked before an object is put: it is written twice, and is there once."""
    world = _World(FifoPool(2), exists_ns=None, tasks_per_job=None)
    world.store(1)
    world.store(1)
    assert (world.tier.totals.write_bytes, len(world.tier.files)) == (2_000, 1)


def test_a_job_is_one_task_or_one_per_chunk() -> None:
    """One thread per job moves 4 chunks with 4 latencies; four threads hide three of them."""
    slow = IoCost(bytes_per_s=10**9, stream_bytes_per_s=10**9, latency_ns=9_000)
    ends = []
    for tasks in (1, None):
        world = _World(ThreadPool(4, 0), tasks_per_job=tasks)
        device = StorageDevice(world.env, {"read": slow, "write": slow}, lambda: None)
        world.tier._device = device  # the world's own device has no latency
        world.tier.submit("store", [1, 2, 3, 4])
        world.env.run()
        ends.append(world.env.now)
    assert ends == [40_000, 10_000]


def test_reads_pass_waiting_writes() -> None:
    """The read thread takes a read before writes that have waited longer; its wait is counted."""
    world = _World(ThreadPool(1, 0))
    world.store(1)
    start = world.env.now
    world.tier.submit("store", [2])
    world.tier.submit("store", [3])
    world.tier.submit("load", [1])
    world.env.run()
    assert [(direction, list(keys)) for direction, keys in world.tier.poll()] == [
        ("store", [2]), ("load", [1]), ("store", [3]),
    ]  # fmt: skip
    assert world.env.now - start == 3_000
    assert world.tier.totals.read_wait_ns == 1_000
    assert world.tier.totals.write_wait_ns == 2_000  # of key 3


def test_the_backlog_is_what_is_not_written_yet() -> None:
    """Handed over 5 chunks, after two and a half of their times three are left."""
    world = _World(ThreadPool(0, 1))
    world.tier.submit("store", [1, 2, 3, 4, 5])
    world.until(2_500)
    world.tier.bring_up_to_date()
    totals = world.tier.totals
    assert (totals.backlog_bytes, totals.backlog_peak_bytes, totals.used_chunks) == (3_000, 5_000, 2)
    assert (totals.write_wanted_ns, totals.busy_ns) == (2_500, 2_500)


def test_a_full_tier_loses_what_comes() -> None:
    """With space for 2 chunks the third is refused and counted; the job ends all the same."""
    world = _World(ThreadPool(0, 1), Files(2))
    world.tier.submit("store", [1, 2, 3])
    world.env.run()
    assert list(world.tier.poll()) == [("store", [1, 2, 3])]
    assert world.tier.totals.refused_chunks == 1
    assert 3 not in world.tier.files


def test_an_evicted_chunk_is_a_miss_whatever_was_answered() -> None:
    """The remembered answer said "here", but the tier itself has deleted the file since."""
    world = _World(ThreadPool(0, 1), Files(1, evict=True))
    world.store(1)
    world.ask(1)
    world.tier.on_schedule_end()
    world.env.run()
    assert world.ask(1) is Answer.HIT
    world.store(2)
    assert world.ask(1) is Answer.MISS


def test_a_chain_of_jobs_with_nothing_to_write_does_not_recurse() -> None:
    """5,000 jobs whose chunk is there already end one after another."""
    world = _World(ThreadPool(0, 1))
    world.store(1)
    for _ in range(5_000):
        world.tier.submit("store", [1])
    world.env.run()
    assert len(world.tier.poll()) == 5_000
