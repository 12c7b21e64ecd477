"""Waiting queues: who is looked at next when the scheduler admits requests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import insort
from collections import deque
from collections.abc import Iterator

from kvsim.request import Request, RequestStatus


class RequestQueue(ABC):
    """An ordered queue of requests; `add` puts newcomers, `prepend` those that come back.

    Attributes:
        requests: in order. Not to be changed from outside.
    """

    requests: deque[Request] | list[Request]

    @abstractmethod
    def add(self, request: Request) -> None: ...

    @abstractmethod
    def prepend(self, request: Request) -> None: ...

    @abstractmethod
    def head(self) -> Request: ...

    @abstractmethod
    def pop_head(self) -> Request: ...

    @abstractmethod
    def pop_many(self, count: int) -> list[Request]:
        """The first so many, which are here no longer."""

    @abstractmethod
    def discard(self, request: Request) -> None:
        """Remove a request if it is here."""

    @abstractmethod
    def prepend_all(self, skipped: deque[Request]) -> None:
        """Put back what a scan skipped. ``skipped`` was filled from the left: it is in reverse scan order."""

    def __len__(self) -> int:
        return len(self.requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self.requests)


class FcfsQueue(RequestQueue):
    """First come, first served."""

    def __init__(self) -> None:
        self.requests: deque[Request] = deque()

    def add(self, request: Request) -> None:
        self.requests.append(request)

    def prepend(self, request: Request) -> None:
        self.requests.appendleft(request)

    def head(self) -> Request:
        return self.requests[0]

    def pop_head(self) -> Request:
        return self.requests.popleft()

    def pop_many(self, count: int) -> list[Request]:
        pop = self.requests.popleft
        return [pop() for _ in range(count)]

    def discard(self, request: Request) -> None:
        if request in self.requests:
            self.requests.remove(request)

    def prepend_all(self, skipped: deque[Request]) -> None:
        self.requests.extendleft(skipped)  # reverses again: scan order


class PriorityQueue(RequestQueue):
    """Ordered by (priority, arrival, id); to prepend is an ordinary insertion."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def add(self, request: Request) -> None:
        insort(self.requests, request)

    def prepend(self, request: Request) -> None:
        insort(self.requests, request)

    def head(self) -> Request:
        return self.requests[0]

    def pop_head(self) -> Request:
        return self.requests.pop(0)

    def pop_many(self, count: int) -> list[Request]:
        first = self.requests[:count]
        del self.requests[:count]
        return first

    def discard(self, request: Request) -> None:
        if request in self.requests:
            self.requests.remove(request)

    def prepend_all(self, skipped: deque[Request]) -> None:
        for request in skipped:
            insort(self.requests, request)


class WaitingQueues:
    """The queues of release 0.33.0: requests that hold KV blocks are always scanned before the others.

    A scan is `begin_scan`, then `select` and either `skip` or popping the head until it answers None or the scheduler
    stops, then `end_scan`. A skipped request without blocks goes back to the front, in scan order.
    Rules: vLLM 0.33.0 v1/core/sched/scheduler.py (waiting, kv_holding_waiting).
    """

    def __init__(self, policy: str) -> None:
        self.by_priority = policy == "priority"
        self.waiting, self.second = self._new_queue(), self._new_queue()
        self._skipped: deque[Request] = deque()
        self._skipped_second: deque[Request] = deque()

    def _new_queue(self) -> RequestQueue:
        return PriorityQueue() if self.by_priority else FcfsQueue()

    def __len__(self) -> int:
        return len(self.waiting.requests) + len(self.second.requests)

    def __iter__(self) -> Iterator[Request]:
        yield from self.second
        yield from self.waiting

    def add(self, request: Request) -> None:
        """A newcomer, or a streaming session between two parts of its input, which holds blocks."""
        (self.second if request.num_computed_tokens else self.waiting).add(request)

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it waits (not during a scan)."""
        self.waiting.discard(request)
        self.second.discard(request)

    def begin_scan(self) -> None:
        """Start looking."""
        self._skipped, self._skipped_second = deque(), deque()

    def select(self) -> RequestQueue | None:
        """The queue whose head is next."""
        return self.second if self.second.requests else self.waiting if self.waiting.requests else None

    def skip(self, queue: RequestQueue) -> None:
        """The head can't be admitted in this step, but those behind it may."""
        request = queue.pop_head()
        holds = request.num_computed_tokens > 0 or request.status is RequestStatus.WAITING_FOR_REMOTE_KVS
        (self._skipped_second if holds else self._skipped).appendleft(request)

    def skip_many(self, queue: RequestQueue, count: int) -> None:
        """The same for the first so many, none of which holds blocks."""
        self._skipped.extendleft(queue.pop_many(count))

    def end_scan(self) -> None:
        """Put the skipped ones back."""
        if self._skipped_second:
            self.second.prepend_all(self._skipped_second)
        if self._skipped:
            self.waiting.prepend_all(self._skipped)


class WaitingQueues023(WaitingQueues):
    """0.23.0: ``second`` holds whatever was skipped; under PRIORITY the smaller of the two heads is next.

    A request that arrives in a status to wait in is skipped from the start.
    """

    def add(self, request: Request) -> None:
        (self.waiting if request.status is RequestStatus.WAITING else self.second).add(request)

    def select(self) -> RequestQueue | None:
        if self.by_priority and len(self.waiting) and len(self.second):
            return self.waiting if self.waiting.head() < self.second.head() else self.second
        return super().select()

    def skip(self, queue: RequestQueue) -> None:
        self._skipped_second.appendleft(queue.pop_head())

    def skip_many(self, queue: RequestQueue, count: int) -> None:
        self._skipped_second.extendleft(queue.pop_many(count))
