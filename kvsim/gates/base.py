"""What a gate is: asked by the scheduler, and told what became of a request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvsim.connectors.base import SchedulerOutput
from kvsim.request import Request


class Gate:
    """Blocks nobody and limits nothing; override what you need.

    A gate is only asked about, and told of, requests that have demands (`Request.gated`). In a step, in this order:
    `begin_step`; for each running request `limit`, then `scheduled`; `begin_scan`; for each waiting request `blocks`,
    `limit`, then `scheduled`, or `released` if it finds no blocks; `computed` for those that were scheduled.
    """

    def arrived(self, request: Request) -> None:
        """A new request, before it is queued: the gate may give it a status to wait in."""

    def begin_step(self, output: SchedulerOutput) -> None:
        """The decisions of a step begin; ``output`` collects them."""

    def begin_scan(self, running: Iterable[Request]) -> None:
        """The waiting requests are looked at from now on, beside these."""

    def blocks(self, request: Request) -> bool:
        """Whether a waiting request must be skipped in this step."""
        return False

    def limit(self, request: Request, computed: int, tokens: int) -> int:
        """How many of ``tokens`` after the first ``computed`` may be computed in this step."""
        return tokens

    def scheduled(self, request: Request) -> None:
        """The request takes part in this step, with as many tokens as `limit` allowed."""

    def unscheduled(self, request: Request) -> None:
        """A request that was scheduled in this step lost its place again: it is preempted."""

    def computed(self, request: Request) -> None:
        """A step with this request has been executed."""

    def released(self, request: Request) -> None:
        """The request gave up what it held: it ended, was preempted, or found no blocks."""


class Gates(Gate):
    """Several gates as one: whoever blocks blocks, and limits add up."""

    def __init__(self, gates: Sequence[Gate]) -> None:
        self._gates = tuple(gates)

    def arrived(self, request: Request) -> None:
        for gate in self._gates:
            gate.arrived(request)

    def begin_step(self, output: SchedulerOutput) -> None:
        for gate in self._gates:
            gate.begin_step(output)

    def begin_scan(self, running: Iterable[Request]) -> None:
        for gate in self._gates:
            gate.begin_scan(running)

    def blocks(self, request: Request) -> bool:
        return any(gate.blocks(request) for gate in self._gates)

    def limit(self, request: Request, computed: int, tokens: int) -> int:
        for gate in self._gates:
            tokens = gate.limit(request, computed, tokens)
        return tokens

    def scheduled(self, request: Request) -> None:
        for gate in self._gates:
            gate.scheduled(request)

    def unscheduled(self, request: Request) -> None:
        for gate in self._gates:
            gate.unscheduled(request)

    def computed(self, request: Request) -> None:
        for gate in self._gates:
            gate.computed(request)

    def released(self, request: Request) -> None:
        for gate in self._gates:
            gate.released(request)
