"""Drafts with a step in flight: the next one is decided as if they held, and corrected when they come back."""

from __future__ import annotations

from kvsim.async_scheduler import AsyncScheduler
from kvsim.connectors.base import SchedulerOutput
from kvsim.request import Request, RequestStatus
from kvsim.spec_scheduler import SpeculativeScheduler


class AsyncSpeculativeScheduler(AsyncScheduler, SpeculativeScheduler):
    """Every request that samples has its drafts at once, as placeholders; the worker fills them in.

    Rules: vLLM 0.33.0 v1/core/sched/async_scheduler.py and scheduler.py.
    """

    def _update_after_schedule(self, output: SchedulerOutput) -> None:
        self._note_drafts(output)
        super()._update_after_schedule(output)
        for request in output.sampling:
            request.num_output_placeholders += output.drafts.get(request, 0)
            request.num_draft_tokens = self._speculation.num_speculative_tokens

    def _take_token(self, request: Request, output: SchedulerOutput, *, stale: bool) -> bool:
        """The accepted drafts and the token after them; what was computed before a preemption corrects nothing."""
        is_running = request.status is RequestStatus.RUNNING
        drafts, accepted = self._verify(request, output)
        if not stale:
            request.num_computed_tokens -= drafts - accepted
            request.num_output_placeholders -= drafts + 1
        left, has_ended = self._append(request, accepted + 1)
        if not stale:
            request.num_computed_tokens -= left
            if is_running:
                self.kv.cache_blocks(request, request.num_computed_tokens - request.num_in_flight_tokens)
        return has_ended
