"""Blocks of requests that have ended, but that the worker still reads or writes."""

from __future__ import annotations

from collections.abc import Callable

from kvsim.request import Request


class HeldBlocks:
    """Frees the blocks of ended requests, at once or when the worker's reports have come.

    Rules: vLLM 0.33.0 v1/core/sched/scheduler.py (finished_sending, _free_blocks; finish_requests for loads).
    """

    def __init__(self, free: Callable[[Request], None]) -> None:
        self._free = free
        self._due: dict[Request, int] = {}  # reports

    def __bool__(self) -> bool:
        return bool(self._due)

    def free(self, request: Request, *, after_reports: int) -> None:
        """The request has ended; so many reports are due before its blocks are free."""
        if after_reports:
            self._due[request] = after_reports
        else:
            self._free(request)

    def reported(self, request: Request) -> None:
        """A report has come that the request's blocks waited for."""
        self.free(request, after_reports=self._due.pop(request) - 1)
