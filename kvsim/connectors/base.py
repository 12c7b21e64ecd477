"""The V1 connector protocol: what a scheduler asks, and what a worker reports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from kvsim.request import Request


@dataclass(slots=True)
class SchedulerOutput:
    """What one ``schedule()`` decided, in the order in which it decided it."""

    num_scheduled_tokens: dict[Request, int] = field(default_factory=dict)
    new: list[Request] = field(default_factory=list)
    resumed: list[Request] = field(default_factory=list)
    new_blocks: dict[Request, list[int]] = field(default_factory=dict)  # what running requests gained, if anything
    preempted: list[Request] = field(default_factory=list)
    hits: dict[Request, tuple[int, int]] = field(default_factory=dict)  # (local, external) tokens, of those admitted
    finished: list[Request] = field(default_factory=list)  # requests that ended in the step before
    tables: dict[Request, list[int]] = field(default_factory=dict)  # whole tables of new and resumed requests
    connector_meta: Any = None

    @property
    def total_tokens(self) -> int:
        """Tokens of this step's forward pass."""
        return sum(self.num_scheduled_tokens.values())


@dataclass(slots=True)
class WorkerOutput:
    """What the worker side reports after a step."""

    received: list[Request] = field(default_factory=list)  # loads that are complete: they may be scheduled
    jobs: list[int] = field(default_factory=list)  # finished jobs, in the order of their submission


Direction = Literal["load", "store"]


@dataclass(eq=False, slots=True)
class CopyJob:
    """One copy: GPU blocks to CPU slots (store) or back (load). Only the GPU side's length is certain to be moved."""

    job_id: int
    direction: Direction
    source: list[int]
    destination: list[int]

    @property
    def gpu_blocks(self) -> list[int]:
        """The side that lies in the GPU's pool."""
        return self.source if self.direction == "store" else self.destination


class Copier(Protocol):
    """Whatever moves the bytes: a timed link, or a clock that counts steps. Jobs of a direction finish in order."""

    def submit(self, job: CopyJob) -> None:
        """Queue the copy behind those of its direction."""
        ...

    def flush(self, job: CopyJob) -> None:
        """The engine is going to wait for this job."""
        ...

    def is_done(self, job: CopyJob) -> bool:
        """Whether the copy is complete now."""
        ...

    def forget(self, job: CopyJob) -> None:
        """The job was reported and will not be asked for again."""
        ...


class KVConnector(ABC):
    """Scheduler side of a connector.

    The life of a request: `on_new_request`; every time the scheduler reaches it unscheduled,
    `get_num_new_matched_tokens` (after the local prefix lookup) and, if it finds blocks, `update_state_after_alloc`;
    once per step `build_connector_meta` turns all of that into work for the worker; `request_finished` before its
    blocks are freed; `update_connector_output` brings the worker's reports.

    To add one: subclass, give it a worker (`ConnectorWorker`), name both in `kvsim.releases`.
    """

    lookups_are_pure = False  # asking again for a request that found no room changes nothing
    restless = False  # may go on copying for ever although no request moves
    num_load_jobs = 0  # copies planned so far
    num_store_jobs = 0

    @property
    def epoch(self) -> int:
        """Grows with every change that `get_num_new_matched_tokens` could notice."""
        return 0

    @property
    def num_offloaded_chunks(self) -> int:
        """Chunks that are kept outside the GPU now, where the GPU can reach them."""
        return 0

    @property
    def num_evicted_chunks(self) -> int:
        """Chunks that were lost there so far."""
        return 0

    @property
    def num_refusals(self) -> int:
        """Stores that found no room so far; a store is tried again every step."""
        return 0

    def on_new_request(self, request: Request) -> None:
        """The request has arrived."""

    @abstractmethod
    def get_num_new_matched_tokens(self, request: Request, num_local_tokens: int) -> tuple[int | None, bool]:
        """Tokens loadable after the local hit, and whether the load is asynchronous. None = ask again next step."""

    @abstractmethod
    def update_state_after_alloc(self, request: Request, table: list[int], num_external_tokens: int) -> None:
        """The request has blocks now: the local hits, then ``num_external_tokens`` to be loaded."""

    @abstractmethod
    def build_connector_meta(self, output: SchedulerOutput) -> Any:
        """This step's work for the worker side."""

    @abstractmethod
    def request_finished(self, request: Request, table: list[int]) -> None:
        """The request is over; its blocks are about to be freed."""

    @abstractmethod
    def update_connector_output(self, output: WorkerOutput) -> None:
        """Reports of the worker side, after the step."""

    def may_defer(self) -> bool:
        """Whether `get_num_new_matched_tokens` could answer None now."""
        return True

    def has_pending_work(self) -> bool:
        """Whether the engine must keep stepping although no request is left."""
        return False

    def explain_wait(self, request: Request) -> str:
        """What a request that makes no progress waits for here, and what would help; empty = nothing."""
        return ""

    def gpu_holds(self) -> list[list[int]]:
        """GPU blocks that the connector references beside the requests' tables."""
        return []

    def check(self, *, at_end: bool) -> None:
        """Raise AssertionError if the connector's books are wrong (``at_end``: or if anything is still pinned)."""


class ConnectorWorker(Protocol):
    """Worker side: turns a step's metadata into copies and polls them. Called in the order of the methods."""

    def handle_preemptions(self, meta: Any) -> Sequence[Any]:
        """First of all: submit what was deferred. Returns the jobs that must be complete before the forward pass."""
        ...

    def start_load_kv(self, meta: Any) -> None:
        """Submit this step's loads."""
        ...

    def is_done(self, job: Any) -> bool:
        """Whether a job that `handle_preemptions` returned is complete."""
        ...

    def has_finished(self) -> bool:
        """Whether `get_finished` has something to report."""
        ...

    def get_finished(self) -> WorkerOutput:
        """After the forward pass: what has finished since the last report."""
        ...
