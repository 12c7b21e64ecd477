"""Random storage tiers that exist twice: one is told keys, the other runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from random import Random
from typing import Any

from prefix_tree import spelled

from kvsim.clock import Clock
from kvsim.extents.files import RunFiles
from kvsim.extents.path import Key, Run, Runs
from kvsim.results.records import TierTotals
from kvsim.tiers.device import IoCost, StorageDevice
from kvsim.tiers.files import Files
from kvsim.tiers.run_tiers import RunStorageTier
from kvsim.tiers.storage_tier import StorageTier
from kvsim.tiers.thread_pool import FifoPool, ThreadPool


class Heard:
    """What tiers on one clock have told their surroundings, and been told to do."""

    def __init__(self, clock: Clock) -> None:
        self.changes: list[int] = []
        self.blocked_ns = 0
        self.jobs: list[tuple[int, str, list[int]]] = []
        self._clock = clock

    def on_change(self) -> None:
        """There is something new."""
        self.changes.append(self._clock.now)

    def on_blocked(self, duration_ns: int) -> None:
        """The scheduler is held up; how often it hears so does not matter."""
        self.blocked_ns += duration_ns

    def listen(self, tier: Any) -> Any:
        """Write down the tier's jobs from now on."""
        submit = tier.submit

        def noted(direction: str, keys: Sequence[Any]) -> None:
            self.jobs.append((self._clock.now, direction, spelled(keys) if isinstance(keys, Runs) else list(keys)))
            submit(direction, keys)

        tier.submit = noted
        return tier


class TierSettings:
    """A kind of tier."""

    def __init__(self, rng: Random, *, in_background: bool | None = None) -> None:
        self._costs = {
            "read": IoCost(10**9, 4 * 10**8, rng.choice([0, 500])),
            "write": IoCost(rng.choice([10**8, 10**9]), 3 * 10**8, rng.choice([0, 500])),
        }
        self._threads = rng.randint(0, 2), rng.randint(1, 3)
        self._is_fifo = rng.random() < 0.3
        self._most, self._evicts = rng.choice([(None, False), (15, False), (15, True), (40, True), (40, True)])
        self.in_background = rng.random() < 0.5 if in_background is None else in_background
        self._options = {
            "chunk_bytes": 1_000,
            "tasks_per_job": rng.choice([1, 2, None]),
            "exists_ns": rng.choice([None, 0, 50]),
            "lookup_ns": lambda num_chunks: 700 + 90 * num_chunks,
            "in_background": self.in_background,
        }

    def build(self, clock: Clock, heard: Heard, *, by_run: bool) -> Any:
        """One of its tiers."""
        return (RunStorageTier if by_run else StorageTier)(
            clock,
            StorageDevice(clock, self._costs, heard.on_change),
            FifoPool(self._threads[1]) if self._is_fifo else ThreadPool(*self._threads),
            (RunFiles if by_run else Files)(self._most, evict=self._evicts),
            TierTotals("t", "fs", "d", 1_000),
            on_change=heard.on_change,
            on_blocked=heard.on_blocked,
            **self._options,
        )


def wait(clock: Clock, duration_ns: int) -> None:
    """Time passes, with all that happens in it."""
    clock.run(until=clock.at(duration_ns, 9))


def compare_files(files: RunFiles, expected: Files) -> None:
    """Equal contents, in equal order where there is one."""
    assert (len(files), files.num_reserved) == (len(expected), expected.num_reserved)
    assert files.num_evicted == expected.num_evicted
    published = [Run(piece.segment, piece.first, piece.last) for piece in files._pieces if piece.is_published]
    assert sorted(spelled(Runs(published))) == sorted(expected._published)
    if files._evicts:
        tail_first = [Key(run.segment, i) for run in files.lru_order() for i in reversed(range(run.first, run.last))]
        assert spelled(tail_first) == [name for name in expected._published if name not in expected._readers]


def compare_tiers(tier: StorageTier, expected: StorageTier, *, up_to_date: bool) -> None:
    """Equal counters and states of what is in flight; of tiers that are brought up to date, equal contents, too.

    Before, the one by the run may not have taken note of files that nobody has looked for.
    """
    totals, others = asdict(tier.totals), asdict(expected.totals)
    if up_to_date:
        tier.bring_up_to_date()
        expected.bring_up_to_date()
        assert isinstance(tier.files, RunFiles)
        assert isinstance(expected.files, Files)
        compare_files(tier.files, expected.files)
        totals, others = asdict(tier.totals), asdict(expected.totals)
    else:
        del totals["used_chunks_peak"], others["used_chunks_peak"]
    assert totals == others
    assert (tier.is_idle(), tier.write_backlog_bytes()) == (expected.is_idle(), expected.write_backlog_bytes())
    assert tier.read_queue_bytes() == expected.read_queue_bytes()
