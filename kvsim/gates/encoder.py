"""Encoder budget: images and audio are computed whole, in a step that has room for them."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvsim.connectors.base import SchedulerOutput
from kvsim.gates.base import Gate
from kvsim.gates.encoder_cache import EncoderCache
from kvsim.request import Request


@dataclass(slots=True)
class _Plan:
    """What `limit` found for the request that is being scheduled."""

    inputs: list[int] = field(default_factory=list)  # to be computed
    repeats: list[int] = field(default_factory=list)  # the same content as one of these
    budget_tokens: int = 0  # what is left if it comes to that


class EncoderGate(Gate):
    """Ends a request's tokens before an input that has no place in the step's budget or in the encoder cache.

    An input that overlaps the step's tokens is computed in this step unless the cache has it.
    Rules: vLLM 0.33.0 v1/core/sched/scheduler.py (_try_schedule_encoder_inputs, _free_encoder_inputs), without
    encoder-decoder models and drafts.

    Args:
        budget_tokens: tokens that the encoder may compute in a step (max_num_encoder_input_tokens).
        whole_inputs: disable_chunked_mm_input: a chunk of the prompt ends before an input that it can't hold whole.
    """

    # 0.23.0 looks into the cache before it asks whether an input fits the chunk, and lets an input that stands at
    # the very start of the chunk be cut.
    asks_cache_first = False
    holds_repeats = True

    def __init__(self, cache: EncoderCache, budget_tokens: int, *, whole_inputs: bool = False) -> None:
        self.cache, self._budget_per_step, self._whole_inputs = cache, budget_tokens, whole_inputs
        self._budget = budget_tokens
        self._output = SchedulerOutput()
        self._plan = _Plan()
        self.in_step: dict[Request, list[int]] = {}  # inputs that this step computes

    def begin_step(self, output: SchedulerOutput) -> None:
        self._budget, self._output, self.in_step = self._budget_per_step, output, {}

    def limit(self, request: Request, computed: int, tokens: int) -> int:
        plan = self._plan = _Plan(budget_tokens=self._budget)
        planned: set[str] = set()  # identities; never iterated
        planned_tokens, end = 0, computed + tokens
        for index, wanted in enumerate(request.demands.encoder_inputs):
            if wanted.end_tokens <= computed:
                continue
            if wanted.start_tokens >= end:
                break
            if not self.asks_cache_first and self._cuts(wanted.start_tokens, wanted.end_tokens, computed, end):
                return max(0, wanted.start_tokens - computed)
            if wanted.identity in planned:
                plan.repeats.append(index)
                continue
            if self.cache.hold(request, index):
                continue
            if self.asks_cache_first and self._cuts(wanted.start_tokens, wanted.end_tokens, computed, end):
                return max(0, wanted.start_tokens - computed)
            fits = wanted.num_tokens <= plan.budget_tokens
            if not (fits and self.cache.make_room(wanted.num_tokens + planned_tokens)):
                # A prefix hit may have ended inside the input: then nothing can be computed before it is encoded.
                return max(0, wanted.start_tokens - computed)
            planned.add(wanted.identity)
            planned_tokens += wanted.num_tokens
            plan.budget_tokens -= wanted.num_tokens
            plan.inputs.append(index)
        return tokens

    def _cuts(self, start: int, stop: int, computed: int, end: int) -> bool:
        """Whether a chunk that ends at ``end`` would cut an input that it may not cut."""
        begins = computed < start or (computed == start and not self.asks_cache_first)
        return self._whole_inputs and begins and end < stop

    def scheduled(self, request: Request) -> None:
        plan, self._plan = self._plan, _Plan()
        if not plan.inputs:
            return
        self.in_step[request] = plan.inputs
        self._budget = plan.budget_tokens
        for index in plan.inputs:
            self.cache.add(request, index)
        for index in plan.repeats if self.holds_repeats else ():
            self.cache.hold(request, index)
        self._output.encoder_tokens += self._tokens(request, plan.inputs)

    def unscheduled(self, request: Request) -> None:
        tokens = self._tokens(request, self.in_step.pop(request, []))
        self._budget += tokens
        self._output.encoder_tokens -= tokens

    def computed(self, request: Request) -> None:
        self.cache.release_computed(request)

    def released(self, request: Request) -> None:
        self.cache.release(request)

    @staticmethod
    def _tokens(request: Request, inputs: list[int]) -> int:
        return sum(request.demands.encoder_inputs[index].num_tokens for index in inputs)


class EncoderGate023(EncoderGate):
    """Release 0.23.0."""

    asks_cache_first = True
    holds_repeats = False
