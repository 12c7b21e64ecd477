"""MooncakeStoreConnector over runs: the same jobs, for requests of a cohort too, and lookups that repeat themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import simpy

from kvsim.clock import STEP_END_PRIORITY, Clock
from kvsim.connectors.base import SchedulerOutput, WorkerOutput
from kvsim.connectors.mooncake_store import LoadJob, MooncakeStoreConnector, SaveJob, StoreMeta, Tracker
from kvsim.connectors.mooncake_store_worker import MooncakeStoreWorker
from kvsim.connectors.offloading_runs import LoadedBlock
from kvsim.connectors.store_lookup import StoreLookup
from kvsim.extents.kv_cache_manager import RunKVCacheManager
from kvsim.extents.path import Runs
from kvsim.extents.pool_pieces import Table
from kvsim.request import Request
from kvsim.store.run_master import Listener, RunMaster


@dataclass(eq=False, slots=True)
class RunSaveJob(SaveJob):
    """See `SaveJob`; as long as its request has blocks, those that it reads are referenced anyway.

    Attributes:
        num_blocks: of the table.
        posted_ns, done_ns: when the worker got it, and when it was over.
        held: what its request gave back before it was over.
    """

    num_blocks: int = 0
    posted_ns: int = 0
    done_ns: int = -1
    held: Table | None = None

    def keys(self, first: int) -> Runs:
        """Of the blocks from this one on; a request in a cohort does not know how many it has."""
        return self.request.block_hashes.path.keys(first, self.last)  # type: ignore[attr-defined,no-any-return]


class _LoadedBlocks(Sequence[LoadedBlock]):
    """Blocks ``first .. last - 1`` of a request's table, named when somebody asks."""

    def __init__(self, request: Request, first: int, last: int) -> None:
        self._request, self._positions = request, range(first, last)

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, at: int) -> LoadedBlock: ...
    @overload
    def __getitem__(self, at: slice) -> list[LoadedBlock]: ...
    def __getitem__(self, at: int | slice) -> LoadedBlock | list[LoadedBlock]:
        if isinstance(at, slice):
            return [LoadedBlock(self._request, position) for position in self._positions[at]]
        return LoadedBlock(self._request, self._positions[at])


class RunStoreLookup(StoreLookup):
    """See `StoreLookup`; a question that holds the scheduler up may be asked again and again, in steps all alike.

    Args:
        master: the store's.
        turn: of this instance.
    """

    def __init__(self, clock: Clock, *args: Any, master: RunMaster, turn: int, **options: Any) -> None:
        super().__init__(clock, *args, **options)
        self._master, self._turn = master, turn
        self._repeated: Runs | None = None  # what is asked in every step, while that goes on
        self._listeners: tuple[Listener, Listener] | None = None
        self.num_effects = 0  # questions put in the background, and answers taken
        # In this step, while the scheduler waited: keys, how many of them were there, time that it took.
        self.asked: list[tuple[Runs, int, int]] = []

    def ask(self, request: Request) -> int | None:
        if not self._in_background:
            return super().ask(request)
        was_asked = request in self._asked
        found = super().ask(request)
        self.num_effects += not was_asked or found is not None
        return found

    def _look(self, request: Request) -> int:
        if self._in_background:
            return super()._look(request)
        size = self._block_size
        keys: Any = request.block_hashes
        wanted = keys.path.keys(0, self._num_blocks(request))
        self._master.lease(wanted, self._clock.now, self._turn)
        found = self._master.num_leading(wanted)
        self.asked.append((wanted, found, self.client.costs.ask(len(wanted))))
        return self._usable(request, found) * size

    # -- again and again
    def may_repeat(self) -> bool:
        """Whether all that held this step's decisions up would be asked again by the next one, and answered alike.

        A question that takes no time is not: others who ask at the same instant might come between.
        """
        if not self.asked:
            return True
        (keys, found, took_ns), *others = self.asked
        return not others and took_ns > 0 and self._master.num_leading(keys) == found

    def begin_repeating(self, catch_up: Listener, on_change: Listener) -> None:
        """From now on this step's question is asked in every step; others are told before that could matter.

        Args:
            catch_up: tells `repeat` how often it has been asked by now.
            on_change: likewise; and the answer may be another one from now on.
        """
        ((self._repeated, _, _),) = self.asked
        self._listeners = catch_up, on_change
        self._master.before_dropping[catch_up] = None
        self._master.watch(self._segments(), on_change)

    def repeat(self, count: int, asked_ns: int) -> None:
        """It was asked so often, at last at this time."""
        keys = self._repeated
        if keys is not None:
            self.client.count_lookup(len(keys), count)
            self._master.lease(keys, asked_ns, self._turn)

    def end_repeating(self) -> None:
        """No longer."""
        if self._listeners is not None:
            catch_up, on_change = self._listeners
            del self._master.before_dropping[catch_up]
            self._master.unwatch(self._segments(), on_change)
            self._repeated = self._listeners = None

    def _segments(self) -> list[int]:
        return [] if self._repeated is None else [run.segment for run in self._repeated.runs]


