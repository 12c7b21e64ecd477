"""The V1 connector protocol: what a scheduler asks, and what a worker reports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Protocol

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


class KVConnector(ABC):
    """Scheduler side of a connector.

    The life of a request: `on_new_request`; every time the scheduler reaches it unscheduled,
    `get_num_new_matched_tokens` (after the local prefix lookup) and, if it finds blocks, `update_state_after_alloc`;
    once per step `build_connector_meta` turns all of that into work for the worker; `request_finished` before its
    blocks are freed; `update_connector_output` brings the worker's reports.

    To add one: subclass, give it a worker (`ConnectorWorker`), name both in `kvsim.releases`.
    """

    lookups_are_pure = False  # asking again for a request that found no room changes nothing
    epoch = 0  # grows with every change that `get_num_new_matched_tokens` could notice

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

    def check(self, *, at_end: bool) -> None:
        """Raise AssertionError if the connector's books are wrong (``at_end``: or if anything is still pinned)."""


class ConnectorWorker(Protocol):
    """Worker side: turns a step's metadata into copies and polls them. Called in the order of the methods."""

    def handle_preemptions(self, meta: Any) -> list[int]:
        """First of all: submit what was deferred. Returns the jobs that must be complete before the forward pass."""
        ...

    def start_load_kv(self, meta: Any) -> None:
        """Submit this step's loads."""
        ...

    def is_done(self, job_id: int) -> bool:
        """Whether a job is complete (true for one that was reported already)."""
        ...

    def has_finished(self) -> bool:
        """Whether `get_finished` has something to report."""
        ...

    def get_finished(self) -> WorkerOutput:
        """After the forward pass: what has finished since the last report."""
        ...

    def is_idle(self) -> bool:
        """Nothing in flight and nothing waiting to be submitted."""
        ...
