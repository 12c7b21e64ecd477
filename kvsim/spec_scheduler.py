"""Speculative decoding in the scheduler: drafts are scheduled like tokens, and rolled back where they do not hold."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from kvsim.cache.hybrid_kv_cache_manager import AnyKVCacheManager
from kvsim.connectors.base import KVConnector, SchedulerOutput
from kvsim.gates.base import Gate
from kvsim.limits import SchedulerLimits
from kvsim.request import Request, RequestStatus
from kvsim.scheduler import Scheduler
from kvsim.speculation import Speculation


class SpeculativeScheduler(Scheduler):
    """A decoding request computes its last token and the drafts after it; each draft that holds is a token more.

    Every request that has decoded gets all of its drafts anew after each step (a real n-gram proposer may find fewer).
    Rules: vLLM 0.33.0 v1/core/sched/scheduler.py, where it says "spec", without steps in flight.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        kv: AnyKVCacheManager,
        connector: KVConnector | None = None,
        gates: Gate | None = None,
        *,
        speculation: Speculation,
        **options: Any,
    ) -> None:
        super().__init__(limits, kv, connector, gates, **options)
        self._speculation = speculation
        self.draft_slots = speculation.draft_slots
        self.num_spec_slots = speculation.num_speculative_tokens + speculation.num_lookahead_tokens
        self.num_draft_tokens = self.num_accepted_tokens = 0

    # -- deciding
    def _num_new_tokens(self, request: Request, budget: int) -> int:
        computed = request.num_computed_tokens
        wanted = self._cap(request.num_tokens + request.num_draft_tokens - computed)
        return min(wanted, budget, self.limits.max_model_len - 1 - computed)

    def _num_admitted_tokens(self, request: Request, computed: int, output: SchedulerOutput, budget: int) -> int | None:
        """A request with one token left gets drafts that cannot hold, so that the batch stays uniform.

        Not beside a prompt that is being computed, nor if it would be alone and has nothing computed.
        """
        padded = 1 + self._speculation.num_speculative_tokens
        if request.num_tokens - computed != 1 or computed + padded + 1 > self.limits.max_model_len:
            return super()._num_admitted_tokens(request, computed, output, budget)
        running = [other for other in output.num_scheduled_tokens if other not in output.tables]
        if any(other in self._inflight_prefills for other in running) or not (running or computed):
            return super()._num_admitted_tokens(request, computed, output, budget)
        return min(self._cap(padded), budget) if padded <= budget else None

    def num_reserved_blocks(self) -> int:
        tokens = 1 + self.num_spec_slots
        others = sum(self.kv.num_remaining_blocks(request, tokens) for request in self._inflight_prefills)
        return others + -(-tokens // self.kv.block_size)

    def _update_after_schedule(self, output: SchedulerOutput) -> None:
        self._note_drafts(output)
        super()._update_after_schedule(output)

    @staticmethod
    def _note_drafts(output: SchedulerOutput) -> None:
        for request, tokens in output.num_scheduled_tokens.items():
            drafts = request.num_computed_tokens + tokens - request.num_tokens - request.num_output_placeholders
            if drafts > 0:
                output.drafts[request] = drafts
            request.num_draft_tokens = 0

    # -- after the step
    def _take_outputs(self, output: SchedulerOutput, void: Collection[Request]) -> list[Request]:
        ended: list[Request] = []
        for request in output.num_scheduled_tokens:
            if request.gated:
                self.gates.computed(request)
            if request.num_computed_tokens < request.num_tokens or request in void:
                continue  # still prefilling: nothing was sampled, and drafts are dropped
            if self._take_tokens(request, output):
                ended.append(request)
                self._end(request, RequestStatus.FINISHED)
            else:
                request.num_draft_tokens = self._speculation.num_speculative_tokens
        return ended

    def _take_tokens(self, request: Request, output: SchedulerOutput) -> bool:
        """Append the accepted drafts and the token after them, roll back the others; whether it has ended."""
        drafts, accepted = self._verify(request, output)
        request.num_computed_tokens -= drafts - accepted
        left, has_ended = self._append(request, accepted + 1)
        request.num_computed_tokens -= left  # what follows the last token counts for nothing
        self.kv.cache_blocks(request, request.num_computed_tokens)
        return has_ended

    def _verify(self, request: Request, output: SchedulerOutput) -> tuple[int, int]:
        """How many drafts the step verified, and how many of them hold."""
        drafts, accepted = output.drafts.get(request, 0), 0
        if drafts and request not in output.tables:  # else they were padding
            accepted = self._speculation.acceptance.accepted(request, drafts)
            self.num_draft_tokens += drafts
            self.num_accepted_tokens += accepted
        return drafts, accepted

    def _append(self, request: Request, tokens: int) -> tuple[int, bool]:
        """Append so many tokens at most; those left over if it ends before, and whether it has ended."""
        longest = self.limits.max_model_len
        while tokens:
            request.append_output_token()
            tokens -= 1
            if request.num_output_tokens >= request.max_tokens or request.num_tokens >= longest:
                return tokens, True
        return 0, False