class RunMooncakeStoreConnector(MooncakeStoreConnector):
    """Of each request only the last save holds blocks, and only those that the request has given back.

    The reference references a table's blocks once more for each save; what earlier saves reference, the last one does.
    Members of a cohort are not scheduled one by one: of them it hears when they fill a block.
    """

    lookup: RunStoreLookup

    def __init__(self, lookup: RunStoreLookup, kv: RunKVCacheManager, **options: Any) -> None:
        pool: Any = kv.pool
        super().__init__(lookup, pool, **options)
        self._kv = kv
        self._jobs: dict[int, RunSaveJob] = {}  # not reported
        self._last_jobs: dict[Request, RunSaveJob] = {}  # of each request's table

    @property
    def num_lookup_effects(self) -> int:
        return self.lookup.num_effects

    @property
    def saves_decoded(self) -> bool:
        """Whether it has to hear of blocks that members of a cohort fill."""
        return self._save_decode

    def follows_decoding(self, request: Request) -> bool:
        """Not of one that can be in a cohort: after a failed load it may have saved what it has not computed."""
        return self._save_decode and self._trackers[request].known != request.num_computed_tokens

    # -- saving
    def _save_all_running(self, output: SchedulerOutput, meta: StoreMeta) -> None:
        if not output.filling:
            super()._save_all_running(output, meta)
            return
        scheduled, filling = output.num_scheduled_tokens, output.filling
        for request in sorted([*scheduled, *filling], key=output.order.__getitem__):
            if request in filling:
                self._fill(request, filling[request], meta)
            elif request not in output.tables:
                self._save_running(request, scheduled[request], meta)

    def fill(self, filling: dict[Request, int], meta: StoreMeta) -> None:
        """In the step that begins now, members of the cohort fill a block with the last of so many tokens."""
        for request, computed in filling.items():
            self._fill(request, computed, meta)
        self.num_store_jobs += len(meta.saves)

    def _fill(self, request: Request, computed: int, meta: StoreMeta) -> None:
        tracker = self._trackers[request]
        tracker.known = computed
        self._save(request, tracker, meta, num_blocks=computed // self._block_size)

    def left_cohort(self, request: Request) -> None:
        """It is scheduled one by one again; its numbers are up to date."""
        if self._save_decode:
            self._trackers[request].known = request.num_computed_tokens

    def _save(self, request: Request, tracker: Tracker, meta: StoreMeta, num_blocks: int = 0) -> None:
        size = self._block_size
        last = tracker.known // size
        if last <= tracker.saved // size:
            return
        tracker.saved = last * size
        job = RunSaveJob(self._num_saves, request, last, [], num_blocks or len(self._tables[request]))
        self._num_saves += 1
        self._jobs[job.number] = self._last_jobs[request] = job
        meta.saves.append(job)

    def _load_job(self, request: Request, first: int, last: int) -> LoadJob:
        return LoadJob(request, request.block_hashes[first:last], _LoadedBlocks(request, first, last))

    # -- blocks that are given back
    def free_blocks(self, request: Request) -> None:
        """A request gives its blocks back; what its last save reads stays until that is over."""
        job = self._last_jobs.pop(request, None)
        if job is None or request not in self._kv.tables:
            self._kv.free(request)
            return
        job.held = self._kv.pop_table(request)
        self._kv.pool.free_tail(job.held, job.num_blocks)

    def update_connector_output(self, output: WorkerOutput) -> None:
        self.take_reports(output.meta or ())

    def take_reports(self, numbers: Iterable[int]) -> None:
        """These saves are over."""
        for number in numbers:
            job = self._jobs.pop(number)
            if job.held is not None:
                self._kv.pool.free_table(job.held)
            elif self._last_jobs.get(job.request) is job:
                del self._last_jobs[job.request]

    def has_pending_work(self) -> bool:
        return bool(self._jobs)

    def gpu_holds(self) -> list[Any]:
        return [job.held for job in self._jobs.values() if job.held is not None]

    def check(self, *, at_end: bool) -> None:
        super().check(at_end=at_end)
        assert not at_end or not (self._jobs or self._last_jobs), "a save was not forgotten"


class RunMooncakeStoreWorker(MooncakeStoreWorker):
    """See `MooncakeStoreWorker`; forward passes that it is told of are timed elsewhere, and jobs come inside windows.

    Args:
        on_saved: told of every save that is over.
        turn: of this instance.
    """

    def __init__(self, *args: Any, on_saved: Callable[[RunSaveJob], None], turn: int, **options: Any) -> None:
        super().__init__(*args, **options)
        self._on_saved, self._behind_pass = on_saved, STEP_END_PRIORITY + turn + 1
        self._saved: list[RunSaveJob] = []
        self._fence: simpy.Event | None = None  # of saves that wait for the pass that comes next

    def has_plans(self) -> bool:
        """Whether anything is put off to the next step."""
        return False

    def _launch_fence(self) -> simpy.Event:
        self._fence = self._clock.event()
        return self._fence

    def launched(self, duration_ns: int) -> None:
        """The forward pass that comes with the jobs posted last has begun, and takes so long."""
        fence, self._fence = self._fence, None
        if fence is not None:
            ended = self._clock.at(duration_ns, self._behind_pass)
            assert ended.callbacks is not None
            ended.callbacks.append(lambda _event: _succeed(fence))

    def post(self, meta: StoreMeta) -> None:
        """Jobs of one more step of a window."""
        self._queue_saves(meta.saves)

    def _queue_saves(self, saves: Sequence[SaveJob]) -> None:
        for save in saves:
            assert isinstance(save, RunSaveJob)
            save.posted_ns = self._clock.now
        super()._queue_saves(saves)

    def _finish_save(self, job: SaveJob) -> None:
        assert isinstance(job, RunSaveJob)
        job.done_ns = self._clock.now
        self._saved.append(job)
        self._done_saves.append(job.number)
        self._on_saved(job)

    def get_finished(self) -> WorkerOutput:
        self._saved = []
        return super().get_finished()

    def reported_before(self, step_end_ns: int) -> Iterator[int]:
        """Saves that a step has reported which ended then, or an earlier one: they are not in the next report."""
        saved = self._saved
        while saved and (
            saved[0].done_ns < step_end_ns or (saved[0].done_ns == step_end_ns and saved[0].posted_ns < step_end_ns)
        ):
            self._done_saves.remove(saved[0].number)
            yield saved.pop(0).number


def _succeed(event: simpy.Event) -> None:
    event.succeed()
