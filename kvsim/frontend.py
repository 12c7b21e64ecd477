"""What a server does with a request before its scheduler hears of it: HTTP, chat template, tokenizing, hashes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import simpy

from kvsim.clock import Clock


@dataclass(frozen=True, slots=True)
class FrontendTimes:
    """How long an API server is busy with a request, and how many of them there are."""

    request_ns: int
    token_ns: int
    servers: int

    def service_ns(self, prompt_tokens: int) -> int:
        """For a prompt of so many tokens."""
        return self.request_ns + prompt_tokens * self.token_ns


@dataclass(eq=False, slots=True)
class Visit:
    """A request on its way through.

    ``done``: called when it is through. ``service``: fires then; None = it waits.
    """

    prompt_tokens: int
    done: Callable[[], None]
    service: simpy.Event | None = None
    is_wanted: bool = True


class Frontend:
    """API servers in front of an engine, each with one request at a time; first come, first served.

    vLLM 0.33.0 renderers/base.py: chat template and tokenizer run in one thread of each API server
    (--renderer-num-workers 1). A server takes a new connection if it has the fewest open ones
    (entrypoints/launchers/launcher.py); here the next one that is free takes the next request, which is at least as
    good. Requests overtake each other where there are several servers.

    Args:
        opens_ns: the moment from which on requests are worked on: vLLM listens when its engine is ready.
    """

    def __init__(self, clock: Clock, times: FrontendTimes, opens_ns: Callable[[], int]) -> None:
        self._clock, self._times, self._opens_ns = clock, times, opens_ns
        self._queue: deque[Visit] = deque()
        self._served: dict[Visit, None] = {}  # at most one for each server

    def enter(self, prompt_tokens: int, done: Callable[[], None]) -> Visit:
        """A request arrives now; ``done`` is called when it has been waited for and worked on."""
        visit = Visit(prompt_tokens, done)
        self._queue.append(visit)
        self._serve()
        return visit

    def leave(self, visit: Visit) -> None:
        """Its client has gone. A server that works on it does so to the end: a thread cannot be stopped."""
        visit.is_wanted = False
        if visit.service is None:
            self._queue.remove(visit)

    def lose(self) -> None:
        """The servers have died with all that they had."""
        for visit in self._served:
            assert visit.service is not None
            self._clock.cancel(visit.service)
        self._served.clear()
        self._queue.clear()

    def _serve(self) -> None:
        while self._queue and len(self._served) < self._times.servers:
            visit = self._queue.popleft()
            self._served[visit] = None
            closed_ns = max(self._opens_ns() - self._clock.now, 0)
            service_ns = closed_ns + self._times.service_ns(visit.prompt_tokens)
            visit.service = self._clock.alarm(service_ns, lambda visit=visit: self._end(visit))  # type: ignore[misc]

    def _end(self, visit: Visit) -> None:
        del self._served[visit]
        self._serve()
        if visit.is_wanted:
            visit.done()
