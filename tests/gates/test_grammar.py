"""Structured output: who waits for a grammar, in which queue, and how long compilation takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from engine_builder import ids, make_request, make_scheduler, scheduled, step

from kvsim.clock import Clock
from kvsim.demands import Demands
from kvsim.gates.grammar import GrammarGate, ThreadPoolCompiler
from kvsim.request import Request, RequestStatus
from kvsim.scheduler_023 import Scheduler023


def with_grammar(name: str, grammar: str = "json") -> Request:
    """A prompt of 8 tokens whose answer follows a grammar."""
    content = make_request(name, prompt=8).content
    return Request(
        name, content, block_size=4, num_prompt_tokens=8, max_tokens=1, arrival=0, demands=Demands(grammar=grammar)
    )


@dataclass
class Script:
    """Compiles what it is told to."""

    ready: set[str] = field(default_factory=set)

    def compile(self, request: Request) -> None:
        """Nothing to start."""

    def is_ready(self, request: Request) -> bool:
        """As the test says."""
        return request.request_id in self.ready


def test_a_request_is_skipped_until_its_grammar_is_ready() -> None:
    """It waits at the front in its own status, others pass it, and the scan that finds the grammar ready admits it."""
    script = Script()
    scheduler = make_scheduler(gates=GrammarGate(script))
    first, second = with_grammar("g"), make_request("plain", prompt=8, out=1)
    scheduler.add_request(first)
    scheduler.add_request(second)
    assert scheduled(step(scheduler)[0]) == [("plain", 8)]
    assert first.status is RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    assert ids(scheduler.waiting.waiting) == ["g"]
    script.ready.add("g")
    output, ended = step(scheduler)
    assert (scheduled(output), ids(output.new), ended) == ([("g", 8)], ["g"], ["g"])


def test_0_23_queues_it_among_the_skipped_from_the_start() -> None:
    """In 0.23.0 a request without grammar stands among the skipped at once, which are looked at first."""
    scheduler = make_scheduler(Scheduler023, gates=GrammarGate(Script({"g"})))
    scheduler.add_request(make_request("plain", prompt=8, out=1))
    scheduler.add_request(with_grammar("g"))
    assert ids(scheduler.waiting.second) == ["g"]
    assert scheduled(step(scheduler)[0]) == [("g", 8), ("plain", 8)]


def compiled(grammars: list[str], **options: Any) -> tuple[list[tuple[str, int]], int]:
    """(request, time at which it is ready) in that order, if all arrive at time 0; and how many were compiled."""
    clock = Clock()
    compiler = ThreadPoolCompiler(clock, **{"compile_ns": 10, "threads": 2, "cache": True} | options)
    requests = [with_grammar(f"r{number}", grammar) for number, grammar in enumerate(grammars)]
    found: list[tuple[str, int]] = []

    def on_ready() -> None:
        known = {name for name, _ in found}
        found.extend(
            (each.request_id, clock.now)
            for each in requests
            if compiler.is_ready(each) and each.request_id not in known
        )

    compiler.on_ready = on_ready
    for request in requests:
        compiler.compile(request)
    clock.run()
    return found, compiler.num_compiled


def test_threads_compile_side_by_side() -> None:
    """Three grammars on two threads: two are ready after one compile time, the third after two."""
    assert compiled(["a", "b", "c"]) == ([("r0", 10), ("r1", 10), ("r2", 20)], 3)


def test_equal_grammars_compile_once() -> None:
    """A second request for a grammar in the works waits for that one on its thread; a later one has it at once."""
    assert compiled(["a", "a", "a"]) == ([("r0", 10), ("r1", 10), ("r2", 10)], 1)
    assert compiled(["a", "a", "b"], cache=False) == ([("r0", 10), ("r1", 10), ("r2", 20)], 3)
    assert compiled(["a", "a", "b"]) == ([("r0", 10), ("r1", 10), ("r2", 20)], 2)
