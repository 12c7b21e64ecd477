"""Secondary tiers that answer after a fixed number of steps: an unbounded virtual one, and vLLM's file system tier."""

from __future__ import annotations

import inspect
import queue
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from copies import CLOCK, Lanes
from vllm.v1.kv_offload import base
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

_DELAYS: dict[str, tuple[int, int]] = {}  # type of tier -> (load, store)
_ANSWERS = getattr(base, "LookupResult", None)
_HIT, _MISS = (_ANSWERS.HIT, _ANSWERS.MISS) if _ANSWERS else (True, False)


def register(delays: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """Make each pair (load delay, store delay) a type of tier; the tiers' configs.

    Types stay registered in vLLM for as long as the process lives, so their names are used again.
    """
    configs = []
    for number, pair in enumerate(delays):
        tier_type = f"virt{number}"
        if tier_type not in _DELAYS:
            SecondaryTierFactory.register_tier(tier_type, __name__, "VirtualTier")
        _DELAYS[tier_type] = pair
        configs.append({"type": tier_type})
    return configs


def file_system_type() -> str:
    """The name of the file system tier in this release."""
    return "fs" if "fs" in SecondaryTierFactory._registry else "fs_python"


class VirtualTier(SecondaryTierManager):  # type: ignore[misc]
    """Unbounded. A job submitted in step s is reported by the first poll from step s + delay on, in order.

    Jobs may fail by their number, each direction of each tier being counted. Of a load [number, lost] the last keys do
    not arrive; a release that cannot tell which loses all of them. A store leaves nothing.
    """

    load_failures: ClassVar[list[list[int]]] = []
    store_failures: ClassVar[list[int]] = []

    def __init__(self, offloading_spec: Any, primary_kv_view: Any, tier_type: str, **_options: Any) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type)
        self._lanes = Lanes(*_DELAYS[tier_type])
        self._present: set[Any] = set()
        self._jobs: list[tuple[int, str, Any]] = []  # (ready step, kind, job)
        self._done = {"load": 0, "store": 0}

    def lookup(self, key: Any, req_context: Any) -> Any:
        return _HIT if key in self._present else _MISS

    def submit_store(self, job_metadata: Any) -> None:
        self._jobs.append((self._lanes.submit("store"), "store", job_metadata))

    def submit_load(self, job_metadata: Any) -> None:
        self._jobs.append((self._lanes.submit("load"), "load", job_metadata))

    def get_finished_jobs(self) -> list[Any]:
        done = [job for job in self._jobs if job[0] <= CLOCK.step]
        self._jobs = [job for job in self._jobs if job[0] > CLOCK.step]
        return [self._result(kind, job) for _, kind, job in done]

    def _result(self, kind: str, job: Any) -> Any:
        number = self._done[kind]
        self._done[kind] += 1
        lost = dict(self.load_failures).get(number)
        if kind == "load" and lost is not None:
            arrived = tuple(job.keys[: max(len(job.keys) - lost, 0)])
            tells = "successful_keys" in inspect.signature(JobResult).parameters
            return JobResult(
                job_id=job.job_id, success=False, **({"successful_keys": arrived or None} if tells else {})
            )
        if kind == "store" and number in self.store_failures:
            return JobResult(job_id=job.job_id, success=False)
        if kind == "store":
            self._present.update(job.keys)
        return JobResult(job_id=job.job_id, success=True)

    get_finished = get_finished_jobs  # its name in 0.22

    def on_new_request(self, req_context: Any) -> Any:
        return base.RequestOffloadingContext() if hasattr(base, "RequestOffloadingContext") else None

    def drain_jobs(self) -> None:
        pass

    def has_pending_work(self) -> bool:
        return bool(self._jobs)


class _StepPool:
    """Stands in for the file system tier's threads: real file I/O, done in the step in which it is reported."""

    def __init__(self, lanes: Lanes, *, with_time: bool) -> None:
        self._lanes, self._with_time = lanes, with_time
        self._jobs: list[tuple[int, int, list[Callable[[], Any]]]] = []  # (ready step, job, tasks)

    def enqueue_load(self, job_id: int, _count: int, tasks: Iterable[Callable[[], Any]]) -> None:
        self._jobs.append((self._lanes.submit("load"), job_id, list(tasks)))

    def enqueue_store(self, job_id: int, _count: int, tasks: Iterable[Callable[[], Any]]) -> None:
        self._jobs.append((self._lanes.submit("store"), job_id, list(tasks)))

    def get_finished(self) -> list[tuple[Any, ...]]:
        done = [job for job in self._jobs if job[0] <= CLOCK.step]
        self._jobs = [job for job in self._jobs if job[0] > CLOCK.step]
        return [(job_id, _succeeds(tasks), *([0.0] if self._with_time else [])) for _, job_id, tasks in done]

    def __getattr__(self, name: str) -> Any:
        return lambda *_args, **_kwargs: None


def _succeeds(tasks: list[Callable[[], Any]]) -> bool:
    try:
        for task in tasks:
            task()
    except OSError:
        return False
    return True


class _InlineQueue:
    """Stands in for the queue of existence probes: answers a batch when it is put, for the next step to see."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._batches: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def put(self, batch: Any) -> None:
        if batch is not None:
            self._batches.put(batch)
            self._batches.put(None)
            self._manager._worker()

    def get(self) -> Any:
        return self._batches.get()


def without_threads(tier: Any, load_delay: int, store_delay: int) -> None:
    """Make a file system tier count steps."""
    tier._pool.shutdown()
    with_time = "transfer_time in self._pool" in inspect.getsource(type(tier))
    tier._pool = _StepPool(Lanes(load_delay, store_delay), with_time=with_time)
    lookups = getattr(tier, "_lookup_manager", None)
    if lookups is not None:
        lookups._lookup_queue.put(None)
        lookups._thread.join()
        lookups._lookup_queue = _InlineQueue(lookups)
