"""A secondary tier on a storage device: a file system or an object store, in time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Protocol

from kvsim.clock import Clock
from kvsim.extents.files import RunFiles
from kvsim.kv_events import STORAGE, KVCacheEvent, OffloadEventLog
from kvsim.offload.async_lookup import AsyncLookup
from kvsim.offload.ledger import Keys
from kvsim.offload.tiering import Answer, TierJob
from kvsim.results.records import TierTotals
from kvsim.tiers.device import IoDirection, StorageDevice, Stream
from kvsim.tiers.files import Files
from kvsim.tiers.thread_pool import Task, ThreadPool

LookupTime = Callable[[int], int]  # ns to find out about so many chunks, one batch


class TierListener(Protocol):
    """Hears of the jobs of a tier, each known by an object of its own."""

    def submitted(self, job: object, direction: Literal["load", "store"], keys: Keys) -> None:
        """A job has been queued."""
        ...

    def begun(self, job: object, written: Keys) -> None:
        """A thread starts to move chunks of a job; of a store, only those that it writes."""
        ...

    def ended(self, job: object) -> None:
        """All of its chunks have been moved."""
        ...


@dataclass(eq=False, slots=True)
class _Job:
    direction: Literal["load", "store"]
    keys: Keys
    submitted_ns: int
    open_tasks: int = 0


@dataclass(slots=True)
class _Writing:
    """Files that a thread is writing one after another.

    Attributes:
        counted: so many are complete, and count as written.
        published: so many can be found.
    """

    keys: Keys
    stream: Stream
    counted: int = 0
    published: int = 0


class StorageTier:
    """Jobs become tasks of an I/O thread pool; a task moves its chunks one after another.

    A chunk becomes visible when it is complete, not when its job is. Keys are of the kind that ``files`` takes.

    Args:
        chunk_bytes: of one chunk over all ranks.
        tasks_per_job: at most so many threads work on one job; None = as many as it has chunks.
        exists_ns: time in which a writing thread finds out whether a file is there already, to write only what is
            missing; None = it does not look.
        lookup_ns: time that a lookup of so many chunks takes.
        in_background: whether a thread of its own does the lookups, one batch for each step. If not, every lookup is
            answered at once and holds the scheduler up.
        on_change: called whenever there may be something new to poll or to look up.
        on_written: called instead when a store has ended; None = so is on_change.
        on_blocked: told for how long (ns) a lookup holds the scheduler up.
        publishes: whether it has KV events (vLLM: a tier's enable_kv_events).

    Rules: vLLM 0.33.0 v1/kv_offload/tiering/fs/manager.py, fs/io.py and obj/manager.py.
    """

    lookup_kind: ClassVar[type[Any]] = AsyncLookup

    def __init__(
        self,
        env: Clock,
        device: StorageDevice,
        pool: ThreadPool,
        files: Files | RunFiles,
        totals: TierTotals,
        *,
        chunk_bytes: int,
        tasks_per_job: int | None,
        exists_ns: int | None,
        lookup_ns: LookupTime,
        in_background: bool,
        on_change: Callable[[], None],
        on_blocked: Callable[[int], None],
        on_written: Callable[[], None] | None = None,
        publishes: bool = False,
    ) -> None:
        self.totals, self.files, self.chunk_bytes = totals, files, chunk_bytes
        self.listener: TierListener | None = None
        self._env, self._device, self._pool = env, device, pool
        self._on_change, self._on_blocked = on_change, on_blocked
        self._on_written = on_written or on_change
        self._tasks_per_job, self._exists_ns, self._lookup_ns = tasks_per_job, exists_ns, lookup_ns
        self._lookup = self.lookup_kind() if in_background else None
        self._batches: deque[Keys] = deque()  # for the background thread, which works on the first
        self._writing: dict[int, _Writing] = {}
        self._looked_ns = -1  # when the progress of writers was last taken in
        self._open_jobs = self._num_writing = self._num_changes = 0
        self._done: list[TierJob] = []
        self._publishes, self._kv_events = publishes, OffloadEventLog(STORAGE)
        self._queued: dict[IoDirection, int] = {"read": 0, "write": 0}  # chunks submitted and not moved yet
        self._noted_ns: dict[IoDirection, int] = {"read": 0, "write": 0}

    # -- looking
    @property
    def epoch(self) -> int:
        """Grows with every change that `lookup` could notice."""
        self._take_in_progress()
        return self.files.epoch + (self._lookup.epoch if self._lookup is not None else 0)

    @property
    def num_changes(self) -> int:
        """Grows with what asking has started, changed or cost: if it stands still, repeating it is free."""
        return self._num_changes + (self._lookup.num_changes if self._lookup is not None else 0)

    def lookup(self, key: Any, request_id: str) -> Answer:
        """Whether the chunk can be loaded from here."""
        if self._lookup is None:
            self._take_in_progress()
            self._hold_up(1)
            return Answer.HIT if key in self.files else Answer.MISS
        answer: Answer = self._lookup.ask(key, request_id)
        # Files that are evicted are ours to know: vLLM, which never deletes one, would try to read it and fail.
        return Answer.MISS if answer is Answer.HIT and key not in self.files else answer

    def _hold_up(self, num_chunks: int) -> None:
        """The scheduler has looked for these itself, one after another."""
        time_ns = num_chunks * self._lookup_ns(1)
        self.totals.lookup_keys += num_chunks
        self.totals.lookup_ns += time_ns
        self._on_blocked(time_ns)
        self._num_changes += 1

    def on_schedule_end(self) -> None:
        """The background thread gets what was asked in this step."""
        if self._lookup is not None and (batch := self._lookup.flush()):
            self._batches.append(batch)
            if len(self._batches) == 1:
                self._look(batch)

    def _look(self, batch: Keys) -> None:
        time_ns = self._lookup_ns(len(batch))
        self.totals.lookup_batches += 1
        self.totals.lookup_keys += len(batch)
        self.totals.lookup_ns += time_ns
        self._env.alarm(time_ns, self._has_looked)

    def _has_looked(self) -> None:
        assert self._lookup is not None
        self._take_in_progress()
        self._lookup.answer(self.files.find(self._batches.popleft()))
        if self._batches:
            self._look(self._batches[0])
        self._on_change()

    def on_request_finished(self, request_id: str) -> None:
        """Forget what only this request has asked for."""
        if self._lookup is not None:
            self._lookup.on_request_finished(request_id)

    # -- moving
    def submit(self, direction: Literal["load", "store"], keys: Keys) -> None:
        """Queue a job: the tier's chunks into CPU memory (load) or the other way (store)."""
        job = _Job(direction, keys, self._env.now)
        size = len(keys)
        most = min(size, self._pool.num_threads)
        count = job.open_tasks = most if self._tasks_per_job is None else min(self._tasks_per_job, most)
        parts = [keys[i * size // count : (i + 1) * size // count] for i in range(count)] if count != 1 else [keys]
        self._open_jobs += 1
        way: IoDirection = "read" if direction == "load" else "write"
        self._note_queue(way, size)
        if direction == "load":
            self.files.open(keys)
            self.totals.read_jobs += 1
        else:
            self.totals.write_jobs += 1
            self.totals.backlog_peak_bytes = max(self.totals.backlog_peak_bytes, self.write_backlog_bytes())
        if self.listener is not None:
            self.listener.submitted(job, direction, keys)
        for part in parts:
            self._pool.enqueue(way, partial(self._read if direction == "load" else self._check, job, part))

    def _read(self, job: _Job, keys: Keys, release: Task) -> None:
        self.totals.read_tasks += 1
        self.totals.read_wait_ns += self._env.now - job.submitted_ns
        if self.listener is not None:
            self.listener.begun(job, ())
        self._device.start("read", len(keys), self.chunk_bytes, partial(self._has_read, job, keys, release))

    def _has_read(self, job: _Job, keys: Keys, release: Task) -> None:
        self.files.close(keys)
        self.totals.read_bytes += len(keys) * self.chunk_bytes
        self._note_queue("read", -len(keys))
        self._end_task(job, release)

    def _check(self, job: _Job, keys: Keys, release: Task) -> None:
        self.totals.write_tasks += 1
        self.totals.write_wait_ns += self._env.now - job.submitted_ns
        # Never at once: a chain of jobs with nothing to write would recurse.
        self._env.alarm(len(keys) * (self._exists_ns or 0), partial(self._write, job, keys, release))

    def _write(self, job: _Job, keys: Keys, release: Task) -> None:
        """Chunks that are here are not written again; those that find no space are lost to the tier."""
        if self._exists_ns is not None or self.files.max_files is not None:  # somebody looks
            self._take_in_progress_of(keys)
        missing = keys if self._exists_ns is None else self.files.missing(keys)
        room = self.files.reserve(len(missing))
        self.totals.deduplicated_chunks += len(keys) - len(missing)
        self.totals.refused_chunks += len(missing) - room
        self._note_queue("write", room - len(keys))
        if not room:
            self._end_task(job, release)
            return
        written = missing if room == len(missing) else missing[:room]
        if self.listener is not None:
            self.listener.begun(job, written)
        number = self._num_writing
        self._num_writing += 1
        done = partial(self._has_written, job, number, release)
        stream = self._device.start("write", room, self.chunk_bytes, done)
        self._writing[number] = _Writing(written, stream)

    def _has_written(self, job: _Job, number: int, release: Task) -> None:
        writing = self._writing.pop(number)
        self._publish(writing, len(writing.keys))
        self._end_task(job, release)

    def _take_in_progress(self) -> None:
        """Publish what the writers have completed by now."""
        if self._looked_ns != self._env.now:
            self._looked_ns = self._env.now
            for writing in self._writing.values():
                self._publish(writing, self._device.chunks_done(writing.stream))

    def _take_in_progress_of(self, keys: Keys) -> None:
        """The same for somebody who looks for these chunks only."""
        self._take_in_progress()

    def _count(self, writing: _Writing, complete: int) -> None:
        """So many of its files are complete by now."""
        if complete > writing.counted:
            new, writing.counted = complete - writing.counted, complete
            self._note_queue("write", -new)
            self.totals.write_bytes += new * self.chunk_bytes

    def _publish(self, writing: _Writing, complete: int) -> None:
        self._count(writing, complete)
        if complete > writing.published:
            at_once = complete == len(writing.keys) and not writing.published
            self.files.publish(writing.keys if at_once else writing.keys[writing.published : complete])
            writing.published = complete
            self.totals.used_chunks_peak = max(self.totals.used_chunks_peak, len(self.files))

    def _end_task(self, job: _Job, release: Task) -> None:
        job.open_tasks -= 1
        if not job.open_tasks:
            self._open_jobs -= 1
            self._done.append((job.direction, job.keys))
            if self.listener is not None:
                self.listener.ended(job)
            (self._on_change if job.direction == "load" else self._on_written)()
        release()

    def _note_queue(self, way: IoDirection, chunks: int) -> None:
        self._note_wanted(way)
        self._queued[way] += chunks

    def _note_wanted(self, way: IoDirection) -> None:
        """Bring the time in which something was wanted up to now."""
        now = self._env.now
        if self._queued[way]:
            elapsed = now - self._noted_ns[way]
            if way == "read":
                self.totals.read_wanted_ns += elapsed
            else:
                self.totals.write_wanted_ns += elapsed
        self._noted_ns[way] = now

    # -- reporting
    def poll(self) -> list[TierJob]:
        """Jobs that have finished since the last poll."""
        done, self._done = self._done, []
        if isinstance(self.files, Files) and self.files.on_evict is not None:
            for direction, keys in done:
                if direction == "store":  # vLLM: when a job is picked up, for all its chunks
                    self._kv_events.stored([key for key in keys if key in self.files])
        return done

    def enable_kv_events(self) -> None:
        """Note KV events from now on, if this tier is one that publishes."""
        if self._publishes:
            assert isinstance(self.files, Files), "KV events are told key by key"
            self.files.on_evict = self._kv_events.removed

    def take_events(self) -> list[KVCacheEvent]:
        """KV events of this tier since the last call."""
        return self._kv_events.take()

    def is_idle(self) -> bool:
        """Nothing in flight or unreported."""
        return not self._open_jobs and not self._done

    def write_backlog_bytes(self) -> int:
        """What has been handed over for writing and is not written yet. It is pinned in CPU memory for so long."""
        return self._queued["write"] * self.chunk_bytes

    def read_queue_bytes(self) -> int:
        """What has been asked for and is not read yet."""
        return self._queued["read"] * self.chunk_bytes

    def busy_ns(self) -> int:
        """Time for which the whole device was used."""
        return self._device.busy_ns()

    def bring_up_to_date(self) -> None:
        """Take in what has happened up to now, before somebody reads the totals."""
        self._take_in_progress()
        self._note_wanted("read")
        self._note_wanted("write")
        totals = self.totals
        totals.used_chunks, totals.evicted_chunks = len(self.files), self.files.num_evicted
        totals.backlog_bytes, totals.busy_ns = self.write_backlog_bytes(), self.busy_ns()
