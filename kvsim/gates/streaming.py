"""Streaming sessions: a request whose input comes in parts waits for the next one."""

from __future__ import annotations

from kvsim.gates.base import Gate
from kvsim.request import Request, RequestStatus


class StreamingGate(Gate):
    """A session without input is skipped; it stays in the queue and keeps its blocks.

    Rule: vLLM 0.33.0 v1/core/sched/scheduler.py (_handle_blocked_waiting_request).
    """

    def blocks(self, request: Request) -> bool:
        return request.status is RequestStatus.WAITING_FOR_STREAMING_REQ
