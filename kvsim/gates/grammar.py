"""Structured output: a request waits until its grammar is compiled."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Protocol

import simpy

from kvsim.clock import Clock
from kvsim.gates.base import Gate
from kvsim.request import Request, RequestStatus


class Compiler(Protocol):
    """Compiles grammars beside the engine."""

    def compile(self, request: Request) -> None:
        """Start now."""
        ...

    def is_ready(self, request: Request) -> bool:
        """Whether the request's grammar is compiled."""
        ...


class GrammarGate(Gate):
    """A request with a grammar arrives as WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR and is skipped until it is compiled.

    Rules: vLLM 0.33.0 v1/engine/core.py (preprocess_add_request: compilation starts at arrival, beside the engine) and
    v1/core/sched/scheduler.py (_handle_blocked_waiting_request: a ready grammar makes it WAITING within the scan).
    """

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler

    def arrived(self, request: Request) -> None:
        if request.demands.grammar:
            request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
            self._compiler.compile(request)

    def blocks(self, request: Request) -> bool:
        if request.status is not RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
            return False
        if not self._compiler.is_ready(request):
            return True
        request.status = RequestStatus.WAITING
        return False


class ThreadPoolCompiler:
    """Grammars take a fixed time each, on a pool of threads, first come, first served.

    vLLM 0.33.0 v1/structured_output: a ThreadPoolExecutor of half the CPUs; the xgrammar backend keeps what it has
    compiled, and whoever asks for a grammar that is being compiled waits (on its thread) for that one.

    Args:
        compile_ns: time to compile one grammar.
        threads: size of the pool.
        cache: equal grammars are compiled once.

    Attributes:
        on_ready: called when a grammar has become ready.
    """

    def __init__(self, clock: Clock, *, compile_ns: int, threads: int, cache: bool) -> None:
        self._clock, self._compile_ns, self._cache = clock, compile_ns, cache
        self.on_ready: Callable[[], None] = lambda: None
        self._threads = simpy.Resource(clock, threads)
        self._compiled: dict[str, simpy.Event] = {}  # grammar -> fires when it is compiled
        self._ready: set[Request] = set()  # never iterated
        self.num_compiled = 0

    def compile(self, request: Request) -> None:
        """Queue the request for a thread."""
        self._clock.process(self._work(request))

    def is_ready(self, request: Request) -> bool:
        """Whether the request's grammar is compiled."""
        return request in self._ready

    def _work(self, request: Request) -> Generator[simpy.Event, Any, None]:
        grammar = request.demands.grammar
        with self._threads.request() as thread:
            yield thread
            known = self._compiled.get(grammar) if self._cache else None
            if known is None:
                known = self._compiled[grammar] = self._clock.timeout(self._compile_ns)
                self.num_compiled += 1
                yield known
            elif not known.processed:
                yield known
        self._ready.add(request)
        self.on_ready()
