"""A secondary tier that goes away, fails, stalls, and outlives its engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from kvsim.clock import Clock
from kvsim.faults.hazard import Hazard
from kvsim.offload.ledger import Keys
from kvsim.offload.tiering import Answer, SecondaryTier, TierJob
from kvsim.results.records import FaultTotals

Way = Literal["load", "store"]


@dataclass(eq=False, slots=True)
class _Job:
    direction: Way
    keys: Keys
    arriving: Keys
    lost: Keys
    is_over: bool = False  # reported already, or nobody is left to hear of it


class KeySet(Protocol):
    """A set of keys, told of many at a time."""

    def add(self, keys: Keys) -> None:
        """Put them in."""
        ...

    def discard(self, keys: Keys) -> int:
        """Take them out; returns how many were in."""
        ...

    def missing(self, keys: Keys) -> Keys:
        """Those that are not in, in their order."""
        ...

    def everything(self) -> Keys:
        """All that are in, in any order."""
        ...


class Misses(Protocol):
    """Keys whose load has failed, and the living requests that have asked for each since."""

    def add(self, keys: Keys) -> None:
        """Their load has failed; those that are known stay as they are."""
        ...

    def forget(self, request_id: str) -> int:
        """A request is over; returns how many keys nobody is left for, who has asked: they are no misses any more."""
        ...


class _KeySet:
    def __init__(self) -> None:
        self._keys: set[int] = set()

    def __contains__(self, key: int) -> bool:
        return key in self._keys

    def add(self, keys: Iterable[int]) -> None:
        self._keys.update(keys)

    def discard(self, keys: Iterable[int]) -> int:
        before = len(self._keys)
        self._keys.difference_update(keys)
        return before - len(self._keys)

    def missing(self, keys: Iterable[int]) -> list[int]:
        return [key for key in keys if key not in self._keys]

    def everything(self) -> set[int]:
        return self._keys


class _Misses:
    def __init__(self) -> None:
        self._asked: dict[int, set[str]] = {}

    def add(self, keys: Iterable[int]) -> None:
        for key in keys:
            self._asked.setdefault(key, set())

    def ask(self, key: int, request_id: str) -> bool:
        """A request asks for it; returns whether it is a miss."""
        asked = self._asked.get(key)
        if asked is None:
            return False
        asked.add(request_id)
        return True

    def forget(self, request_id: str) -> int:
        known = [(key, asked) for key, asked in self._asked.items() if request_id in asked]
        for _key, asked in known:
            asked.discard(request_id)
        over = [key for key, asked in known if not asked]
        for key in over:
            del self._asked[key]
        return len(over)


class FaultyTier:
    """Stands before any secondary tier that reports whole jobs. Everything else the tier says is its own.

    While it is away, lookups miss, loads fail, stores are lost, and so are jobs that were in flight when it went. It
    comes back with what it held, or empty. A chunk that was lost while it was written is a miss until it is written
    again: tiers publish what is complete.

    Args:
        losses: per direction, of keys (by number: of whole jobs).
        stalls: per direction, of jobs; they are over (failed) after ``deadline_ns``, 0 = never.
        remembers_failures: after a failed load the key is a miss for all who have asked, as long as they live
            (vLLM 0.33.0 v1/kv_offload/tiering/fs/manager.py, mark_miss); otherwise they try again.
    """

    def __init__(
        self,
        clock: Clock,
        tier: SecondaryTier,
        *,
        losses: dict[Way, Hazard],
        stalls: dict[Way, Hazard],
        deadline_ns: int,
        remembers_failures: bool,
        totals: FaultTotals,
        wake: Callable[[], None],
    ) -> None:
        self._clock, self._tier, self._losses, self._stalls = clock, tier, losses, stalls
        self._deadline_ns, self._remembers, self._totals, self._wake = deadline_ns, remembers_failures, totals, wake
        self._is_away = False
        self._epoch = 0
        self._num_jobs: dict[Way, int] = {"load": 0, "store": 0}
        self._open: list[_Job] = []  # handed to the tier
        self._stuck: list[_Job] = []  # stalled: the tier has not seen them
        self._failed: list[TierJob] = []  # to be reported
        self._stored: Any = self._no_keys()  # all that was ever written, and is not lost
        self._lost: Any = self._no_keys()  # in the tier as far as it knows, but not to be had
        self._missed: Any = self._no_misses()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tier, name)

    @property
    def epoch(self) -> int:
        """Grows with every change that `lookup` could notice."""
        return self._epoch + int(getattr(self._tier, "epoch", 0))

    def lookup(self, key: int, request_id: str) -> Answer:
        """The tier's answer, if there is a tier and the chunk was not lost."""
        if self._is_away:
            return Answer.MISS
        answer = self._tier.lookup(key, request_id)
        if self._missed.ask(key, request_id):
            return Answer.MISS
        return Answer.MISS if answer is Answer.HIT and key in self._lost else answer

    def on_schedule_end(self) -> None:
        """Passed on."""
        self._tier.on_schedule_end()

    def on_request_finished(self, request_id: str) -> None:
        """Passed on; what only this request has missed may be asked for again."""
        self._tier.on_request_finished(request_id)
        self._epoch += self._missed.forget(request_id)

    def submit(self, direction: Way, keys: Keys) -> None:
        """Start moving chunks, and throw the dice."""
        number = self._num_jobs[direction]
        self._num_jobs[direction] += 1
        losses = self._losses[direction]
        arriving, lost = (keys[:0], keys) if losses.names(number) else self._divide(keys, losses)
        job = _Job(direction, keys, arriving, lost)
        if self._is_away:
            self._fail(job)
        elif self._stalls[direction].names(number) or self._stalls[direction].strikes():
            self._totals.stalled_jobs += 1
            self._stuck.append(job)
            if self._deadline_ns:
                self._clock.alarm(self._deadline_ns, lambda: self._expire(job))
        else:
            self._open.append(job)
            self._tier.submit(direction, keys)

    def _expire(self, job: _Job) -> None:
        if job in self._stuck:
            self._totals.expired_jobs += 1
            self._stuck.remove(job)
            self._fail(job)

    def _fail(self, job: _Job) -> None:
        job.is_over = True
        self._failed.append(self._failure(job.direction, job.keys))
        self._wake()

    def _failure(self, direction: Way, keys: Keys) -> TierJob:
        self._epoch += 1
        if direction == "store":
            self._lost.add(self._stored.missing(keys))
            self._totals.failed_cascade_chunks += len(keys)
            return ("failed store", keys)
        if self._remembers:
            self._missed.add(keys)
        self._totals.failed_promotion_chunks += len(keys)
        return ("failed load", keys)

    def poll(self) -> list[TierJob]:
        """What has come of jobs since the last poll."""
        outcomes, self._failed = self._failed, []
        for outcome, keys in self._tier.poll():
            job = next((j for j in self._open if outcome == j.direction and self._are_equal(j.keys, keys)), None)
            if job is None:
                outcomes.append((outcome, keys))
                continue
            self._open.remove(job)
            if job.is_over:
                continue
            if job.direction == "store":
                self._stored.add(job.arriving)
                self._epoch += bool(self._lost.discard(job.arriving))
            if job.arriving or not job.lost:
                outcomes.append((job.direction, job.arriving))
            if job.lost:
                outcomes.append(self._failure(job.direction, job.lost))
        return outcomes

    def is_idle(self) -> bool:
        """Nothing in flight or unreported, as far as anybody waits for it."""
        return not self._failed and not self._stuck and all(job.is_over for job in self._open)

    @property
    def num_stalled(self) -> int:
        """Jobs that make no progress."""
        return len(self._stuck)

    # -- what happens to it
    def go_away(self, *, lose_contents: bool) -> None:
        """The tier cannot be reached from now on."""
        self._is_away = True
        for job in (*self._open, *self._stuck):
            if not job.is_over:
                self._fail(job)
        self._stuck = []
        if lose_contents:
            self._lost.add(self._stored.everything())
            self._stored = self._no_keys()
        self._epoch += 1

    def come_back(self) -> None:
        """It can be reached again."""
        self._is_away = False
        self._epoch += 1

    def lose_engine(self) -> None:
        """The engine that has asked is gone: nobody hears what becomes of its jobs."""
        for job in self._open:
            job.is_over = True
        self._failed, self._stuck, self._missed = [], [], self._no_misses()
        self._epoch += 1

    # -- keys, one by one
    def _no_keys(self) -> KeySet:
        return _KeySet()

    def _no_misses(self) -> Misses:
        return _Misses()

    def _divide(self, keys: Keys, losses: Hazard) -> tuple[Keys, Keys]:
        """Throw the dice for each key: those that arrive, and those that don't."""
        if not losses.may_strike():
            return keys, keys[:0]
        arriving: list[int] = []
        lost: list[int] = []
        for key in keys:
            (lost if losses.strikes() else arriving).append(key)
        return arriving, lost

    def _are_equal(self, one: Keys, other: Keys) -> bool:
        return list(one) == list(other)
