"""max_loras: only so many LoRA adapters are on the GPU at a time."""

from __future__ import annotations

from collections.abc import Iterable

from kvsim.gates.base import Gate
from kvsim.request import Request


class LoraGate(Gate):
    """A waiting request is skipped if its adapter is not in the batch and the batch is full of other adapters.

    Rule: vLLM 0.33.0 v1/core/sched/scheduler.py (scheduled_loras): the adapters of all running requests count, with
    those that this scan adds; requests for the base model always pass. In 0.23.0 only running requests that are
    scheduled in this step count; the scheduler hands those in.
    """

    def __init__(self, max_loras: int) -> None:
        self._max_loras = max_loras
        self._adapters: set[int] = set()  # never iterated

    def begin_scan(self, running: Iterable[Request]) -> None:
        self._adapters = {request.demands.adapter for request in running if request.demands.adapter}

    def blocks(self, request: Request) -> bool:
        adapter, adapters = request.demands.adapter, self._adapters
        return bool(adapter) and adapter not in adapters and len(adapters) == self._max_loras

    def scheduled(self, request: Request) -> None:
        if request.demands.adapter:
            self._adapters.add(request.demands.adapter)
